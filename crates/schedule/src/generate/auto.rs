//! Auto: greedy list scheduling on the cost model, against every fixed schedule; the fastest wins.
//!
//! List scheduling (Graham 1969): whenever a device is idle it runs the most urgent of its ready actions. Links are part of
//! the simulated machine, so what is ready and when follows from them. How many micro-batches a stage takes in before it
//! prefers to wait, and what is most urgent, is tried in a few ways.

use super::check_limits;
use crate::engine::{self, Policy, State};
use crate::{
    Action, CostModel, GenerateError, Kind, Limits, Placement, Schedule, ScheduleKind, simulate,
};

/// The fixed schedules in the order of preference at equal length: fewer micro-batches in flight first.
const FIXED: [ScheduleKind; 5] = [
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::Hybrid,
    ScheduleKind::GPipe,
    ScheduleKind::Interleaved,
];

pub(super) fn generate(
    placement: &Placement,
    micro_batches: u16,
    model: &CostModel,
    limits: &Limits,
) -> Result<Schedule, GenerateError> {
    let mut best: Option<(f64, Schedule)> = None;
    let mut first_error = None;
    let mut consider = |candidate: Result<Schedule, GenerateError>| {
        let simulated = candidate.map(|schedule| {
            simulate(&schedule, model).map(|timeline| (timeline.step_seconds, schedule))
        });
        match simulated {
            Ok(Ok((seconds, schedule))) => {
                // Sums of the same costs in another order differ in their last bits: that is no gain.
                if best
                    .as_ref()
                    .is_none_or(|(shortest, _)| seconds < shortest * (1.0 - 1e-9))
                {
                    best = Some((seconds, schedule));
                }
            }
            Ok(Err(_)) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    };
    for kind in FIXED {
        // With one stage a device, `interleaved` is `1f1b`.
        if kind != ScheduleKind::Interleaved || placement.stages() > placement.devices() {
            consider(super::generate(
                kind,
                placement,
                micro_batches,
                model,
                limits,
            ));
        }
    }
    for lead in [Lead::Falling, Lead::Level, Lead::Double, Lead::All] {
        for urgency in [
            Urgency::Backward,
            Urgency::BackwardThenWeight,
            Urgency::Forward,
        ] {
            let mut greedy = Greedy {
                limits,
                lead,
                urgency,
                weight_next: vec![None; placement.devices()],
            };
            consider(greedy.generate(placement, micro_batches, model));
        }
    }
    match (best, first_error) {
        (Some((_, schedule)), _) => Ok(schedule),
        (None, Some(error)) => Err(error),
        (None, None) => Err(GenerateError::MicroBatches {
            stages: placement.stages(),
            micro_batches,
        }),
    }
}

/// How many micro-batches a stage takes in flight: `p` is the number of stages, `s` the stage.
#[derive(Clone, Copy)]
enum Lead {
    /// `p - s`, as 1F1B.
    Falling,
    /// `p`, as ZB-H1.
    Level,
    /// `2 p`: slow links need more under way.
    Double,
    /// All.
    All,
}

/// Which kind a device prefers.
#[derive(Clone, Copy, PartialEq)]
enum Urgency {
    /// Backward, forward, weight.
    Backward,
    /// The same, but the weight gradient follows its backward at once.
    BackwardThenWeight,
    /// Forward, backward, weight.
    Forward,
}

struct Greedy<'a> {
    limits: &'a Limits,
    lead: Lead,
    urgency: Urgency,
    weight_next: Vec<Option<Action>>,
}

impl Greedy<'_> {
    fn generate(
        &mut self,
        placement: &Placement,
        micro_batches: u16,
        model: &CostModel,
    ) -> Result<Schedule, GenerateError> {
        let devices = placement.devices();
        let outcome = engine::run(
            self,
            placement.device_of_stage(),
            devices,
            micro_batches,
            &Kind::ALL,
            model,
        );
        let schedule = Schedule {
            name: ScheduleKind::Auto.name().to_owned(),
            micro_batches,
            device_of_stage: placement.device_of_stage().to_vec(),
            actions: outcome
                .spans
                .into_iter()
                .map(|spans| spans.into_iter().map(|span| span.action).collect())
                .collect(),
        };
        // Where the limits left no way to go on, actions are missing.
        check_limits(ScheduleKind::Auto, &schedule, model, self.limits)?;
        Ok(schedule)
    }

    fn may_take_in(&self, device: usize, action: Action, state: &State<'_>) -> bool {
        let stage = usize::from(action.stage);
        let stages = state.stages();
        let lead = match self.lead {
            Lead::Falling => stages - stage,
            Lead::Level => stages,
            Lead::Double => 2 * stages,
            Lead::All => usize::MAX,
        };
        let bytes = state
            .model
            .cost(stage, action.micro_batch.into())
            .saved_bytes;
        let limit = self
            .limits
            .saved_bytes
            .get(device)
            .copied()
            .unwrap_or(u64::MAX);
        state.in_flight(stage) < lead.min(self.limits.in_flight(stage))
            && state.saved_bytes(device).saturating_add(bytes) <= limit
    }
}

impl Policy for Greedy<'_> {
    fn pick(&mut self, device: usize, state: &State<'_>) -> Option<Action> {
        let weight_next = self.weight_next.get_mut(device)?;
        if let Some(weight) = weight_next.take() {
            return Some(weight);
        }
        let stages = state.stages_of_device.get(device)?;
        let kinds = match self.urgency {
            Urgency::Forward => [Kind::Forward, Kind::Backward, Kind::Weight],
            Urgency::Backward | Urgency::BackwardThenWeight => {
                [Kind::Backward, Kind::Forward, Kind::Weight]
            }
        };
        let most_urgent = kinds.into_iter().find_map(|kind| {
            // Late stages first: their micro-batches are the furthest.
            stages.iter().rev().find_map(|stage| {
                let action = state.ready(*stage, kind)?;
                (kind != Kind::Forward || self.may_take_in(device, action, state)).then_some(action)
            })
        })?;
        if most_urgent.kind == Kind::Backward
            && self.urgency == Urgency::BackwardThenWeight
            && let Some(weight_next) = self.weight_next.get_mut(device)
        {
            *weight_next = Some(Action {
                kind: Kind::Weight,
                ..most_urgent
            });
        }
        Some(most_urgent)
    }
}
