//! What an exit code means. Scripts rely on it, so a code keeps its meaning for good.

use std::process::ExitCode;

/// How the program ends. Wrong usage, 2, is decided by the command-line parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything was done, and there is nothing to act on.
    Complete,
    /// It did not work.
    Failed,
    /// Stopped by Ctrl-C.
    Interrupted,
    /// Stopped by a polite kill.
    Terminated,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Complete => 0,
            Exit::Failed => 1,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        })
    }
}
