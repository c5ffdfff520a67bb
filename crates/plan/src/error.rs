//! Why there is no plan.

/// Why there is no plan; each says what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No devices, or too many.
    #[error("a plan takes 1 to {most} devices, not {given}")]
    Devices {
        /// Devices given.
        given: usize,
        /// The limit.
        most: usize,
    },
    /// A number that cannot be.
    #[error("{what} is {value}; {needs}")]
    Number {
        /// Which.
        what: String,
        /// The number.
        value: f64,
        /// What it must be.
        needs: &'static str,
    },
    /// Micro-batches that cannot be made from the batch.
    #[error("a batch of {batch} samples cannot be cut into micro-batches: {reason}")]
    MicroBatches {
        /// Samples.
        batch: usize,
        /// Why.
        reason: String,
    },
    /// The cuts asked for cannot be made.
    #[error("--cut {}: {reason}", join(cuts))]
    Cuts {
        /// The cuts asked for.
        cuts: Vec<usize>,
        /// Why not, and what to try.
        reason: String,
    },
    /// A device lacks a measurement that the search needs; measure what `signatures` lists first.
    #[error("{device} has not measured {missing} of {wanted} programs, such as\n{signature}")]
    NotMeasured {
        /// Name of the device.
        device: String,
        /// How many lack.
        missing: usize,
        /// How many are needed.
        wanted: usize,
        /// The first that lacks.
        signature: String,
    },
    /// The model has no gradient programs, or cannot be cut or sized.
    #[error("the model cannot be planned: {0}")]
    Model(String),
    /// Every candidate is impossible.
    #[error("no plan fits: {}", reasons.join("; "))]
    Impossible {
        /// Distinct reasons, of the best candidates first.
        reasons: Vec<String>,
    },
}

pub(crate) fn join(cuts: &[usize]) -> String {
    cuts.iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(",")
}
