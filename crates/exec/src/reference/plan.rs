//! A program that was checked, with the last use of each value, and the loop that runs it.

use std::sync::Arc;

use outboard_graph::{Graph, Node, ValueId, infer};

use super::array::{Array, Shape};
use super::operator::{evaluate, scratch_bytes};
use super::{Call, Fault};
use crate::{ExecError, RandomKey};

/// A program compiled for the reference engine.
#[derive(Debug)]
pub struct ReferencePlan {
    graph: Graph,
    /// Of every value.
    shapes: Vec<Shape>,
    /// For each node, the values that nobody reads after it.
    dies_after: Vec<Vec<usize>>,
    /// Inputs that nobody reads at all.
    unread: Vec<usize>,
    peak_bytes: u64,
}

impl ReferencePlan {
    pub(super) fn new(graph: &Graph) -> Result<Self, ExecError> {
        let shapes: Vec<Shape> = graph
            .values
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let dims = value.ty.concrete().ok_or_else(|| {
                    ExecError::Invalid(format!(
                        "%{index}: {} depends on the batch; instantiate the program first",
                        value.ty
                    ))
                })?;
                Ok(Shape {
                    dtype: value.ty.dtype,
                    dims,
                })
            })
            .collect::<Result<_, ExecError>>()?;
        check(graph)?;
        let (dies_after, unread) = last_uses(graph, shapes.len());
        let peak_bytes = peak(graph, &shapes, &dies_after, &unread);
        Ok(Self {
            graph: graph.clone(),
            shapes,
            dies_after,
            unread,
            peak_bytes,
        })
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    pub(super) fn run(
        &self,
        inputs: Vec<Arc<Array>>,
        key: RandomKey,
    ) -> Result<Vec<Arc<Array>>, ExecError> {
        let mut values = self.bind(inputs)?;
        for value in &self.unread {
            values[*value] = None;
        }
        for (node, dying) in self.graph.nodes.iter().zip(&self.dies_after) {
            let shapes: Vec<Shape> = node
                .results
                .iter()
                .map(|result| self.shapes[result.index()].clone())
                .collect();
            let operands: Vec<Option<&Array>> = node
                .operands
                .iter()
                .map(|operand| operand.and_then(|value| values[value.index()].as_deref()))
                .collect();
            let results = evaluate(
                &node.op,
                &Call {
                    operands: &operands,
                    results: &shapes,
                    key,
                },
            )
            .map_err(|fault| value_error(node, fault))?;
            let right = results.len() == shapes.len()
                && results
                    .iter()
                    .zip(&shapes)
                    .all(|(array, shape)| array.shape() == *shape);
            if !right {
                return Err(value_error(
                    node,
                    Fault("gave results of other shapes".to_owned()),
                ));
            }
            for (array, result) in results.into_iter().zip(&node.results) {
                values[result.index()] = Some(Arc::new(array));
            }
            for value in dying {
                values[*value] = None;
            }
        }
        self.graph
            .outputs
            .iter()
            .map(|output| {
                values[output.value.index()].clone().ok_or_else(|| {
                    ExecError::Invalid(format!("output {:?} was never computed", output.name))
                })
            })
            .collect()
    }

    /// The values before the first node: the inputs, once they are what the program says.
    fn bind(&self, inputs: Vec<Arc<Array>>) -> Result<Vec<Option<Arc<Array>>>, ExecError> {
        if inputs.len() != self.graph.inputs.len() {
            return Err(ExecError::Invalid(format!(
                "program {:?} takes {} inputs, not {}",
                self.graph.name,
                self.graph.inputs.len(),
                inputs.len()
            )));
        }
        let mut values = vec![None; self.shapes.len()];
        for (input, array) in self.graph.inputs.iter().zip(inputs) {
            let shape = &self.shapes[input.value.index()];
            if array.shape() != *shape {
                return Err(ExecError::Invalid(format!(
                    "program {:?}: input {:?} is {}{:?}, not {}{:?}",
                    self.graph.name,
                    input.name,
                    shape.dtype.name(),
                    shape.dims,
                    array.dtype.name(),
                    array.dims
                )));
            }
            values[input.value.index()] = Some(array);
        }
        Ok(values)
    }
}

fn value_error(node: &Node, Fault(reason): Fault) -> ExecError {
    ExecError::Value {
        op: node.op.name().to_owned(),
        scope: node.scope.clone(),
        reason,
    }
}

/// Checks that every value is defined once and before its uses, with the type that inference gives it: what the
/// operators rely on instead of checking each index.
fn check(graph: &Graph) -> Result<(), ExecError> {
    let mut defined = vec![false; graph.values.len()];
    let define = |defined: &mut Vec<bool>, value: ValueId| match defined.get_mut(value.index()) {
        Some(defined) if !*defined => {
            *defined = true;
            Ok(())
        }
        _ => Err(ExecError::Invalid(format!(
            "%{} is defined twice or does not exist",
            value.0
        ))),
    };
    let undefined =
        |value: ValueId| ExecError::Invalid(format!("%{} is read before it is defined", value.0));
    for input in &graph.inputs {
        define(&mut defined, input.value)?;
    }
    for node in &graph.nodes {
        let mut types = Vec::with_capacity(node.operands.len());
        for operand in &node.operands {
            types.push(match operand {
                None => None,
                Some(value) if defined.get(value.index()) == Some(&true) => {
                    Some(&graph.values[value.index()].ty)
                }
                Some(value) => return Err(undefined(*value)),
            });
        }
        let inferred =
            infer(&node.op, &types).map_err(|error| value_error(node, Fault(error.to_string())))?;
        if inferred.len() != node.results.len() {
            let reason = format!("has {} results, not {}", inferred.len(), node.results.len());
            return Err(value_error(node, Fault(reason)));
        }
        for (ty, &result) in inferred.iter().zip(&node.results) {
            define(&mut defined, result)?;
            let declared = &graph.values[result.index()].ty;
            if declared != ty {
                let reason = format!("gives %{}: {ty}, not {declared}", result.0);
                return Err(value_error(node, Fault(reason)));
            }
        }
    }
    for output in &graph.outputs {
        if defined.get(output.value.index()) != Some(&true) {
            return Err(undefined(output.value));
        }
    }
    Ok(())
}

/// For each node, the values that die after it; and the inputs that nobody reads.
fn last_uses(graph: &Graph, values: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut last: Vec<Option<usize>> = vec![None; values];
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in node.operands.iter().flatten().chain(&node.results) {
            last[value.index()] = Some(index);
        }
    }
    let mut returned = vec![false; values];
    for output in &graph.outputs {
        returned[output.value.index()] = true;
    }
    let mut dies_after = vec![Vec::new(); graph.nodes.len()];
    for (value, last) in last.iter().enumerate() {
        if let (Some(node), false) = (last, returned[value]) {
            dies_after[*node].push(value);
        }
    }
    let unread = graph
        .inputs
        .iter()
        .map(|input| input.value.index())
        .filter(|&value| last[value].is_none() && !returned[value])
        .collect();
    (dies_after, unread)
}

/// The most bytes held at once.
fn peak(graph: &Graph, shapes: &[Shape], dies_after: &[Vec<usize>], unread: &[usize]) -> u64 {
    let bytes = |value: &usize| shapes[*value].bytes();
    let elements = |value: &ValueId| shapes[value.index()].elements() as u64;
    let mut live: u64 = graph
        .inputs
        .iter()
        .map(|input| shapes[input.value.index()].bytes())
        .sum();
    let mut peak = live;
    live -= unread.iter().map(bytes).sum::<u64>();
    for (node, dying) in graph.nodes.iter().zip(dies_after) {
        live += node
            .results
            .iter()
            .map(|result| shapes[result.index()].bytes())
            .sum::<u64>();
        let scratch = scratch_bytes(
            &node.op,
            node.operands.iter().flatten().map(elements).sum(),
            node.results.iter().map(elements).sum(),
        );
        peak = peak.max(live.saturating_add(scratch));
        live -= dying.iter().map(bytes).sum::<u64>();
    }
    peak
}
