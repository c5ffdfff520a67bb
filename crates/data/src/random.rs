//! Seeded randomness: each use has its own ChaCha8 stream, so no use disturbs another.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream keyed by what it is for and three numbers.
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    pub(crate) fn new(purpose: &[u8; 8], seed: u64, epoch: u64, index: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(purpose);
        key[8..16].copy_from_slice(&seed.to_le_bytes());
        key[16..24].copy_from_slice(&epoch.to_le_bytes());
        key[24..].copy_from_slice(&index.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number below `bound`, each as likely; 0 when the bound is 0.
    ///
    /// Written here, so that a run can be resumed after an update of a crate (Lemire, arXiv 1805.10941).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        if bound == 0 {
            return 0;
        }
        let reject_below = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            if product as u64 >= reject_below {
                return (product >> 64) as usize;
            }
        }
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.0.next_u32() & 1 == 1
    }
}

/// The order in which an epoch visits `len` samples: a permutation that depends on the seed and the epoch alone.
pub fn epoch_order(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut stream = Stream::new(b"order\0\0\0", seed, epoch, 0);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, stream.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_that_never_changes() {
        let order = epoch_order(100, 7, 0);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(order, epoch_order(100, 7, 1));
        assert_ne!(order, epoch_order(100, 8, 0));
        // A checkpoint counts on it.
        assert_eq!(epoch_order(10, 7, 0), GOLDEN);
        assert!(epoch_order(0, 7, 0).is_empty());
    }

    const GOLDEN: [usize; 10] = [6, 4, 2, 5, 9, 7, 0, 1, 8, 3];

    #[test]
    fn bounds_hold_and_all_numbers_come() {
        let mut stream = Stream::new(b"test\0\0\0\0", 1, 2, 3);
        let mut counts = [0_usize; 6];
        for _ in 0..6000 {
            counts[stream.below(6)] += 1;
        }
        // Five standard deviations of a binomial distribution: sqrt(6000 / 6 * 5 / 6) = 29.
        assert!(
            counts.iter().all(|count| count.abs_diff(1000) < 145),
            "{counts:?}"
        );
        assert_eq!((stream.below(0), stream.below(1)), (0, 0));
    }
}
