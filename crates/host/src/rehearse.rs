//! From profiles to a plan that has been tried: what operators cost alone is not quite what they cost in a run.

use std::collections::BTreeMap;

use outboard_graph::{Graph, InputKind, Tensor};
use outboard_plan::{DeviceProfile, Plan, PlanError, Rehearsed, SearchOptions};
use outboard_wire::{Optimizer, TensorEncoding};

use crate::{Batch, Host, Placement, Progress, RunError, RunOptions};

/// Steps that are measured: this share of the run's ...
const SHARE: u64 = 10;
/// ... but no more than these, nor than take this long.
const MOST_STEPS: u64 = 16;
const MOST_SECONDS: f64 = 5.0;

/// For a run of this many steps, what they tell of the devices is worth another search.
const STEPS_FOR_SEARCH: u64 = 30;

/// The run that a plan is for.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// Steps, where that is known. A longer run is rehearsed for longer.
    pub steps: Option<u64>,
    /// Its optimizer.
    pub optimizer: Optimizer,
    /// How f32 tensors between stages will travel.
    pub encoding: TensorEncoding,
}

impl Host {
    /// Searches for the fastest plan of `graph` on the devices, from their profiles and the links as measured. Then rehearses
    /// a few steps of it, on zeros, and predicts the step again from what its actions took. Unless the run is short, what
    /// that tells of the devices goes into a second search, and the plan that was faster on stage is taken. Device indices
    /// in the plan are those of the list given to [`Host::connect`].
    ///
    /// # Errors
    ///
    /// [`RunError::Plan`] when no plan fits, with the reason; a device over its memory; a lost device;
    /// [`RunError::Usage`] during a run.
    pub fn plan(
        &self,
        graph: &Graph,
        profiles: &[DeviceProfile],
        options: &SearchOptions,
        rehearsal: &Rehearsal,
        mut progress: impl FnMut(Progress),
    ) -> Result<Plan, RunError> {
        let mut plan = self.search(graph, profiles, options)?;
        let steps = rehearsal.steps_for(&plan);
        let slower = self.rehearse(graph, &mut plan, options, rehearsal, steps, &mut progress)?;
        if !rehearsal.is_long() || slower.is_empty() {
            return Ok(plan);
        }
        let mut other = self.search(graph, &corrected(profiles, &slower), options)?;
        if (&other.cuts, &other.devices, &other.schedule)
            == (&plan.cuts, &plan.devices, &plan.schedule)
        {
            return Ok(plan);
        }
        self.rehearse(graph, &mut other, options, rehearsal, steps, &mut progress)?;
        Ok(
            if other.predicted_step_seconds < plan.predicted_step_seconds {
                other
            } else {
                plan
            },
        )
    }

    /// Runs a plan for `steps` steps after one that fills caches, and corrects its prediction. Gives, by device, how many
    /// times as long its actions took as was estimated; nothing for a model that cannot take zeros.
    fn rehearse(
        &self,
        graph: &Graph,
        plan: &mut Plan,
        search: &SearchOptions,
        rehearsal: &Rehearsal,
        steps: u64,
        progress: &mut impl FnMut(Progress),
    ) -> Result<BTreeMap<usize, f64>, RunError> {
        let batch = plan.micro_batch_sizes.iter().sum();
        let options = RunOptions {
            graph: graph.clone(),
            placement: Placement::of_plan(plan, search.schedule),
            weights: zeros(graph, batch, InputKind::is_weight)?
                .into_iter()
                .collect(),
            optimizer: Some(rehearsal.optimizer),
            optimizer_state: BTreeMap::new(),
            first_step: 0,
            seed: 0,
            encoding: rehearsal.encoding,
            clip_norm: None,
            largest_batch: batch,
        };
        let inputs: Batch = zeros(graph, batch, |kind| kind == InputKind::Data)?;
        let mut run = self.start(options, &mut *progress)?;
        let mut rehearsed = Rehearsed::default();
        for step in 0..=steps {
            progress(Progress::Rehearsing {
                done: step,
                total: steps + 1,
            });
            let report = match run.step(inputs.clone(), 0.0) {
                Ok(report) => report,
                // Nothing is wrong with a model that divides by its input.
                Err(RunError::NotFinite { .. }) => return Ok(BTreeMap::new()),
                Err(error) => return Err(error),
            };
            if step == 0 {
                continue;
            }
            for device in report.devices {
                let seconds = |timed: &crate::TimedAction| timed.duration.as_secs_f64();
                let actions = device.actions.iter();
                (rehearsed.actions).extend(actions.map(|timed| (timed.action, seconds(timed))));
                (rehearsed.updates).push((device.device.0, device.update_seconds));
            }
        }
        run.finish()?;
        plan.refine(&rehearsed).map_err(plan_error)
    }
}

impl Rehearsal {
    fn is_long(&self) -> bool {
        self.steps.is_none_or(|steps| steps >= STEPS_FOR_SEARCH)
    }

    /// How many steps of a plan are worth measuring.
    fn steps_for(&self, plan: &Plan) -> u64 {
        let in_time = (MOST_SECONDS / plan.predicted_step_seconds) as u64;
        (self.steps.map_or(MOST_STEPS, |steps| steps / SHARE))
            .min(in_time)
            .clamp(1, MOST_STEPS)
    }
}

fn plan_error(error: PlanError) -> RunError {
    RunError::Plan(error.to_string())
}

/// Zeros for all inputs of some kinds.
fn zeros(
    graph: &Graph,
    batch: usize,
    wanted: impl Fn(InputKind) -> bool,
) -> Result<Vec<(String, Tensor)>, RunError> {
    let model_error = |what: &dyn std::fmt::Display| RunError::Model(what.to_string());
    (graph.inputs.iter())
        .filter(|input| wanted(input.kind))
        .map(|input| {
            let ty = graph.ty(input.value);
            let dims = ty.and_then(|ty| ty.sizes(batch));
            let (Some(ty), Some(dims)) = (ty, dims) else {
                return Err(model_error(&format!("`{}` has no size", input.name)));
            };
            let zeros = Tensor::zeros(ty.dtype, dims).map_err(|error| model_error(&error))?;
            Ok((input.name.clone(), zeros))
        })
        .collect()
}

/// Profiles of devices that take this many times as long. One that took no part counts as the mean of the others.
fn corrected(profiles: &[DeviceProfile], slower: &BTreeMap<usize, f64>) -> Vec<DeviceProfile> {
    let mean = slower.values().sum::<f64>() / slower.len().max(1) as f64;
    profiles
        .iter()
        .enumerate()
        .map(|(device, profile)| {
            let factor = slower.get(&device).copied().unwrap_or(mean);
            let mut profile = profile.clone();
            for seconds in profile.seconds.values_mut() {
                *seconds *= factor;
            }
            profile
        })
        .collect()
}
