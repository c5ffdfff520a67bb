//! The CPU engine against the reference engine, against itself on other numbers of threads, and against bad values.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step of a test is the test's failure"
)]

mod bits;
mod cases;
mod conformance;
mod smoke;
mod values;
