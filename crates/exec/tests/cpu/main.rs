//! The CPU engine against the reference engine, against itself on other numbers of threads, and against bad values.

mod bits;
mod cases;
mod conformance;
mod smoke;
mod values;
