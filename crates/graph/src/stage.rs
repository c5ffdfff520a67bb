//! One stage of a pipeline: a slice of the whole forward graph.

use std::collections::BTreeSet;

use crate::Graph;

/// A stage: a run of nodes of the whole graph, as a graph of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Position in the pipeline, from the input (0) to the loss.
    pub index: usize,
    /// The stage's forward graph. What crosses a cut is an `Activation` input or output named `%N` after the whole
    /// graph's value.
    pub graph: Graph,
    /// The activations, received and sent, whose cotangent is needed: a gradient flows through them.
    pub differentiable: BTreeSet<String>,
}

impl Stage {
    /// The whole graph as the only stage.
    pub fn whole(graph: Graph) -> Stage {
        Stage {
            index: 0,
            graph,
            differentiable: BTreeSet::new(),
        }
    }
}
