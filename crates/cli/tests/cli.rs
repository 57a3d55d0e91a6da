//! The binary as a user runs it: exit codes, whole outputs, signals and real kills.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

fn dragnet(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dragnet"));
    command.args(arguments).stdin(Stdio::null()).env("NO_COLOR", "1").env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    dragnet(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[expect(clippy::zombie_processes, reason = "the caller waits for it")]
/// Starts a demo and returns when it says that an item is in a state.
fn start_until(arguments: &[&str], item: &str, state: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut child = dragnet(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended before {item} was {state}");
        if line.contains(&format!("{item:<20} {state}")) {
            return (child, said);
        }
    }
}

#[test]
fn the_demo_checks_itself_and_says_so() {
    let output = run(&["demo"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    insta::assert_snapshot!(stdout(&output));
    let said = stderr(&output);
    let last = said.lines().last().unwrap();
    assert_eq!(last, "All 17 items ended as they should, in 25 attempts; never more than 3 slots in use.");
}

#[test]
fn the_demo_draws_its_graph() {
    let output = run(&["demo", "--graph", "mermaid", "--slots", "8"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let graph = stdout(&output);
    assert!(graph.starts_with("flowchart LR\n"));
    // The children have numbers that depend on who comes first; the planned items do not.
    for line in
        ["w3_0[\"fetch c<br/>failed\"]:::failed", "w3_0 --> w6_0", "w6_0[\"scan c<br/>blocked\"]:::blocked"]
    {
        assert!(graph.contains(line), "{line}\n{graph}");
    }
    let dot = stdout(&run(&["demo", "--graph", "dot", "--slots", "8"]));
    assert!(dot.starts_with("digraph work {\n") && dot.contains("\"#3\" -> \"#6\";"), "{dot}");
}

#[test]
fn a_killed_demo_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("demo.journal");
    let arguments = ["demo", "--journal", journal.to_str().unwrap()];
    let (mut child, _said) = start_until(&arguments, "fetch a", "success");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    for name in ["list", "fetch a", "wait for quota", "too late"] {
        let line = format!("{name:<18}success     journal");
        assert!(table.contains(&line), "{name} was done before the kill\n{table}");
    }
    assert!(table.contains(&format!("{:<18}failed      1", "fetch c")), "a failure is tried again\n{table}");
}

#[test]
fn a_journal_that_is_in_use_or_corrupt_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("demo.journal");
    let path = journal.to_str().unwrap();
    let (mut child, _said) = start_until(&["demo", "--journal", path], "list", "running");
    let output = run(&["demo", "--journal", path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        format!(
            "error: journal {path} is in use by another run; wait for it, or give this run a journal of its own\n"
        )
    );
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::write(&journal, "not a journal\n").unwrap();
    let output = run(&["demo", "--journal", path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        format!(
            "error: journal {path} is corrupt in line 1; it was kept as {path}.corrupt-1, and the next run starts from nothing\n"
        )
    );
    assert_eq!(std::fs::read_to_string(format!("{path}.corrupt-1")).unwrap(), "not a journal\n");
}

#[test]
fn signals_end_it_in_good_order() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let (mut child, mut said) = start_until(&["demo"], "list", "running");
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(rest.ends_with("\nInterrupted: every item was told to stop, and did.\n"), "{rest}");
    }
}

#[test]
fn help_shows_what_there_is_with_examples_first() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    for arguments in
        [&[][..], &["dmeo"], &["demo", "--slots", "0"], &["demo", "--graph", "png"], &["completions"]]
    {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert!(stderr(&run(&["dmeo"])).contains("a similar subcommand exists: 'demo'"));
    assert!(stderr(&run(&["demo", "--slots", "0"])).contains("0 is not in 1..=65535"));
}

#[test]
fn completions_and_manual_are_made_for_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(stdout(&run(&["completions", shell])).contains("demo"), "{shell}");
    }
    assert!(stdout(&run(&["man"])).starts_with(".ie"));
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert_eq!(run(&["man", "--dir", pages.to_str().unwrap()]).status.code(), Some(0));
    let mut names: Vec<_> = std::fs::read_dir(pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["dragnet-completions.1", "dragnet-demo.1", "dragnet-man.1", "dragnet.1"]);
    let output = run(&["man", "--dir", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: cannot write the manual to /proc/nowhere: "));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child =
        dragnet(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}
