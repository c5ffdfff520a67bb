//! What a forward graph tells about its values before any differentiation.

use std::collections::BTreeSet;

use crate::{Graph, InputKind, Op, OutputKind, ValueId, vjp};

use super::AutodiffError;

/// Properties of every value, indexed by [`ValueId`].
pub(crate) struct Facts {
    /// The node that makes the value; `None` for inputs.
    pub(crate) producer: Vec<Option<usize>>,
    /// The input that defines the value; `None` for results of nodes.
    pub(crate) input: Vec<Option<usize>>,
    /// Depends on parameters, frozen weights and constants alone.
    pub(crate) derived: Vec<bool>,
    /// A float that depends, along differentiable operands, on a trainable parameter or a differentiable activation.
    pub(crate) trainable: Vec<bool>,
}

impl Facts {
    pub(crate) fn new(
        graph: &Graph,
        differentiable: &BTreeSet<String>,
    ) -> Result<Facts, AutodiffError> {
        let count = graph.values.len();
        let mut facts = Facts {
            producer: vec![None; count],
            input: vec![None; count],
            derived: vec![false; count],
            trainable: vec![false; count],
        };
        for (index, input) in graph.inputs.iter().enumerate() {
            let value = slot(input.value);
            *facts.input.get_mut(value).ok_or(MISSING)? = Some(index);
            if let Some(derived) = facts.derived.get_mut(value) {
                *derived = matches!(input.kind, InputKind::Parameter | InputKind::Frozen);
            }
            let trains = match input.kind {
                InputKind::Parameter => true,
                InputKind::Activation => differentiable.contains(&input.name),
                _ => false,
            };
            if let Some(trainable) = facts.trainable.get_mut(value) {
                *trainable = trains
                    && graph
                        .values
                        .get(value)
                        .is_some_and(|v| v.ty.dtype.is_float());
            }
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            for operand in node.operands.iter().flatten() {
                if slot(*operand) >= count {
                    return Err(MISSING);
                }
            }
            // A dropout of a parameter is random: it may differ from micro-batch to micro-batch.
            let derived = !matches!(node.op, Op::Dropout { .. })
                && node.operands.iter().flatten().all(|v| facts.derived(*v));
            for (position, result) in node.results.iter().enumerate() {
                let value = slot(*result);
                let float = graph.values.get(value).ok_or(MISSING)?.ty.dtype.is_float();
                let trainable = float
                    && (node.operands.iter().enumerate()).any(|(k, operand)| {
                        operand.is_some_and(|v| facts.trainable(v))
                            && vjp::passes_gradient(&node.op, k, position)
                    });
                *facts.producer.get_mut(value).ok_or(MISSING)? = Some(index);
                if let Some(slot) = facts.derived.get_mut(value) {
                    *slot = derived;
                }
                if let Some(slot) = facts.trainable.get_mut(value) {
                    *slot = trainable;
                }
            }
        }
        Ok(facts)
    }

    pub(crate) fn derived(&self, value: ValueId) -> bool {
        self.derived.get(slot(value)).copied().unwrap_or(false)
    }

    pub(crate) fn trainable(&self, value: ValueId) -> bool {
        self.trainable.get(slot(value)).copied().unwrap_or(false)
    }

    pub(crate) fn producer(&self, value: ValueId) -> Option<usize> {
        self.producer.get(slot(value)).copied().flatten()
    }

    pub(crate) fn input(&self, value: ValueId) -> Option<usize> {
        self.input.get(slot(value)).copied().flatten()
    }

    /// The trainable values from which a differentiable path leads to the loss.
    pub(crate) fn on_path_to_loss(
        &self,
        graph: &Graph,
    ) -> Result<BTreeSet<ValueId>, AutodiffError> {
        let mut reached: BTreeSet<ValueId> = (graph.outputs.iter())
            .filter(|output| output.kind == OutputKind::LossSum && self.trainable(output.value))
            .map(|output| output.value)
            .collect();
        for node in graph.nodes.iter().rev() {
            for (k, operand) in node.operands.iter().enumerate() {
                let Some(operand) = *operand else { continue };
                let passes = (node.results.iter().enumerate()).any(|(r, result)| {
                    reached.contains(result) && vjp::passes_gradient(&node.op, k, r)
                });
                if passes && self.trainable(operand) {
                    reached.insert(operand);
                }
            }
        }
        Ok(reached)
    }
}

const MISSING: AutodiffError = AutodiffError::Malformed("a value that is used does not exist");

fn slot(value: ValueId) -> usize {
    value.0 as usize
}
