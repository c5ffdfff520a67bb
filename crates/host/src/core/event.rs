//! Everything that can happen to the coordinator, and everything it can want.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use outboard_graph::Tensor;
use outboard_schedule::Action;
use outboard_wire::{
    Assign, DataFrame, DataHeader, DataKind, DecodeError, DeviceHello, HostMessage, StateKind,
    StepMode, WorkerMessage,
};

use crate::RunError;
use crate::report::StepReport;

/// A device's index in the list given to [`crate::Host::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub usize);

/// Every cause of a change.
#[derive(Debug)]
pub enum Event {
    /// A link to the device is up.
    Opened {
        /// Device.
        device: DeviceId,
    },
    /// Bytes moved on the device's link, in either direction: it lives.
    Heard {
        /// Device.
        device: DeviceId,
    },
    /// A control frame came in.
    Message {
        /// Device.
        device: DeviceId,
        /// The message.
        message: WorkerMessage,
    },
    /// A data frame came in.
    Data {
        /// Device.
        device: DeviceId,
        /// The frame.
        frame: DataFrame,
    },
    /// The oldest data frame that was handed out and not yet reported has left the host.
    Written {
        /// Device.
        device: DeviceId,
    },
    /// The link is gone, or its bytes make no sense.
    Closed {
        /// Device.
        device: DeviceId,
        /// Why.
        cause: Cause,
    },
    /// The time that [`Effect::SetTimer`] asked for has come.
    Timer,
    /// The application wants something.
    Command(Command),
}

/// Why a link is of no more use.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// It could not be made: what was dialled, and what the link said.
    Dial {
        /// Address.
        address: String,
        /// Reason.
        reason: String,
    },
    /// End of stream, or the cable's error.
    Link(String),
    /// The peer's bytes make no sense.
    Decode(DecodeError),
}

/// What the application can want.
#[derive(Debug)]
pub enum Command {
    /// Measure the link to a device; answered by [`Report::Probed`].
    Probe(DeviceId),
    /// Time one-node programs on a device; answered by [`Report::Profiled`].
    Profile {
        /// Device.
        device: DeviceId,
        /// Concrete graphs in text form.
        programs: Vec<String>,
    },
    /// Begin a run; answered by [`Report::Started`].
    Start(Box<RunSpec>),
    /// Give every worker its list for steps of this many micro-batches. Not answered.
    Schedule(ScheduleSpec),
    /// Do a step; answered by [`Report::Stepped`] or [`Report::Evaluated`], in the order of submission.
    Step(Box<StepSpec>),
    /// Bring tensors back, once all submitted steps are done; answered by [`Report::Fetched`].
    Fetch(StateKind),
    /// End the run; answered by [`Report::Dropped`].
    Drop,
    /// Take leave of all devices.
    Bye,
}

/// A run, ready to be handed out.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Each device's part; `run` is filled in by the core.
    pub assigns: Vec<(DeviceId, Assign)>,
    /// The tensors each device's assignment asks for, in its order: stage, then weights.
    pub uploads: Vec<(DeviceId, Vec<Upload>)>,
    /// The device of each stage.
    pub device_of_stage: Vec<DeviceId>,
    /// The device that reports each trained parameter's gradient: that of the first stage that holds it.
    pub reporter_of_parameter: BTreeMap<String, DeviceId>,
    /// Results of an evaluation, by name, and the device that sends each.
    pub results: BTreeMap<String, DeviceId>,
    /// Everything that may travel between devices, and which device sends it.
    pub routes: BTreeMap<Route, DeviceId>,
    /// Clip gradients to this global norm.
    pub clip_norm: Option<f64>,
}

impl RunSpec {
    /// Optimizer steps that the weights have had.
    pub(super) fn first_step(&self) -> u64 {
        self.assigns
            .first()
            .map_or(0, |(_, assign)| assign.first_step)
    }
}

/// A tensor that workers send each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The stage it is for.
    pub stage: u16,
    /// What it is.
    pub cargo: Cargo,
    /// Its name.
    pub name: String,
}

/// The kinds of data that workers send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cargo {
    /// An activation.
    Activation,
    /// A cotangent.
    Cotangent,
    /// A gradient of a shared weight; once a step.
    SharedGradient,
}

impl Cargo {
    /// The kind of a data frame, if workers send it to each other.
    pub fn of(kind: DataKind) -> Option<Cargo> {
        match kind {
            DataKind::Activation => Some(Cargo::Activation),
            DataKind::Cotangent => Some(Cargo::Cotangent),
            DataKind::SharedGradient => Some(Cargo::SharedGradient),
            DataKind::Input
            | DataKind::Result
            | DataKind::Weight
            | DataKind::OptimizerState
            | DataKind::Probe => None,
        }
    }
}

/// A tensor for a stage.
#[derive(Clone, Debug)]
pub struct Upload {
    /// Stage.
    pub stage: u16,
    /// Weight or optimizer state.
    pub state: StateKind,
    /// Name, as in the assignment.
    pub name: String,
    /// The tensor.
    pub tensor: Tensor,
}

/// Lists of actions for steps of one number of micro-batches.
#[derive(Clone, Debug)]
pub struct ScheduleSpec {
    /// Micro-batches.
    pub micro_batches: u16,
    /// Each device's list.
    pub actions: Vec<(DeviceId, Vec<Action>)>,
}

/// A step.
#[derive(Clone, Debug)]
pub struct StepSpec {
    /// Number of the step. Steps of training are numbered on from the run's first step; those of evaluation as the caller
    /// likes, each once.
    pub step: u64,
    /// Train or evaluate.
    pub mode: StepMode,
    /// Samples of each micro-batch.
    pub sizes: Vec<u32>,
    /// Data for the stages, in the order of sending.
    pub inputs: Vec<StepInput>,
    /// Learning rate of a training step.
    pub learning_rate: f64,
}

/// One micro-batch's tensor for one stage.
#[derive(Clone, Debug)]
pub struct StepInput {
    /// Stage.
    pub stage: u16,
    /// Micro-batch.
    pub micro_batch: u16,
    /// Name of the `Data` input.
    pub name: String,
    /// The tensor.
    pub tensor: Tensor,
}

/// What the core wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// Device.
        device: DeviceId,
        /// The message.
        message: HostMessage,
    },
    /// Send a tensor of the host's own, exactly as it is; report when it has left.
    SendData {
        /// Device.
        device: DeviceId,
        /// The head.
        header: DataHeader,
        /// Elements, row-major, little-endian.
        payload: Bytes,
    },
    /// Send a frame that another worker sent, as it came; report when it has left.
    Forward {
        /// Device.
        device: DeviceId,
        /// The whole frame.
        frame: Bytes,
    },
    /// Close the link once what was sent before has left.
    Close {
        /// Device.
        device: DeviceId,
    },
    /// Send [`Event::Timer`] at this time, instead of any time asked for before.
    SetTimer(Duration),
    /// Tell the application.
    Report(Report),
}

/// What the application is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// A device said hello.
    Connected {
        /// Device.
        device: DeviceId,
        /// What it is called from now on.
        name: String,
        /// What it said.
        hello: DeviceHello,
    },
    /// A link was measured.
    Probed {
        /// Device.
        device: DeviceId,
        /// The measurement.
        link: LinkMeasure,
    },
    /// Programs were timed.
    Profiled {
        /// Device.
        device: DeviceId,
        /// Median seconds of each; `None` where the device cannot run it.
        seconds: Vec<Option<f64>>,
    },
    /// Bytes of weights that have left for a device, out of all.
    Uploading {
        /// Device.
        device: DeviceId,
        /// Sent.
        sent: u64,
        /// All.
        total: u64,
    },
    /// Every worker is ready.
    Started {
        /// Bytes each planned for.
        planned_bytes: Vec<(DeviceId, u64)>,
    },
    /// A training step is done.
    Stepped(Box<StepReport>),
    /// An evaluation step is done: results by name, for each micro-batch.
    Evaluated {
        /// Step.
        step: u64,
        /// Results, sorted by name.
        results: Vec<BTreeMap<String, Tensor>>,
    },
    /// Tensors came back.
    Fetched {
        /// Which.
        state: StateKind,
        /// By name.
        tensors: BTreeMap<String, Tensor>,
    },
    /// The run is gone from every device that still answers.
    Dropped,
    /// The run, or what else was going on, is over. Sent once; every command in progress is over with it.
    Failed(RunError),
}

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkMeasure {
    /// Half of the shortest round trip, seconds.
    pub latency_seconds: f64,
    /// Host to worker, bytes a second.
    pub to_worker_bytes_per_second: f64,
    /// Worker to host, bytes a second.
    pub to_host_bytes_per_second: f64,
}
