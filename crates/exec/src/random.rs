//! Counter-based random numbers: where, when and on how many threads a dropout runs never changes its bits.
//!
//! Element `i` of a mask is word `i` of the ChaCha8 keystream whose 256-bit key is
//!
//! ```text
//! seed (8 bytes) | step (8) | key of the dropout node (8) | micro-batch (4) | "drop" (4)        all little-endian
//! ```
//!
//! with nonce 0. A keystream can be entered at any word, so threads and devices produce any part of it alone.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::RandomKey;

/// Elements that one thread draws at a time: enough to outweigh the set-up of a key.
const CHUNK: usize = 1 << 14;

/// Fills `mask` with a dropout's mask: 1 where the element is kept, which happens with probability `1 - p`.
///
/// `node_key` is the attribute `key` of `native_dropout`. Element `i` is kept when its uniform number in `[0, 1)`, a
/// multiple of 2^-24, is at least `p`: with `p = 0` all are kept, with `p = 1` none is.
pub fn dropout_mask(key: RandomKey, node_key: u64, p: f64, mask: &mut [u8]) {
    mask.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(chunk, part)| {
            let mut random = generator(key, node_key);
            random.set_word_pos((chunk * CHUNK) as u128);
            for kept in part {
                *kept = u8::from(uniform(random.next_u32()) >= p);
            }
        });
}

/// What a dropout multiplies the kept elements with: `1 / (1 - p)`, and 0 where nothing is kept, as PyTorch does.
pub fn dropout_scale(p: f64) -> f64 {
    if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 }
}

fn generator(key: RandomKey, node_key: u64) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    bytes[0..8].copy_from_slice(&key.seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&key.step.to_le_bytes());
    bytes[16..24].copy_from_slice(&node_key.to_le_bytes());
    bytes[24..28].copy_from_slice(&key.micro_batch.to_le_bytes());
    bytes[28..32].copy_from_slice(b"drop");
    ChaCha8Rng::from_seed(bytes)
}

/// The upper 24 bits of a word as a fraction, which f32 and f64 hold exactly.
fn uniform(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RandomKey = RandomKey {
        seed: 7,
        step: 3,
        micro_batch: 2,
    };

    fn mask(key: RandomKey, node_key: u64, p: f64, length: usize) -> Vec<u8> {
        let mut mask = vec![9; length];
        dropout_mask(key, node_key, p, &mut mask);
        mask
    }

    /// Runs that resume from a checkpoint of another version must draw the same masks: these never change.
    #[test]
    fn golden() {
        let words: Vec<u32> = {
            let mut random = generator(KEY, 11);
            (0..4).map(|_| random.next_u32()).collect()
        };
        assert_eq!(words, GOLDEN_WORDS);
        let text: String = mask(KEY, 11, 0.5, 32).iter().map(u8::to_string).collect();
        assert_eq!(text, GOLDEN_MASK);
    }

    // From an implementation of ChaCha8 other than the crate's.
    const GOLDEN_WORDS: [u32; 4] = [0x467009ea, 0xb574a65f, 0x5ef890fd, 0x573ebc25];
    const GOLDEN_MASK: &str = "01001010110110011000111011111101";

    #[test]
    fn an_element_does_not_depend_on_threads_or_length() {
        let long = mask(KEY, 1, 0.3, 3 * CHUNK + 17);
        let mut serial = generator(KEY, 1);
        for (i, &kept) in long.iter().enumerate() {
            assert_eq!(kept == 1, uniform(serial.next_u32()) >= 0.3, "element {i}");
        }
        assert_eq!(mask(KEY, 1, 0.3, CHUNK + 1), long[..CHUNK + 1]);
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            assert_eq!(pool.install(|| mask(KEY, 1, 0.3, long.len())), long);
        }
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let base = mask(KEY, 1, 0.5, 256);
        assert_ne!(mask(RandomKey { seed: 8, ..KEY }, 1, 0.5, 256), base);
        assert_ne!(mask(RandomKey { step: 4, ..KEY }, 1, 0.5, 256), base);
        assert_ne!(
            mask(
                RandomKey {
                    micro_batch: 3,
                    ..KEY
                },
                1,
                0.5,
                256
            ),
            base
        );
        assert_ne!(mask(KEY, 2, 0.5, 256), base);
    }

    #[test]
    fn keeps_the_right_fraction() {
        assert!(mask(KEY, 1, 0.0, 1000).iter().all(|&kept| kept == 1));
        assert!(mask(KEY, 1, 1.0, 1000).iter().all(|&kept| kept == 0));
        let kept: usize = mask(KEY, 1, 0.1, 100_000)
            .iter()
            .map(|&kept| usize::from(kept))
            .sum();
        // Five standard deviations of a binomial distribution: sqrt(n p (1 - p)) = 95.
        assert!(kept.abs_diff(90_000) < 475, "kept {kept} of 100000");
        assert_eq!(dropout_scale(0.0), 1.0);
        assert_eq!(dropout_scale(0.5), 2.0);
        assert_eq!(dropout_scale(1.0), 0.0);
    }
}
