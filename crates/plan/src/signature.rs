//! Which one-node programs a device must measure.

use std::collections::BTreeSet;

use outboard_graph::{
    DType, Graph, Op, OutputKind, Stage, StagePrograms, TensorType, stage_programs,
};

use crate::{OpSignature, PlanError};

/// Elements of the probe that the optimizer's time is derived from.
pub(crate) const PROBE_ELEMENTS: usize = 1 << 20;

/// All one-node programs of the whole model at these micro-batch sizes: forward, both parts of backward, evaluation, the
/// loss's divisor; and a probe of memory bandwidth for the optimizer. `graph` is canonical and has passed `verify`.
///
/// Wherever the model is cut, its stages run no other ones.
///
/// # Errors
/// [`PlanError::Model`] when the model has no gradients or does not accept a size.
pub fn signatures(
    graph: &Graph,
    micro_batch_sizes: &[usize],
) -> Result<BTreeSet<OpSignature>, PlanError> {
    let mut found = BTreeSet::from([optimizer_probe()?]);
    let StagePrograms {
        forward,
        backward,
        weight,
        normaliser,
    } = stage_programs(&Stage::whole(graph.clone())).map_err(model_error)?;
    let evaluation = graph.evaluation().map_err(model_error)?;
    for program in [forward, backward, weight, evaluation]
        .into_iter()
        .chain(normaliser)
    {
        for size in micro_batch_sizes {
            let concrete = program.instantiate(*size).map_err(model_error)?;
            found.extend(
                (0..concrete.nodes.len()).filter_map(|node| node_signature(&concrete, node)),
            );
        }
    }
    Ok(found)
}

pub(crate) fn model_error(error: impl std::fmt::Display) -> PlanError {
    PlanError::Model(error.to_string())
}

/// The signature of a node of a concrete graph.
pub(crate) fn node_signature(graph: &Graph, node: usize) -> Option<OpSignature> {
    let mut single = graph.single_node(node)?;
    for node in &mut single.nodes {
        // Every dropout has its own key, which costs nothing.
        if let Op::Dropout { key, .. } = &mut node.op {
            *key = 0;
        }
    }
    Some(OpSignature(single.to_string()))
}

/// The sum of two vectors of [`PROBE_ELEMENTS`]: two reads and a write an element, as an optimizer or a gradient sum does.
pub(crate) fn optimizer_probe() -> Result<OpSignature, PlanError> {
    let mut graph = Graph::new("probe");
    let ty = TensorType::fixed(DType::F32, &[PROBE_ELEMENTS]);
    let mut operand = |name: &str| {
        graph
            .input(outboard_graph::InputKind::Data, name, ty.clone())
            .map(Some)
            .map_err(model_error)
    };
    let operands = [operand("0")?, operand("1")?];
    let results = graph
        .push(Op::Add { alpha: 1.0 }, &operands, "", 0)
        .map_err(model_error)?;
    for result in results {
        graph
            .output(OutputKind::Result, "0", result)
            .map_err(model_error)?;
    }
    Ok(OpSignature(graph.to_string()))
}
