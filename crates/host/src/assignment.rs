//! What the application's side of a run must know of the model: from batches to steps.

use std::collections::BTreeMap;

use outboard_graph::{Tensor, TensorType};
use outboard_schedule::{CostModel, Limits, generate};
use outboard_wire::StepMode;

use crate::core::{ScheduleSpec, StepInput, StepSpec};
use crate::placement::Placement;
use crate::split::{micro_batch_sizes, split};
use crate::{DeviceId, RunError};

/// A batch: the model's `Data` inputs by name.
pub type Batch = Vec<(String, Tensor)>;

/// A `Data` input of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    pub(crate) stage: u16,
    pub(crate) name: String,
    /// Whether what the loss is divided by depends on it: it is sent before everything else.
    pub(crate) early: bool,
}

/// A model that [`crate::assign`] has cut: makes the steps that [`crate::core::Command`]s ask for.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub(crate) trains: bool,
    /// The model's inputs.
    pub(crate) data: BTreeMap<String, TensorType>,
    pub(crate) training_feeds: Vec<Feed>,
    pub(crate) evaluation_feeds: Vec<Feed>,
    /// Results of an evaluation.
    pub(crate) results: BTreeMap<String, TensorType>,
    pub(crate) smallest_micro_batch: usize,
    pub(crate) largest_batch: usize,
    /// Weights that no stage takes.
    pub(crate) idle_weights: BTreeMap<String, Tensor>,
    pub(crate) placement: Placement,
    /// Micro-batches in flight that the workers plan for, by stage.
    pub(crate) in_flight: Vec<u16>,
}

impl Assignment {
    /// Each device's list for steps of this many micro-batches: the plan's where it is the plan's number, else one of the
    /// same kind, within what the workers planned for.
    ///
    /// # Errors
    ///
    /// [`RunError::Plan`] when there is no such schedule.
    pub fn schedule(&self, micro_batches: u16) -> Result<ScheduleSpec, RunError> {
        let Placement {
            schedule,
            kind,
            devices,
            ..
        } = &self.placement;
        let lists = if schedule.micro_batches == micro_batches {
            schedule.actions.clone()
        } else {
            let placement = outboard_schedule::Placement::new(schedule.device_of_stage.clone())
                .map_err(plan_error)?;
            let limits = Limits {
                in_flight: self.in_flight.clone(),
                ..Limits::none()
            };
            // Gradients cost about twice what the forward pass does, half of it for the weights.
            let costs = CostModel::uniform(schedule.stages(), [1.0; 3]);
            match generate(*kind, &placement, micro_batches, &costs, &limits) {
                Ok(schedule) => schedule.actions,
                // Fewer micro-batches can want more of them in flight. The plan's own lists without the last micro-batches
                // keep their order, so they end, and within the same memory.
                Err(_) if micro_batches < schedule.micro_batches => {
                    let mut lists = schedule.actions.clone();
                    for list in &mut lists {
                        list.retain(|action| action.micro_batch < micro_batches);
                    }
                    lists
                }
                Err(error) => return Err(plan_error(error)),
            }
        };
        let devices = devices.iter().map(|device| DeviceId(*device));
        Ok(ScheduleSpec {
            micro_batches,
            actions: devices.zip(lists).collect(),
        })
    }

    /// A batch as a step with this number, cut into micro-batches.
    ///
    /// # Errors
    ///
    /// [`RunError::Batch`] when the batch does not fit the model or the run.
    pub fn step(
        &self,
        step: u64,
        mode: StepMode,
        batch: &Batch,
        learning_rate: f64,
    ) -> Result<StepSpec, RunError> {
        let (feeds, smallest) = match mode {
            StepMode::Train => (&self.training_feeds, self.smallest_micro_batch),
            StepMode::Evaluate => (&self.evaluation_feeds, 1),
        };
        let rows = self.batch_size(batch)?;
        if rows > self.largest_batch {
            return Err(RunError::Batch(format!(
                "it has {rows} samples, the run was started for {} at the most",
                self.largest_batch
            )));
        }
        let wanted = self.placement.schedule.micro_batches.into();
        let sizes = micro_batch_sizes(rows, wanted, smallest)?;
        let mut parts = BTreeMap::new();
        for (name, ty) in &self.data {
            let Some((_, tensor)) = batch.iter().find(|(given, _)| given == name) else {
                continue;
            };
            parts.insert(name.as_str(), split(name, tensor, ty, &sizes)?);
        }
        let mut inputs = Vec::new();
        // Targets first, of all micro-batches: the loss cannot be divided by its weight before the last is known.
        for early in [true, false] {
            for micro_batch in 0..sizes.len() {
                for feed in feeds.iter().filter(|feed| feed.early == early) {
                    let tensor = parts
                        .get(feed.name.as_str())
                        .and_then(|parts| parts.get(micro_batch))
                        .ok_or_else(|| RunError::Batch(format!("it lacks `{}`", feed.name)))?;
                    inputs.push(StepInput {
                        stage: feed.stage,
                        micro_batch: u16::try_from(micro_batch).unwrap_or(u16::MAX),
                        name: feed.name.clone(),
                        tensor: tensor.clone(),
                    });
                }
            }
        }
        let sizes = sizes
            .into_iter()
            .map(|size| u32::try_from(size).unwrap_or(u32::MAX))
            .collect();
        Ok(StepSpec {
            step,
            mode,
            sizes,
            inputs,
            learning_rate,
        })
    }

    /// Samples of a batch, by the first of its tensors with a batch dimension.
    fn batch_size(&self, batch: &Batch) -> Result<usize, RunError> {
        for (name, tensor) in batch {
            let Some(ty) = self.data.get(name) else {
                let known: Vec<&str> = self.data.keys().map(String::as_str).collect();
                return Err(RunError::Batch(format!(
                    "the model has no input `{name}`; it has {}",
                    known.join(", ")
                )));
            };
            if let (Some(dim), Some(rows)) = (ty.dims.first(), tensor.dims().first())
                && dim.is_batch()
            {
                return Ok(rows / dim.factor().max(1));
            }
        }
        Err(RunError::Batch(
            "none of its tensors has a batch dimension".to_owned(),
        ))
    }
}

fn plan_error(error: impl std::fmt::Display) -> RunError {
    RunError::Plan(error.to_string())
}
