//! The coordinator: connects devices, assigns stages, feeds, collects, steps, checkpoints, recovers.
//!
//! This crate promises that its core does no I/O and reads no clock: events and `now` come in, effects go out. Only
//! `driver.rs` touches sockets, threads and time. It never runs an operator: the host's own compute is a worker over a
//! memory link.

mod assign;
mod assignment;
pub mod checkpoint;
mod clip;
pub mod core;
mod driver;
mod error;
mod host;
mod learning_rate;
mod optimizer_text;
mod options;
mod placement;
mod profile;
mod rehearse;
mod report;
mod run;
pub mod split;
mod trace;

pub use assign::assign;
pub use assignment::{Assignment, Batch};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use core::{DeviceId, LinkMeasure};
pub use error::RunError;
pub use host::{Connection, DeviceInfo, DeviceSpec, Host};
pub use learning_rate::{LearningRate, LearningRateError};
pub use options::{HostOptions, Progress, RunOptions};
pub use placement::Placement;
pub use rehearse::Rehearsal;
pub use report::{DeviceStep, StepReport, TimedAction, Transfer};
pub use run::Run;
pub use trace::TraceWriter;
