//! Twins of what several messages hold.

use outboard_graph::DType;
use outboard_schedule::{Action, Kind};
use serde::{Deserialize, Serialize};

use super::limits::{NAME_BYTES, PROGRAM_BYTES, RANK, STAGES, USES, WEIGHTS};
use crate::bounded::{Finite, List, Text};
use crate::codes::Code;
use crate::error::EncodeError;
use crate::message::{
    Assign, Optimizer, SharedWeight, StageAssignment, StateKind, TensorEncoding, WeightSpec,
};

/// `0F3` as stage, kind, micro-batch.
#[derive(Serialize, Deserialize)]
pub(super) struct ActionTwin(u16, Code<Kind>, u16);

impl From<&Action> for ActionTwin {
    fn from(action: &Action) -> Self {
        Self(action.stage, Code(action.kind), action.micro_batch)
    }
}

impl From<ActionTwin> for Action {
    fn from(ActionTwin(stage, Code(kind), micro_batch): ActionTwin) -> Self {
        Self {
            stage,
            kind,
            micro_batch,
        }
    }
}

#[derive(Serialize, Deserialize)]
enum OptimizerTwin {
    Sgd {
        momentum: Finite,
        dampening: Finite,
        weight_decay: Finite,
        nesterov: bool,
    },
    Adam {
        betas: (Finite, Finite),
        eps: Finite,
        weight_decay: Finite,
        amsgrad: bool,
        decoupled: bool,
    },
}

impl OptimizerTwin {
    fn new(optimizer: &Optimizer) -> Result<Self, EncodeError> {
        Ok(match *optimizer {
            Optimizer::Sgd {
                momentum,
                dampening,
                weight_decay,
                nesterov,
            } => Self::Sgd {
                momentum: Finite::new("momentum", momentum)?,
                dampening: Finite::new("dampening", dampening)?,
                weight_decay: Finite::new("weight decay", weight_decay)?,
                nesterov,
            },
            Optimizer::Adam {
                betas: (first, second),
                eps,
                weight_decay,
                amsgrad,
                decoupled,
            } => Self::Adam {
                betas: (
                    Finite::new("first beta", first)?,
                    Finite::new("second beta", second)?,
                ),
                eps: Finite::new("eps", eps)?,
                weight_decay: Finite::new("weight decay", weight_decay)?,
                amsgrad,
                decoupled,
            },
        })
    }
}

impl From<OptimizerTwin> for Optimizer {
    fn from(twin: OptimizerTwin) -> Self {
        match twin {
            OptimizerTwin::Sgd {
                momentum,
                dampening,
                weight_decay,
                nesterov,
            } => Self::Sgd {
                momentum: momentum.get(),
                dampening: dampening.get(),
                weight_decay: weight_decay.get(),
                nesterov,
            },
            OptimizerTwin::Adam {
                betas: (first, second),
                eps,
                weight_decay,
                amsgrad,
                decoupled,
            } => Self::Adam {
                betas: (first.get(), second.get()),
                eps: eps.get(),
                weight_decay: weight_decay.get(),
                amsgrad,
                decoupled,
            },
        }
    }
}

#[derive(Serialize, Deserialize)]
struct WeightTwin<'a> {
    #[serde(borrow)]
    name: Text<'a, NAME_BYTES>,
    state: Code<StateKind>,
    dtype: Code<DType>,
    dims: List<u64, RANK>,
    sha256: [u8; 32],
}

impl<'a> WeightTwin<'a> {
    fn new(weight: &'a WeightSpec) -> Result<Self, EncodeError> {
        Ok(Self {
            name: Text::new("name of a weight", &weight.name)?,
            state: Code(weight.state),
            dtype: Code(weight.dtype),
            dims: List::new("shape of a weight", &weight.dims, |dim| Ok(*dim))?,
            sha256: weight.sha256,
        })
    }
}

impl From<WeightTwin<'_>> for WeightSpec {
    fn from(twin: WeightTwin<'_>) -> Self {
        Self {
            name: twin.name.into_string(),
            state: twin.state.0,
            dtype: twin.dtype.0,
            dims: twin.dims.into_vec(|dim| dim),
            sha256: twin.sha256,
        }
    }
}

type Program<'a> = Text<'a, PROGRAM_BYTES>;

#[derive(Serialize, Deserialize)]
struct StageTwin<'a> {
    stage: u16,
    #[serde(borrow)]
    forward: Option<Program<'a>>,
    backward: Option<Program<'a>>,
    weight: Option<Program<'a>>,
    normaliser: Option<Program<'a>>,
    evaluate: Option<Program<'a>>,
    weights: List<WeightTwin<'a>, WEIGHTS>,
    in_flight: u16,
}

impl<'a> StageTwin<'a> {
    fn new(stage: &'a StageAssignment) -> Result<Self, EncodeError> {
        let program = |text: &'a Option<String>| {
            text.as_deref()
                .map(|text| Text::new("program of a stage", text))
                .transpose()
        };
        Ok(Self {
            stage: stage.stage,
            forward: program(&stage.forward)?,
            backward: program(&stage.backward)?,
            weight: program(&stage.weight)?,
            normaliser: program(&stage.normaliser)?,
            evaluate: program(&stage.evaluate)?,
            weights: List::new("weights of a stage", &stage.weights, WeightTwin::new)?,
            in_flight: stage.in_flight,
        })
    }
}

impl From<StageTwin<'_>> for StageAssignment {
    fn from(twin: StageTwin<'_>) -> Self {
        let program = |text: Option<Program<'_>>| text.map(Text::into_string);
        Self {
            stage: twin.stage,
            forward: program(twin.forward),
            backward: program(twin.backward),
            weight: program(twin.weight),
            normaliser: program(twin.normaliser),
            evaluate: program(twin.evaluate),
            weights: twin.weights.into_vec(WeightSpec::from),
            in_flight: twin.in_flight,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SharedTwin<'a> {
    #[serde(borrow)]
    name: Text<'a, NAME_BYTES>,
    uses: List<Text<'a, NAME_BYTES>, USES>,
    stages: List<u16, STAGES>,
}

impl<'a> SharedTwin<'a> {
    fn new(shared: &'a SharedWeight) -> Result<Self, EncodeError> {
        Ok(Self {
            name: Text::new("name of a shared weight", &shared.name)?,
            uses: List::new("uses of a shared weight", &shared.uses, |name| {
                Text::new("use of a shared weight", name)
            })?,
            stages: List::new("stages of a shared weight", &shared.stages, |stage| {
                Ok(*stage)
            })?,
        })
    }
}

impl From<SharedTwin<'_>> for SharedWeight {
    fn from(twin: SharedTwin<'_>) -> Self {
        Self {
            name: twin.name.into_string(),
            uses: twin.uses.into_vec(Text::into_string),
            stages: twin.stages.into_vec(|stage| stage),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct AssignTwin<'a> {
    run: u32,
    seed: u64,
    first_step: u64,
    encoding: Code<TensorEncoding>,
    optimizer: Option<OptimizerTwin>,
    #[serde(borrow)]
    stages: List<StageTwin<'a>, STAGES>,
    shared: List<SharedTwin<'a>, WEIGHTS>,
    largest_micro_batch: u32,
    most_micro_batches: u16,
}

impl<'a> AssignTwin<'a> {
    pub(super) fn new(assign: &'a Assign) -> Result<Self, EncodeError> {
        Ok(Self {
            run: assign.run,
            seed: assign.seed,
            first_step: assign.first_step,
            encoding: Code(assign.encoding),
            optimizer: assign
                .optimizer
                .as_ref()
                .map(OptimizerTwin::new)
                .transpose()?,
            stages: List::new("stages of a worker", &assign.stages, StageTwin::new)?,
            shared: List::new("shared weights", &assign.shared, SharedTwin::new)?,
            largest_micro_batch: assign.largest_micro_batch,
            most_micro_batches: assign.most_micro_batches,
        })
    }
}

impl From<AssignTwin<'_>> for Assign {
    fn from(twin: AssignTwin<'_>) -> Self {
        Self {
            run: twin.run,
            seed: twin.seed,
            first_step: twin.first_step,
            encoding: twin.encoding.0,
            optimizer: twin.optimizer.map(Optimizer::from),
            stages: twin.stages.into_vec(StageAssignment::from),
            shared: twin.shared.into_vec(SharedWeight::from),
            largest_micro_batch: twin.largest_micro_batch,
            most_micro_batches: twin.most_micro_batches,
        }
    }
}
