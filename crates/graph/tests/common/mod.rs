//! What several test files share.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod cases;
pub(crate) mod generated;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// So many generated inputs, the same on every run.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(0x6f75_7462_6f61_7264),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}
