//! A host and its workers on virtual time: both cores, the wire between them and the arithmetic are real; links, clocks and
//! the time that computing takes follow from a seed.
//!
//! ```text
//!   host::core::Core --frames--> testkit::Network --bytes, cut anywhere--> worker::Worker --jobs--> worker::Runtime
//! ```

mod device;
mod host;
mod party;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use world::{Connected, Outcome, World};

/// Runs a test from each seed below `usual`, or below `OUTBOARD_SEEDS`; names the seed that fails.
pub(crate) fn each_seed(usual: u64, test: impl Fn(u64)) {
    let seeds = std::env::var("OUTBOARD_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok())
        .unwrap_or(usual);
    for seed in 0..seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            panic!("seed {seed}: {}", message(&*panic));
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}
