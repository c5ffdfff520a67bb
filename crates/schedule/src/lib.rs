//! Pipeline schedules as programs: what each device does, in order, and what that costs.
//!
//! This crate promises to know actions alone: no tensors, no bytes, no clock. Times are numbers that the caller gives;
//! the same arguments always give the same schedule, verdict, simulation and drawing. No input makes it panic, and none
//! makes it allocate more than its [limits](MAX_ACTIONS) allow.
//!
//! ```
//! use outboard_schedule::{CostModel, Limits, Placement, ScheduleKind, generate, simulate, validate};
//!
//! let placement = Placement::one_stage_each(2)?;
//! let model = CostModel::uniform(2, [1.0, 2.0, 0.0]);          // seconds of F, B, W
//! let schedule = generate(ScheduleKind::OneFOneB, &placement, 4, &model, &Limits::none())?;
//! assert_eq!(validate(&schedule, &Limits::none())?, [2, 1]);       // micro-batches in flight on each stage
//! assert_eq!(simulate(&schedule, &model)?.step_seconds, 3.0 * (4.0 + 1.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod action;
mod cost;
mod draw;
mod engine;
mod generate;
mod grid;
mod schedule;
mod simulate;
mod text;
mod validate;

pub use action::{Action, Kind, ParseActionError};
pub use cost::{CostError, CostModel, Direction, HostCost, LinkCost, MicroBatchCost, StageCost};
pub use draw::{DrawOptions, draw};
pub use generate::{GenerateError, ParseKindError, Placement, ScheduleKind, generate};
pub use schedule::{MAX_ACTIONS, MAX_MICRO_BATCHES, MAX_STAGES, Schedule};
pub use simulate::{Carries, SimulateError, Span, Timeline, Transfer, Way, simulate};
pub use text::ParseScheduleError;
pub use validate::{Limits, ScheduleError, validate};
