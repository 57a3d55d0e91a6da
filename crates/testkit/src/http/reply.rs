//! Replies: the [`Reply`] that a test scripts, and the bytes that it becomes.

use std::ops::Range;

use bytes::Bytes;

use super::Gate;
use super::request::{Request, find_header};

/// One answer of a [`ScriptedServer`](crate::ScriptedServer), or the lack of it.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    content: Content,
    delivery: Delivery,
    gate: Option<Gate>,
}

/// Whether a `Range` header is obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Fixed,
    Blob,
}

/// How much of the answer reaches the client.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Whole,
    TruncatedAfter(usize),
    Reset,
}

impl Reply {
    /// An empty answer of this status.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            content: Content::Fixed,
            delivery: Delivery::Whole,
            gate: None,
        }
    }

    /// 200 with a body.
    pub fn ok(body: impl Into<Bytes>) -> Self {
        Self::new(200).with_body(body)
    }

    /// A stored object: 200 with all of it, 206 with the range that is asked for, or 416.
    pub fn blob(blob: impl Into<Bytes>) -> Self {
        Self { content: Content::Blob, ..Self::ok(blob) }.with_header("Accept-Ranges", "bytes")
    }

    /// No answer: the connection is reset once the request has been read.
    pub fn reset() -> Self {
        Self { delivery: Delivery::Reset, ..Self::new(0) }
    }

    /// Replaces the body.
    pub fn with_body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Adds a header. `Content-Length` is set by the server unless it is given here; a length that is
    /// given is not checked, and the connection closes after it.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Announces the whole body, sends only its first `bytes`, and closes the connection.
    pub fn truncated_after(self, bytes: usize) -> Self {
        Self { delivery: Delivery::TruncatedAfter(bytes), ..self }
    }

    /// Sends nothing before `gate` is open. The request counts as received all the same.
    pub fn held_by(self, gate: &Gate) -> Self {
        Self { gate: Some(gate.clone()), ..self }
    }

    pub(super) fn unscripted(request: &Request) -> Self {
        Self::new(501).with_body(format!("nothing is scripted for {} {}", request.method, request.target))
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// What goes over the wire in answer to `request`.
    pub(super) fn encode(&self, request: &Request) -> Wire {
        let sent = match self.delivery {
            Delivery::Reset => return Wire { bytes: Vec::new(), afterwards: Afterwards::Reset },
            Delivery::TruncatedAfter(bytes) => bytes,
            Delivery::Whole => usize::MAX,
        };
        let (status, range_headers, body) = self.content_for(request);
        let mut bytes = self.head(status, &range_headers, body.len());
        if request.method != "HEAD" && may_have_body(status) {
            bytes.extend_from_slice(&body[..body.len().min(sent)]);
        }
        Wire { bytes, afterwards: self.afterwards(request) }
    }

    /// What goes over the wire when there was no readable request.
    pub(super) fn encode_refusal(&self) -> Wire {
        Wire { bytes: self.head(self.status, &[], 0), afterwards: Afterwards::Close }
    }

    fn content_for(&self, request: &Request) -> (u16, Vec<(String, String)>, Bytes) {
        let range = request.header("range").filter(|_| self.content == Content::Blob);
        let length = self.body.len();
        let content_range =
            |range: String| vec![("Content-Range".to_owned(), format!("bytes {range}/{length}"))];
        match resolve_range(range, length) {
            Selection::Whole => (self.status, Vec::new(), self.body.clone()),
            Selection::Part(part) => {
                let headers = content_range(format!("{}-{}", part.start, part.end - 1));
                (206, headers, self.body.slice(part))
            }
            Selection::Unsatisfiable => (416, content_range("*".to_owned()), Bytes::new()),
        }
    }

    fn head(&self, status: u16, more_headers: &[(String, String)], length: usize) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {status} \r\n");
        let length = (may_have_body(status) && !self.states_its_length())
            .then(|| ("Content-Length".to_owned(), length.to_string()));
        for (name, value) in self.headers.iter().chain(more_headers).chain(&length) {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn states_its_length(&self) -> bool {
        ["content-length", "transfer-encoding"].iter().any(|name| find_header(&self.headers, name).is_some())
    }

    fn afterwards(&self, request: &Request) -> Afterwards {
        let asked_to_close = [request.header("connection"), find_header(&self.headers, "connection")]
            .into_iter()
            .flatten()
            .any(|value| value.eq_ignore_ascii_case("close"));
        match self.delivery {
            Delivery::Whole if !asked_to_close && !self.states_its_length() => Afterwards::AwaitNext,
            _ => Afterwards::Close,
        }
    }
}

/// Bytes to send, and what becomes of the connection then.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) bytes: Vec<u8>,
    pub(super) afterwards: Afterwards,
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    AwaitNext,
    Close,
    Reset,
}

fn may_have_body(status: u16) -> bool {
    status >= 200 && status != 204 && status != 304
}

/// The part of a blob that a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection {
    Whole,
    Part(Range<usize>),
    Unsatisfiable,
}

/// Reads a `Range` header. What is malformed, in other units or more than one range selects the whole, as
/// RFC 9110 allows.
pub(super) fn resolve_range(header: Option<&str>, length: usize) -> Selection {
    let Some((first, last)) = header.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Selection::Whole;
    };
    match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first > last => Selection::Whole,
        (Ok(first), Ok(last)) => part(first..last.saturating_add(1), length),
        (Ok(first), Err(_)) if last.is_empty() => part(first..length, length),
        (Err(_), Ok(suffix)) if first.is_empty() => part(length.saturating_sub(suffix)..length, length),
        _ => Selection::Whole,
    }
}

fn part(range: Range<usize>, length: usize) -> Selection {
    let range = range.start..range.end.min(length);
    if range.is_empty() { Selection::Unsatisfiable } else { Selection::Part(range) }
}
