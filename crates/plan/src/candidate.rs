//! One candidate: devices, cuts and micro-batches; from numbers to a schedule, its memory and its simulated step.

use std::ops::Range;

use outboard_schedule::{
    CostModel, Direction, HostCost, Limits, LinkCost, MicroBatchCost, Placement, Schedule,
    ScheduleKind, StageCost, Timeline, generate, simulate,
};

use crate::plan::{Bytes, StageMemory};
use crate::workload::StageNumbers;
use crate::{Device, LinkProfile};

/// A choice of the search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Indices into all devices, in the order of their first stages.
    pub(crate) devices: Vec<usize>,
    /// Cuts; one stage more than cuts, stage `s` on `devices[s % devices.len()]`.
    pub(crate) cuts: Vec<usize>,
    /// Micro-batches.
    pub(crate) micro_batches: u16,
}

impl Candidate {
    /// The range of nodes of each stage, and its device.
    pub(crate) fn stages(&self, nodes: usize) -> Vec<(Range<usize>, usize)> {
        let starts = std::iter::once(0).chain(self.cuts.iter().copied());
        let ends = self.cuts.iter().copied().chain(std::iter::once(nodes));
        starts
            .zip(ends)
            .zip(self.devices.iter().copied().cycle())
            .map(|((start, end), device)| (start..end, device))
            .collect()
    }
}

/// The samples of each micro-batch: the first `batch % micro_batches` get one more, as `torch.tensor_split` does.
pub(crate) fn split_batch(batch: usize, micro_batches: u16) -> Vec<usize> {
    let count = usize::from(micro_batches.max(1));
    (0..count)
        .map(|index| batch / count + usize::from(index < batch % count))
        .collect()
}

/// The distinct sizes of the micro-batches, largest first, and the class of each micro-batch among them.
pub(crate) fn size_classes(batch: usize, micro_batches: u16) -> (Vec<usize>, Vec<usize>) {
    let of_each = split_batch(batch, micro_batches);
    let mut sizes = of_each.clone();
    sizes.dedup();
    let class = |size: &usize| sizes.iter().position(|other| other == size).unwrap_or(0);
    let classes = of_each.iter().map(class).collect();
    (sizes, classes)
}

/// A candidate with its schedule and step.
#[derive(Clone, Debug)]
pub(crate) struct Evaluated {
    pub(crate) schedule: Schedule,
    pub(crate) model: CostModel,
    pub(crate) timeline: Timeline,
    /// Memory of each stage.
    pub(crate) memory: Vec<StageMemory>,
}

/// Settings that are the same for all candidates of a search.
#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) devices: &'a [Device],
    pub(crate) batch: usize,
    pub(crate) host_seconds_per_byte: f64,
    pub(crate) commit_seconds: f64,
}

/// Schedules and simulates a candidate. `numbers` holds, for each stage, one element for each size class. Fails with a
/// reason where a device's memory is too small, with both numbers, or where the schedule does not fit the placement.
pub(crate) fn evaluate(
    setting: &Setting<'_>,
    candidate: &Candidate,
    kinds: &[ScheduleKind],
    numbers: &[Vec<StageNumbers>],
) -> Result<Evaluated, String> {
    let stages = numbers.len();
    let device_count = candidate.devices.len().max(1);
    let device_of_stage = (0..stages).map(|stage| stage % device_count).collect();
    let placement = Placement::new(device_of_stage).map_err(|error| error.to_string())?;
    let model = cost_model(setting, candidate, numbers);
    let limits = memory_limits(setting, candidate, numbers)?;

    let mut best: Option<(Schedule, Timeline)> = None;
    let mut failure = None;
    for kind in kinds {
        let schedule = match generate(*kind, &placement, candidate.micro_batches, &model, &limits) {
            Ok(schedule) => schedule,
            Err(error) => {
                failure.get_or_insert(describe(setting, candidate, &error));
                continue;
            }
        };
        let timeline = simulate(&schedule, &model).map_err(|error| error.to_string())?;
        if best
            .as_ref()
            .is_none_or(|(_, shortest)| timeline.step_seconds < shortest.step_seconds)
        {
            best = Some((schedule, timeline));
        }
    }
    let Some((schedule, timeline)) = best else {
        return Err(failure.unwrap_or_else(|| "no schedule was asked for".into()));
    };
    let memory = (0..stages)
        .map(|stage| {
            let in_flight = timeline.peak_in_flight.get(stage).copied().unwrap_or(0);
            stage_memory(candidate, numbers, stage, in_flight.into())
        })
        .collect();
    Ok(Evaluated {
        schedule,
        model,
        timeline,
        memory,
    })
}

/// A generator's refusal in terms of the plan's devices.
fn describe(
    setting: &Setting<'_>,
    candidate: &Candidate,
    error: &outboard_schedule::GenerateError,
) -> String {
    if let outboard_schedule::GenerateError::SavedBytes {
        kind,
        device,
        bytes,
        limit,
    } = error
        && let Some(device) = candidate
            .devices
            .get(*device)
            .and_then(|device| setting.devices.get(*device))
    {
        let budget = device.profile.memory_bytes;
        let needs = budget.saturating_sub(*limit).saturating_add(*bytes);
        return format!(
            "{} would need {} with {kind}, it has {}",
            device.name,
            Bytes(needs),
            Bytes(budget)
        );
    }
    error.to_string()
}

fn cost_model(
    setting: &Setting<'_>,
    candidate: &Candidate,
    numbers: &[Vec<StageNumbers>],
) -> CostModel {
    let (_, class_of_micro_batch) = size_classes(setting.batch, candidate.micro_batches);
    let stage_cost = |classes: &Vec<StageNumbers>| StageCost {
        classes: classes
            .iter()
            .map(|numbers| MicroBatchCost {
                seconds: numbers.seconds,
                input_bytes: numbers.input_bytes,
                activation_bytes: numbers.activation_bytes,
                cotangent_bytes: numbers.cotangent_bytes,
                saved_bytes: numbers.saved_bytes,
            })
            .collect(),
        optimizer_seconds: classes
            .first()
            .map_or(0.0, |numbers| numbers.optimizer_seconds),
    };
    let used = || {
        candidate
            .devices
            .iter()
            .map(|device| setting.devices.get(*device))
    };
    CostModel {
        stages: numbers.iter().map(stage_cost).collect(),
        class_of_micro_batch,
        links: used()
            .map(|device| {
                device
                    .and_then(|device| device.link.as_ref())
                    .map(link_cost)
            })
            .collect(),
        host: HostCost {
            device: used().position(|device| device.is_some_and(|device| device.link.is_none())),
            seconds_per_byte: setting.host_seconds_per_byte,
            commit_seconds: setting.commit_seconds,
        },
    }
}

fn link_cost(link: &LinkProfile) -> LinkCost {
    let direction = |bytes_per_second| Direction {
        latency_seconds: link.latency_seconds,
        bytes_per_second,
    };
    LinkCost {
        up: direction(link.up_bytes_per_second),
        down: direction(link.down_bytes_per_second),
        device_seconds_per_byte: link.device_seconds_per_byte,
    }
}

/// Windows of samples and of bulk data that a worker grants before it knows its run, and the heads of frames.
pub(crate) const BASE_WINDOW_BYTES: u64 = 9 << 20;
/// A worker lets this much wait to be sent before it stops computing.
const BACKLOG_BYTES: u64 = 16 << 20;
/// Steps whose samples may have arrived: the one that runs and the next one.
const STEPS_OF_SAMPLES: u64 = 2;

/// What a stage takes with this many micro-batches in flight, as the worker counts it. The largest micro-batch counts for
/// all; what a device needs once stands with its first stage.
fn stage_memory(
    candidate: &Candidate,
    numbers: &[Vec<StageNumbers>],
    stage: usize,
    in_flight: u64,
) -> StageMemory {
    let of = |stage: Option<usize>| {
        stage
            .and_then(|stage| numbers.get(stage)?.first())
            .copied()
            .unwrap_or_default()
    };
    let own = of(Some(stage));
    let micro_batches = u64::from(candidate.micro_batches);
    // All that neighbours send in a step may have arrived before any of it is used.
    let received = of(stage.checked_sub(1))
        .activation_bytes
        .saturating_add(of(stage.checked_add(1)).cotangent_bytes);
    let samples = own.input_bytes.saturating_mul(STEPS_OF_SAMPLES);
    let base = if stage < candidate.devices.len() {
        BASE_WINDOW_BYTES
    } else {
        0
    };
    let departing = own.activation_bytes.max(own.cotangent_bytes);
    StageMemory {
        weights: own.weight_bytes,
        gradients: own.gradient_bytes,
        optimizer: own.optimizer_bytes,
        saved: own.saved_bytes.saturating_mul(in_flight),
        program: own.program_bytes,
        windows: received
            .saturating_add(samples)
            .saturating_mul(micro_batches)
            .saturating_add(base),
        sending: departing
            .saturating_add(BACKLOG_BYTES.min(departing.saturating_mul(micro_batches))),
    }
}

/// What each device has left for saved values once all else has its place; fails where not even one micro-batch of each
/// of its stages fits.
fn memory_limits(
    setting: &Setting<'_>,
    candidate: &Candidate,
    numbers: &[Vec<StageNumbers>],
) -> Result<Limits, String> {
    let mut saved_bytes = Vec::new();
    for (position, index) in candidate.devices.iter().enumerate() {
        let Some(device) = setting.devices.get(*index) else {
            continue;
        };
        let own = || (position..numbers.len()).step_by(candidate.devices.len().max(1));
        let memory = || own().map(|stage| stage_memory(candidate, numbers, stage, 0));
        let program = memory().map(|memory| memory.program).max().unwrap_or(0);
        let fixed = memory()
            .map(|memory| memory.resident())
            .fold(program, u64::saturating_add);
        let least = own()
            .filter_map(|stage| numbers.get(stage)?.first())
            .fold(fixed, |sum, numbers| {
                sum.saturating_add(numbers.saved_bytes)
            });
        let budget = device.profile.memory_bytes;
        if least > budget {
            return Err(format!(
                "{} would need {} at the least, it has {}",
                device.name,
                Bytes(least),
                Bytes(budget)
            ));
        }
        saved_bytes.push(budget - fixed);
    }
    Ok(Limits {
        in_flight: Vec::new(),
        saved_bytes,
    })
}
