//! Reverse-mode differentiation as a graph pass: from a stage's forward graph, the three programs that train it.
//!
//! ```text
//!            parameters, buffers, data, activations          cotangents of the activations sent
//!                        |                                        |
//!                        F --- saved (one list, explicit) ------> B --- saved ---> W
//!                        |                                        |                |
//!           activations, buffer updates, loss        cotangents of the inputs   parameter gradients
//! ```
//!
//! `B` holds exactly what the gradients of the stage's inputs need, so they can leave as early as possible; `W` holds the
//! rest (the split of zero-bubble pipelines, Qi et al. 2023, arXiv 2401.10241, section 2). One sweep over the forward
//! nodes in descending order makes both; the split comes afterwards, by reachability.
//!
//! Three rules make every number independent of where the model is cut:
//!
//! 1. The adjoint of a value is a left fold: first the cotangent that came from the next stage, then the contributions
//!    of this stage's consumers in descending node order, and of one consumer in descending operand order. The next
//!    stage has folded its (later) consumers in the same way, so a cut only moves the place where the fold pauses.
//! 2. A value that depends on parameters and constants alone is never saved and never crosses a cut: whoever needs it
//!    computes it again.
//! 3. Every *use* of a parameter gets its own gradient, `NAME#ORIGIN.OPERAND`: the origin and the operand index of the
//!    first node where the parameter (or what was derived from it) meets data. They are summed at the optimizer step, in
//!    ascending order of `(ORIGIN, OPERAND)`, wherever they were computed.

mod facts;
mod split;
mod support;
mod sweep;

use std::collections::BTreeSet;

use crate::{Graph, GraphError, InputKind, OutputKind, Stage, ValueId};

use facts::Facts;
pub(crate) use sweep::Sweep;

/// The programs of one stage. Inputs and outputs describe themselves by kind and name; a `Saved` value has the name `%N`
/// if `forward` made it (`N` is its [`ValueId`] in the stage's graph) and `b%N` if `backward` did (`N` counts there).
#[derive(Clone, Debug, PartialEq)]
pub struct StagePrograms {
    /// `F`: takes parameters, buffers, data and activations; gives activations, buffer updates, results, the loss sum
    /// and all saved values.
    pub forward: Graph,
    /// `B`: takes parameters, saved values and the cotangents of the activations sent (or `loss`); gives the cotangents
    /// of the activations received, what it saves for `weight`, and parameter gradients that fall out on the way.
    /// Without nodes if the stage receives nothing that needs a gradient; it then only passes cotangents on as saved.
    pub backward: Graph,
    /// `W`: takes parameters and saved values; gives the remaining parameter gradients.
    pub weight: Graph,
    /// Takes data (and frozen weights) and gives the loss weight: what the sum of losses is divided by. Present in the
    /// stage whose graph returns it.
    pub normaliser: Option<Graph>,
}

/// Why a stage has no gradient programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AutodiffError {
    /// The operator is itself a gradient, or has no derivative.
    #[error("`{op}` (at {scope:?}) has no gradient; freeze the parameters before it or replace it")]
    NoRule {
        /// ATen's name.
        op: &'static str,
        /// Where the model's code made the node.
        scope: String,
    },
    /// The operator has a gradient, but not for these arguments.
    #[error("`{op}` (at {scope:?}): {reason}")]
    Unsupported {
        /// ATen's name.
        op: &'static str,
        /// Where the model's code made the node.
        scope: String,
        /// What is in the way and what to try.
        reason: &'static str,
    },
    /// A gradient came out with another type than its value: the graph is not well typed. `verify()` tells where.
    #[error(
        "the gradient of `{op}`'s operand {operand} (at {scope:?}) has type {gradient} but the operand {value}"
    )]
    Mistyped {
        /// ATen's name.
        op: &'static str,
        /// Where the model's code made the node.
        scope: String,
        /// Operand index.
        operand: usize,
        /// Type of the gradient.
        gradient: String,
        /// Type of the operand.
        value: String,
    },
    /// The loss depends on parameters alone, or its weight on more than data.
    #[error("loss {name:?}: {reason}")]
    Loss {
        /// The output's name.
        name: String,
        /// What is wrong and what to try.
        reason: &'static str,
    },
    /// A backward node could not be added; the forward graph is not well typed.
    #[error("gradient of `{op}` (at {scope:?}): {source}")]
    Graph {
        /// ATen's name.
        op: &'static str,
        /// Where the model's code made the node.
        scope: String,
        /// What shape inference said.
        source: GraphError,
    },
    /// The graph refers to values or nodes that it does not have.
    #[error("the stage's graph is malformed ({0}); run verify() on it first")]
    Malformed(&'static str),
}

/// Differentiates a stage, or a whole graph as a stage of one.
///
/// The stage's graph must have passed [`Graph::verify`]. Batch dimensions may stay symbolic. Only values that a gradient
/// needs are saved and only nodes that an output needs are kept.
///
/// # Errors
/// See [`AutodiffError`]; each names the forward node.
pub fn stage_programs(stage: &Stage) -> Result<StagePrograms, AutodiffError> {
    let graph = &stage.graph;
    let facts = Facts::new(graph, &stage.differentiable)?;
    let joint = Sweep::run(graph, &facts, &stage.differentiable)?;
    let (backward, weight) = split::split(&joint, &graph.name)?;

    let mut saved = BTreeSet::new();
    for input in backward.inputs.iter().chain(&weight.inputs) {
        if input.kind == InputKind::Saved
            && let Some(value) = joint.saved.get(&input.name)
        {
            saved.insert(*value);
        }
    }
    let mut outputs: Vec<split::Wanted> = (graph.outputs.iter())
        .filter(|output| output.kind != OutputKind::LossWeight)
        .map(split::Wanted::of)
        .collect();
    outputs.extend(saved.into_iter().map(|value| split::Wanted {
        kind: OutputKind::Saved,
        name: saved_name(value),
        value,
    }));
    let forward = split::extract(graph, &format!("{}.F", graph.name), &outputs, &[])?.graph;

    Ok(StagePrograms {
        forward,
        backward,
        weight,
        normaliser: normaliser(graph)?,
    })
}

/// Every value of a graph on a differentiable path from a trainable parameter to the loss: those whose gradient exists.
///
/// Slicing asks this of the whole graph to know which activations get a cotangent back.
///
/// # Errors
/// [`AutodiffError::Malformed`] if the graph has not passed `verify()`.
pub fn values_with_gradient(graph: &Graph) -> Result<BTreeSet<ValueId>, AutodiffError> {
    let facts = Facts::new(graph, &BTreeSet::new())?;
    facts.on_path_to_loss(graph)
}

/// The program of the loss weight alone.
fn normaliser(graph: &Graph) -> Result<Option<Graph>, AutodiffError> {
    let outputs: Vec<split::Wanted> = (graph.outputs.iter())
        .filter(|output| output.kind == OutputKind::LossWeight)
        .map(split::Wanted::of)
        .collect();
    let Some(first) = outputs.first() else {
        return Ok(None);
    };
    let program = split::extract(graph, &format!("{}.N", graph.name), &outputs, &[])?.graph;
    let data_only = (program.inputs.iter())
        .all(|input| matches!(input.kind, InputKind::Data | InputKind::Frozen));
    if !data_only {
        return Err(AutodiffError::Loss {
            name: first.name.clone(),
            reason: "what the loss is divided by must depend on data and constants alone, so that it is known before the forward pass",
        });
    }
    Ok(Some(program))
}

/// The name under which `F` saves a value of the stage's graph.
fn saved_name(value: ValueId) -> String {
    format!("%{}", value.0)
}
