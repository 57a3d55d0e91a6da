//! Tests of the pure machine.
