//! The messages. Control messages are separate enums for each direction; tensors travel as data frames.

use bytes::Bytes;
use outboard_graph::DType;
use outboard_schedule::Action;

/// From the host to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum HostMessage {
    /// Opens the conversation.
    Hello {
        /// Version of this protocol.
        protocol: u16,
        /// Version of the program, for people.
        build: String,
        /// Name of the host, for people.
        name: String,
    },
    /// Answered by `Pong` at once, also while the worker computes.
    Ping {
        /// Comes back in the answer.
        nonce: u64,
    },
    /// Asks for a [`DataKind::Probe`] of this many bytes; bounded by the worker.
    Probe {
        /// Comes back in the answer's `micro_batch`.
        nonce: u16,
        /// Payload bytes.
        bytes: u32,
    },
    /// Asks how long each program takes; a program is a concrete graph in text form, inputs are made up by the worker.
    Profile {
        /// Comes back in the answer.
        id: u32,
        /// Programs, usually of one node.
        programs: Vec<String>,
    },
    /// Gives the worker its part of a run.
    Assign(Box<Assign>),
    /// The worker's actions, in order, for steps of this many micro-batches.
    Schedule {
        /// Run.
        run: u32,
        /// Micro-batches of the steps that follow this list.
        micro_batches: u16,
        /// Everything the worker does in such a step.
        actions: Vec<Action>,
    },
    /// Opens a step.
    Step {
        /// Run.
        run: u32,
        /// Step number.
        step: u64,
        /// Train or evaluate.
        mode: StepMode,
        /// Samples of each micro-batch.
        sizes: Vec<u32>,
    },
    /// Apply the optimizer: every worker's gradients are finite.
    Commit {
        /// Run.
        run: u32,
        /// Step.
        step: u64,
        /// Learning rate of this step.
        learning_rate: f64,
        /// Factor on all gradients, from clipping by the global norm.
        gradient_scale: f32,
    },
    /// Asks for all tensors of a kind; they come as bulk data, then `Fetched`.
    Fetch {
        /// Run.
        run: u32,
        /// Which.
        state: StateKind,
    },
    /// Forget the run and free its memory; answered by `Dropped`.
    DropRun {
        /// Run.
        run: u32,
    },
    /// More bytes may be sent on a stream.
    Credit {
        /// Stream from worker to host.
        stream: Stream,
        /// Bytes.
        bytes: u64,
    },
    /// The host is leaving in good order.
    Bye,
}

/// From a worker to the host.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerMessage {
    /// Answers `Hello`.
    Hello(DeviceHello),
    /// Answers `Ping`.
    Pong {
        /// From the `Ping`.
        nonce: u64,
        /// The worker's own clock, microseconds from an arbitrary start.
        clock_micros: u64,
    },
    /// A [`DataKind::Probe`] with this nonce has arrived whole.
    ProbeReceived {
        /// From the probe's `micro_batch`.
        nonce: u16,
    },
    /// Answers `Profile`, in its order; `None` where the worker cannot run the program.
    Profiled {
        /// From the `Profile`.
        id: u32,
        /// Median seconds.
        seconds: Vec<Option<f64>>,
    },
    /// The run is loaded, verified and compiled.
    Ready {
        /// Run.
        run: u32,
        /// Peak bytes that the worker planned for.
        planned_bytes: u64,
        /// SHA-256 over the hashes of all weights received, in the order of the assignment.
        weights_sha256: [u8; 32],
    },
    /// The worker's list for the step is done.
    Gradients {
        /// Run.
        run: u32,
        /// Step.
        step: u64,
        /// Loss sum of each micro-batch, in order, from the worker that holds the loss; empty elsewhere.
        loss_sums: Vec<f32>,
        /// Loss weight of each micro-batch, likewise.
        loss_weights: Vec<f32>,
        /// Sum of squares of each parameter's gradient, by name. A shared weight is reported by its first stage alone.
        squares: Vec<(String, f64)>,
        /// The first stage and value (`loss` or a parameter) that is not finite.
        not_finite: Option<(u16, String)>,
    },
    /// The optimizer has been applied, or the evaluation is over.
    StepDone {
        /// Run.
        run: u32,
        /// Step.
        step: u64,
        /// When each action ran.
        times: Vec<ActionTime>,
        /// Seconds the optimizer took.
        update_seconds: f64,
        /// Bytes in use at the most.
        peak_bytes: u64,
        /// 0 (cool) to 3 (critical), where the device tells.
        heat: Option<u8>,
    },
    /// All tensors of a `Fetch` have been sent.
    Fetched {
        /// Run.
        run: u32,
        /// Which.
        state: StateKind,
        /// Number of tensors sent.
        tensors: u32,
    },
    /// The run is gone and its memory free.
    Dropped {
        /// Run.
        run: u32,
    },
    /// Something went wrong; the run, if one is named, is over on this worker.
    Failed {
        /// Run.
        run: Option<u32>,
        /// Step.
        step: Option<u64>,
        /// Stage.
        stage: Option<u16>,
        /// What kind of thing.
        kind: FailureKind,
        /// For people: the cause and what to try.
        message: String,
    },
    /// More bytes may be sent on a stream.
    Credit {
        /// Stream from host to worker.
        stream: Stream,
        /// Bytes.
        bytes: u64,
    },
    /// The worker is leaving, for this reason.
    Bye {
        /// For people.
        reason: String,
    },
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceHello {
    /// Version of this protocol.
    pub protocol: u16,
    /// Version and build of the program; profiles are cached by it.
    pub build: String,
    /// Name for people.
    pub name: String,
    /// Stays the same over restarts of this device.
    pub device_id: String,
    /// Engine: `cpu`.
    pub engine: String,
    /// Processor or adapter.
    pub hardware: String,
    /// Compute threads.
    pub threads: u32,
    /// Bytes that stages may take.
    pub memory_bytes: u64,
}

/// A worker's part of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    /// Number of this run on this connection, chosen by the host.
    pub run: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Optimizer steps already taken, when resuming.
    pub first_step: u64,
    /// How stage tensors travel.
    pub encoding: TensorEncoding,
    /// The optimizer; `None` for inference.
    pub optimizer: Option<Optimizer>,
    /// Stages, ascending.
    pub stages: Vec<StageAssignment>,
    /// Weights that several stages hold.
    pub shared: Vec<SharedWeight>,
    /// Samples of the largest micro-batch.
    pub largest_micro_batch: u32,
    /// Micro-batches of a step, at the most.
    pub most_micro_batches: u16,
}

/// Twin of the engine's optimizer rule, named as in `torch.optim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// `torch.optim.SGD`.
    Sgd {
        /// Momentum factor.
        momentum: f64,
        /// Dampening for momentum.
        dampening: f64,
        /// L2 penalty.
        weight_decay: f64,
        /// Nesterov momentum.
        nesterov: bool,
    },
    /// `torch.optim.Adam`, or `AdamW` where `decoupled`.
    Adam {
        /// Decay rates of the averages.
        betas: (f64, f64),
        /// Added to the denominator.
        eps: f64,
        /// Weight decay.
        weight_decay: f64,
        /// Use the maximum of all second moments.
        amsgrad: bool,
        /// Decoupled weight decay: AdamW.
        decoupled: bool,
    },
}

/// One stage: programs in text form, and its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct StageAssignment {
    /// Index among all stages.
    pub stage: u16,
    /// `F`; `None` for inference.
    pub forward: Option<String>,
    /// `B`.
    pub backward: Option<String>,
    /// `W`.
    pub weight: Option<String>,
    /// Gives `loss_weight` from data alone; on the stage that holds the loss.
    pub normaliser: Option<String>,
    /// Forward in evaluation mode.
    pub evaluate: Option<String>,
    /// Every weight that the programs take, then optimizer state when resuming.
    pub weights: Vec<WeightSpec>,
    /// Micro-batches between the start of their `F` and the end of their `W` at once, at the most. The worker plans
    /// memory for the saved values of so many, and refuses a schedule that holds more.
    pub in_flight: u16,
}

/// A tensor that the host uploads.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// PyTorch's name; optimizer state as `NAME/STATE` (`fc.weight/exp_avg`).
    pub name: String,
    /// What it is.
    pub state: StateKind,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
    /// SHA-256 of its little-endian bytes.
    pub sha256: [u8; 32],
}

/// A weight that several stages use. Each sends its uses' gradients to the others; all add them up in this order.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedWeight {
    /// Name of the weight.
    pub name: String,
    /// Names of all its gradients (`NAME#USE`), in the order of addition.
    pub uses: Vec<String>,
    /// Stages that hold it, ascending. The first one reports it.
    pub stages: Vec<u16>,
}

/// Tensors that outlive a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// Parameters, frozen ones too, and buffers.
    Weights,
    /// The optimizer's.
    Optimizer,
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepMode {
    /// Forward, backward, optimizer.
    Train,
    /// Forward in evaluation mode; results go to the host.
    Evaluate,
}

/// How f32 tensors between stages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TensorEncoding {
    /// Exactly.
    #[default]
    F32,
    /// Rounded to nearest even f16; a value beyond its range becomes infinite and so stops the run.
    F16,
    /// Rounded to nearest even bf16.
    BF16,
}

/// Why a worker failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Serves another host.
    Busy,
    /// The peer speaks another version.
    Protocol,
    /// A program does not parse, verify or compile.
    Program,
    /// Needs more memory than the budget.
    Memory,
    /// A weight's bytes do not match its hash.
    Hash,
    /// The engine failed while running.
    Compute,
    /// The schedule or a message does not fit the assignment.
    Order,
}

/// Flow-controlled streams of data frames, one window each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// [`DataKind::Input`] and [`DataKind::Result`].
    Samples,
    /// [`DataKind::Activation`] and [`DataKind::Cotangent`].
    Stage,
    /// Everything else.
    Bulk,
}

/// What a data frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataKind {
    /// A `Data` input of a micro-batch.
    Input,
    /// An activation for the next stage.
    Activation,
    /// A gradient for the previous stage.
    Cotangent,
    /// A `Result` output of an evaluation, for the host.
    Result,
    /// A parameter or buffer.
    Weight,
    /// A tensor of the optimizer's state.
    OptimizerState,
    /// A use's gradient of a shared weight, summed over the step's micro-batches.
    SharedGradient,
    /// Zeros that measure a link.
    Probe,
}

impl DataKind {
    /// The stream whose window it counts against.
    pub fn stream(self) -> Stream {
        match self {
            DataKind::Input | DataKind::Result => Stream::Samples,
            DataKind::Activation | DataKind::Cotangent => Stream::Stage,
            DataKind::Weight
            | DataKind::OptimizerState
            | DataKind::SharedGradient
            | DataKind::Probe => Stream::Bulk,
        }
    }
}

/// The head of a data frame. The host routes by it and never looks at the payload.
#[derive(Clone, Debug, PartialEq)]
pub struct DataHeader {
    /// Run.
    pub run: u32,
    /// Step.
    pub step: u64,
    /// What it carries.
    pub kind: DataKind,
    /// The stage it is for; [`DataHeader::HOST`] for the host.
    pub stage: u16,
    /// Micro-batch.
    pub micro_batch: u16,
    /// Name of the tensor: of an input, `%N` of an activation, of a weight.
    pub name: String,
    /// Element type of the tensor before encoding.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<u64>,
    /// How the payload is encoded; integers and booleans always exactly.
    pub encoding: TensorEncoding,
}

impl DataHeader {
    /// The address of the host.
    pub const HOST: u16 = u16::MAX;
}

/// A data frame: its head, and the whole frame's bytes from which the payload is sliced and which a router forwards.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFrame {
    /// The head.
    pub header: DataHeader,
    /// Encoded elements, row-major, little-endian.
    pub payload: Bytes,
    /// The frame as it came, head included.
    pub frame: Bytes,
}

/// When an action ran on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionTime {
    /// The action.
    pub action: Action,
    /// Start, on the worker's own clock.
    pub start_micros: u64,
    /// Duration.
    pub micros: u64,
}
