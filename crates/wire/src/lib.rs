//! What host and workers say to each other, and the bytes that say it.
//!
//! This crate promises to do no I/O and to read no clock: messages in, bytes out, and back through a push decoder. Every
//! length is bounded before anything is allocated; no bytes from a peer make it panic. Messages are twins of the domain
//! types: converted at the edge, never stored.
//!
//! # The conversation
//!
//! The host dials a worker; one connection carries everything between the two. Numbers cite `docs/protocol.md`.
//!
//! 1. Both say `Hello`. A worker that serves another host answers `Failed { kind: Busy }` and closes.
//! 2. The host measures: `Ping`/`Pong` for latency, `Probe` data both ways for bandwidth, `Profile`/`Profiled` for the
//!    seconds of one-node programs.
//! 3. `Assign` gives the worker its stages; weights follow as bulk data. The worker checks every program, every hash and
//!    its memory budget, compiles, and answers `Ready` or `Failed`.
//! 4. `Schedule` gives its whole list of actions for a number of micro-batches, before the first step that uses it.
//! 5. `Step` opens a step; its inputs follow as data, targets of all micro-batches first. The worker clocks itself on
//!    arrivals: it runs the next action of its list as soon as that action's tensors are there. Activations and
//!    cotangents are addressed to a stage; the host forwards them without decoding.
//! 6. When its list is done the worker says `Gradients` (squares of norms, losses, whether all is finite). When all
//!    workers have, the host says `Commit`, and every worker applies its optimizer: all or none.
//! 7. `StepDone` brings times, memory and heat.
//! 8. `Fetch` brings weights and optimizer state back for a checkpoint. `DropRun` frees everything.
//!
//! Steps may be opened before the last one is done (two of training, several of evaluation): a worker runs them in the order
//! they were opened, and starts on a training step when the one before it has been committed. A step of evaluation
//! needs no list: a worker runs whatever micro-batch's `F` has its tensors.
//!
//! A worker whose connection ends drops the run, frees its memory and accepts the next host.
//!
//! # Flow control
//!
//! Data travels on three streams a direction ([`Stream`]), each with a window of bytes that the receiver grants by
//! `Credit` and the sender never exceeds. All windows are empty at first: each side grants `Samples` and `Bulk` (and the
//! host `Stage`) right after the `Hello`s, a worker `Stage` right before `Ready`. A frame counts with all its bytes, and
//! may go when any credit is left, so that a frame larger than a window is not stuck. The window of [`Stream::Stage`] towards a worker is at least the stage traffic
//! that one step can have outstanding, and is part of the memory the worker was asked to plan for, so waiting for credit
//! can never deadlock a valid schedule.

mod bounded;
mod codes;
mod control;
mod credit;
mod data;
mod decoder;
mod error;
mod frame;
mod message;
mod tensor;
#[cfg(test)]
mod testing;

pub use control::{ControlMessage, limits};
pub use credit::{CREDIT_LIMIT, ReceiveWindow, SendWindow};
pub use data::{element_bytes, encode_data};
pub use decoder::{DATA_LIMIT, Decoder, Frame, HostDecoder, WorkerDecoder};
pub use error::{CreditError, DecodeError, EncodeError, TensorError};
pub use frame::{Direction, FRAMES, FrameKind, HEAD_BYTES, MAGIC, PROTOCOL, frame_kind};
pub use message::{
    ActionTime, Assign, DataFrame, DataHeader, DataKind, DeviceHello, FailureKind, HostMessage,
    Optimizer, SharedWeight, StageAssignment, StateKind, StepMode, Stream, TensorEncoding,
    WeightSpec, WorkerMessage,
};
pub use tensor::{decode_tensor, encode_tensor};
