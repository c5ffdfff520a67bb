//! Engines: run a graph on a device.
//!
//! This crate promises that a program's outputs depend on its inputs and [`RandomKey`] alone: not on the number of
//! threads, on what ran before, or on where the whole graph was cut (tensors of [`Reference`] are f64, so that downloading one
//! at a cut rounds it). It never knows schedules or the network.

mod cpu;
mod executor;
mod random;
mod reference;
mod step;
mod update;

pub use cpu::{CpuExecutor, CpuPlan, CpuTensor};
pub use executor::{EngineInfo, ExecError, Executor, RandomKey};
pub use outboard_kernels::Method;
pub use random::{dropout_mask, dropout_scale};
pub use reference::{Reference, ReferencePlan, ReferenceTensor};
pub use step::{Step, StepTime};
pub use update::{Real, StepSize, UpdateRule};
