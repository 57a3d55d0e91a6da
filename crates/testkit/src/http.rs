//! A real HTTP/1.1 server on the loopback interface that answers by a script: [`ScriptedServer`].
//!
//! Tests of HTTP clients need a server that breaks the rules: a reset instead of an answer, a body shorter
//! than it was announced. An HTTP library keeps the rules, and hides the socket that would break them, so
//! this server is written on tokio's `TcpListener`, with `httparse` (no dependencies of its own) for the
//! part that is easy to get wrong. Left out: TLS, HTTP/2, trailers, `Expect: 100-continue`, several ranges
//! in one request.

mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

pub use reply::Reply;
pub use request::Request;

use reply::{Afterwards, Wire};
use request::{Unreadable, read_request};

/// Connections served at a time; further ones wait in the kernel's backlog. Clients under test pool some
/// tens, and a leak of them should show as a stall here rather than as exhausted descriptors elsewhere.
const CONNECTIONS_MAX: usize = 256;

/// The server records the first so many requests and answers the later ones unrecorded.
const REQUESTS_KEPT_MAX: usize = 1 << 16;

/// What a client may still send after its last answer before it is cut off; a refused body fits in.
const DRAINED_BYTES_MAX: u64 = 2 * request::BODY_BYTES_MAX as u64;

/// A server that answers each request with the next [`Reply`] of its script.
///
/// Replies are scripted by method and path. A path with a query matches only that query; one without
/// matches any. What nothing matches is answered with 501. The server stops when it is dropped.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl ScriptedServer {
    /// Listens on a free port of 127.0.0.1, served by the current tokio runtime.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of `path`, which starts with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Appends replies for `method` and `path`, each to be given once, in order.
    pub fn script(&self, method: &str, path: &str, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script().once.entry(key(method, path)).or_default().extend(replies);
    }

    /// Answers `method` and `path` with `reply` whenever the script has nothing for them.
    pub fn always(&self, method: &str, path: &str, reply: Reply) {
        self.shared.script().always.insert(key(method, path), reply);
    }

    /// Answers every GET and HEAD of `path` with `blob` or the range of it that is asked for.
    pub fn serve_blob(&self, path: &str, blob: impl Into<Bytes>) {
        let reply = Reply::blob(blob);
        self.always("HEAD", path, reply.clone());
        self.always("GET", path, reply);
    }

    /// How many scripted replies have not been given yet.
    pub fn script_left(&self) -> usize {
        self.shared.script().once.values().map(VecDeque::len).sum()
    }

    /// The requests received so far, in the order in which they were complete.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.borrow().clone()
    }

    /// Waits until `count` requests have been received in all. Held replies count: their requests are in.
    pub async fn received(&self, count: usize) {
        let mut requests = self.shared.requests.subscribe();
        // The sender lives in `self`, so the wait ends only by the condition.
        let _ = requests.wait_for(|requests| requests.len() >= count).await;
    }

    /// Stops, and returns when the port is closed. Dropping the server does the same a little later.
    pub async fn stop(mut self) {
        self.accepting.abort();
        // The only outcome is the cancellation just asked for, or the end of a loop that failed before.
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Holds replies back until it is opened; then it stays open. Clones are one gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets everybody through, those who wait and those who come later.
    pub fn open(&self) {
        self.0.close();
    }

    /// Waits until the gate is open.
    pub async fn passed(&self) {
        // There are no permits, so this ends only when `open` closes the semaphore.
        let _ = self.0.acquire().await;
    }
}

/// What the connections share with the test.
#[derive(Debug, Default)]
struct Shared {
    script: Mutex<Script>,
    requests: watch::Sender<Vec<Request>>,
}

/// Method and path.
type Key = (String, String);

#[derive(Debug, Default)]
struct Script {
    once: HashMap<Key, VecDeque<Reply>>,
    always: HashMap<Key, Reply>,
}

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, request: Request) {
        self.requests.send_if_modified(|requests| {
            let kept = requests.len() < REQUESTS_KEPT_MAX;
            if kept {
                requests.push(request);
            }
            kept
        });
    }
}

impl Script {
    fn take(&mut self, request: &Request) -> Reply {
        let keys = [key(&request.method, &request.target), key(&request.method, request.path())];
        let once = keys.iter().find_map(|key| self.once.get_mut(key)?.pop_front());
        once.or_else(|| keys.iter().find_map(|key| self.always.get(key).cloned()))
            .unwrap_or_else(|| Reply::unscripted(request))
    }
}

fn key(method: &str, path: &str) -> Key {
    (method.to_owned(), path.to_owned())
}

/// Accepts until the server stops. The connections end with this future, since it owns them.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        // Out of descriptors, most likely: the test sees refused connections instead of a busy loop.
        let Ok((stream, _)) = listener.accept().await else { return };
        connections.spawn(converse(stream, Arc::clone(&shared)));
    }
}

/// Answers the requests of one connection, one after the other.
async fn converse(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = BytesMut::new();
    loop {
        let wire = match read_request(&mut stream, &mut buffer).await {
            Ok(request) => answer(request, &shared).await,
            Err(Unreadable::Gone) => return,
            Err(Unreadable::Refused(status)) => Reply::new(status).encode_refusal(),
        };
        match send(&mut stream, wire).await {
            Ok(Afterwards::AwaitNext) => {}
            Ok(Afterwards::Close) => return close(stream).await,
            // A failed send means that the client has left.
            Ok(Afterwards::Reset) | Err(_) => return,
        }
    }
}

async fn answer(request: Request, shared: &Shared) -> Wire {
    let reply = shared.script().take(&request);
    let wire = reply.encode(&request);
    shared.record(request);
    if let Some(gate) = reply.gate() {
        gate.passed().await;
    }
    wire
}

async fn send(stream: &mut TcpStream, wire: Wire) -> io::Result<Afterwards> {
    if wire.afterwards == Afterwards::Reset {
        // Without lingering, the close that follows sends RST instead of FIN.
        stream.set_zero_linger()?;
    }
    stream.write_all(&wire.bytes).await?;
    Ok(wire.afterwards)
}

/// Closes gently: with bytes of the client unread, the kernel would send RST, and the client could lose
/// the answer that is already on its way.
async fn close(mut stream: TcpStream) {
    if stream.shutdown().await.is_ok() {
        // However it ends, the connection is over.
        let _ = tokio::io::copy(&mut stream.take(DRAINED_BYTES_MAX), &mut tokio::io::sink()).await;
    }
}
