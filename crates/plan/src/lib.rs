//! Which device runs which stage, with which schedule: measured profiles in, a plan and its reasons out.
//!
//! This crate promises to guess no time: every second in a plan is a sum of seconds that the device measured, played through
//! the simulator of `schedule` over measured links. It reads no clock and opens no socket; the only files it touches are
//! those of its [`ProfileCache`]. The same arguments always give the same plan.
//!
//! 1. [`micro_batch_sizes`] and [`signatures`] say what each device must measure; [`ProfileCache`] remembers it.
//! 2. [`search`] finds the [`Plan`]; [`LeftOut`] says in numbers why a device has no part in it.
//! 3. A few steps are [`Rehearsed`], and [`Plan::refine`] makes the prediction truer.

mod cache;
mod candidate;
mod climb;
mod cuts;
mod error;
mod estimate;
mod model;
mod options;
mod orders;
mod plan;
mod profile;
mod refine;
mod search;
mod signature;
mod workload;

pub use cache::{CacheError, Cached, ProfileCache};
pub use error::PlanError;
pub use options::{MicroBatches, SearchOptions, UseDevices, micro_batch_sizes};
pub use plan::{Alternative, LeftOut, Plan, PlannedStage, StageMemory};
pub use profile::{Device, DeviceKey, DeviceProfile, LinkProfile, OpSignature};
pub use refine::Rehearsed;
pub use search::{MAX_DEVICES, search};
pub use signature::signatures;
