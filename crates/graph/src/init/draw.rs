//! Numbers of one tensor's stream.

use std::f64::consts::TAU;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use sha2::{Digest, Sha256};

use super::Init;

/// An endless stream of numbers that depends on a seed and a name alone.
pub(super) struct Stream {
    random: ChaCha8Rng,
    /// The second of a pair of normal numbers.
    spare: Option<f64>,
}

impl Stream {
    pub(super) fn new(seed: u64, name: &str) -> Stream {
        let mut hash = Sha256::new();
        hash.update(b"outboard initial weights\0");
        hash.update(seed.to_le_bytes());
        hash.update(name.as_bytes());
        Stream {
            random: ChaCha8Rng::from_seed(hash.finalize().into()),
            spare: None,
        }
    }

    pub(super) fn draw(&mut self, init: Init) -> f64 {
        match init {
            Init::Constant(value) => value,
            Init::Uniform { bound } => (2.0 * self.uniform() - 1.0) * bound,
            Init::Normal { std } => self.normal() * std,
            Init::TruncatedNormal { std } => loop {
                let value = self.normal() * std;
                if (-2.0..=2.0).contains(&value) {
                    break value;
                }
            },
        }
    }

    /// Uniform over `[0, 1)`, 53 bits.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Standard normal, by Box and Muller's transform.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        // 1 - u is never 0.
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = TAU * self.uniform();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}
