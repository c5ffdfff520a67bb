//! Checks that cargo does not know.

fn main() {}
