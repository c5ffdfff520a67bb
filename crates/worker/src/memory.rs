//! How much memory an assignment takes, known before it is accepted.

use std::fmt;

/// Bytes that a worker's part of a run takes at the most, by what takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Parameters, frozen weights and buffers.
    pub weights: u64,
    /// A gradient sum for each use of a parameter.
    pub gradients: u64,
    /// The optimizer's tensors.
    pub optimizer: u64,
    /// Saved values of all micro-batches in flight.
    pub saved: u64,
    /// Values on their way from one stage of this worker to the next.
    pub exchange: u64,
    /// The greatest peak of any program: its inputs, its outputs and everything between.
    pub program: u64,
    /// Receive windows: what may arrive before it is used.
    pub windows: u64,
    /// Tensors that wait to be sent.
    pub sending: u64,
}

impl MemoryPlan {
    /// All of it.
    pub fn total(&self) -> u64 {
        [
            self.weights,
            self.gradients,
            self.optimizer,
            self.saved,
            self.exchange,
            self.program,
            self.windows,
            self.sending,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// Names the parts, largest first, so that a person sees what to shrink.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = [
            (self.weights, "weights"),
            (self.gradients, "gradients"),
            (self.optimizer, "optimizer state"),
            (self.saved, "saved values"),
            (self.exchange, "values between its stages"),
            (self.program, "the largest program"),
            (self.windows, "receive windows"),
            (self.sending, "tensors to send"),
        ];
        parts.sort_by_key(|part| std::cmp::Reverse(part.0));
        write!(f, "{}", Bytes(self.total()))?;
        let mut before = " (";
        for (bytes, name) in parts.into_iter().filter(|part| part.0 > 0) {
            write!(f, "{before}{name} {}", Bytes(bytes))?;
            before = ", ";
        }
        if before == ", " {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// A number of bytes as people write it: `1.5 GiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_tells_its_parts_largest_first() {
        let plan = MemoryPlan {
            weights: 3 << 20,
            saved: 1 << 30,
            windows: 512,
            ..MemoryPlan::default()
        };
        assert_eq!(plan.total(), (3 << 20) + (1 << 30) + 512);
        assert_eq!(
            plan.to_string(),
            "1.00 GiB (saved values 1.00 GiB, weights 3.00 MiB, receive windows 512 bytes)"
        );
        assert_eq!(MemoryPlan::default().to_string(), "0 bytes");
    }

    #[test]
    fn absurd_parts_do_not_overflow() {
        let plan = MemoryPlan {
            weights: u64::MAX,
            saved: u64::MAX,
            ..MemoryPlan::default()
        };
        assert_eq!(plan.total(), u64::MAX);
    }
}
