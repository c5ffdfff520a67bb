//! From a graph and its placement to what every worker is told.

use std::collections::BTreeMap;

use outboard_graph::{Tensor, TensorType};
use outboard_schedule::Action;

use crate::core::RunSpec;
use crate::{DeviceId, RunError, RunOptions};

/// A `Data` input of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    pub(crate) stage: u16,
    pub(crate) name: String,
    /// Whether the loss is divided by something that depends on it: it is sent before everything else.
    pub(crate) early: bool,
}

/// What the application's side of a run must know of the model.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) trains: bool,
    /// The model's inputs.
    pub(crate) data: BTreeMap<String, TensorType>,
    pub(crate) training_feeds: Vec<Feed>,
    pub(crate) evaluation_feeds: Vec<Feed>,
    /// Results of an evaluation.
    pub(crate) results: BTreeMap<String, TensorType>,
    pub(crate) smallest_micro_batch: usize,
    /// Weights that no stage takes.
    pub(crate) idle_weights: BTreeMap<String, Tensor>,
}

impl Assignment {
    pub(crate) fn actions(
        &self,
        _micro_batches: u16,
    ) -> Result<Vec<(DeviceId, Vec<Action>)>, RunError> {
        Err(RunError::Stopped)
    }
}

pub(crate) fn assign(
    _run: &RunOptions,
    _devices: usize,
) -> Result<(Assignment, RunSpec), RunError> {
    Err(RunError::Stopped)
}
