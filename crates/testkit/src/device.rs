//! A device that computes nothing worth having, but takes its time over it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use outboard_graph::{DType, Tensor, TensorError};

use crate::Noise;

/// How long a device takes for each kind of job, how that varies, and when it slows down or dies.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    noise: Noise,
    usual: Duration,
    paces: BTreeMap<String, Duration>,
    jitter: f64,
    factors: Vec<(Duration, f64)>,
    dead_from: Option<Duration>,
}

impl FakeDevice {
    /// Every job takes this long.
    pub fn new(seed: u64, usual: Duration) -> Self {
        Self {
            noise: Noise::new(seed),
            usual,
            paces: BTreeMap::new(),
            jitter: 0.0,
            factors: Vec::new(),
            dead_from: None,
        }
    }

    /// Jobs of this name take this long.
    #[must_use]
    pub fn with_pace(mut self, job: &str, takes: Duration) -> Self {
        self.paces.insert(job.to_owned(), takes);
        self
    }

    /// Every job takes up to this fraction longer, at random.
    #[must_use]
    pub fn with_jitter(mut self, fraction: f64) -> Self {
        self.jitter = fraction;
        self
    }

    /// Jobs that begin at this time or later take `factor` times as long: heat.
    #[must_use]
    pub fn slower_from(mut self, at: Duration, factor: f64) -> Self {
        self.factors.push((at, factor));
        self
    }

    /// Jobs that begin at this time or later never end, though the device still talks.
    #[must_use]
    pub fn dead_from(mut self, at: Duration) -> Self {
        self.dead_from = Some(at);
        self
    }

    /// How long a job that begins now takes; `None` when it never ends.
    pub fn takes(&mut self, now: Duration, job: &str) -> Option<Duration> {
        if self.dead_from.is_some_and(|dead_from| now >= dead_from) {
            return None;
        }
        let pace = self.paces.get(job).copied().unwrap_or(self.usual);
        let heat: f64 = self
            .factors
            .iter()
            .filter(|(at, _)| now >= *at)
            .map(|(_, factor)| factor)
            .product();
        let seconds = pace.as_secs_f64() * heat * (1.0 + self.jitter * self.noise.fraction());
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// The trivial result of a job: a tensor whose elements all depend on its name alone (`f32` and `i64` in 0..1000,
    /// `bool` 0 or 1), so that one that lands in another's place is noticed.
    ///
    /// # Errors
    /// [`TensorError`] for a shape that does not fit memory.
    pub fn result(
        &self,
        name: &str,
        dtype: DType,
        dims: Vec<usize>,
    ) -> Result<Tensor, TensorError> {
        let seed = name.bytes().fold(0, |hash: u64, byte| {
            hash.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        let value = Noise::new(seed).below(1000);
        let element: Vec<u8> = match dtype {
            DType::F32 => (value as f32).to_le_bytes().into(),
            DType::I64 => value.to_le_bytes().into(),
            DType::Bool => vec![(value % 2) as u8],
            DType::F16 | DType::BF16 => vec![0; 2],
        };
        let bytes = Tensor::zeros(dtype, dims.clone())?.data().len();
        let data: Bytes = element.into_iter().cycle().take(bytes).collect();
        Tensor::from_bytes(dtype, dims, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn jobs_take_their_pace_then_more_then_for_ever() {
        let mut device = FakeDevice::new(1, SECOND)
            .with_pace("0F", 2 * SECOND)
            .slower_from(10 * SECOND, 1.5)
            .slower_from(20 * SECOND, 2.0)
            .dead_from(30 * SECOND);
        assert_eq!(device.takes(Duration::ZERO, "0F"), Some(2 * SECOND));
        assert_eq!(device.takes(Duration::ZERO, "0B"), Some(SECOND));
        assert_eq!(device.takes(10 * SECOND, "0F"), Some(3 * SECOND));
        assert_eq!(device.takes(20 * SECOND, "0F"), Some(6 * SECOND));
        assert_eq!(device.takes(30 * SECOND, "0F"), None);
    }

    #[test]
    fn jitter_is_bounded_and_comes_from_the_seed() {
        let times = |seed| -> Vec<_> {
            let mut device = FakeDevice::new(seed, SECOND).with_jitter(0.5);
            (0..50)
                .filter_map(|_| device.takes(Duration::ZERO, "0F"))
                .collect()
        };
        assert!(
            times(3)
                .iter()
                .all(|time| *time >= SECOND && *time < SECOND.mul_f64(1.5))
        );
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
    }

    #[test]
    fn results_tell_their_names_apart() {
        let device = FakeDevice::new(0, SECOND);
        let a = device.result("%1", DType::F32, vec![2, 2]).unwrap();
        let b = device.result("%2", DType::F32, vec![2, 2]).unwrap();
        assert_ne!(a, b);
        let elements = a.to_f32_vec().unwrap();
        assert!(elements.iter().all(|x| *x == elements[0] && x.is_finite()));
        assert!(device.result("%3", DType::Bool, vec![3]).is_ok());
    }
}
