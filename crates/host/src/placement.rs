//! Where stages run, and in which order.

use outboard_plan::Plan;
use outboard_schedule::{CostModel, Limits, Schedule, ScheduleKind, generate};

use crate::RunError;

/// Cuts, devices and schedule of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Node indices in the canonical graph; stage `k` holds nodes `[cuts[k-1], cuts[k])`.
    pub cuts: Vec<usize>,
    /// The device behind each device of the schedule: an index into the list given to [`crate::Host::connect`].
    pub devices: Vec<usize>,
    /// What every device does in a step of the full number of micro-batches.
    pub schedule: Schedule,
    /// Makes the lists for batches that have fewer micro-batches.
    pub kind: ScheduleKind,
}

impl Placement {
    /// The placement of a plan; `kind` is the kind of schedule that was asked for.
    pub fn of_plan(plan: &Plan, kind: ScheduleKind) -> Placement {
        Placement {
            cuts: plan.cuts.clone(),
            devices: plan.devices.clone(),
            schedule: plan.schedule.clone(),
            kind,
        }
    }

    /// A placement by hand: these cuts, stage `k` on device `device_of_stage[k]`, without any measurement.
    ///
    /// # Errors
    ///
    /// [`RunError::Plan`] when the kind of schedule does not fit.
    pub fn by_hand(
        cuts: Vec<usize>,
        device_of_stage: &[usize],
        kind: ScheduleKind,
        micro_batches: u16,
    ) -> Result<Placement, RunError> {
        let mut devices: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for device in device_of_stage {
            let place = devices
                .iter()
                .position(|known| known == device)
                .unwrap_or_else(|| {
                    devices.push(*device);
                    devices.len() - 1
                });
            places.push(place);
        }
        let plan_error = |error: &dyn std::fmt::Display| RunError::Plan(error.to_string());
        let stages = places.len();
        let placement =
            outboard_schedule::Placement::new(places).map_err(|error| plan_error(&error))?;
        let costs = CostModel::uniform(stages, [1.0; 3]);
        let schedule = generate(kind, &placement, micro_batches, &costs, &Limits::none())
            .map_err(|error| plan_error(&error))?;
        Ok(Placement {
            cuts,
            devices,
            schedule,
            kind,
        })
    }
}
