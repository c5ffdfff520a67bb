//! The coordinator: connects devices, assigns stages, feeds, collects, steps, checkpoints, recovers.
//!
//! This crate promises that its core does no I/O and reads no clock: events and `now` come in, effects go out. Only
//! `driver.rs` touches sockets, threads and time. It never runs an operator: the host's own compute is a worker over a
//! memory link.

mod clip;
pub mod core;
mod error;
mod options;
mod report;
pub mod split;

pub use core::{DeviceId, LinkMeasure};
pub use error::RunError;
pub use options::{HostOptions, Placement, Progress, RunOptions};
pub use report::{DeviceStep, StepReport, TimedAction, Transfer};
