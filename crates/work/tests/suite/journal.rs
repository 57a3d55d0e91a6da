//! Crash-resume, with a real process and a real `kill -9`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dragnet_work::{
    BatchWork, FileJournal, Journal, JournalError, JournalRecord, RunReport, WorkContext, WorkError,
    WorkOutcome, WorkScheduler, WorkSpec, WorkState, work_fn,
};

use crate::kit::{error, scheduler, state};

fn journalled(path: &Path) -> WorkScheduler {
    scheduler(2).with_journal(FileJournal::open(path).unwrap()).unwrap()
}

/// Counts how often it is really run.
fn counted(name: &str, definition: &str, runs: &Arc<AtomicU32>) -> WorkSpec {
    let runs = Arc::clone(runs);
    let work = work_fn(name, move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    WorkSpec::new(work).defined_by(definition)
}

#[tokio::test(start_paused = true)]
async fn what_has_succeeded_is_not_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let (runs, fail) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(1)));
    for expected in [1, 1] {
        let mut scheduler = journalled(&path);
        let first = scheduler.add(counted("first", "v1", &runs)).unwrap();
        let fail = Arc::clone(&fail);
        let second = work_fn("second", move |_| {
            let fails = fail.swap(0, Ordering::SeqCst) == 1;
            async move { if fails { WorkOutcome::failed("crash") } else { WorkOutcome::Success } }
        });
        let second = scheduler.add(WorkSpec::new(second).after([first])).unwrap();
        scheduler.run_until_done().await;
        assert_eq!(runs.load(Ordering::SeqCst), expected);
        assert_eq!(state(&scheduler, first), WorkState::Success);
        _ = second;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_definition_runs_again_with_all_that_follows_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let runs: [Arc<AtomicU32>; 3] = Default::default();
    let counts = || runs.each_ref().map(|runs| runs.load(Ordering::SeqCst));
    for (definition, expected) in [("v1", [1, 1, 1]), ("v1", [1, 1, 1]), ("v2", [2, 2, 1])] {
        let mut scheduler = journalled(&path);
        let source = scheduler.add(counted("source", definition, &runs[0])).unwrap();
        scheduler.add(counted("follows", "", &runs[1]).after([source])).unwrap();
        scheduler.add(counted("independent", "", &runs[2])).unwrap();
        assert!(scheduler.run_until_done().await.all_succeeded());
        assert_eq!(counts(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn durable_outputs_survive_and_items_with_others_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let runs: [Arc<AtomicU32>; 2] = Default::default();
    for round in 1..=2_u32 {
        let mut scheduler = journalled(&path);
        let counter = runs.clone();
        let durable = work_fn("durable", move |ctx: WorkContext| {
            counter[0].fetch_add(1, Ordering::SeqCst);
            async move { ctx.set_durable_output(&vec!["kept".to_owned()]) }
        });
        let counter = runs.clone();
        let fleeting = work_fn("fleeting", move |ctx: WorkContext| {
            counter[1].fetch_add(1, Ordering::SeqCst);
            async move { ctx.set_output(41_u64) }
        });
        let durable = scheduler.add(WorkSpec::new(durable)).unwrap();
        let fleeting = scheduler.add(WorkSpec::new(fleeting)).unwrap();
        let sink = work_fn("sink", move |ctx: WorkContext| async move {
            assert_eq!(ctx.durable_output::<Vec<String>>(durable).unwrap(), ["kept"]);
            assert_eq!(*ctx.output::<u64>(fleeting).unwrap(), 41);
        });
        let sink = WorkSpec::new(sink).defined_by(round.to_string()).after([durable, fleeting]);
        let sink = scheduler.add(sink).unwrap();
        scheduler.run_until_done().await;
        assert_eq!((state(&scheduler, sink), error(&scheduler, sink)), (WorkState::Success, String::new()));
        assert_eq!(runs.each_ref().map(|runs| runs.load(Ordering::SeqCst)), [1, round]);
    }
}

#[tokio::test(start_paused = true)]
async fn children_are_skipped_too_and_a_restart_really_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let runs = Arc::new(AtomicU32::new(0));
    let done = Arc::new(AtomicU32::new(0));
    for round in 1..=2 {
        let mut scheduler = journalled(&path);
        let (runs_in, done_in) = (Arc::clone(&runs), Arc::clone(&done));
        let batch = BatchWork::new("batch", 1, move || {
            let (runs, done) = (Arc::clone(&runs_in), Arc::clone(&done_in));
            (0..10_u32).map(move |n| {
                let (runs, done) = (Arc::clone(&runs), Arc::clone(&done));
                let work = work_fn(format!("child {n}"), move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    // In the first process the last child fails, and the batch with it.
                    let fails = n == 9 && done.load(Ordering::SeqCst) == 0;
                    async move { if fails { WorkOutcome::failed("crash") } else { WorkOutcome::Success } }
                });
                WorkSpec::new(work)
            })
        });
        let id = scheduler.add(WorkSpec::new(batch)).unwrap();
        scheduler.run_until_done().await;
        done.store(1, Ordering::SeqCst);
        assert_eq!(runs.load(Ordering::SeqCst), if round == 1 { 10 } else { 11 });
        if round == 2 {
            assert_eq!(state(&scheduler, id), WorkState::Success);
            scheduler.restart(id).unwrap();
            scheduler.run_until_done().await;
            assert_eq!(runs.load(Ordering::SeqCst), 21);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_items_that_a_journal_could_not_tell_apart_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let scheduler = journalled(&folder.path().join("journal"));
    let runs = Arc::default();
    let first = scheduler.add(counted("same", "", &runs)).unwrap();
    let twin = scheduler.add(counted("same", "", &runs));
    assert_eq!(twin, Err(WorkError::DuplicateDefinition { item: "same".into() }));
    let other = scheduler.add(counted("same", "v2", &runs)).unwrap();
    scheduler.add(counted("same", "", &runs).after([first])).unwrap();
    assert_eq!(scheduler.add_dependency(first, other), Err(WorkError::Journalled { item: "same".into() }));
}

#[test]
fn a_scheduler_takes_one_journal_and_takes_it_first() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| FileJournal::open(folder.path().join(name)).unwrap();
    let second = scheduler(1).with_journal(open("a")).unwrap().with_journal(open("b"));
    assert_eq!(second.unwrap_err(), WorkError::SecondJournal);
    let late = scheduler(1);
    late.add(counted("early", "", &Arc::default())).unwrap();
    assert_eq!(late.with_journal(open("c")).unwrap_err(), WorkError::JournalAfterWork);
}

/// A journal on a full disk.
struct FullDisk;

impl Journal for FullDisk {
    fn take_records(&mut self) -> Vec<JournalRecord> {
        Vec::new()
    }

    fn append(&mut self, _: &JournalRecord) -> Result<(), JournalError> {
        Err(JournalError::Broken { path: "full".into() })
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_written_is_reported_and_stops_nothing() {
    let mut scheduler = scheduler(1).with_journal(FullDisk).unwrap();
    scheduler.add(counted("work", "", &Arc::default())).unwrap();
    let RunReport { metrics, journal_error } = scheduler.run_until_done().await;
    assert_eq!(metrics.success, 1);
    assert!(matches!(journal_error, Some(JournalError::Broken { .. })));
}

const CHAIN: u32 = 8;
const CHILD_FOLDER: &str = "DRAGNET_TEST_JOURNAL_FOLDER";

/// Not a test of its own: what the process under test does. Each item of a chain adds a line to a file,
/// tells its number on standard output, and waits for a line on standard input.
#[test]
#[ignore = "run by the_killed_run_goes_on_where_it_was"]
fn the_process_that_gets_killed() {
    let Ok(folder) = std::env::var(CHILD_FOLDER) else { return };
    let folder = Path::new(&folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut scheduler = journalled(&folder.join("journal"));
    let mut before = None;
    for n in 0..CHAIN {
        let effects = folder.join("effects");
        let work = work_fn(format!("item {n}"), move |_| {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&effects).unwrap();
            writeln!(file, "{n}").unwrap();
            println!("\nat {n}");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            async {}
        });
        before = Some(scheduler.add(WorkSpec::new(work).after(before)).unwrap());
    }
    let report = runtime.block_on(scheduler.run_until_done());
    assert!(report.all_succeeded());
    println!("\nall done");
}

#[expect(clippy::zombie_processes, reason = "it is waited for wherever the test does not fail anyway")]
/// Starts the process above, lets it finish `items` items, and kills it in the next one.
fn run_and_kill(folder: &Path, items: Option<u32>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "journal::the_process_that_gets_killed", "--nocapture"])
        .env(CHILD_FOLDER, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut finished = 0;
    loop {
        let line =
            lines.find(|line| line.starts_with("at ") || line == "all done").expect("it ended too soon");
        if line == "all done" {
            assert!(child.wait().unwrap().success());
            return;
        }
        if items == Some(finished) {
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        writeln!(input).unwrap();
        finished += 1;
    }
}

#[test]
fn the_killed_run_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    run_and_kill(folder.path(), Some(3));
    run_and_kill(folder.path(), Some(0));
    run_and_kill(folder.path(), Some(2));
    run_and_kill(folder.path(), None);
    let effects = std::fs::read_to_string(folder.path().join("effects")).unwrap();
    let effects: Vec<u32> = effects.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(effects, [0, 1, 2, 3, 3, 3, 4, 5, 5, 6, 7], "only what was killed half-way is repeated");
}
