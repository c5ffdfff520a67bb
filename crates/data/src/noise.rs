//! Made-up images, to measure how fast training is without any data at hand.

use std::str::FromStr;

use crate::dataset::out_of_range;
use crate::{DataError, Dataset, DatasetInfo, Image, Sample, Split};

/// Classes: as many as ImageNet has.
const CLASSES: usize = 1000;
/// Images to train on, and to measure on.
const TRAIN: usize = 4096;
const TEST: usize = 256;

/// The size of made-up images; prints and parses as `3x224`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoiseSize {
    channels: usize,
    side: usize,
}

impl FromStr for NoiseSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (channels, side) = text.split_once('x').ok_or(())?;
        let channels = channels.parse().map_err(|_| ())?;
        let side = side.parse().map_err(|_| ())?;
        ((1..=3).contains(&channels) && (1..=4096).contains(&side))
            .then_some(NoiseSize { channels, side })
            .ok_or(())
    }
}

impl std::fmt::Display for NoiseSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.channels, self.side)
    }
}

/// Images of noise in classes of no meaning, each always the same.
#[derive(Clone, Debug)]
pub struct Noise {
    info: DatasetInfo,
    size: NoiseSize,
    first: usize,
    count: usize,
}

impl Noise {
    /// Noise of a size.
    pub fn new(size: NoiseSize, split: Split) -> Self {
        let (first, count) = match split {
            Split::Train => (0, TRAIN),
            Split::Test => (TRAIN, TEST),
        };
        Noise {
            info: DatasetInfo {
                name: format!("noise:{size}"),
                classes: (0..CLASSES).map(|class| class.to_string()).collect(),
                channels: size.channels,
                size: Some((size.side, size.side)),
                mean: vec![0.5; size.channels],
                std: vec![0.29; size.channels],
                mirrors: true,
            },
            size,
            first,
            count,
        }
    }
}

impl Dataset for Noise {
    fn info(&self) -> &DatasetInfo {
        &self.info
    }

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        let outside = || out_of_range(&self.info, index, self.count);
        if index >= self.count {
            return Err(outside());
        }
        let NoiseSize { channels, side } = self.size;
        // Knuth's multiplicative congruential generator (MMIX), four pixels a step.
        let mut state = (self.first + index) as u64;
        let mut pixels = vec![0; channels * side * side];
        for chunk in pixels.chunks_mut(4) {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // The high bits are the random ones.
            let bytes = (state >> 32).to_le_bytes();
            for (pixel, byte) in chunk.iter_mut().zip(bytes) {
                *pixel = byte;
            }
        }
        Ok(Sample {
            image: Image::new(channels, side, side, pixels).ok_or_else(outside)?,
            label: (self.first + index) * 389 % CLASSES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_the_same_each_time_and_different_each_place() {
        let size: NoiseSize = "3x20".parse().unwrap();
        let noise = Noise::new(size, Split::Train);
        assert_eq!(noise.get(5).unwrap(), noise.get(5).unwrap());
        assert_ne!(noise.get(5).unwrap().image, noise.get(6).unwrap().image);
        let test = Noise::new(size, Split::Test);
        assert_ne!(noise.get(5).unwrap().image, test.get(5).unwrap().image);
        assert!(noise.get(TRAIN).is_err());
        let pixels = noise.get(0).unwrap().image;
        let sum: u32 = pixels.pixels().iter().map(|&pixel| u32::from(pixel)).sum();
        assert!((100..156).contains(&(sum / 1200)));
        for text in ["", "3", "0x20", "3x0", "4x20", "3x5000", "3x-1"] {
            assert!(text.parse::<NoiseSize>().is_err(), "{text}");
        }
    }
}
