//! The graph itself: values, inputs, nodes in execution order, outputs.

use std::fmt;

use crate::error::node_text;
use crate::types::LimitError;
use crate::{GraphError, Op, TensorType, infer};

/// Index of a value in its graph.
///
/// Prints as `%7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The index as Rust indexes.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

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

impl InputKind {
    /// All kinds.
    pub const ALL: [InputKind; 7] = [
        InputKind::Data,
        InputKind::Parameter,
        InputKind::Frozen,
        InputKind::Buffer,
        InputKind::Activation,
        InputKind::Cotangent,
        InputKind::Saved,
    ];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            InputKind::Data => "data",
            InputKind::Parameter => "parameter",
            InputKind::Frozen => "frozen",
            InputKind::Buffer => "buffer",
            InputKind::Activation => "activation",
            InputKind::Cotangent => "cotangent",
            InputKind::Saved => "saved",
        }
    }

    /// Whether a bundle holds a tensor for such an input: parameters, frozen weights and buffers.
    pub fn is_weight(self) -> bool {
        matches!(
            self,
            InputKind::Parameter | InputKind::Frozen | InputKind::Buffer
        )
    }
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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

impl OutputKind {
    /// All kinds.
    pub const ALL: [OutputKind; 8] = [
        OutputKind::Result,
        OutputKind::LossSum,
        OutputKind::LossWeight,
        OutputKind::BufferUpdate,
        OutputKind::Activation,
        OutputKind::Cotangent,
        OutputKind::Saved,
        OutputKind::ParameterGradient,
    ];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            OutputKind::Result => "result",
            OutputKind::LossSum => "loss_sum",
            OutputKind::LossWeight => "loss_weight",
            OutputKind::BufferUpdate => "buffer_update",
            OutputKind::Activation => "activation",
            OutputKind::Cotangent => "cotangent",
            OutputKind::Saved => "saved",
            OutputKind::ParameterGradient => "parameter_gradient",
        }
    }
}

impl fmt::Display for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
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

/// Most values of one graph.
pub const MAX_VALUES: usize = 1 << 20;

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph {
            name: name.into(),
            ..Graph::default()
        }
    }

    /// The type of a value; `None` when the graph has no such value.
    pub fn ty(&self, value: ValueId) -> Option<&TensorType> {
        self.values.get(value.index()).map(|value| &value.ty)
    }

    /// Appends an input.
    ///
    /// # Errors
    /// When the name is taken, the type is beyond the limits, or the graph is full.
    pub fn input(
        &mut self,
        kind: InputKind,
        name: impl Into<String>,
        ty: TensorType,
    ) -> Result<ValueId, GraphError> {
        let name = name.into();
        let taken = self.inputs.iter().any(|input| {
            input.name == name
                && (input.kind == kind || (input.kind.is_weight() && kind.is_weight()))
        });
        if taken {
            return Err(GraphError::DuplicateInput { kind, name });
        }
        ty.check_limits()
            .map_err(|error: LimitError| GraphError::Input {
                kind,
                name: name.clone(),
                reason: error.to_string(),
            })?;
        let value = self.new_value(ty)?;
        self.inputs.push(Input { value, kind, name });
        Ok(value)
    }

    /// Appends a node, with the types of its results inferred, and gives its results.
    ///
    /// # Errors
    /// When an operand is not a value of this graph, the operator does not take these operands, or the graph is full.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[Option<ValueId>],
        scope: impl Into<String>,
        origin: u32,
    ) -> Result<Vec<ValueId>, GraphError> {
        let scope = scope.into();
        let inferred = self.infer_node(self.nodes.len(), &op, operands, &scope)?;
        // All results or none: a graph that is full stays as it was.
        if self.values.len().saturating_add(inferred.len()) > MAX_VALUES {
            return Err(GraphError::TooManyValues);
        }
        let results = inferred
            .into_iter()
            .map(|ty| self.new_value(ty))
            .collect::<Result<Vec<_>, _>>()?;
        self.nodes.push(Node {
            op,
            operands: operands.to_vec(),
            results: results.clone(),
            scope,
            origin,
        });
        Ok(results)
    }

    /// Appends an output.
    ///
    /// # Errors
    /// When the name is taken or the value is not of this graph.
    pub fn output(
        &mut self,
        kind: OutputKind,
        name: impl Into<String>,
        value: ValueId,
    ) -> Result<(), GraphError> {
        let name = name.into();
        if self.ty(value).is_none() {
            let reason = format!("{value} is not a value of the graph");
            return Err(GraphError::Output { kind, name, reason });
        }
        let taken = (self.outputs.iter()).any(|output| output.kind == kind && output.name == name);
        if taken {
            let reason = "the name is taken".into();
            return Err(GraphError::Output { kind, name, reason });
        }
        self.outputs.push(Output { value, kind, name });
        Ok(())
    }

    /// The types that node number `index` has by inference, given operands among the values so far.
    pub(crate) fn infer_node(
        &self,
        index: usize,
        op: &Op,
        operands: &[Option<ValueId>],
        scope: &str,
    ) -> Result<Vec<TensorType>, GraphError> {
        let error = |reason: String| GraphError::Node {
            node: index,
            text: node_text(op, operands),
            scope: scope.into(),
            reason,
        };
        // The count is checked before anything is collected.
        if operands.len() > infer::MAX_OPERANDS {
            return Err(error(format!("more than {} operands", infer::MAX_OPERANDS)));
        }
        let types = operands
            .iter()
            .map(|operand| match operand {
                None => Ok(None),
                Some(value) => self
                    .ty(*value)
                    .map(Some)
                    .ok_or_else(|| error(format!("{value} is not defined yet"))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        infer::infer(op, &types).map_err(|reason| error(reason.to_string()))
    }

    fn new_value(&mut self, ty: TensorType) -> Result<ValueId, GraphError> {
        let id = u32::try_from(self.values.len())
            .ok()
            .filter(|_| self.values.len() < MAX_VALUES)
            .ok_or(GraphError::TooManyValues)?;
        self.values.push(Value { ty });
        Ok(ValueId(id))
    }
}
