//! Draws a graph of work while it runs: in place on a terminal, else a line for each change.

use std::collections::HashMap;

use anstyle::{AnsiColor, Style};
use dragnet_ambient::{Clock as _, SystemClock};
use dragnet_work::{WorkEvent, WorkHandle, WorkId, WorkSnapshot, WorkState};

use crate::output::{Canvas, fit, say, styled, terminal_width};

/// Room for a name with its indentation.
const NAME_WIDTH: usize = 26;

#[derive(Debug)]
pub(crate) struct Picture {
    handle: WorkHandle,
    canvas: Canvas,
    clock: SystemClock,
    most_used: u32,
}

impl Picture {
    pub(crate) fn new(handle: WorkHandle) -> Self {
        Self { handle, canvas: Canvas::new(), clock: SystemClock::new(), most_used: 0 }
    }

    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// The most slots that were seen in use.
    pub(crate) fn most_used(&self) -> u32 {
        self.most_used
    }

    /// Takes note of a change. Without a terminal, that is all there is to see.
    pub(crate) fn note(&mut self, event: &WorkEvent) {
        self.most_used = self.most_used.max(self.handle.metrics().slots_used);
        if self.canvas.is_terminal() || event.state == WorkState::Retrying {
            return;
        }
        let seconds = self.clock.now().since_origin().as_secs_f64();
        let attempt = if event.attempt > 1 { format!(" (attempt {})", event.attempt) } else { String::new() };
        say(&format!("{seconds:6.2} s  {:<20} {}{attempt}", event.name, event.state));
    }

    /// Draws the whole graph, each item below the first one it depends on.
    pub(crate) fn draw(&mut self) {
        let items = self.handle.snapshot();
        let width = terminal_width();
        let depths = depths(&items);
        let lines: Vec<String> =
            in_tree_order(&items).into_iter().map(|item| self.line(item, depths[&item.id], width)).collect();
        self.canvas.draw(&lines);
    }

    fn line(&self, item: &WorkSnapshot, depth: usize, width: usize) -> String {
        let (glyph, style) = look(item.state);
        let name = format!("{}{}", "  ".repeat(depth), item.name);
        let status = self.handle.status(item.id).unwrap_or_default();
        let error = item.error.as_deref().map(|error| format!("  {error}")).unwrap_or_default();
        let words = status.replacen(&format!(": {}", item.name), "", 1) + &error;
        let room = width.saturating_sub(NAME_WIDTH + 6);
        let name = fit(&name, NAME_WIDTH);
        format!("  {} {name:<NAME_WIDTH$} {}", styled(glyph, style, 1), styled(&fit(&words, room), style, 0))
    }
}

/// How deep each item stands: one below the deepest of those it comes after, or below its parent.
fn depths(items: &[WorkSnapshot]) -> HashMap<WorkId, usize> {
    let mut depths = HashMap::new();
    for item in items {
        let above = item.deps.iter().chain(item.parent.as_ref());
        let depth = above.filter_map(|id| depths.get(id)).max().map_or(0, |depth: &usize| depth + 1);
        depths.insert(item.id, depth);
    }
    depths
}

/// Each item right after the first one that it comes after, or after its parent.
fn in_tree_order(items: &[WorkSnapshot]) -> Vec<&WorkSnapshot> {
    let above = |item: &WorkSnapshot| item.parent.or(item.deps.first().copied());
    let mut ordered = Vec::with_capacity(items.len());
    let mut stack: Vec<&WorkSnapshot> = items.iter().rev().filter(|item| above(item).is_none()).collect();
    while let Some(item) = stack.pop() {
        ordered.push(item);
        stack.extend(items.iter().rev().filter(|below| above(below) == Some(item.id)));
    }
    ordered
}

/// The sign and the colour of a state.
fn look(state: WorkState) -> (&'static str, Style) {
    let plain = Style::new();
    match state {
        WorkState::Pending => ("·", plain.dimmed()),
        WorkState::Running => ("▶", AnsiColor::Blue.on_default()),
        WorkState::Waiting | WorkState::Retrying => ("◌", AnsiColor::Yellow.on_default()),
        WorkState::Aborting => ("◍", AnsiColor::Magenta.on_default()),
        WorkState::Success => ("✔", AnsiColor::Green.on_default()),
        WorkState::Failed => ("✘", AnsiColor::Red.on_default()),
        WorkState::Blocked => ("⊘", AnsiColor::BrightBlack.on_default()),
        WorkState::Cancelled => ("■", AnsiColor::Magenta.on_default()),
    }
}
