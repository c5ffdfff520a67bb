//! One device's side of a run: holds stages, runs their actions as tensors arrive, reports.
//!
//! This crate promises that its core does no I/O and reads no clock: events and `now` come in, effects go out. Only
//! `driver.rs` touches sockets, threads and time. It never knows the plan or the host's reasons.

mod core;
mod driver;
mod event;
mod list;
mod mailbox;
mod memory;
mod outbox;
mod profile;
mod run;
mod runtime;
mod stage;
mod step;
mod windows;

pub use self::core::{CoreOptions, Worker};
pub use driver::{WorkerError, WorkerOptions, run_link, serve};
pub use event::{Act, Arrived, Departing, Effect, Event, Job, JobDone, JobError, JobId, JobOutput};
pub use memory::MemoryPlan;
pub use profile::profile;
pub use runtime::Runtime;
pub use stage::{Port, Ports, Signature};
pub use windows::Windows;
