//! The canonical form: what nobody needs is gone, constants are folded, and what is derived from weights alone is
//! computed beside its consumer.

use std::collections::HashMap;

use crate::fold::{Folded, fold};
use crate::rewrite::Rewrite;
use crate::{Graph, GraphError, InputKind, Op, TensorType, ValueId};

/// Which values depend on parameters, frozen weights and constants alone, by [`ValueId`].
///
/// Such values never cross a cut: whoever needs one computes it again.
pub(crate) fn derived_values(graph: &Graph) -> Vec<bool> {
    let mut derived = vec![false; graph.values.len()];
    let set = |derived: &mut Vec<bool>, value: ValueId| {
        if let Some(flag) = derived.get_mut(value.index()) {
            *flag = true;
        }
    };
    for input in &graph.inputs {
        if matches!(input.kind, InputKind::Parameter | InputKind::Frozen) {
            set(&mut derived, input.value);
        }
    }
    for node in &graph.nodes {
        // A dropout draws new numbers every time.
        let random = matches!(node.op, Op::Dropout { .. });
        let operands = node.operands.iter().flatten();
        let all = operands
            .into_iter()
            .all(|operand| derived.get(operand.index()) == Some(&true));
        if all && !random {
            for result in &node.results {
                set(&mut derived, *result);
            }
        }
    }
    derived
}

impl Graph {
    /// The graph in canonical form, which computes the same bits:
    ///
    /// - nodes that no output needs are gone, constants are folded, operators that change nothing are gone, and slices
    ///   end within their operand (PyTorch writes "to the end" as a number that a 32-bit device cannot hold);
    /// - a chain of nodes that depends on weights and constants alone belongs to one operand of one consumer and stands
    ///   right before it (each consumer gets its own copy), so that no cut separates them;
    /// - nodes are numbered by position: `origin` of node `i` is `i`.
    ///
    /// All inputs stay, also unused ones. Canonicalising again changes nothing.
    ///
    /// # Errors
    /// When the graph is not one that `verify` accepts, or copies of chains make it larger than the limits.
    pub fn canonicalize(&self) -> Result<Graph, GraphError> {
        let folded = fold_constants(self)?.without_dead_nodes()?;
        let mut graph = with_private_chains(&folded)?;
        for (index, node) in graph.nodes.iter_mut().enumerate() {
            node.origin = u32::try_from(index).map_err(|_| GraphError::TooManyValues)?;
        }
        Ok(graph)
    }
}

/// Replaces nodes by constants, or by their operand, where that gives the same bits.
fn fold_constants(graph: &Graph) -> Result<Graph, GraphError> {
    let mut rewrite = Rewrite::new(graph);
    // `Full` nodes of the new graph by result.
    let mut constants: HashMap<ValueId, f64> = HashMap::new();
    for input in &graph.inputs {
        rewrite.input(input)?;
    }
    for node in &graph.nodes {
        let operands = rewrite.operands(node)?;
        let types: Vec<_> = (operands.iter())
            .map(|operand| operand.and_then(|value| rewrite.new.ty(value).cloned()))
            .collect();
        let values: Vec<_> = (operands.iter())
            .map(|operand| operand.and_then(|value| constants.get(&value).copied()))
            .collect();
        let result = node.results.first().copied();
        let result_type = result.map(|result| rewrite.old_ty(result)).transpose()?;
        let folded = match (&result_type, node.results.len()) {
            (Some(ty), 1) => fold(&node.op, &types, &values, ty),
            _ => Folded::No,
        };
        match (folded, operands.first().copied().flatten(), result_type) {
            (Folded::Constant(value), _, Some(ty)) => {
                let (shape, dtype) = (ty.dims, ty.dtype);
                let op = Op::Full {
                    shape,
                    value,
                    dtype,
                };
                rewrite.replacement(node, op, &[])?;
            }
            (Folded::Operand, Some(operand), _) => {
                if let Some(result) = result {
                    rewrite.set(result, operand);
                }
            }
            _ => match within_operand(&node.op, types.first()) {
                Some(op) => rewrite.replacement(node, op, &operands)?,
                None => rewrite.node_with(node, operands)?,
            },
        }
        if let Some(last) = rewrite.new.nodes.last()
            && let (Op::Full { value, .. }, Some(&result)) = (&last.op, last.results.first())
        {
            constants.insert(result, *value);
        }
    }
    for output in &graph.outputs {
        rewrite.output(output)?;
    }
    Ok(rewrite.new)
}

/// A slice that reaches beyond its operand, cut down to it.
fn within_operand(op: &Op, operand: Option<&Option<TensorType>>) -> Option<Op> {
    let Op::Slice {
        dim,
        start,
        end,
        step,
    } = *op
    else {
        return None;
    };
    let size = operand?.as_ref()?.dims.get(dim)?.fixed()?;
    (end > size).then_some(Op::Slice {
        dim,
        start,
        end: size,
        step,
    })
}

/// Gives every use of a derived value its own copy of the chain that computes it, right before the consumer.
fn with_private_chains(graph: &Graph) -> Result<Graph, GraphError> {
    let derived = derived_values(graph);
    let is_derived = |value: ValueId| derived.get(value.index()) == Some(&true);
    let mut maker: HashMap<ValueId, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for result in &node.results {
            maker.insert(*result, index);
        }
    }
    let mut rewrite = Rewrite::new(graph);
    for input in &graph.inputs {
        rewrite.input(input)?;
    }
    for node in &graph.nodes {
        if node.results.iter().any(|result| is_derived(*result)) {
            continue;
        }
        let mut operands = Vec::with_capacity(node.operands.len());
        for operand in &node.operands {
            if let Some(value) = operand
                && is_derived(*value)
            {
                copy_chain(graph, &maker, &mut rewrite, *value)?;
            }
            operands.push(operand.map(|value| {
                rewrite
                    .get(value)
                    .ok_or(GraphError::Value(value, "is used before its definition"))
            }));
        }
        let operands = operands.into_iter().map(Option::transpose);
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        rewrite.node_with(node, operands)?;
    }
    for output in &graph.outputs {
        if is_derived(output.value) {
            copy_chain(graph, &maker, &mut rewrite, output.value)?;
        }
        rewrite.output(output)?;
    }
    Ok(rewrite.new)
}

/// Appends fresh copies of the nodes that compute a derived value; nothing when it is an input.
fn copy_chain(
    graph: &Graph,
    maker: &HashMap<ValueId, usize>,
    rewrite: &mut Rewrite<'_>,
    value: ValueId,
) -> Result<(), GraphError> {
    let mut nodes = std::collections::BTreeSet::new();
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        if let Some(&index) = maker.get(&value)
            && nodes.insert(index)
        {
            let operands = graph.nodes.get(index).map(|node| &node.operands);
            pending.extend(operands.into_iter().flatten().flatten());
        }
    }
    // Ascending order is execution order.
    for node in nodes.into_iter().filter_map(|index| graph.nodes.get(index)) {
        rewrite.node(node)?;
    }
    Ok(())
}
