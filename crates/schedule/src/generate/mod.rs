//! Makes schedules, one generator a file.

mod auto;
mod fixed;
mod gpipe;
mod hybrid;
mod interleaved;
mod one_f_one_b;
mod zb_h1;

use std::fmt;
use std::str::FromStr;

use crate::{
    CostError, CostModel, Limits, MAX_ACTIONS, MAX_MICRO_BATCHES, MAX_STAGES, Schedule,
    ScheduleError, validate,
};

/// A kind of schedule; prints and parses as in `--schedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScheduleKind {
    /// `gpipe`: all forward, then all backward (Huang et al., arXiv 1811.06965).
    GPipe,
    /// `1f1b`: one forward, one backward; fewer micro-batches in flight (Narayanan et al., arXiv 1806.03377).
    OneFOneB,
    /// `hybrid`: the last stage runs forward and backward as one, the others as GPipe (arXiv 2512.22180).
    Hybrid,
    /// `zb-h1`: weight gradients fill the bubble, at the memory of 1F1B (Qi et al., arXiv 2401.10241).
    ZbH1,
    /// `interleaved`: several stages a device, the bubble divided by their number (Narayanan et al., arXiv 2104.04473).
    Interleaved,
    /// `auto`: the best of all of these and of greedy list scheduling on the cost model.
    Auto,
}

impl ScheduleKind {
    /// All kinds.
    pub const ALL: [ScheduleKind; 6] = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::Hybrid,
        ScheduleKind::ZbH1,
        ScheduleKind::Interleaved,
        ScheduleKind::Auto,
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            ScheduleKind::GPipe => "gpipe",
            ScheduleKind::OneFOneB => "1f1b",
            ScheduleKind::Hybrid => "hybrid",
            ScheduleKind::ZbH1 => "zb-h1",
            ScheduleKind::Interleaved => "interleaved",
            ScheduleKind::Auto => "auto",
        }
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no kind of schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no schedule; take gpipe, 1f1b, hybrid, zb-h1, interleaved or auto")]
pub struct ParseKindError(String);

impl FromStr for ScheduleKind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ScheduleKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| ParseKindError(text.chars().take(32).collect()))
    }
}

/// Which device holds each stage, checked: every device holds at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    device_of_stage: Vec<usize>,
    devices: usize,
}

impl Placement {
    /// Any placement. Fails unless the devices are 0 to their number, each with a stage.
    pub fn new(device_of_stage: Vec<usize>) -> Result<Placement, GenerateError> {
        let stages = device_of_stage.len();
        if stages == 0 || stages > MAX_STAGES {
            return Err(GenerateError::Stages { stages });
        }
        let devices = device_of_stage
            .iter()
            .max()
            .map_or(0, |last| last.saturating_add(1));
        match (0..devices.min(stages + 1)).find(|device| !device_of_stage.contains(device)) {
            Some(device) => Err(GenerateError::EmptyDevice { device }),
            None => Ok(Placement {
                device_of_stage,
                devices,
            }),
        }
    }

    /// Stage `s` on device `s`.
    pub fn one_stage_each(stages: usize) -> Result<Placement, GenerateError> {
        Placement::interleaved(stages, 1)
    }

    /// `stages_per_device` stages on each device, stage `s` on device `s % devices`.
    pub fn interleaved(
        devices: usize,
        stages_per_device: usize,
    ) -> Result<Placement, GenerateError> {
        let stages = devices.saturating_mul(stages_per_device);
        if stages == 0 || stages > MAX_STAGES {
            return Err(GenerateError::Stages { stages });
        }
        Ok(Placement {
            device_of_stage: (0..stages).map(|stage| stage % devices).collect(),
            devices,
        })
    }

    /// The device of each stage.
    pub fn device_of_stage(&self) -> &[usize] {
        &self.device_of_stage
    }

    /// Number of devices.
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.device_of_stage.len()
    }

    /// Stages a device where this is [`Placement::interleaved`].
    pub fn stages_per_device(&self) -> Option<usize> {
        let round_robin = self
            .device_of_stage
            .iter()
            .enumerate()
            .all(|(stage, device)| stage % self.devices == *device);
        (round_robin && self.stages().is_multiple_of(self.devices))
            .then(|| self.stages() / self.devices)
    }
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// Too few or too many stages.
    #[error("a schedule has 1 to {MAX_STAGES} stages, not {stages}")]
    Stages {
        /// Stages asked for.
        stages: usize,
    },
    /// Too few or too many micro-batches.
    #[error("a step of {stages} stages has 1 to {most} micro-batches, not {micro_batches}", most = most_micro_batches(*stages))]
    MicroBatches {
        /// Stages.
        stages: usize,
        /// Micro-batches asked for.
        micro_batches: u16,
    },
    /// A device without a stage.
    #[error("device {device} holds no stage")]
    EmptyDevice {
        /// The device.
        device: usize,
    },
    /// The kind of schedule does not fit the placement.
    #[error(
        "{kind} needs {needs}; {stages} stages are placed on {devices} devices. Take another cut, or `auto`"
    )]
    Placement {
        /// Kind of schedule.
        kind: ScheduleKind,
        /// What it needs.
        needs: &'static str,
        /// Stages.
        stages: usize,
        /// Devices.
        devices: usize,
    },
    /// The schedule breaks a limit.
    #[error("{kind} does not fit: {source}")]
    Limit {
        /// Kind of schedule.
        kind: ScheduleKind,
        /// Which limit, where.
        source: ScheduleError,
    },
    /// What the micro-batches in flight save is over a device's limit.
    #[error(
        "{kind} saves up to {bytes} bytes for micro-batches in flight on device {device}, its limit is {limit}"
    )]
    SavedBytes {
        /// Kind of schedule.
        kind: ScheduleKind,
        /// Device.
        device: usize,
        /// Needed.
        bytes: u64,
        /// Allowed.
        limit: u64,
    },
    /// The cost model does not fit.
    #[error(transparent)]
    Cost(#[from] CostError),
}

fn most_micro_batches(stages: usize) -> usize {
    (MAX_ACTIONS / 3 / stages.max(1)).min(MAX_MICRO_BATCHES)
}

/// Makes a schedule. What comes back is valid and within the limits. `auto` is never slower on the model than any other
/// kind that fits the placement and the limits, and bears the name of that kind when it is one.
pub fn generate(
    kind: ScheduleKind,
    placement: &Placement,
    micro_batches: u16,
    model: &CostModel,
    limits: &Limits,
) -> Result<Schedule, GenerateError> {
    let stages = placement.stages();
    if micro_batches == 0 || usize::from(micro_batches) > most_micro_batches(stages) {
        return Err(GenerateError::MicroBatches {
            stages,
            micro_batches,
        });
    }
    model.check(stages, micro_batches.into())?;
    if kind == ScheduleKind::Auto {
        return auto::generate(placement, micro_batches, model, limits);
    }
    let schedule = match kind {
        ScheduleKind::Interleaved => interleaved::generate(placement, micro_batches)?,
        ScheduleKind::GPipe => fixed::generate(kind, placement, micro_batches, gpipe::order)?,
        ScheduleKind::OneFOneB => {
            fixed::generate(kind, placement, micro_batches, one_f_one_b::order)?
        }
        ScheduleKind::Hybrid => fixed::generate(kind, placement, micro_batches, hybrid::order)?,
        ScheduleKind::ZbH1 | ScheduleKind::Auto => {
            fixed::generate(kind, placement, micro_batches, zb_h1::order)?
        }
    };
    check_limits(kind, &schedule, model, limits)?;
    Ok(schedule)
}

fn check_limits(
    kind: ScheduleKind,
    schedule: &Schedule,
    model: &CostModel,
    limits: &Limits,
) -> Result<(), GenerateError> {
    validate(schedule, limits).map_err(|source| GenerateError::Limit { kind, source })?;
    for (device, limit) in limits.saved_bytes.iter().copied().enumerate() {
        let bytes = peak_saved_bytes(schedule, device, model);
        if bytes > limit {
            return Err(GenerateError::SavedBytes {
                kind,
                device,
                bytes,
                limit,
            });
        }
    }
    Ok(())
}

/// The most bytes that a device saves at once for micro-batches in flight; follows from the order of its list alone.
fn peak_saved_bytes(schedule: &Schedule, device: usize, model: &CostModel) -> u64 {
    let (mut saved, mut peak) = (0u64, 0);
    for action in schedule.actions.get(device).into_iter().flatten() {
        let bytes = model
            .cost(action.stage.into(), action.micro_batch.into())
            .saved_bytes;
        match action.kind {
            crate::Kind::Forward => saved = saved.saturating_add(bytes),
            crate::Kind::Backward => {}
            crate::Kind::Weight => saved = saved.saturating_sub(bytes),
        }
        peak = saved.max(peak);
    }
    peak
}

#[cfg(test)]
mod tests;
