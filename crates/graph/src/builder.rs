//! Writing a graph by hand: scopes and one call an operator.

use crate::{Graph, GraphError, InputKind, Op, OutputKind, TensorType, ValueId};

/// Builds a [`Graph`] node by node. Every call infers and checks.
///
/// ```
/// use outboard_graph::{Builder, DType, Op, OutputKind, TensorType};
/// # fn main() -> Result<(), outboard_graph::GraphError> {
/// let mut b = Builder::new("linear");
/// let x = b.data("input", TensorType::batched(DType::F32, &[784]))?;
/// let w = b.parameter("weight", TensorType::fixed(DType::F32, &[784, 10]))?;
/// let y = b.scoped("head", |b| b.op(Op::Mm {}, &[x, w]))?;
/// b.output(OutputKind::Result, "output", y)?;
/// assert_eq!(b.ty(y)?.to_string(), "f32[B,10]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    graph: Graph,
    scopes: Vec<String>,
}

impl Builder {
    /// Starts a graph.
    pub fn new(name: impl Into<String>) -> Self {
        Builder {
            graph: Graph::new(name),
            scopes: Vec::new(),
        }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// Runs `body` with this name appended to the scope, joined by dots. An empty name changes nothing.
    pub fn scoped<T>(&mut self, name: impl Into<String>, body: impl FnOnce(&mut Self) -> T) -> T {
        self.scopes.push(name.into());
        let result = body(self);
        self.scopes.pop();
        result
    }

    /// The current scope: `layer1.0.conv1`.
    pub fn scope(&self) -> String {
        let names = self.scopes.iter().filter(|name| !name.is_empty());
        names.map(String::as_str).collect::<Vec<_>>().join(".")
    }

    /// A name within the current scope: `weight` becomes `layer1.0.conv1.weight`.
    pub fn qualified(&self, name: &str) -> String {
        match self.scope() {
            scope if scope.is_empty() => name.to_owned(),
            scope => format!("{scope}.{name}"),
        }
    }

    /// An input of any kind, under exactly this name.
    pub fn input(
        &mut self,
        kind: InputKind,
        name: impl Into<String>,
        ty: TensorType,
    ) -> Result<ValueId, GraphError> {
        self.graph.input(kind, name, ty)
    }

    /// Data of one micro-batch, under exactly this name.
    pub fn data(&mut self, name: &str, ty: TensorType) -> Result<ValueId, GraphError> {
        self.input(InputKind::Data, name, ty)
    }

    /// A trained weight, named within the current scope.
    pub fn parameter(&mut self, name: &str, ty: TensorType) -> Result<ValueId, GraphError> {
        self.input(InputKind::Parameter, self.qualified(name), ty)
    }

    /// A weight that stays as it is, named within the current scope.
    pub fn frozen(&mut self, name: &str, ty: TensorType) -> Result<ValueId, GraphError> {
        self.input(InputKind::Frozen, self.qualified(name), ty)
    }

    /// State that the forward pass updates, named within the current scope.
    pub fn buffer(&mut self, name: &str, ty: TensorType) -> Result<ValueId, GraphError> {
        self.input(InputKind::Buffer, self.qualified(name), ty)
    }

    /// An operator of one result; all operands are there.
    ///
    /// # Errors
    /// When the operator refuses the operands or has more than one result (see [`Builder::ops`]).
    pub fn op(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, GraphError> {
        let operands: Vec<_> = operands.iter().copied().map(Some).collect();
        self.op_optional(op, &operands)
    }

    /// An operator of one result; `None` is an optional operand left out.
    pub fn op_optional(
        &mut self,
        op: Op,
        operands: &[Option<ValueId>],
    ) -> Result<ValueId, GraphError> {
        let text = crate::error::node_text(&op, operands);
        let node = self.graph.nodes.len();
        match self.ops(op, operands)?[..] {
            [result] => Ok(result),
            ref results => Err(GraphError::Node {
                node,
                text,
                scope: self.scope(),
                reason: format!("has {} results where one is expected", results.len()),
            }),
        }
    }

    /// An operator of any number of results.
    pub fn ops(
        &mut self,
        op: Op,
        operands: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, GraphError> {
        // Far below `u32::MAX`: the number of values is limited and a node has at least one.
        let origin =
            u32::try_from(self.graph.nodes.len()).map_err(|_| GraphError::TooManyValues)?;
        self.graph.push(op, operands, self.scope(), origin)
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> Result<&TensorType, GraphError> {
        self.graph
            .ty(value)
            .ok_or(GraphError::Value(value, "is not defined"))
    }

    /// An output.
    pub fn output(
        &mut self,
        kind: OutputKind,
        name: &str,
        value: ValueId,
    ) -> Result<(), GraphError> {
        self.graph.output(kind, name, value)
    }
}
