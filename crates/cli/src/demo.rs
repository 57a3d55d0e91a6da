//! `dragnet demo`: the product in a nutshell, offline, checking itself.
//!
//! [`scenario`] says what there is to do and how it must end, [`picture`] draws it. This file runs the
//! one, shows it by the other, and judges.

mod picture;
mod scenario;

use std::time::Duration;

use anyhow::bail;
use dragnet_ambient::Cancel;
use dragnet_work::{
    FileJournal, WorkEvent, WorkHandle, WorkScheduler, WorkSchedulerConfig, WorkSchedulerMetrics, to_dot,
    to_mermaid,
};
use tokio::sync::mpsc;

use crate::args::{DemoArgs, GraphFormat};
use crate::exit::Exit;
use crate::output;

use self::picture::Picture;
use self::scenario::Scenario;

/// Events that may wait for a reader; the demo makes about a hundred.
const EVENTS_MAX: usize = 1024;

/// How often the picture is drawn anew.
const FRAME: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run_async(args))
}

async fn run_async(args: &DemoArgs) -> anyhow::Result<Exit> {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let config = WorkSchedulerConfig {
        max_concurrency: args.slots.into(),
        retry_delay: Duration::from_millis(300),
        event_tx: Some(sender),
    };
    let mut scheduler = WorkScheduler::new(config)?;
    if let Some(path) = &args.journal {
        scheduler = scheduler.with_journal(FileJournal::open(path)?)?;
    }
    let scenario = Scenario::plan(&scheduler)?;
    output::say(&format!(
        "A small graph of work on {} slots: items succeed, fail, retry, wait, and are cancelled.\n",
        args.slots
    ));
    let (cancel, handle) = (Cancel::new(), scheduler.handle());
    let signals = tokio::spawn(cancel_on_signal(cancel.clone()));
    let meddler = tokio::spawn(scenario.meddle(handle.clone()));
    let drawing = tokio::spawn(draw(handle.clone(), events));
    let report = scheduler.run_until_done_with_cancel(cancel.clone()).await;
    meddler.abort();
    let snapshot = scheduler.snapshot();
    // The channel closes with the scheduler, and the drawing ends with the channel.
    drop(scheduler);
    let most_used = drawing.await?;
    if cancel.is_cancelled() {
        output::say("\nInterrupted: every item was told to stop, and did.");
        if let Some(path) = &args.journal {
            output::say(&format!(
                "What was done is in {}: the same command goes on from there.",
                path.display()
            ));
        }
        return Ok(signals.await?);
    }
    if let Some(error) = report.journal_error {
        return Err(error.into());
    }
    output::say("");
    match args.graph {
        None => output::data(scenario.table(&snapshot).as_bytes())?,
        Some(GraphFormat::Dot) => output::data(to_dot(&snapshot).as_bytes())?,
        Some(GraphFormat::Mermaid) => output::data(to_mermaid(&snapshot).as_bytes())?,
    }
    judge(&scenario, &snapshot, &report.metrics, most_used)
}

fn judge(
    scenario: &Scenario,
    snapshot: &[dragnet_work::WorkSnapshot],
    metrics: &WorkSchedulerMetrics,
    most_used: u32,
) -> anyhow::Result<Exit> {
    let mut wrong = scenario.differences(snapshot);
    if metrics.finished() != metrics.total {
        wrong.push(format!("{} of {} items ended", metrics.finished(), metrics.total));
    }
    if most_used > metrics.slots {
        wrong.push(format!("{most_used} slots were in use, of {}", metrics.slots));
    }
    if metrics.events_missed > 0 {
        wrong.push(format!("{} events were missed", metrics.events_missed));
    }
    if !wrong.is_empty() {
        bail!("the demo did not end as it should:\n  {}", wrong.join("\n  "));
    }
    output::say(&format!(
        "\nAll {} items ended as they should, in {} attempts; never more than {} slots in use.",
        metrics.total, metrics.attempts, metrics.slots
    ));
    Ok(Exit::Complete)
}

/// Shows the run until its events end, and says how many slots were in use at most.
async fn draw(handle: WorkHandle, mut events: mpsc::Receiver<WorkEvent>) -> u32 {
    let mut picture = Picture::new(handle);
    loop {
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => picture.note(&event),
                None => break,
            },
            () = dragnet_ambient::Clock::sleep(picture.clock(), FRAME) => picture.draw(),
        }
    }
    picture.draw();
    picture.most_used()
}

/// Asks everything to stop when the user does, and says how the program should then end.
async fn cancel_on_signal(cancel: Cancel) -> Exit {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    let exit = tokio::select! {
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Terminated,
    };
    cancel.cancel();
    exit
}
