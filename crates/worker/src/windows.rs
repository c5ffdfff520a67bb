//! The receive windows of a worker: how much may arrive before it is used.

use outboard_wire::{Assign, Stream};

use crate::event::JobError;
use crate::stage::{Port, Ports, Signature, refuse};

/// Window of samples and of bulk data before a run is assigned.
pub(crate) const BASE_BYTES: u64 = 4 << 20;

/// More than the head of any data frame: fixed fields, 16 dimensions, 512 bytes of name.
const HEAD_BYTES: u64 = 1024;

/// Steps whose samples may be there at once: the one that runs and the next one.
const STEPS_OF_SAMPLES: u64 = 2;

/// Bytes of the window of each stream towards a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// [`Stream::Samples`].
    pub samples: u64,
    /// [`Stream::Stage`].
    pub stage: u64,
    /// [`Stream::Bulk`].
    pub bulk: u64,
}

impl Windows {
    /// What every link has from its start.
    pub(crate) const BASE: Windows = Windows {
        samples: BASE_BYTES,
        stage: 0,
        bulk: BASE_BYTES,
    };

    /// The windows of a run. The window of stage tensors holds all of them that one step can bring, so a frame never
    /// waits for one that waits behind it.
    pub(crate) fn of(assign: &Assign, signatures: &[Signature]) -> Result<Windows, JobError> {
        let mut windows = Windows::BASE;
        for signature in signatures {
            let stage = signature.stage;
            let too_large = || {
                refuse(
                    stage,
                    "its borders",
                    "a step's tensors are more than a machine can address",
                )
            };
            let local = |other: Option<u16>| {
                other.is_some_and(|other| signatures.iter().any(|s| s.stage == other))
            };
            let micro_batches = u64::from(assign.most_micro_batches);
            let bytes = |ports: &[Port]| {
                frames(ports, assign.largest_micro_batch)?.checked_mul(micro_batches)
            };
            let greatest = |of: &dyn Fn(&Ports) -> Option<u64>| {
                [&signature.train, &signature.evaluate]
                    .into_iter()
                    .flatten()
                    .map(of)
                    .try_fold(0, |most: u64, bytes| Some(most.max(bytes?)))
            };
            let samples = greatest(&|ports| bytes(&ports.data)?.checked_mul(STEPS_OF_SAMPLES));
            let from_others = greatest(&|ports| {
                let mut sum = 0_u64;
                if !local(stage.checked_sub(1)) {
                    sum = sum.checked_add(bytes(&ports.activations_in)?)?;
                }
                if !local(stage.checked_add(1)) {
                    sum = sum.checked_add(bytes(&ports.cotangents_in)?)?;
                }
                Some(sum)
            });
            windows.samples = windows
                .samples
                .saturating_add(samples.ok_or_else(too_large)?);
            windows.stage = windows
                .stage
                .saturating_add(from_others.ok_or_else(too_large)?);
        }
        for shared in &assign.shared {
            let spec = assign
                .stages
                .iter()
                .flat_map(|stage| &stage.weights)
                .find(|spec| spec.name == shared.name);
            if let Some(spec) = spec {
                let bytes = spec
                    .dims
                    .iter()
                    .fold(spec.dtype.bytes() as u64, |bytes, dim| {
                        bytes.saturating_mul(*dim)
                    })
                    .saturating_add(HEAD_BYTES);
                let frames = (shared.uses.len() as u64).saturating_mul(shared.stages.len() as u64);
                windows.bulk = windows.bulk.saturating_add(bytes.saturating_mul(frames));
            }
        }
        Ok(windows)
    }

    pub(crate) fn get(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Samples => self.samples,
            Stream::Stage => self.stage,
            Stream::Bulk => self.bulk,
        }
    }

    /// The larger one of each stream.
    pub(crate) fn max(self, other: Windows) -> Windows {
        Windows {
            samples: self.samples.max(other.samples),
            stage: self.stage.max(other.stage),
            bulk: self.bulk.max(other.bulk),
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.samples
            .saturating_add(self.stage)
            .saturating_add(self.bulk)
    }
}

/// Bytes of one frame for each port, unencoded.
pub(crate) fn frames(ports: &[Port], samples: u32) -> Option<u64> {
    ports.iter().try_fold(0_u64, |sum, port| {
        sum.checked_add(port.ty.bytes(samples as usize)?.checked_add(HEAD_BYTES)?)
    })
}
