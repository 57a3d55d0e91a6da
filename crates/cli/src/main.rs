//! The `dragnet` binary.

fn main() {}
