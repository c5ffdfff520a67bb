//! Copying a graph while changing it: the base of every pass.

use crate::{Graph, GraphError, Input, Node, Op, Output, OutputKind, TensorType, Value, ValueId};

/// Builds a new graph from pieces of an old one and knows where each value of the old one went.
pub(crate) struct Rewrite<'a> {
    old: &'a Graph,
    pub(crate) new: Graph,
    /// New value of each old one, where there is one yet.
    map: Vec<Option<ValueId>>,
}

impl<'a> Rewrite<'a> {
    pub(crate) fn new(old: &'a Graph) -> Self {
        Rewrite {
            old,
            new: Graph::new(old.name.clone()),
            map: vec![None; old.values.len()],
        }
    }

    /// Where an old value went.
    pub(crate) fn get(&self, old: ValueId) -> Option<ValueId> {
        self.map.get(old.index()).copied().flatten()
    }

    /// Lets an old value mean this new one from now on.
    pub(crate) fn set(&mut self, old: ValueId, new: ValueId) {
        if let Some(slot) = self.map.get_mut(old.index()) {
            *slot = Some(new);
        }
    }

    fn mapped(&self, old: ValueId) -> Result<ValueId, GraphError> {
        self.get(old)
            .ok_or(GraphError::Value(old, "is used before its definition"))
    }

    fn fresh(&mut self, ty: TensorType) -> Result<ValueId, GraphError> {
        let id = u32::try_from(self.new.values.len())
            .ok()
            .filter(|_| self.new.values.len() < crate::graph::MAX_VALUES)
            .ok_or(GraphError::TooManyValues)?;
        self.new.values.push(Value { ty });
        Ok(ValueId(id))
    }

    pub(crate) fn old_ty(&self, old: ValueId) -> Result<TensorType, GraphError> {
        self.old
            .ty(old)
            .cloned()
            .ok_or(GraphError::Value(old, "is not a value of the graph"))
    }

    /// Copies an input.
    pub(crate) fn input(&mut self, input: &Input) -> Result<(), GraphError> {
        self.input_as(input.value, input.kind, input.name.clone())
    }

    /// Makes an old value an input.
    pub(crate) fn input_as(
        &mut self,
        old: ValueId,
        kind: crate::InputKind,
        name: String,
    ) -> Result<(), GraphError> {
        let ty = self.old_ty(old)?;
        let value = self.fresh(ty)?;
        self.set(old, value);
        self.new.inputs.push(Input { value, kind, name });
        Ok(())
    }

    /// Operands of an old node as new values.
    pub(crate) fn operands(&self, node: &Node) -> Result<Vec<Option<ValueId>>, GraphError> {
        let operands = node.operands.iter();
        operands
            .map(|operand| operand.map(|old| self.mapped(old)).transpose())
            .collect()
    }

    /// Copies a node, with results of the same types.
    pub(crate) fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let operands = self.operands(node)?;
        self.node_with(node, operands)
    }

    /// Copies a node onto these new operands, with results of the same types.
    pub(crate) fn node_with(
        &mut self,
        node: &Node,
        operands: Vec<Option<ValueId>>,
    ) -> Result<(), GraphError> {
        let mut results = Vec::with_capacity(node.results.len());
        for &old in &node.results {
            let ty = self.old_ty(old)?;
            let value = self.fresh(ty)?;
            self.set(old, value);
            results.push(value);
        }
        self.new.nodes.push(Node {
            op: node.op.clone(),
            operands,
            results,
            scope: node.scope.clone(),
            origin: node.origin,
        });
        Ok(())
    }

    /// Puts another operator of one result in the place of a node's first result.
    pub(crate) fn replacement(
        &mut self,
        node: &Node,
        op: Op,
        operands: &[Option<ValueId>],
    ) -> Result<(), GraphError> {
        let results = self
            .new
            .push(op, operands, node.scope.clone(), node.origin)?;
        if let (Some(&old), Some(&new)) = (node.results.first(), results.first()) {
            self.set(old, new);
        }
        Ok(())
    }

    /// Copies an output.
    pub(crate) fn output(&mut self, output: &Output) -> Result<(), GraphError> {
        self.output_as(output.value, output.kind, output.name.clone())
    }

    /// Makes an old value an output.
    pub(crate) fn output_as(
        &mut self,
        old: ValueId,
        kind: OutputKind,
        name: String,
    ) -> Result<(), GraphError> {
        let value = self.mapped(old)?;
        self.new.outputs.push(Output { value, kind, name });
        Ok(())
    }
}

/// Nodes whose results some output needs, by node index.
pub(crate) fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.values.len()];
    let mark = |needed: &mut Vec<bool>, value: ValueId| {
        if let Some(flag) = needed.get_mut(value.index()) {
            *flag = true;
        }
    };
    for output in &graph.outputs {
        mark(&mut needed, output.value);
    }
    let mut live = vec![false; graph.nodes.len()];
    for (node, live) in graph.nodes.iter().zip(&mut live).rev() {
        *live = (node.results.iter()).any(|result| needed.get(result.index()) == Some(&true));
        if *live {
            for operand in node.operands.iter().flatten() {
                mark(&mut needed, *operand);
            }
        }
    }
    live
}

impl Graph {
    /// This graph without the nodes that no output needs. Inputs and origins stay as they are.
    ///
    /// # Errors
    /// When the graph is not one that `verify` accepts.
    pub fn without_dead_nodes(&self) -> Result<Graph, GraphError> {
        let live = live_nodes(self);
        let mut rewrite = Rewrite::new(self);
        for input in &self.inputs {
            rewrite.input(input)?;
        }
        for (node, live) in self.nodes.iter().zip(live) {
            if live {
                rewrite.node(node)?;
            }
        }
        for output in &self.outputs {
            rewrite.output(output)?;
        }
        Ok(rewrite.new)
    }

    /// This graph without the inputs that neither a node nor an output uses.
    ///
    /// # Errors
    /// When the graph is not one that `verify` accepts.
    pub fn without_unused_inputs(&self) -> Result<Graph, GraphError> {
        let operands = self.nodes.iter().flat_map(|node| &node.operands).flatten();
        let used: std::collections::HashSet<ValueId> = operands
            .chain(self.outputs.iter().map(|output| &output.value))
            .copied()
            .collect();
        let mut rewrite = Rewrite::new(self);
        for input in self.inputs.iter().filter(|i| used.contains(&i.value)) {
            rewrite.input(input)?;
        }
        for node in &self.nodes {
            rewrite.node(node)?;
        }
        for output in &self.outputs {
            rewrite.output(output)?;
        }
        Ok(rewrite.new)
    }
}
