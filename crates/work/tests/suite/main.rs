//! The scheduler as its users see it, on virtual time.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod families;
mod faults;
mod handle;
mod journal;
mod kit;
mod limits;
mod parity;
mod pictures;
mod properties;
mod regressions;
