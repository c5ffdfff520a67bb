//! Everything that can happen to a worker, and everything it can want.

use std::time::Duration;

use bytes::Bytes;
use outboard_graph::DType;
use outboard_schedule::Action;
use outboard_wire::{
    Assign, DataFrame, DataHeader, DataKind, FailureKind, HostMessage, StateKind, StepMode,
    TensorEncoding, WeightSpec, WorkerMessage,
};

use crate::memory::MemoryPlan;
use crate::stage::Signature;
use crate::windows::Windows;

/// Tells one job of the compute side from all others on this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Every cause of a change.
#[derive(Debug)]
pub enum Event {
    /// A control frame came in.
    Message(HostMessage),
    /// A data frame came in.
    Data(DataFrame),
    /// The bytes that came in make no sense; nothing after them can be read.
    Malformed {
        /// The decoder's error.
        reason: String,
    },
    /// A job is over.
    ComputeDone(JobDone),
    /// The oldest data frame that was handed out and not yet reported has left.
    DataWritten,
    /// The link is gone; nothing can be sent any more.
    LinkClosed,
    /// The time that [`Effect::SetTimer`] asked for has come.
    Timer,
}

/// What the core wants done.
#[derive(Debug)]
pub enum Effect {
    /// Send a control frame.
    Send(WorkerMessage),
    /// Send a tensor; report when it has left.
    SendData {
        /// The head.
        header: DataHeader,
        /// Encoded elements.
        payload: Bytes,
    },
    /// Do this on the compute side and report; there is never more than one job at a time.
    Compute(JobId, Job),
    /// Let the job in progress end as soon as it can; its result is still reported.
    CancelCompute,
    /// Send [`Event::Timer`] at this time, instead of any time asked for before.
    SetTimer(Duration),
    /// Close the link once what was sent before has left.
    CloseLink,
}

/// Work for the compute side, which owns all tensors.
#[derive(Debug)]
pub enum Job {
    /// Check, plan and compile an assignment; answered by [`JobOutput::Prepared`].
    Prepare {
        /// The assignment.
        assign: Box<Assign>,
        /// Bytes that it may take.
        budget_bytes: u64,
        /// Receive windows that are already granted and cannot be taken back.
        granted: Windows,
    },
    /// Check a weight against its hash and keep it; answered by [`JobOutput::Done`].
    LoadWeight {
        /// The stage that holds it.
        stage: u16,
        /// What it must be.
        spec: WeightSpec,
        /// Its bytes.
        payload: Bytes,
    },
    /// Compute the weight that a micro-batch's loss is divided by; answered by [`JobOutput::Normalised`].
    Normalise {
        /// The stage that holds the loss.
        stage: u16,
        /// Micro-batch.
        micro_batch: u16,
        /// Samples of the micro-batch.
        samples: u32,
        /// The normaliser's data.
        arrived: Vec<Arrived>,
    },
    /// Run one program on one micro-batch; answered by [`JobOutput::Acted`].
    Act(Act),
    /// Bring the gradients of shared weights that other workers need to the host; answered by [`JobOutput::Shared`].
    ShareGradients,
    /// Add up the uses of every parameter and look at the sums; answered by [`JobOutput::Finished`].
    FinishGradients {
        /// Other workers' gradients of shared weights, named by use.
        arrived: Vec<Arrived>,
    },
    /// Apply the optimizer to every parameter; answered by [`JobOutput::Done`].
    Update {
        /// Updates that were applied before.
        updates: u64,
        /// Learning rate.
        learning_rate: f64,
        /// Factor on all gradients.
        gradient_scale: f32,
    },
    /// Name all tensors of a kind; answered by [`JobOutput::Listed`].
    List(StateKind),
    /// Bring a tensor to the host's memory; answered by [`JobOutput::Exported`].
    Export {
        /// Stage.
        stage: u16,
        /// Kind.
        state: StateKind,
        /// Name.
        name: String,
    },
    /// Time programs; answered by [`JobOutput::Profiled`].
    Profile {
        /// Concrete graphs in text form.
        programs: Vec<String>,
        /// Bytes that one may take.
        budget_bytes: u64,
    },
    /// Free everything; answered by [`JobOutput::Done`].
    DropRun,
}

/// One action of a step.
#[derive(Debug)]
pub struct Act {
    /// Step.
    pub step: u64,
    /// Train or evaluate.
    pub mode: StepMode,
    /// Stage, program and micro-batch.
    pub action: Action,
    /// Samples of the micro-batch.
    pub samples: u32,
    /// What came over the link for it. What comes from a stage of this worker is on the compute side already.
    pub arrived: Vec<Arrived>,
    /// The gradient of the batch's loss with respect to this micro-batch's loss sum, where the stage holds the loss.
    pub loss_cotangent: Option<f32>,
}

/// A tensor that came over the link and fits its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrived {
    /// Its head.
    pub header: DataHeader,
    /// Encoded elements.
    pub payload: Bytes,
}

/// A tensor that is to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct Departing {
    /// What it carries.
    pub kind: DataKind,
    /// The stage it is for, or [`DataHeader::HOST`].
    pub stage: u16,
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<usize>,
    /// How the payload is encoded.
    pub encoding: TensorEncoding,
    /// Encoded elements.
    pub payload: Bytes,
}

/// The end of a job.
#[derive(Debug)]
pub struct JobDone {
    /// Which.
    pub id: JobId,
    /// When it began, on the worker's clock.
    pub started: Duration,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub result: Result<JobOutput, JobError>,
}

/// What a job gives.
#[derive(Debug)]
pub enum JobOutput {
    /// The assignment is checked, planned and compiled.
    Prepared {
        /// What each stage takes and gives, in the assignment's order.
        signatures: Vec<Signature>,
        /// The receive windows it needs, none smaller than what is granted already.
        windows: Windows,
        /// What it takes of memory.
        memory: MemoryPlan,
    },
    /// Done, nothing to tell.
    Done,
    /// What the micro-batch's loss is divided by.
    Normalised(f32),
    /// The program ran.
    Acted {
        /// Tensors for other workers or the host.
        departing: Vec<Departing>,
        /// The micro-batch's loss sum, where the stage holds the loss.
        loss_sum: Option<f32>,
        /// Bytes in use at the most while it ran, receive windows and tensors to send aside.
        peak_bytes: u64,
    },
    /// Gradients of shared weights for other workers.
    Shared(Vec<Departing>),
    /// The step's gradients are there.
    Finished {
        /// Sum of squares of each parameter's gradient, shared ones where this worker reports them.
        squares: Vec<(String, f64)>,
        /// The first parameter, by stage and name, whose gradient is not finite.
        not_finite: Option<(u16, String)>,
    },
    /// All tensors of a kind: stage and name.
    Listed(Vec<(u16, String)>),
    /// A tensor.
    Exported(Departing),
    /// Median seconds of each program; `None` where this engine cannot run it.
    Profiled(Vec<Option<f64>>),
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct JobError {
    /// What kind of thing went wrong.
    pub kind: FailureKind,
    /// Stage, where one is to blame.
    pub stage: Option<u16>,
    /// The cause and what to try.
    pub message: String,
}
