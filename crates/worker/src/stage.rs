//! A stage: its programs, checked against each other, and what it takes and gives.

mod check;

use std::collections::BTreeSet;

use outboard_graph::{Graph, InputKind, OutputKind, TensorType};
use outboard_schedule::Kind;
use outboard_wire::{FailureKind, StageAssignment, WeightSpec};

use crate::event::JobError;

pub(crate) use check::check_neighbours;

/// The name of the cotangent that the worker itself supplies.
pub(crate) const LOSS: &str = "loss";

/// A named tensor that crosses the stage's border.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name, unique among ports of its kind.
    pub name: String,
    /// Type, with a symbolic batch.
    pub ty: TensorType,
}

/// What a stage takes and gives in steps of one mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ports {
    /// Data from the host.
    pub data: Vec<Port>,
    /// Activations from the stage before.
    pub activations_in: Vec<Port>,
    /// Activations for the stage after.
    pub activations_out: Vec<Port>,
    /// Cotangents from the stage after; not the loss's.
    pub cotangents_in: Vec<Port>,
    /// Cotangents for the stage before.
    pub cotangents_out: Vec<Port>,
}

/// Everything about a stage that the core has to know: what to wait for and whom to send to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// Index among all stages.
    pub stage: u16,
    /// Steps of training; `None` where the stage was assigned for inference.
    pub train: Option<Ports>,
    /// Steps of evaluation.
    pub evaluate: Option<Ports>,
    /// Names of the data that the normaliser takes; `Some` where the stage holds the loss.
    pub normaliser: Option<Vec<String>>,
    /// Names of the data that `F` takes in training.
    pub forward_data: Vec<String>,
    /// Uses of parameters whose gradients it gives, as `NAME#USE`, with the parameter's type.
    pub uses: Vec<Port>,
    /// Bytes that `F` and `B` save of a largest micro-batch.
    pub saved_bytes: u64,
    /// Micro-batches that memory was planned for at once.
    pub in_flight: u16,
}

/// The programs of a stage, with symbolic batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    pub(crate) forward: Option<Graph>,
    pub(crate) backward: Option<Graph>,
    pub(crate) weight: Option<Graph>,
    pub(crate) normaliser: Option<Graph>,
    pub(crate) evaluate: Option<Graph>,
}

/// Which program of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ProgramKind {
    Train(Kind),
    Normaliser,
    Evaluate,
}

impl ProgramKind {
    pub(crate) const ALL: [ProgramKind; 5] = [
        ProgramKind::Train(Kind::Forward),
        ProgramKind::Train(Kind::Backward),
        ProgramKind::Train(Kind::Weight),
        ProgramKind::Normaliser,
        ProgramKind::Evaluate,
    ];
}

impl Programs {
    /// Reads all programs of an assignment and checks each by itself.
    fn parse(assignment: &StageAssignment) -> Result<Self, JobError> {
        let stage = assignment.stage;
        let read = |what: &str, text: &Option<String>| {
            text.as_deref()
                .map(|text| parse(text).map_err(|reason| refuse(stage, what, &reason)))
                .transpose()
        };
        Ok(Programs {
            forward: read("F", &assignment.forward)?,
            backward: read("B", &assignment.backward)?,
            weight: read("W", &assignment.weight)?,
            normaliser: read("the normaliser", &assignment.normaliser)?,
            evaluate: read("the evaluation program", &assignment.evaluate)?,
        })
    }

    pub(crate) fn get(&self, kind: ProgramKind) -> Option<&Graph> {
        match kind {
            ProgramKind::Train(Kind::Forward) => self.forward.as_ref(),
            ProgramKind::Train(Kind::Backward) => self.backward.as_ref(),
            ProgramKind::Train(Kind::Weight) => self.weight.as_ref(),
            ProgramKind::Normaliser => self.normaliser.as_ref(),
            ProgramKind::Evaluate => self.evaluate.as_ref(),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Graph> {
        ProgramKind::ALL
            .into_iter()
            .filter_map(|kind| self.get(kind))
    }
}

/// A stage whose programs fit each other and its weights.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) signature: Signature,
    pub(crate) programs: Programs,
    pub(crate) weights: Vec<WeightSpec>,
    /// What `F` and `B` save and `W` takes: kept until then.
    pub(crate) kept_for_weight: BTreeSet<String>,
    /// What `F` saves and `B` takes.
    pub(crate) kept_for_backward: BTreeSet<String>,
}

impl Stage {
    /// Reads and checks an assignment; `largest` is its largest micro-batch.
    pub(crate) fn new(assignment: &StageAssignment, largest: u32) -> Result<Self, JobError> {
        let programs = Programs::parse(assignment)?;
        check::check(assignment, &programs)?;
        let too_large = || {
            refuse(
                assignment.stage,
                "its programs",
                &format!("a micro-batch of {largest} samples is more than a machine can address"),
            )
        };
        let saved_bytes = [&programs.forward, &programs.backward]
            .into_iter()
            .flatten()
            .flat_map(|graph| outputs(graph, OutputKind::Saved))
            .try_fold(0_u64, |sum, port| {
                sum.checked_add(port.ty.bytes(largest as usize)?)
            })
            .ok_or_else(too_large)?;
        let kept = |graph: &Option<Graph>| -> BTreeSet<String> {
            graph
                .iter()
                .flat_map(|graph| inputs(graph, InputKind::Saved))
                .map(|port| port.name)
                .collect()
        };
        Ok(Stage {
            signature: signature(assignment, &programs, saved_bytes),
            kept_for_weight: kept(&programs.weight),
            kept_for_backward: kept(&programs.backward),
            programs,
            weights: assignment.weights.clone(),
        })
    }
}

/// Reads a program that came from a peer: within limits, and verified.
pub(crate) fn parse(text: &str) -> Result<Graph, String> {
    // Parsing verifies.
    text.parse::<Graph>().map_err(|error| error.to_string())
}

/// An assignment that cannot be taken because of its programs.
pub(crate) fn refuse(stage: u16, what: &str, reason: &str) -> JobError {
    JobError {
        kind: FailureKind::Program,
        stage: Some(stage),
        message: format!("stage {stage}: {what}: {reason}"),
    }
}

/// The inputs of a kind.
pub(crate) fn inputs(graph: &Graph, kind: InputKind) -> impl Iterator<Item = Port> {
    graph
        .inputs
        .iter()
        .filter(move |input| input.kind == kind)
        .filter_map(|input| {
            let value = graph.values.get(input.value.0 as usize)?;
            Some(Port {
                name: input.name.clone(),
                ty: value.ty.clone(),
            })
        })
}

/// The outputs of a kind.
pub(crate) fn outputs(graph: &Graph, kind: OutputKind) -> impl Iterator<Item = Port> {
    graph
        .outputs
        .iter()
        .filter(move |output| output.kind == kind)
        .filter_map(|output| {
            let value = graph.values.get(output.value.0 as usize)?;
            Some(Port {
                name: output.name.clone(),
                ty: value.ty.clone(),
            })
        })
}

/// Splits `NAME#ORIGIN.OPERAND`, the name of one use's gradient.
pub(crate) fn split_use(name: &str) -> Option<(&str, (u32, u32))> {
    let (parameter, at) = name.rsplit_once('#')?;
    let (origin, operand) = at.split_once('.')?;
    Some((parameter, (origin.parse().ok()?, operand.parse().ok()?)))
}

fn signature(assignment: &StageAssignment, programs: &Programs, saved_bytes: u64) -> Signature {
    let data = |graph: &Graph| inputs(graph, InputKind::Data).collect::<Vec<_>>();
    let train = programs.forward.as_ref().map(|forward| {
        let mut all_data = data(forward);
        for port in programs.normaliser.iter().flat_map(data) {
            if !all_data.contains(&port) {
                all_data.push(port);
            }
        }
        let backward = programs.backward.as_ref();
        Ports {
            data: all_data,
            activations_in: inputs(forward, InputKind::Activation).collect(),
            activations_out: outputs(forward, OutputKind::Activation).collect(),
            cotangents_in: backward
                .into_iter()
                .flat_map(|graph| inputs(graph, InputKind::Cotangent))
                .filter(|port| port.name != LOSS)
                .collect(),
            cotangents_out: backward
                .into_iter()
                .flat_map(|graph| outputs(graph, OutputKind::Cotangent))
                .collect(),
        }
    });
    let evaluate = programs.evaluate.as_ref().map(|graph| Ports {
        data: data(graph),
        activations_in: inputs(graph, InputKind::Activation).collect(),
        activations_out: outputs(graph, OutputKind::Activation).collect(),
        ..Ports::default()
    });
    Signature {
        stage: assignment.stage,
        train,
        evaluate,
        normaliser: programs
            .normaliser
            .as_ref()
            .map(|graph| data(graph).into_iter().map(|port| port.name).collect()),
        forward_data: programs
            .forward
            .iter()
            .flat_map(data)
            .map(|port| port.name)
            .collect(),
        uses: [&programs.backward, &programs.weight]
            .into_iter()
            .flatten()
            .flat_map(|graph| outputs(graph, OutputKind::ParameterGradient))
            .collect(),
        saved_bytes,
        in_flight: assignment.in_flight,
    }
}
