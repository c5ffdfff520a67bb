//! Cutting programs out of a graph: what some outputs need, and no more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{Graph, Input, InputKind, Node, Output, OutputKind, Value, ValueId};

use super::{AutodiffError, sweep::Joint};

/// An output that a program shall have, as a value of the graph that it is cut from.
pub(super) struct Wanted {
    pub(super) kind: OutputKind,
    pub(super) name: String,
    pub(super) value: ValueId,
}

impl Wanted {
    pub(super) fn of(output: &Output) -> Wanted {
        Wanted {
            kind: output.kind,
            name: output.name.clone(),
            value: output.value,
        }
    }
}

/// A program, and where the values of the graph it was cut from are in it.
pub(super) struct Extract {
    pub(super) graph: Graph,
    pub(super) renamed: HashMap<ValueId, ValueId>,
}

/// The program that computes `wanted` and nothing else. The values in `given` come in as saved inputs under the names
/// beside them, after the graph's own inputs; what only they need is left out.
pub(super) fn extract(
    source: &Graph,
    name: &str,
    wanted: &[Wanted],
    given: &[(ValueId, String)],
) -> Result<Extract, AutodiffError> {
    let cut: BTreeSet<ValueId> = given.iter().map(|(value, _)| *value).collect();
    let mut needed: BTreeSet<ValueId> = wanted.iter().map(|output| output.value).collect();
    let mut kept = vec![false; source.nodes.len()];
    for (node, kept) in source.nodes.iter().zip(&mut kept).rev() {
        *kept =
            (node.results.iter()).any(|result| needed.contains(result) && !cut.contains(result));
        if *kept {
            needed.extend(node.operands.iter().flatten().copied());
        }
    }

    let mut graph = Graph {
        name: name.to_owned(),
        ..Graph::default()
    };
    let mut renamed = HashMap::new();
    let own = (source.inputs.iter())
        .filter(|input| needed.contains(&input.value) && !cut.contains(&input.value))
        .map(|input| (input.value, input.kind, input.name.as_str()));
    let given = (given.iter())
        .filter(|(value, _)| needed.contains(value))
        .map(|(value, name)| (*value, InputKind::Saved, name.as_str()));
    for (value, kind, name) in own.chain(given) {
        let copy = define(&mut graph, source, value)?;
        renamed.insert(value, copy);
        graph.inputs.push(Input {
            value: copy,
            kind,
            name: name.to_owned(),
        });
    }
    for (node, _) in source.nodes.iter().zip(kept).filter(|(_, kept)| *kept) {
        let operands = (node.operands.iter())
            .map(|operand| match operand {
                Some(value) => renamed.get(value).copied().map(Some).ok_or(DANGLING),
                None => Ok(None),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut results = Vec::with_capacity(node.results.len());
        for result in &node.results {
            let copy = define(&mut graph, source, *result)?;
            // A given value keeps the saved copy, so that its readers do not depend on which came first.
            renamed.entry(*result).or_insert(copy);
            results.push(copy);
        }
        graph.nodes.push(Node {
            op: node.op.clone(),
            operands,
            results,
            scope: node.scope.clone(),
            origin: node.origin,
        });
    }
    for output in wanted {
        graph.outputs.push(Output {
            value: renamed.get(&output.value).copied().ok_or(DANGLING)?,
            kind: output.kind,
            name: output.name.clone(),
        });
    }
    Ok(Extract { graph, renamed })
}

const DANGLING: AutodiffError = AutodiffError::Malformed("a value is used before it is made");

fn define(graph: &mut Graph, source: &Graph, value: ValueId) -> Result<ValueId, AutodiffError> {
    let ty = (source.values.get(value.0 as usize))
        .ok_or(DANGLING)?
        .ty
        .clone();
    let id = u32::try_from(graph.values.len())
        .map_err(|_| AutodiffError::Malformed("it has more than 2^32 values"))?;
    graph.values.push(Value { ty });
    Ok(ValueId(id))
}

/// Splits the joint backward graph into `B` and `W`.
///
/// `B` is what the cotangents of the stage's inputs need. A parameter gradient that one of its nodes makes anyway leaves
/// with it. What `B` makes and `W` reads is saved, and so are the cotangents that `W` reads; whatever is cheap to
/// recompute ([`Joint::replayed`]) is in both.
pub(super) fn split(joint: &Joint, name: &str) -> Result<(Graph, Graph), AutodiffError> {
    let source = &joint.graph;
    let mut backward_values: BTreeSet<ValueId> =
        (joint.cotangents.iter()).map(|(_, value)| *value).collect();
    let mut kept_values = BTreeSet::new();
    for (node, replayed) in source.nodes.iter().zip(&joint.replayed).rev() {
        if node
            .results
            .iter()
            .any(|result| backward_values.contains(result))
        {
            backward_values.extend(node.operands.iter().flatten().copied());
            if !replayed {
                kept_values.extend(node.results.iter().copied());
            }
        }
    }

    let mut backward_outputs: Vec<Wanted> = (joint.cotangents.iter())
        .map(|(name, value)| Wanted {
            kind: OutputKind::Cotangent,
            name: name.clone(),
            value: *value,
        })
        .collect();
    let mut weight_outputs = Vec::new();
    for gradient in &joint.gradients {
        let wanted = Wanted {
            kind: OutputKind::ParameterGradient,
            name: format!("{}#{}.{}", gradient.name, gradient.origin, gradient.operand),
            value: gradient.value,
        };
        if kept_values.contains(&gradient.value) {
            backward_outputs.push(wanted);
        } else {
            weight_outputs.push(wanted);
        }
    }

    // What W reads of B's values and of the cotangents.
    for input in &source.inputs {
        if input.kind == InputKind::Cotangent {
            kept_values.insert(input.value);
        }
    }
    let mut crossing = BTreeSet::new();
    let mut needed: BTreeSet<ValueId> = weight_outputs.iter().map(|wanted| wanted.value).collect();
    crossing.extend(needed.intersection(&kept_values).copied());
    for node in source.nodes.iter().rev() {
        let wanted = |result: &ValueId| needed.contains(result) && !kept_values.contains(result);
        if node.results.iter().any(wanted) {
            for operand in node.operands.iter().flatten() {
                needed.insert(*operand);
                if kept_values.contains(operand) {
                    crossing.insert(*operand);
                }
            }
        }
    }

    backward_outputs.extend(crossing.iter().map(|value| Wanted {
        kind: OutputKind::Saved,
        name: String::new(),
        value: *value,
    }));
    let mut backward = extract(source, &format!("{name}.B"), &backward_outputs, &[])?;
    let mut given = Vec::new();
    let names: BTreeMap<ValueId, ValueId> = (crossing.iter())
        .filter_map(|value| Some((*value, *backward.renamed.get(value)?)))
        .collect();
    for (value, there) in names {
        given.push((value, format!("b%{}", there.0)));
    }
    for output in &mut backward.graph.outputs {
        if output.kind == OutputKind::Saved {
            output.name = format!("b%{}", output.value.0);
        }
    }
    let weight = extract(source, &format!("{name}.W"), &weight_outputs, &given)?;
    Ok((backward.graph, weight.graph))
}
