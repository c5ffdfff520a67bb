//! A graph for a given batch, and a graph for evaluation.

use crate::rewrite::Rewrite;
use crate::{Dim, Graph, GraphError, Op, OutputKind, TensorType};

impl Graph {
    /// This graph for a batch of this many samples: no dimension is symbolic any more.
    ///
    /// # Errors
    /// When the batch is empty, smaller than [`Graph::min_batch`], or so large that a tensor is beyond the limits.
    pub fn instantiate(&self, batch: usize) -> Result<Graph, GraphError> {
        let error = |reason: String| GraphError::Batch { batch, reason };
        if batch == 0 {
            return Err(error("there is nothing to compute".into()));
        }
        let mut graph = self.clone();
        let too_large = || error("a tensor does not fit this machine".into());
        for value in &mut graph.values {
            for dim in &mut value.ty.dims {
                *dim = Dim::Fixed(dim.at(batch).ok_or_else(too_large)?);
            }
        }
        for node in &mut graph.nodes {
            let mut fits = true;
            node.op.visit_attributes_mut(&mut |_, attribute| {
                fits &= attribute.instantiate(batch).is_some();
            });
            if !fits {
                return Err(too_large());
            }
        }
        graph.verify().map_err(|reason| error(reason.to_string()))?;
        Ok(graph)
    }

    /// The smallest batch that the graph accepts: a batch norm needs more than one value a channel.
    pub fn min_batch(&self) -> usize {
        let one_is_enough = |node: &crate::Node| {
            let Op::BatchNormTraining { .. } = node.op else {
                return true;
            };
            let input = node.operands.first().copied().flatten();
            input.and_then(|input| self.ty(input)).is_none_or(|input| {
                let others = input.dims.iter().enumerate().filter(|(dim, _)| *dim != 1);
                others.into_iter().any(|(_, dim)| dim.factor() > 1)
            })
        };
        if self.nodes.iter().all(one_is_enough) {
            1
        } else {
            2
        }
    }

    /// The forward pass in evaluation mode: batch norms use their running statistics, dropouts do nothing, losses and
    /// updates of buffers are no outputs any more.
    ///
    /// Node for node the same as the training graph, so the same cuts apply; what nothing needs any more falls away
    /// when the graph is sliced.
    ///
    /// # Errors
    /// When the model uses a batch norm's batch statistics or a dropout's mask for something else.
    pub fn evaluation(&self) -> Result<Graph, GraphError> {
        let mut rewrite = Rewrite::new(self);
        for input in &self.inputs {
            rewrite.input(input)?;
        }
        for node in &self.nodes {
            let operands = rewrite.operands(node)?;
            match node.op {
                Op::BatchNormTraining { momentum, eps } => {
                    let op = Op::BatchNormInference { momentum, eps };
                    rewrite.replacement(node, op, &operands)?;
                }
                Op::Dropout { .. } => rewrite.replacement(node, Op::Clone {}, &operands)?,
                _ => rewrite.node_with(node, operands)?,
            }
        }
        for output in &self.outputs {
            let training_only = matches!(
                output.kind,
                OutputKind::BufferUpdate | OutputKind::LossSum | OutputKind::LossWeight
            );
            if !training_only {
                rewrite.output(output)?;
            }
        }
        Ok(rewrite.new)
    }

    /// One node as a program of its own: its operands are `data` inputs named `0`, `1`, ... and its results `result`
    /// outputs named alike. For measuring; `None` when there is no such node.
    pub fn single_node(&self, index: usize) -> Option<Graph> {
        let node = self.nodes.get(index)?;
        let mut graph = Graph::new(node.op.name());
        let mut operands = Vec::with_capacity(node.operands.len());
        for (position, operand) in node.operands.iter().enumerate() {
            operands.push(match operand {
                None => None,
                Some(value) => {
                    let ty: TensorType = self.ty(*value)?.clone();
                    let kind = crate::InputKind::Data;
                    Some(graph.input(kind, position.to_string(), ty).ok()?)
                }
            });
        }
        let results = graph.push(node.op.clone(), &operands, "", 0).ok()?;
        for (position, result) in results.into_iter().enumerate() {
            graph
                .output(OutputKind::Result, position.to_string(), result)
                .ok()?;
        }
        Some(graph)
    }
}
