//! Interleaved 1F1B: device `d` of `p` holds the stages `d`, `d + p`, `d + 2p`, ...
//!
//! Narayanan et al., arXiv 2104.04473, section 2.2.2: with `v` stages a device the bubble is a `v`-th of 1F1B's. Each device
//! takes micro-batches in groups of `p`: the group through its first stage, then through its second, and so on. The paper
//! needs `m` to be a multiple of `p`; here the last group is as small as it must be. Which of its next forward and its next
//! backward a device runs is settled by playing the schedule through on equal costs, which cannot deadlock: when all
//! devices wait, any of them goes on with what is ready.

use crate::engine::{self, Policy, State};
use crate::{Action, CostModel, GenerateError, Kind, Placement, Schedule, ScheduleKind};

pub(super) fn generate(
    placement: &Placement,
    micro_batches: u16,
) -> Result<Schedule, GenerateError> {
    let kind = ScheduleKind::Interleaved;
    let (stages, devices) = (placement.stages(), placement.devices());
    let per_device = placement
        .stages_per_device()
        .ok_or(GenerateError::Placement {
            kind,
            needs: "the same number of stages on each device, stage s on device s % devices",
            stages,
            devices,
        })?;
    let mut policy = Interleave {
        devices: (0..devices)
            .map(|device| Device::new(device, devices, per_device, micro_batches))
            .collect(),
    };
    let outcome = engine::run(
        &mut policy,
        placement.device_of_stage(),
        devices,
        micro_batches,
        &Kind::ALL,
        &CostModel::uniform(stages, [1.0; 3]),
    );
    let list = |spans: Vec<crate::Span>| spans.into_iter().map(|span| span.action).collect();
    Ok(Schedule {
        name: kind.name().to_owned(),
        micro_batches,
        device_of_stage: placement.device_of_stage().to_vec(),
        actions: outcome.spans.into_iter().map(list).collect(),
    })
}

struct Device {
    /// Forwards in order, and how many have run.
    forwards: Vec<Action>,
    forward: usize,
    /// Backwards in order, and how many have run.
    backwards: Vec<Action>,
    backward: usize,
    /// Forwards ahead of backwards once the pipeline is full.
    warm_up: usize,
    /// Runs next, after its backward.
    weight: Option<Action>,
}

impl Device {
    fn new(device: usize, devices: usize, per_device: usize, micro_batches: u16) -> Device {
        let group = u16::try_from(devices).unwrap_or(u16::MAX);
        let stages = |reversed: bool| {
            (0..per_device).map(move |chunk| {
                let chunk = if reversed {
                    per_device - 1 - chunk
                } else {
                    chunk
                };
                u16::try_from(chunk * devices + device).unwrap_or(u16::MAX)
            })
        };
        let order = |make: fn(u16, u16) -> Action, reversed: bool| -> Vec<Action> {
            (0..micro_batches)
                .step_by(group.into())
                .flat_map(|first| {
                    let end = first.saturating_add(group).min(micro_batches);
                    stages(reversed).flat_map(move |stage| {
                        (first..end).map(move |micro_batch| make(stage, micro_batch))
                    })
                })
                .collect()
        };
        Device {
            forwards: order(Action::forward, false),
            forward: 0,
            backwards: order(Action::backward, true),
            backward: 0,
            // With one stage a device this is 1F1B, which needs half the lead.
            warm_up: if per_device == 1 {
                devices - 1 - device
            } else {
                2 * (devices - 1 - device) + (per_device - 1) * devices
            },
            weight: None,
        }
    }

    fn next_forward(&self, state: &State<'_>) -> Option<Action> {
        let next = *self.forwards.get(self.forward)?;
        (state.ready(next.stage.into(), Kind::Forward)? == next).then_some(next)
    }

    fn next_backward(&self, state: &State<'_>) -> Option<Action> {
        let next = *self.backwards.get(self.backward)?;
        (state.ready(next.stage.into(), Kind::Backward)? == next).then_some(next)
    }

    fn take(&mut self, action: Action) -> Action {
        match action.kind {
            Kind::Forward => self.forward += 1,
            Kind::Backward => {
                self.backward += 1;
                self.weight = Some(Action {
                    kind: Kind::Weight,
                    ..action
                });
            }
            Kind::Weight => self.weight = None,
        }
        action
    }
}

struct Interleave {
    devices: Vec<Device>,
}

impl Policy for Interleave {
    fn pick(&mut self, device: usize, state: &State<'_>) -> Option<Action> {
        let device = self.devices.get_mut(device)?;
        let wants_forward = device.forward < device.forwards.len()
            && device.forward - device.backward <= device.warm_up;
        let next = match device.weight {
            Some(weight) => Some(weight),
            None if wants_forward => device.next_forward(state),
            None => device.next_backward(state),
        };
        next.map(|action| device.take(action))
    }

    fn stalled(&mut self, state: &State<'_>) -> Option<(usize, Action)> {
        self.devices
            .iter_mut()
            .enumerate()
            .find_map(|(index, device)| {
                let next = device
                    .next_backward(state)
                    .or_else(|| device.next_forward(state))?;
                Some((index, device.take(next)))
            })
    }
}
