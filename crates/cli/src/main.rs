//! The `dragnet` binary: turns flags into settings, wires the crates together, prints, and ends with an
//! exit code that means something.
//!
//! [`args`] is the command line as users see it, [`exit`] the meaning of exit codes; each command has a
//! module of its own. This is the only crate that prints: data to standard output, everything else to
//! standard error.

mod args;
mod demo;
mod exit;
mod output;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};

use crate::args::{Command, Dragnet};
use crate::exit::Exit;

fn main() -> ExitCode {
    let args = Dragnet::parse();
    start_logging(args.verbose);
    match run(args.command) {
        Ok(exit) => exit.into(),
        Err(error) if output::is_broken_pipe(&error) => Exit::Complete.into(),
        Err(error) => {
            output::complain(&format!("{error:#}"));
            Exit::Failed.into()
        }
    }
}

fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Dragnet::command(), "dragnet", &mut script);
            output::data(&script)?;
            Ok(Exit::Complete)
        }
        Command::Man { dir: Some(dir) } => {
            std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(Dragnet::command(), &dir))
                .with_context(|| format!("cannot write the manual to {}", dir.display()))?;
            Ok(Exit::Complete)
        }
        Command::Man { dir: None } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Dragnet::command()).render(&mut page)?;
            output::data(&page)?;
            Ok(Exit::Complete)
        }
    }
}

/// Logs go to standard error: warnings always, more with `-v`, anything with `RUST_LOG`.
fn start_logging(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let to_stderr = || anstream::AutoStream::auto(std::io::stderr().lock());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(to_stderr).init();
}
