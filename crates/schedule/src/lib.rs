//! Pipeline schedules as programs: what each device does, in order, and what that costs.
//!
//! This crate promises to know actions alone: no tensors, no bytes, no clock. Times are numbers that the caller gives;
//! the same arguments always give the same schedule, verdict, simulation and drawing.

mod action;

pub use action::{Action, Kind};
