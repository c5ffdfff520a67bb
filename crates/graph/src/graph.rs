//! The graph itself: values, inputs, nodes in execution order, outputs.

use crate::{Op, TensorType};

/// Index of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A typed value: an input of the graph or one result of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Element type and shape.
    pub ty: TensorType,
}

/// What an input of a graph stands for. Names are the join keys between the programs of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Data of one micro-batch, by name (`input`, `target`).
    Data,
    /// A weight under its PyTorch name that the optimizer updates.
    Parameter,
    /// A weight under its PyTorch name that stays as it is (`requires_grad=False`).
    Frozen,
    /// State under its PyTorch name that the forward pass updates (`bn1.running_mean`).
    Buffer,
    /// A value of the whole graph that an earlier stage sends, named `%N` after its [`ValueId`] there.
    Activation,
    /// The gradient of the loss with respect to the [`OutputKind::Activation`] of the same name, sent by the next stage;
    /// or, under the name `loss`, the gradient of the batch's loss with respect to this micro-batch's `loss_sum`.
    Cotangent,
    /// A value that an earlier program of the same stage and micro-batch saved, named after its value there.
    Saved,
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The value it defines.
    pub value: ValueId,
    /// What it stands for.
    pub kind: InputKind,
    /// Unique among inputs of its kind.
    pub name: String,
}

/// What an output of a graph stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputKind {
    /// A result for the user: predictions.
    Result,
    /// `f32[]`: the micro-batch's loss before division, a sum over its elements. The batch's loss is
    /// `sum(loss_sum) / sum(loss_weight)` over its micro-batches, which makes the cut into micro-batches invisible.
    LossSum,
    /// `f32[]`: what a mean loss is divided by: the number of elements, or the sum of class weights of targets that
    /// count. Depends on `Data` inputs and constants alone.
    LossWeight,
    /// The new value of the [`InputKind::Buffer`] of this name.
    BufferUpdate,
    /// A value of the whole graph that the next stage needs, named `%N`.
    Activation,
    /// The gradient for the [`InputKind::Activation`] of this name, for the previous stage.
    Cotangent,
    /// A value kept for a later program of the same stage and micro-batch.
    Saved,
    /// One use's share of a parameter's gradient for one micro-batch, named `NAME#USE` (see `autodiff`).
    ParameterGradient,
}

/// An output of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The value returned.
    pub value: ValueId,
    /// What it stands for.
    pub kind: OutputKind,
    /// Unique among outputs of its kind.
    pub name: String,
}

/// One operator application.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operator with its attributes.
    pub op: Op,
    /// Operands in ATen's order; `None` is an optional operand left out.
    pub operands: Vec<Option<ValueId>>,
    /// Results in ATen's order.
    pub results: Vec<ValueId>,
    /// Where the user's code made it, a module path such as `layer1.0.conv1`; may be empty.
    pub scope: String,
    /// The node of the whole, unsliced forward graph that this node is, or is the gradient of. Costs, cuts and random
    /// numbers are keyed by it, so they do not depend on where the graph is cut.
    pub origin: u32,
}

/// A model, a stage of one, or a forward or backward program: a list of nodes in execution order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Graph {
    /// A name for people.
    pub name: String,
    /// All values, indexed by [`ValueId`].
    pub values: Vec<Value>,
    /// Inputs in calling order.
    pub inputs: Vec<Input>,
    /// Nodes in execution order: a node's operands are inputs or results of earlier nodes.
    pub nodes: Vec<Node>,
    /// Outputs in order of return.
    pub outputs: Vec<Output>,
}
