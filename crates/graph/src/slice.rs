//! Cutting the whole graph into stages.
//!
//! ```text
//!   nodes   0 1 2 | 3 4 5 | 6 7 8        cuts = [3, 6]
//!   stage     0   |   1   |   2
//!             a ------------> uses a     a is an activation output of 0, input and output of 1, input of 2
//!                      b ---> uses b     b is an activation output of 1, input of 2
//! ```
//!
//! Everything that crosses a cut travels from stage to stage through the chain; a skip over several stages is forwarded
//! by each of them. Data inputs go to every stage that uses them, weights to every stage that uses them, and what is
//! derived from weights alone is computed where it is used.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::canonical::derived_values;
use crate::rewrite::{Rewrite, live_nodes};
use crate::{
    AutodiffError, Graph, GraphError, InputKind, OutputKind, Stage, TensorType, ValueId,
    values_with_gradient,
};

/// Why a graph cannot be cut there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// Cuts out of order or out of range.
    #[error("cut {cut} is out of order: cuts ascend and lie between 1 and {last}")]
    Cuts {
        /// The offending cut.
        cut: usize,
        /// Largest cut that the graph has.
        last: usize,
    },
    /// A stage without nodes of its own.
    #[error(
        "stage {stage} would be empty: its nodes only prepare weights for a later stage; move or drop the cut at {cut}"
    )]
    EmptyStage {
        /// The stage.
        stage: usize,
        /// The cut at its end.
        cut: usize,
    },
    /// A buffer would have to live in two stages.
    #[error("buffer {name:?} is used by nodes {first} to {last}; no cut may lie in {}..={last}, but {cut} does", .first + 1)]
    Buffer {
        /// PyTorch's name of the buffer.
        name: String,
        /// First node that uses it.
        first: usize,
        /// Last node that uses or updates it.
        last: usize,
        /// The cut between.
        cut: usize,
    },
    /// A value derived from weights alone has consumers in several stages.
    #[error(
        "node {node} is derived from weights and used in several stages; canonicalize the graph first"
    )]
    NotCanonical {
        /// The node.
        node: usize,
    },
    /// The graph is not one that `verify` accepts.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The graph could not be asked which values have gradients.
    #[error(transparent)]
    Autodiff(#[from] AutodiffError),
    /// More values cross cuts than any sensible model has.
    #[error("over {0} values cross the cuts")]
    TooManyCrossings(usize),
}

/// Cuts a canonical graph into `cuts.len() + 1` stages; stage `k` holds the nodes from `cuts[k - 1]` to `cuts[k]`.
///
/// Two kinds of nodes go to a later stage than their number says: a chain derived from weights alone goes to its
/// consumer's, and what only the loss's weight needs goes to the loss's. An input that nothing uses is in no stage.
///
/// # Errors
/// See [`SliceError`].
pub fn slice(graph: &Graph, cuts: &[usize]) -> Result<Vec<Stage>, SliceError> {
    check_cuts(graph, cuts)?;
    let layout = Layout::new(graph)?;
    layout.check_buffers(cuts)?;
    let gradients = values_with_gradient(graph)?;
    (0..=cuts.len())
        .map(|index| cut_out(graph, &layout, cuts, index, &gradients))
        .collect()
}

/// What a cut before a node would mean.
#[derive(Clone, Debug, PartialEq)]
pub struct CutCandidate {
    /// The cut: the first node of the later stage.
    pub node: usize,
    /// The values that would cross it.
    pub crossing: Vec<Crossing>,
    /// Why the graph must not be cut here, if so.
    pub obstacle: Option<String>,
}

/// A value that crosses a cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossing {
    /// Its name as an activation.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Whether its cotangent comes back.
    pub differentiable: bool,
}

impl CutCandidate {
    /// Whether `slice` accepts this cut and no earlier one means the same.
    pub fn is_legal(&self) -> bool {
        self.obstacle.is_none()
    }

    /// Bytes that travel forward for a micro-batch of this size; saturates.
    pub fn forward_bytes(&self, batch: usize) -> u64 {
        self.bytes(batch, |_| true)
    }

    /// Bytes of cotangents that travel back for a micro-batch of this size; saturates.
    pub fn backward_bytes(&self, batch: usize) -> u64 {
        self.bytes(batch, |crossing| crossing.differentiable)
    }

    fn bytes(&self, batch: usize, counts: impl Fn(&Crossing) -> bool) -> u64 {
        (self.crossing.iter())
            .filter(|crossing| counts(crossing))
            .map(|crossing| crossing.ty.bytes(batch).unwrap_or(u64::MAX))
            .fold(0, u64::saturating_add)
    }
}

/// Every cut of a canonical graph, from 1 to the number of nodes - 1, for the planner.
///
/// # Errors
/// See [`SliceError`].
pub fn cut_candidates(graph: &Graph) -> Result<Vec<CutCandidate>, SliceError> {
    const MAX_CROSSINGS: usize = 1 << 22;
    let layout = Layout::new(graph)?;
    let gradients = values_with_gradient(graph)?;
    let mut candidates: Vec<CutCandidate> = (1..graph.nodes.len())
        .map(|node| CutCandidate {
            node,
            crossing: Vec::new(),
            obstacle: layout.obstacle(graph, node),
        })
        .collect();
    // Work is counted before it is done, so that no hostile graph keeps the planner busy for long.
    let mut crossings = 0_usize;
    for (name, positions) in &layout.buffers {
        let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else {
            continue;
        };
        crossings = crossings.saturating_add(last.saturating_sub(first));
        if crossings > MAX_CROSSINGS {
            return Err(SliceError::TooManyCrossings(MAX_CROSSINGS));
        }
        for candidate in candidates.iter_mut().take(last).skip(first) {
            let error = SliceError::Buffer {
                name: name.clone(),
                first,
                last,
                cut: candidate.node,
            };
            candidate.obstacle = Some(error.to_string());
        }
    }
    for (&value, &(from, to)) in &layout.spans {
        crossings = crossings.saturating_add(to.saturating_sub(from));
        if crossings > MAX_CROSSINGS {
            return Err(SliceError::TooManyCrossings(MAX_CROSSINGS));
        }
        let Some(ty) = graph.ty(value) else { continue };
        // Cut `c` is element `c - 1`; the value crosses the cuts from `from + 1` to `to`.
        for candidate in candidates.iter_mut().take(to).skip(from) {
            candidate.crossing.push(Crossing {
                name: value.to_string(),
                ty: ty.clone(),
                differentiable: gradients.contains(&value),
            });
        }
    }
    Ok(candidates)
}

fn check_cuts(graph: &Graph, cuts: &[usize]) -> Result<(), SliceError> {
    let last = graph.nodes.len().saturating_sub(1);
    let mut least = 1;
    for &cut in cuts {
        if cut < least || cut > last {
            return Err(SliceError::Cuts { cut, last });
        }
        least = cut + 1;
    }
    Ok(())
}

/// The stage of a node at this position.
fn stage_at(cuts: &[usize], position: usize) -> usize {
    cuts.partition_point(|&cut| cut <= position)
}

/// Where nodes and values of a graph belong, before any cut.
struct Layout {
    /// For each node, the position by which it is cut: its own, or that of the node it must stay with. `None` for dead
    /// nodes.
    positions: Vec<Option<usize>>,
    /// For each value that could cross a cut: positions of its maker and of its last user, when that is later.
    spans: BTreeMap<ValueId, (usize, usize)>,
    /// For each input, the positions of the nodes that use it.
    uses: HashMap<ValueId, BTreeSet<usize>>,
    /// For each buffer, its name and the positions of all nodes that use or update it.
    buffers: Vec<(String, BTreeSet<usize>)>,
    /// The position of the node that makes each value.
    makers: HashMap<ValueId, usize>,
    /// The highest position of a live node.
    last: Option<usize>,
}

impl Layout {
    fn new(graph: &Graph) -> Result<Layout, SliceError> {
        let live = live_nodes(graph);
        let derived = derived_values(graph);
        let weight_only = loss_weight_nodes(graph, &live);
        let mut layout = Layout {
            positions: vec![None; graph.nodes.len()],
            spans: BTreeMap::new(),
            uses: HashMap::new(),
            buffers: Vec::new(),
            makers: HashMap::new(),
            last: None,
        };
        let loss_position = loss_position(graph, &weight_only);
        // From the last node back, so that the consumers of a node are placed before it.
        let mut users: HashMap<ValueId, BTreeSet<usize>> = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate().rev() {
            if live.get(index) != Some(&true) {
                continue;
            }
            let is_derived = (node.results.iter()).any(|r| derived.get(r.index()) == Some(&true));
            let mut position = match weight_only.get(index) {
                Some(true) => loss_position,
                _ => index,
            };
            if is_derived {
                let consumers: BTreeSet<usize> = (node.results.iter())
                    .filter_map(|result| users.get(result))
                    .flatten()
                    .copied()
                    .collect();
                match (consumers.first(), consumers.len()) {
                    (Some(&consumer), 1) => position = consumer,
                    (None, _) => {}
                    _ => return Err(SliceError::NotCanonical { node: index }),
                }
            }
            if let Some(slot) = layout.positions.get_mut(index) {
                *slot = Some(position);
            }
            for operand in node.operands.iter().flatten() {
                users.entry(*operand).or_default().insert(position);
            }
            for result in &node.results {
                layout.makers.insert(*result, position);
                let last = users.get(result).and_then(BTreeSet::last).copied();
                if let Some(last) = last
                    && !is_derived
                    && last > position
                {
                    layout.spans.insert(*result, (position, last));
                }
            }
        }
        layout.last = layout.positions.iter().flatten().max().copied();
        let updates: HashMap<&str, ValueId> = (graph.outputs.iter())
            .filter(|output| output.kind == OutputKind::BufferUpdate)
            .map(|output| (output.name.as_str(), output.value))
            .collect();
        for input in &graph.inputs {
            let uses = users.remove(&input.value).unwrap_or_default();
            let update = updates.get(input.name.as_str());
            // A buffer that is only read may live in several stages.
            if input.kind == InputKind::Buffer
                && let Some(&made) = update.and_then(|update| layout.makers.get(update))
            {
                let all = uses.iter().copied().chain([made]).collect();
                layout.buffers.push((input.name.clone(), all));
            }
            layout.uses.insert(input.value, uses);
        }
        Ok(layout)
    }

    fn check_buffers(&self, cuts: &[usize]) -> Result<(), SliceError> {
        for (name, positions) in &self.buffers {
            let (Some(&first), Some(&last)) = (positions.first(), positions.last()) else {
                continue;
            };
            if let Some(&cut) = cuts.iter().find(|&&cut| first < cut && cut <= last) {
                let name = name.clone();
                return Err(SliceError::Buffer {
                    name,
                    first,
                    last,
                    cut,
                });
            }
        }
        Ok(())
    }

    /// Why the planner should not cut before this node, buffers aside.
    fn obstacle(&self, graph: &Graph, cut: usize) -> Option<String> {
        let before = cut.checked_sub(1)?;
        match self.positions.get(before).copied().flatten() {
            Some(position) if position == before => {}
            _ => {
                return Some(format!(
                    "node {before} `{}` stays with a later node, so this is the same cut as an earlier one",
                    graph.nodes.get(before).map_or("", |node| node.op.name())
                ));
            }
        }
        (self.last < Some(cut)).then(|| "nothing would be left for the later stage".to_owned())
    }

    /// The position by which an output is cut; of an input that is returned, its first use.
    fn output_position(&self, value: ValueId) -> usize {
        let used = || self.uses.get(&value)?.first().copied();
        self.makers
            .get(&value)
            .copied()
            .or_else(used)
            .unwrap_or_default()
    }
}

/// The live nodes whose results only loss weights need.
fn loss_weight_nodes(graph: &Graph, live: &[bool]) -> Vec<bool> {
    let mut rest = Graph::clone(graph);
    rest.outputs
        .retain(|output| output.kind != OutputKind::LossWeight);
    let live_without = live_nodes(&rest);
    (live.iter().zip(live_without))
        .map(|(&live, live_without)| live && !live_without)
        .collect()
}

/// Where the nodes that only the loss's weight needs belong: with the loss, so that no stage exists for them alone and
/// targets need not be sent twice; or later, with the last thing they need.
fn loss_position(graph: &Graph, weight_only: &[bool]) -> usize {
    let mut makers: HashMap<ValueId, usize> = HashMap::new();
    let mut needed = None;
    let mut last = None;
    for (index, node) in graph.nodes.iter().enumerate() {
        makers.extend(node.results.iter().map(|&result| (result, index)));
        if weight_only.get(index) == Some(&true) {
            last = Some(index);
            let operands = node.operands.iter().flatten();
            let others = operands
                .filter_map(|operand| makers.get(operand).copied())
                .filter(|maker| weight_only.get(*maker) != Some(&true));
            needed = needed.max(others.max());
        }
    }
    let loss = (graph.outputs.iter()).find(|output| output.kind == OutputKind::LossSum);
    match loss.and_then(|loss| makers.get(&loss.value).copied()) {
        Some(loss) => needed.map_or(loss, |needed| loss.max(needed)),
        None => last.unwrap_or_default(),
    }
}

/// One stage as a graph of its own.
fn cut_out(
    graph: &Graph,
    layout: &Layout,
    cuts: &[usize],
    index: usize,
    gradients: &BTreeSet<ValueId>,
) -> Result<Stage, SliceError> {
    let here = |position: usize| stage_at(cuts, position) == index;
    let mut rewrite = Rewrite::new(graph);
    rewrite.new.name = if cuts.is_empty() {
        graph.name.clone()
    } else {
        // Cut short rather than beyond the limit on names.
        let name: String = graph.name.chars().take(200).collect();
        format!("{name}/{index}")
    };
    let mut differentiable = BTreeSet::new();

    let outputs: Vec<_> = (graph.outputs.iter())
        .filter(|output| here(layout.output_position(output.value)))
        .collect();
    let returned: HashSet<ValueId> = outputs.iter().map(|output| output.value).collect();
    let updated: HashSet<&str> = (outputs.iter())
        .filter(|output| output.kind == OutputKind::BufferUpdate)
        .map(|output| output.name.as_str())
        .collect();
    for input in &graph.inputs {
        let used = layout.uses.get(&input.value);
        let used = used.is_some_and(|uses| uses.iter().any(|&position| here(position)));
        // A stage that updates a buffer holds it, even if it does not read it.
        let updates = input.kind == InputKind::Buffer && updated.contains(input.name.as_str());
        if used || updates || returned.contains(&input.value) {
            rewrite.input(input)?;
        }
    }
    for (&value, &(from, to)) in &layout.spans {
        let (from, to) = (stage_at(cuts, from), stage_at(cuts, to));
        if from < index && index <= to {
            rewrite.input_as(value, InputKind::Activation, value.to_string())?;
            if gradients.contains(&value) {
                differentiable.insert(value.to_string());
            }
        }
    }
    for (node, position) in graph.nodes.iter().zip(&layout.positions) {
        if position.is_some_and(here) {
            rewrite.node(node)?;
        }
    }
    for output in outputs {
        rewrite.output(output)?;
    }
    for (&value, &(from, to)) in &layout.spans {
        let (from, to) = (stage_at(cuts, from), stage_at(cuts, to));
        if from <= index && index < to {
            rewrite.output_as(value, OutputKind::Activation, value.to_string())?;
            if gradients.contains(&value) {
                differentiable.insert(value.to_string());
            }
        }
    }

    let numbered_here = layout.positions.iter().enumerate();
    let mut moved = numbered_here.filter(|(node, position)| here(*node) && position.is_some());
    if rewrite.new.nodes.is_empty() && moved.next().is_some() {
        let cut = cuts.get(index).copied().unwrap_or(graph.nodes.len());
        return Err(SliceError::EmptyStage { stage: index, cut });
    }
    Ok(Stage {
        index,
        graph: rewrite.new,
        differentiable,
    })
}
