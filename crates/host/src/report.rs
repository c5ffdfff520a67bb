//! What a step took, on one clock.

use std::time::Duration;

use outboard_schedule::{Action, Span, Timeline};
use outboard_wire::DataKind;

use crate::DeviceId;

/// One training step. Times count on the host's clock, from when the host was made.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Number of the step.
    pub step: u64,
    /// The batch's loss: the sum of loss sums over the sum of loss weights.
    pub loss: f64,
    /// Samples of each micro-batch.
    pub sizes: Vec<u32>,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// What gradients were multiplied by; exactly 1 when not clipped.
    pub gradient_scale: f32,
    /// Learning rate that was applied.
    pub learning_rate: f64,
    /// From the first input handed to a link, or the end of the step before if that was later, to the last device done.
    pub seconds: f64,
    /// When the step began.
    pub started: Duration,
    /// When the last device was done.
    pub ended: Duration,
    /// Each device of the run.
    pub devices: Vec<DeviceStep>,
    /// Every tensor that crossed a link, in the order it left.
    pub transfers: Vec<Transfer>,
}

/// A device's share of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStep {
    /// Device.
    pub device: DeviceId,
    /// When each action ran.
    pub actions: Vec<TimedAction>,
    /// Seconds the optimizer took.
    pub update_seconds: f64,
    /// Bytes in use at the most.
    pub peak_bytes: u64,
    /// 0 (cool) to 3 (critical), where the device tells.
    pub heat: Option<u8>,
}

/// When an action ran, on the host's clock. The offset of the worker's clock comes from the fastest of recent pings and is
/// wrong by at most half of its round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedAction {
    /// The action.
    pub action: Action,
    /// Start.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
}

/// A tensor on its way over the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Who sent it; `None` is the host.
    pub from: Option<DeviceId>,
    /// Who got it; `None` is the host.
    pub to: Option<DeviceId>,
    /// What it is.
    pub kind: DataKind,
    /// The stage it is for.
    pub stage: u16,
    /// Micro-batch.
    pub micro_batch: u16,
    /// Bytes on the wire, head included.
    pub bytes: u64,
    /// When the host had it whole.
    pub queued: Duration,
    /// When its last byte was handed to the receiver's link.
    pub written: Duration,
}

impl StepReport {
    /// The step as it was on the clock, in the form of a simulated one, to draw and to compare. `devices` are those of the
    /// run's placement, in the order of its schedule.
    pub fn timeline(&self, devices: &[usize]) -> Timeline {
        let seconds = |time: Duration| time.saturating_sub(self.started).as_secs_f64();
        let place = |device: DeviceId| devices.iter().position(|known| *known == device.0);
        let mut timeline = Timeline {
            devices: vec![Vec::new(); devices.len()],
            transfers: Vec::new(),
            updates: vec![(0.0, 0.0); devices.len()],
            compute_seconds: 0.0,
            step_seconds: seconds(self.ended),
            peak_in_flight: Vec::new(),
            peak_saved_bytes: Vec::new(),
        };
        for step in &self.devices {
            let Some(place) = place(step.device) else {
                continue;
            };
            let spans = step.actions.iter().map(|timed| Span {
                action: timed.action,
                start_seconds: seconds(timed.start),
                end_seconds: seconds(timed.start + timed.duration),
            });
            let spans: Vec<Span> = spans.collect();
            let end = spans
                .iter()
                .map(|span| span.end_seconds)
                .fold(0.0, f64::max);
            timeline.compute_seconds = timeline.compute_seconds.max(end);
            if let Some(update) = timeline.updates.get_mut(place) {
                // The optimizer is the last thing that a device does in a step.
                *update = (
                    timeline.step_seconds - step.update_seconds,
                    timeline.step_seconds,
                );
            }
            if let Some(device) = timeline.devices.get_mut(place) {
                *device = spans;
            }
        }
        timeline
    }
}
