//! Numbers from a seed, for tests.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.word() % (high - low + 1) as u64) as usize
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.word() & 1 == 1
    }

    /// Uniform in `[low, high)`.
    pub(crate) fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn floats(&mut self, count: usize, low: f64, high: f64) -> Vec<f64> {
        (0..count).map(|_| self.float(low, high)).collect()
    }
}
