//! The `outboard` binary.

fn main() {}
