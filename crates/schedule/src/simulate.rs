//! How long a step takes: a schedule replayed on a cost model.

use crate::engine::{self, Policy, State};
use crate::{Action, CostError, CostModel, Kind, Limits, Schedule, ScheduleError, validate};

/// An action on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// Start, from the begin of the step.
    pub start_seconds: f64,
    /// End, likewise.
    pub end_seconds: f64,
}

/// Direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the device to the host.
    Up,
    /// From the host to the device.
    Down,
}

/// What a transfer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carries {
    /// Data from the host's loader.
    Input,
    /// Activations for a stage, from the one before.
    Activation,
    /// Gradients for a stage, from the one after.
    Cotangent,
}

/// A transfer on a link. One between two devices with links appears twice: up, then down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Device at the end of the link.
    pub device: usize,
    /// Direction.
    pub way: Way,
    /// What it carries.
    pub carries: Carries,
    /// The stage it is for.
    pub to_stage: u16,
    /// Its micro-batch.
    pub micro_batch: u16,
    /// Payload.
    pub bytes: u64,
    /// When the link begins to send.
    pub start_seconds: f64,
    /// When the last byte is sent; it arrives a latency later.
    pub end_seconds: f64,
}

/// What happens in a step, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Actions of each device, in order.
    pub devices: Vec<Vec<Span>>,
    /// Transfers of all links, in the order of their start.
    pub transfers: Vec<Transfer>,
    /// The optimizer on each device: start and end. Empty for inference.
    pub updates: Vec<(f64, f64)>,
    /// When the last action ends.
    pub compute_seconds: f64,
    /// From the begin of the step until the host knows that all devices are done, optimizer included.
    pub step_seconds: f64,
    /// Most micro-batches in flight on each stage; empty for inference.
    pub peak_in_flight: Vec<u16>,
    /// Most bytes saved at once on each device for micro-batches in flight.
    pub peak_saved_bytes: Vec<u64>,
}

impl Timeline {
    /// Seconds in which a device runs actions or the optimizer.
    pub fn busy_seconds(&self, device: usize) -> f64 {
        let actions = self.devices.get(device).map_or(&[][..], Vec::as_slice);
        let update = self
            .updates
            .get(device)
            .map_or(0.0, |(start, end)| end - start);
        actions
            .iter()
            .map(|span| span.end_seconds - span.start_seconds)
            .sum::<f64>()
            + update
    }

    /// Seconds of the step in which a device does nothing.
    pub fn idle_seconds(&self, device: usize) -> f64 {
        (self.step_seconds - self.busy_seconds(device)).max(0.0)
    }

    /// The bubble of a device: the idle part of the step, 0 to 1.
    pub fn bubble(&self, device: usize) -> f64 {
        if self.step_seconds > 0.0 {
            self.idle_seconds(device) / self.step_seconds
        } else {
            0.0
        }
    }

    /// The mean bubble over all devices.
    pub fn mean_bubble(&self) -> f64 {
        let devices = self.devices.len().max(1);
        (0..devices).map(|device| self.bubble(device)).sum::<f64>() / devices as f64
    }

    /// Seconds in which a direction of a device's link sends.
    pub fn link_seconds(&self, device: usize, way: Way) -> f64 {
        self.transfers
            .iter()
            .filter(|transfer| transfer.device == device && transfer.way == way)
            .map(|transfer| transfer.end_seconds - transfer.start_seconds)
            .sum()
    }
}

/// Why there is no simulation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The schedule cannot run.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The costs cannot be.
    #[error(transparent)]
    Cost(#[from] CostError),
}

/// Replays a schedule, of training or [of inference](Schedule::forward_only): a device runs the next action of its list as
/// soon as all that it needs has arrived.
pub fn simulate(schedule: &Schedule, model: &CostModel) -> Result<Timeline, SimulateError> {
    let forward_only = schedule.is_forward_only();
    let (peak_in_flight, kinds) = if forward_only {
        schedule.validate_forward_only()?;
        (Vec::new(), &Kind::ALL[..1])
    } else {
        (validate(schedule, &Limits::none())?, &Kind::ALL[..])
    };
    model.check(schedule.stages(), schedule.micro_batches.into())?;
    let mut replay = Replay {
        schedule,
        at: vec![0; schedule.devices()],
    };
    let outcome = engine::run(
        &mut replay,
        &schedule.device_of_stage,
        schedule.devices(),
        schedule.micro_batches,
        kinds,
        model,
    );
    Ok(timeline(
        outcome,
        &schedule.device_of_stage,
        model,
        peak_in_flight,
        forward_only,
    ))
}

/// Adds what follows the actions: reports, the commit, the optimizer.
fn timeline(
    outcome: engine::Outcome,
    device_of_stage: &[usize],
    model: &CostModel,
    peak_in_flight: Vec<u16>,
    forward_only: bool,
) -> Timeline {
    let up = |device: usize| {
        model
            .link(device)
            .map_or(0.0, |link| link.up.latency_seconds)
    };
    let down = |device: usize| {
        model
            .link(device)
            .map_or(0.0, |link| link.down.latency_seconds)
    };
    let ends: Vec<f64> = outcome
        .spans
        .iter()
        .map(|spans| spans.last().map_or(0.0, |span| span.end_seconds))
        .collect();
    let latest = |times: &mut dyn Iterator<Item = f64>| times.fold(0.0, f64::max);
    let compute_seconds = latest(&mut ends.iter().copied());
    let works = |device: &usize| device_of_stage.contains(device);
    let reported = latest(
        &mut (0..ends.len())
            .filter(works)
            .map(|device| ends.get(device).copied().unwrap_or(0.0) + up(device)),
    );
    let mut updates = Vec::new();
    let mut step_seconds = reported;
    if !forward_only {
        let commit = reported + model.host.commit_seconds;
        for device in 0..ends.len() {
            let seconds: f64 = device_of_stage
                .iter()
                .zip(&model.stages)
                .filter(|(holder, _)| **holder == device)
                .map(|(_, stage)| stage.optimizer_seconds)
                .sum();
            let start = commit + if works(&device) { down(device) } else { 0.0 };
            updates.push((start, start + seconds));
        }
        step_seconds = latest(
            &mut updates
                .iter()
                .enumerate()
                .filter(|(device, _)| works(device))
                .map(|(device, (_, end))| end + up(device)),
        );
    }
    Timeline {
        devices: outcome.spans,
        transfers: outcome.transfers,
        updates,
        compute_seconds,
        step_seconds,
        peak_in_flight,
        peak_saved_bytes: outcome.peak_saved_bytes,
    }
}

/// The policy that follows a schedule.
struct Replay<'a> {
    schedule: &'a Schedule,
    at: Vec<usize>,
}

impl Policy for Replay<'_> {
    fn pick(&mut self, device: usize, state: &State<'_>) -> Option<Action> {
        let at = self.at.get_mut(device)?;
        let next = *self.schedule.actions.get(device)?.get(*at)?;
        let ready = state.ready(next.stage.into(), next.kind)?;
        (ready == next).then(|| {
            *at += 1;
            next
        })
    }
}

#[cfg(test)]
mod tests;
