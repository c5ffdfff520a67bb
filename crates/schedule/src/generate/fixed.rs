//! What the schedules with one stage a device share.

use crate::{Action, GenerateError, Placement, Schedule, ScheduleKind};

/// Gives the list of one stage: `(stage, stages, micro_batches)`.
pub(super) type Order = fn(u16, u16, u16) -> Vec<Action>;

/// Builds the schedule from the list of each stage.
pub(super) fn generate(
    kind: ScheduleKind,
    placement: &Placement,
    micro_batches: u16,
    order: Order,
) -> Result<Schedule, GenerateError> {
    let (stages, devices) = (placement.stages(), placement.devices());
    if stages != devices {
        return Err(GenerateError::Placement {
            kind,
            needs: "one stage on each device",
            stages,
            devices,
        });
    }
    // A placement has at most `MAX_STAGES` stages.
    let count = u16::try_from(stages).map_err(|_| GenerateError::Stages { stages })?;
    let mut actions = vec![Vec::new(); devices];
    for (stage, device) in (0..count).zip(placement.device_of_stage()) {
        if let Some(list) = actions.get_mut(*device) {
            *list = order(stage, count, micro_batches);
        }
    }
    Ok(Schedule {
        name: kind.name().to_owned(),
        micro_batches,
        device_of_stage: placement.device_of_stage().to_vec(),
        actions,
    })
}

/// `warm_up` forwards, then one forward and one backward in turn until there is no forward left, then the backwards.
/// Before micro-batch `i`'s backward, the weight gradient of micro-batch `i - lag` is done at the latest.
pub(super) fn one_forward_one_backward(
    stage: u16,
    micro_batches: u16,
    warm_up: u16,
    lag: u16,
) -> Vec<Action> {
    let warm_up = warm_up.min(micro_batches);
    let mut list: Vec<Action> = (0..warm_up)
        .map(|micro_batch| Action::forward(stage, micro_batch))
        .collect();
    for backward in 0..micro_batches {
        if let Some(forward) = backward
            .checked_add(warm_up)
            .filter(|forward| *forward < micro_batches)
        {
            list.push(Action::forward(stage, forward));
        }
        list.push(Action::backward(stage, backward));
        if let Some(weight) = backward.checked_sub(lag) {
            list.push(Action::weight(stage, weight));
        }
    }
    list.extend(
        (micro_batches.saturating_sub(lag)..micro_batches)
            .map(|micro_batch| Action::weight(stage, micro_batch)),
    );
    list
}
