//! A truer prediction: the plan's own actions, as a rehearsal measured them.
//!
//! Operators measured one by one run with warm caches and the device to themselves. Once the plan stands, a few steps of it
//! tell what its actions take in place; playing the schedule through on those gives the prediction to report.

use std::collections::BTreeMap;

use outboard_schedule::{Action, simulate};

use crate::signature::model_error;
use crate::{Plan, PlanError};

/// What actions and optimizers took in rehearsed steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rehearsed {
    /// Seconds of each action, one for each step.
    pub actions: Vec<(Action, f64)>,
    /// Seconds of the optimizers of all stages of a device, one for each step; devices are indices into the list given to
    /// the search.
    pub updates: Vec<(usize, f64)>,
}

impl Plan {
    /// Replaces what was estimated from operators by the medians of what was rehearsed, and predicts again. What was not
    /// rehearsed, or in no sensible time, stays. So does the schedule.
    ///
    /// Gives, by index of the device, how many times as long its actions took as was estimated.
    ///
    /// # Errors
    /// When the plan's schedule and cost model do not belong together any more.
    pub fn refine(&mut self, rehearsed: &Rehearsed) -> Result<BTreeMap<usize, f64>, PlanError> {
        let mut actions: BTreeMap<(usize, usize, usize), Vec<f64>> = BTreeMap::new();
        for (action, seconds) in &rehearsed.actions {
            let class = (self.cost_model.class_of_micro_batch)
                .get(usize::from(action.micro_batch))
                .copied()
                .unwrap_or(0);
            actions
                .entry((usize::from(action.stage), class, action.kind.index()))
                .or_default()
                .push(*seconds);
        }
        // Measured and estimated, by device.
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for ((stage, class, kind), seconds) in actions {
            let (Some(planned), Some(slot), Some(measured)) = (
                self.stages.get_mut(stage),
                (self.cost_model.stages.get_mut(stage))
                    .and_then(|cost| cost.classes.get_mut(class)?.seconds.get_mut(kind)),
                median(seconds),
            ) else {
                continue;
            };
            let sums = sums.entry(planned.device).or_default();
            sums.0 += measured;
            sums.1 += *slot;
            *slot = measured;
            if class == 0
                && let Some(shown) = planned.seconds.get_mut(kind)
            {
                *shown = measured;
            }
        }
        let mut updates: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for (device, seconds) in &rehearsed.updates {
            updates.entry(*device).or_default().push(*seconds);
        }
        for (device, seconds) in updates {
            let Some(measured) = median(seconds) else {
                continue;
            };
            let own: Vec<&mut f64> = (self.stages.iter().zip(&mut self.cost_model.stages))
                .filter(|(planned, _)| planned.device == device)
                .map(|(_, cost)| &mut cost.optimizer_seconds)
                .collect();
            // A device tells of all its stages together.
            let share = measured / own.len().max(1) as f64;
            for slot in own {
                *slot = share;
            }
        }
        self.timeline = simulate(&self.schedule, &self.cost_model).map_err(model_error)?;
        self.predicted_step_seconds = self.timeline.step_seconds;
        Ok(sums
            .into_iter()
            .map(|(device, (measured, estimated))| (device, measured / estimated))
            .filter(|(_, ratio)| ratio.is_finite() && *ratio > 0.0)
            .collect())
    }
}

/// The middle of all sensible ones.
fn median(mut seconds: Vec<f64>) -> Option<f64> {
    seconds.retain(|seconds| seconds.is_finite() && *seconds >= 0.0);
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}
