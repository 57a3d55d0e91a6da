//! [`RunCommandWork`]: an item that is a process of its own.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::{Work, WorkContext, WorkOutcome};

/// How much of the end of a process's error output is kept for the item's error.
const STDERR_KEPT_BYTES: usize = 4096;

/// Runs a program and succeeds if it exits with 0.
///
/// The process keeps its slot while it runs, so slots bound the number of processes. It leads a process
/// group of its own: when the item is cancelled, times out or loses its run, the whole group is killed,
/// whatever the program had started included. What it leaves running when it ends by itself is left
/// alone. Its input and output are closed to it; the end of its
/// error output becomes part of the item's error.
#[derive(Debug)]
pub struct RunCommandWork {
    name: String,
    program: OsString,
    arguments: Vec<OsString>,
}

impl RunCommandWork {
    /// Runs `program` with `arguments`, without a shell in between.
    pub fn new<A: Into<OsString>>(
        name: impl Into<String>,
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self { name: name.into(), program: program.into(), arguments }
    }

    fn spawn(&self) -> std::io::Result<Group> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Group { leader: command.spawn()? })
    }
}

#[async_trait]
impl Work for RunCommandWork {
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        let mut group = match self.spawn() {
            Ok(group) => group,
            Err(error) => return WorkOutcome::retry(format!("cannot run {:?}: {error}", self.program)),
        };
        let ended = tokio::select! {
            biased;
            () = ctx.cancel_token().cancelled() => None,
            ended = group.wait() => Some(ended),
        };
        match ended {
            None => {
                group.kill().await;
                WorkOutcome::Cancelled
            }
            Some(Ok((status, _))) if status.success() => WorkOutcome::Success,
            Some(Ok((status, stderr))) => WorkOutcome::retry(describe(status, &stderr)),
            Some(Err(error)) => WorkOutcome::retry(format!("cannot wait for {:?}: {error}", self.program)),
        }
    }

    fn definition(&self) -> String {
        format!("{:?} {:?}", self.program, self.arguments)
    }
}

fn describe(status: ExitStatus, stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    match text.trim() {
        "" => status.to_string(),
        text => format!("{status}: {text}"),
    }
}

/// A process and all that it started. Killed when dropped.
struct Group {
    leader: Child,
}

impl Group {
    /// Waits for the leader to end, keeping the tail of its error output. What others of the group still
    /// hold open is not waited for.
    async fn wait(&mut self) -> std::io::Result<(ExitStatus, Vec<u8>)> {
        let Some(mut stderr) = self.leader.stderr.take() else {
            return Ok((self.leader.wait().await?, Vec::new()));
        };
        let (mut status, mut tail, mut chunk) = (None, Vec::new(), [0; 1024]);
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                read = stderr.read(&mut chunk), if open => match read {
                    Ok(count @ 1..) => keep_tail(&mut tail, &chunk[..count]),
                    _ => open = false,
                },
                ended = self.leader.wait(), if status.is_none() => status = Some(ended?),
                // Ended, and nothing more can be read at once.
                status = std::future::ready(status), if status.is_some() => {
                    if let Some(status) = status {
                        return Ok((status, tail));
                    }
                }
            }
        }
    }

    async fn kill(&mut self) {
        self.signal();
        // Reaps the leader, so that it does not stay behind as a zombie.
        _ = self.leader.wait().await;
    }

    fn signal(&self) {
        // No id: the leader was reaped already.
        let id = self.leader.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // It may have ended by itself just now.
            _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal();
    }
}

fn keep_tail(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(more);
    tail.drain(..tail.len().saturating_sub(STDERR_KEPT_BYTES));
}
