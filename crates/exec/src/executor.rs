//! What every engine offers.

use outboard_graph::{Graph, Tensor};

use crate::{StepSize, UpdateRule};

/// What a device says of its engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// `cpu`, `reference`.
    pub name: String,
    /// What a person recognises: processor or adapter.
    pub device: String,
    /// Compute threads.
    pub threads: usize,
}

/// Names one micro-batch's random numbers: a dropout's mask depends on this and on the node's `key` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RandomKey {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Micro-batch within the step.
    pub micro_batch: u32,
}

/// Why an engine could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// An operator that the engine lacks.
    #[error("{engine} cannot run `{op}` (at {scope:?})")]
    Unsupported {
        /// Engine.
        engine: &'static str,
        /// The node's text.
        op: String,
        /// The node's scope.
        scope: String,
    },
    /// The program is not concrete, or the inputs do not fit it.
    #[error("{0}")]
    Invalid(String),
    /// A value out of its range, such as a class index over the number of classes.
    #[error("`{op}` (at {scope:?}): {reason}")]
    Value {
        /// The node's text.
        op: String,
        /// The node's scope.
        scope: String,
        /// What is wrong and what to try.
        reason: String,
    },
    /// The engine itself failed: a defect, or no memory.
    #[error("the engine failed in `{op}` (at {scope:?}): {reason}")]
    Failed {
        /// The node's text.
        op: String,
        /// The node's scope.
        scope: String,
        /// What the engine said.
        reason: String,
    },
}

/// An engine. A program is an [`outboard_graph::Graph`] without symbolic dimensions that passed `verify`.
///
/// Tensors are handles: cloning one copies no data, and engines never change a tensor that someone else holds.
pub trait Executor: Send + Sync {
    /// A tensor on the device.
    type Tensor: Clone + Send + Sync;
    /// A compiled program.
    type Plan: Send + Sync;

    /// What this engine is.
    fn info(&self) -> EngineInfo;

    /// Compiles a program; refuses one that this engine cannot run, naming the node.
    fn compile(&self, program: &Graph) -> Result<Self::Plan, ExecError>;

    /// The most bytes of device memory that a run of the plan takes at once: its inputs, its outputs and everything
    /// between, scratch included. An upper bound that a run never exceeds.
    fn peak_bytes(&self, plan: &Self::Plan) -> u64;

    /// The part of [`Executor::peak_bytes`] that is scratch memory. An engine may keep it for the next run: whoever holds
    /// several plans counts the largest.
    fn scratch_bytes(&self, _plan: &Self::Plan) -> u64 {
        0
    }

    /// Inputs of a plan as another program of the same stage would leave them. What is uploaded an engine may have to rearrange
    /// first, which is not part of what the plan itself costs.
    fn settled(&self, _plan: &Self::Plan, inputs: Vec<Self::Tensor>) -> Vec<Self::Tensor> {
        inputs
    }

    /// Copies a tensor to the device.
    fn upload(&self, tensor: &Tensor) -> Result<Self::Tensor, ExecError>;

    /// Copies a tensor to the host.
    fn download(&self, tensor: &Self::Tensor) -> Result<Tensor, ExecError>;

    /// Runs a program. Inputs come in the program's order and are freed after their last use unless the caller holds
    /// a clone; outputs come in the program's order.
    fn run(
        &self,
        plan: &Self::Plan,
        inputs: Vec<Self::Tensor>,
        key: RandomKey,
    ) -> Result<Vec<Self::Tensor>, ExecError>;

    /// `sum += term`, element by element, f32. Starts the sum when there is none yet.
    fn accumulate(
        &self,
        sum: &mut Option<Self::Tensor>,
        term: Self::Tensor,
    ) -> Result<(), ExecError>;

    /// The sum of squares in f64, in an order that does not depend on threads; not finite when an element is not.
    fn sum_of_squares(&self, tensor: &Self::Tensor) -> Result<f64, ExecError>;

    /// One optimizer step on one parameter, with PyTorch's semantics. `state` is empty before the first step; after it,
    /// it holds the rule's tensors in the order of [`UpdateRule::state_names`].
    fn update(
        &self,
        rule: &UpdateRule,
        size: StepSize,
        parameter: &mut Self::Tensor,
        gradient: &Self::Tensor,
        state: &mut Vec<Self::Tensor>,
    ) -> Result<(), ExecError>;
}
