//! The command line: every command and flag, with the words of its help.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Examples come first: most people who ask for help want one.
const TEMPLATE: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// Sweeps object stores and Certificate Transparency logs, and loses nothing of what it catches.
#[derive(Debug, Parser)]
#[command(
    name = "dragnet",
    version,
    styles = STYLES,
    help_template = TEMPLATE,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    before_help = "\
Examples:
  dragnet demo                         see it work, offline, in a few seconds
  dragnet demo --graph mermaid         draw what the demo did
  dragnet completions bash > /etc/bash_completion.d/dragnet
  dragnet man | man -l -
",
    after_help = "\
Exit codes: 0 complete, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."
)]
pub(crate) struct Dragnet {
    /// Say more: -v for information, -vv for details, -vvv for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),

    /// Print a completion script for a shell
    #[command(
        help_template = TEMPLATE,
        before_help = "\
Examples:
  dragnet completions bash > /etc/bash_completion.d/dragnet
  dragnet completions zsh > \"${fpath[1]}/_dragnet\"
  dragnet completions fish > ~/.config/fish/completions/dragnet.fish
"
    )]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },

    /// Print the manual page
    #[command(
        help_template = TEMPLATE,
        before_help = "\
Examples:
  dragnet man | man -l -
  dragnet man --dir /usr/local/share/man/man1
"
    )]
    Man {
        /// Write a page for each command into this folder instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// See it work: offline, without credentials, checking itself
///
/// Runs a small graph of work in which items succeed, fail, are retried, wait, are blocked and are
/// cancelled; draws it as it runs; and compares how each item ended with how it should have. Exits with 0
/// only if all of them agree.
#[derive(Debug, Args)]
#[command(
    help_template = TEMPLATE,
    before_help = "\
Examples:
  dragnet demo
  dragnet demo --slots 1               everything one after the other
  dragnet demo --journal ./demo.log    kill it half-way, run it again: what is done stays done
  dragnet demo --graph dot | dot -Tsvg > demo.svg
"
)]
pub(crate) struct DemoArgs {
    /// How many items may run at the same time
    #[arg(long, value_name = "N", default_value_t = 3, env = "DRAGNET_DEMO_SLOTS",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) slots: u16,

    /// Remember in this file what has succeeded, and skip it next time
    #[arg(long, value_name = "FILE", env = "DRAGNET_DEMO_JOURNAL")]
    pub(crate) journal: Option<PathBuf>,

    /// Print the graph with its final states instead of the table
    #[arg(long, value_name = "FORMAT", env = "DRAGNET_DEMO_GRAPH")]
    pub(crate) graph: Option<GraphFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Graphviz's DOT language
    Dot,
    /// A Mermaid flowchart, for Markdown
    Mermaid,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Dragnet::command().debug_assert();
    }
}
