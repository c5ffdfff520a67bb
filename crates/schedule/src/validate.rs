//! Whether a schedule can run: every action once, in order, without deadlock, within memory.

use std::collections::VecDeque;

use crate::{Action, Kind, MAX_ACTIONS, MAX_MICRO_BATCHES, MAX_STAGES, Schedule, grid};

/// What a schedule may hold in memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Most micro-batches in flight on each stage: `F` has started, `W` has not ended. Empty: no limit.
    pub in_flight: Vec<u16>,
    /// Most bytes that the micro-batches in flight may save on each device, by the cost model's
    /// [`saved_bytes`](crate::MicroBatchCost::saved_bytes). Empty: no limit. Only [`generate`](crate::generate()) looks at it.
    pub saved_bytes: Vec<u64>,
}

impl Limits {
    /// No limit.
    pub fn none() -> Limits {
        Limits::default()
    }

    /// The limit of one stage.
    pub fn in_flight(&self, stage: usize) -> usize {
        self.in_flight
            .get(stage)
            .map_or(usize::MAX, |most| usize::from(*most))
    }
}

/// Why a schedule cannot run. Where an action is at fault, the message ends with the step x device grid around it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// No stages, no micro-batches, or a list too many or too few.
    #[error("schedule {name}: {reason}")]
    Size {
        /// Name of the schedule.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A stage or micro-batch that does not exist.
    #[error(
        "device {device} runs {action}, but there are {stages} stages and {micro_batches} micro-batches\n{grid}"
    )]
    Unknown {
        /// Device.
        device: usize,
        /// Its action.
        action: Action,
        /// Stages.
        stages: usize,
        /// Micro-batches.
        micro_batches: u16,
        /// For people.
        grid: String,
    },
    /// A stage that the device does not hold.
    #[error("device {device} runs {action}, but device {holder} holds stage {stage}\n{grid}", stage = action.stage)]
    WrongDevice {
        /// Device.
        device: usize,
        /// Its action.
        action: Action,
        /// The device that holds the stage.
        holder: usize,
        /// For people.
        grid: String,
    },
    /// An action that its device has run before.
    #[error("device {device} runs {action} twice\n{grid}")]
    Twice {
        /// Device.
        device: usize,
        /// Its action.
        action: Action,
        /// For people.
        grid: String,
    },
    /// An action before one that must come first on the same device.
    #[error("device {device} runs {action} before {first}\n{grid}")]
    Order {
        /// Device.
        device: usize,
        /// Its action.
        action: Action,
        /// What must come first.
        first: Action,
        /// For people.
        grid: String,
    },
    /// An action that no device runs.
    #[error("device {device} never runs {action}")]
    Missing {
        /// Device that should.
        device: usize,
        /// The action.
        action: Action,
    },
    /// An action of a kind that this step has none of.
    #[error("device {device} runs {action}, but a step of inference has no gradients")]
    Gradient {
        /// Device.
        device: usize,
        /// The action.
        action: Action,
    },
    /// More micro-batches in flight than the stage may hold.
    #[error(
        "at {action}, stage {stage} holds {in_flight} micro-batches in flight, its limit is {limit}\n{grid}",
        stage = action.stage
    )]
    InFlight {
        /// The action that is too much.
        action: Action,
        /// Micro-batches in flight with it.
        in_flight: usize,
        /// The limit.
        limit: usize,
        /// For people.
        grid: String,
    },
    /// Every device with something left to do waits for another one.
    #[error("deadlock: {}\n{grid}", waiting(waits))]
    Deadlock {
        /// Each waiting device, what it would run, and the action that this needs.
        waits: Vec<(usize, Action, Action)>,
        /// For people.
        grid: String,
    },
}

fn waiting(waits: &[(usize, Action, Action)]) -> String {
    let wait = |(device, action, needs): &(usize, Action, Action)| {
        format!("device {device} waits with {action} for {needs}")
    };
    let shown: Vec<String> = waits.iter().take(4).map(wait).collect();
    let more = waits.len() - shown.len();
    shown.join(", ")
        + &if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        }
}

/// Checks a training step's schedule: each device runs exactly the actions of its stages, `F`, `B` and `W` of a
/// micro-batch in that order, each kind of a stage in the order of micro-batches (sums over micro-batches would have
/// other bits otherwise), nothing waits for ever, and no stage holds more micro-batches in flight than its limit.
///
/// Gives the most micro-batches in flight on each stage. Takes time and memory in proportion to the number of actions.
pub fn validate(schedule: &Schedule, limits: &Limits) -> Result<Vec<u16>, ScheduleError> {
    check(schedule, limits, &Kind::ALL)
}

impl Schedule {
    /// Checks a schedule of inference, made by [`Schedule::forward_only`]: as [`validate`], without gradients.
    pub fn validate_forward_only(&self) -> Result<(), ScheduleError> {
        check(self, &Limits::none(), &[Kind::Forward]).map(|_| ())
    }
}

fn check(schedule: &Schedule, limits: &Limits, kinds: &[Kind]) -> Result<Vec<u16>, ScheduleError> {
    check_size(schedule)?;
    let peaks = check_lists(schedule, limits, kinds)?;
    check_progress(schedule)?;
    Ok(peaks)
}

fn check_size(schedule: &Schedule) -> Result<(), ScheduleError> {
    let fail = |reason: String| {
        Err(ScheduleError::Size {
            name: schedule.name.chars().take(64).collect(),
            reason,
        })
    };
    let (stages, devices) = (schedule.stages(), schedule.devices());
    let micro_batches = usize::from(schedule.micro_batches);
    if stages == 0 || stages > MAX_STAGES {
        return fail(format!("{stages} stages; it takes 1 to {MAX_STAGES}"));
    }
    if micro_batches == 0 || micro_batches > MAX_MICRO_BATCHES {
        return fail(format!(
            "{micro_batches} micro-batches; it takes 1 to {MAX_MICRO_BATCHES}"
        ));
    }
    if 3 * stages * micro_batches > MAX_ACTIONS {
        return fail(format!(
            "{stages} stages of {micro_batches} micro-batches are over {MAX_ACTIONS} actions; take fewer micro-batches"
        ));
    }
    if devices > MAX_STAGES {
        return fail(format!("{devices} devices; at most {MAX_STAGES}"));
    }
    if let Some(device) = schedule
        .device_of_stage
        .iter()
        .find(|device| **device >= devices)
    {
        return fail(format!(
            "a stage is on device {device}, but there are lists for {devices} devices"
        ));
    }
    Ok(())
}

/// Checks each device's list by itself; gives each stage's peak of micro-batches in flight.
fn check_lists(
    schedule: &Schedule,
    limits: &Limits,
    kinds: &[Kind],
) -> Result<Vec<u16>, ScheduleError> {
    // Each kind of a stage runs in the order of micro-batches, so one counter says all that has run.
    let mut next = vec![[0u16; 3]; schedule.stages()];
    let mut peaks = vec![0u16; schedule.stages()];
    for (device, actions) in schedule.actions.iter().enumerate() {
        for (at, action) in actions.iter().copied().enumerate() {
            let grid = || grid::around(schedule, device, at);
            let stage = usize::from(action.stage);
            let (Some(counters), Some(holder)) =
                (next.get_mut(stage), schedule.device_of_stage.get(stage))
            else {
                return Err(unknown(schedule, device, action, grid()));
            };
            if action.micro_batch >= schedule.micro_batches {
                return Err(unknown(schedule, device, action, grid()));
            }
            if *holder != device {
                return Err(ScheduleError::WrongDevice {
                    device,
                    action,
                    holder: *holder,
                    grid: grid(),
                });
            }
            if !kinds.contains(&action.kind) {
                return Err(ScheduleError::Gradient { device, action });
            }
            let kind = action.kind.index();
            if action.micro_batch < counters[kind] {
                return Err(ScheduleError::Twice {
                    device,
                    action,
                    grid: grid(),
                });
            }
            if action.micro_batch > counters[kind] {
                let first = Action {
                    micro_batch: counters[kind],
                    ..action
                };
                return Err(ScheduleError::Order {
                    device,
                    action,
                    first,
                    grid: grid(),
                });
            }
            if let Some(before) = kind.checked_sub(1)
                && counters[before] <= action.micro_batch
            {
                let first = Action {
                    kind: Kind::ALL[before],
                    ..action
                };
                return Err(ScheduleError::Order {
                    device,
                    action,
                    first,
                    grid: grid(),
                });
            }
            counters[kind] += 1;
            if action.kind == Kind::Forward && kinds.len() > 1 {
                let in_flight = counters[0] - counters[2];
                let limit = limits.in_flight(stage);
                if usize::from(in_flight) > limit {
                    return Err(ScheduleError::InFlight {
                        action,
                        in_flight: in_flight.into(),
                        limit,
                        grid: grid(),
                    });
                }
                if let Some(peak) = peaks.get_mut(stage) {
                    *peak = in_flight.max(*peak);
                }
            }
        }
    }
    for ((stage, counters), device) in (0u16..).zip(&next).zip(&schedule.device_of_stage) {
        for kind in kinds {
            let micro_batch = counters[kind.index()];
            if micro_batch < schedule.micro_batches {
                let action = Action {
                    stage,
                    kind: *kind,
                    micro_batch,
                };
                return Err(ScheduleError::Missing {
                    device: *device,
                    action,
                });
            }
        }
    }
    Ok(peaks)
}

fn unknown(schedule: &Schedule, device: usize, action: Action, grid: String) -> ScheduleError {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches);
    ScheduleError::Unknown {
        device,
        action,
        stages,
        micro_batches,
        grid,
    }
}

/// The action on another stage that must have run before this one, if any.
pub(crate) fn needs(action: Action, stages: usize) -> Option<Action> {
    match action.kind {
        Kind::Forward => Some(Action {
            stage: action.stage.checked_sub(1)?,
            ..action
        }),
        Kind::Backward => {
            let stage = action.stage.checked_add(1)?;
            (usize::from(stage) < stages).then_some(Action { stage, ..action })
        }
        Kind::Weight => None,
    }
}

/// Runs the lists, one step an action, and fails when nothing moves any more. Expects lists that passed [`check_lists`].
fn check_progress(schedule: &Schedule) -> Result<(), ScheduleError> {
    let stages = schedule.stages();
    // The step in which `F` and `B` of each stage and micro-batch ran; they run in the order of micro-batches.
    let mut ran: Vec<[Vec<usize>; 2]> = vec![[Vec::new(), Vec::new()]; stages];
    let step_of_needed = |ran: &[[Vec<usize>; 2]], needed: Action| {
        ran.get(usize::from(needed.stage))?
            .get(needed.kind.index())?
            .get(usize::from(needed.micro_batch))
            .copied()
    };
    let mut step_of: Vec<Vec<usize>> = vec![Vec::new(); schedule.devices()];
    let mut awake: VecDeque<usize> = (0..schedule.devices()).collect();
    while let Some(device) = awake.pop_front() {
        let (Some(list), Some(steps)) = (schedule.actions.get(device), step_of.get_mut(device))
        else {
            continue;
        };
        while let Some(action) = list.get(steps.len()).copied() {
            let own = steps.last().map_or(0, |last| last + 1);
            let step = match needs(action, stages) {
                None => own,
                Some(needed) => match step_of_needed(&ran, needed) {
                    Some(other) => own.max(other + 1),
                    None => break,
                },
            };
            steps.push(step);
            let stage = usize::from(action.stage);
            if let Some(list) = ran
                .get_mut(stage)
                .and_then(|kinds| kinds.get_mut(action.kind.index()))
            {
                list.push(step);
            }
            let wakes = match action.kind {
                Kind::Forward => stage.checked_add(1),
                Kind::Backward => stage.checked_sub(1),
                Kind::Weight => None,
            };
            if let Some(other) = wakes.and_then(|stage| schedule.device_of_stage.get(stage))
                && *other != device
            {
                awake.push_back(*other);
            }
        }
    }
    let waits: Vec<(usize, Action, Action)> = (0..schedule.devices())
        .filter_map(|device| {
            let action = *schedule
                .actions
                .get(device)?
                .get(step_of.get(device)?.len())?;
            Some((device, action, needs(action, stages)?))
        })
        .collect();
    if waits.is_empty() {
        return Ok(());
    }
    Err(ScheduleError::Deadlock {
        waits,
        grid: grid::stuck(schedule, &step_of),
    })
}

#[cfg(test)]
mod tests;
