//! Requests: the [`Request`] that a test reads, and its reading from the wire.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// A larger head is refused with 431. Twice what common servers take.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// More header lines are refused with 431.
const HEADERS_MAX: usize = 100;

/// A larger body is refused with 413: the server keeps every body that it receives.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The line that states the size of a chunk fits well into this.
const CHUNK_LINE_BYTES_MAX: usize = 64;

/// A request as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT` and so on.
    pub method: String,
    /// The path with its query, as sent.
    pub target: String,
    /// Names and values as sent, in order.
    pub headers: Vec<(String, String)>,
    /// The body, with the chunked coding removed.
    pub body: Bytes,
}

impl Request {
    /// The path without its query.
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path)
    }

    /// The value of the first header of this name; names ignore case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }
}

pub(super) fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// Why there is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The client closed the connection, or it broke.
    Gone,
    /// The request is malformed or too large; the status says which.
    Refused(u16),
}

const MALFORMED: Unreadable = Unreadable::Refused(400);
const BODY_TOO_LARGE: Unreadable = Unreadable::Refused(413);
const HEAD_TOO_LARGE: Unreadable = Unreadable::Refused(431);

/// Reads one request. What follows it on the wire stays in `buffer`.
pub(super) async fn read_request<S>(stream: &mut S, buffer: &mut BytesMut) -> Result<Request, Unreadable>
where
    S: AsyncRead + Unpin,
{
    let mut request = loop {
        if let Some((request, length)) = parse_head(buffer)? {
            buffer.advance(length);
            break request;
        }
        if buffer.len() >= HEAD_BYTES_MAX {
            return Err(HEAD_TOO_LARGE);
        }
        fill(stream, buffer).await?;
    };
    request.body = match body_coding(&request)? {
        BodyCoding::Sized(length) => take(stream, buffer, length).await?,
        BodyCoding::Chunked => read_chunks(stream, buffer).await?,
    };
    Ok(request)
}

/// The request without its body, and the length of its head; `None` while the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(Request, usize)>, Unreadable> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HEAD_TOO_LARGE),
        Err(_) => return Err(MALFORMED),
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        headers: head.headers.iter().map(|h| (h.name.to_owned(), text(h.value))).collect(),
        body: Bytes::new(),
    };
    Ok(Some((request, length)))
}

/// How the end of a body is told.
#[derive(Debug, PartialEq, Eq)]
enum BodyCoding {
    Sized(usize),
    Chunked,
}

fn body_coding(request: &Request) -> Result<BodyCoding, Unreadable> {
    match (request.header("transfer-encoding"), request.header("content-length")) {
        (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Ok(BodyCoding::Chunked),
        (Some(_), _) => Err(MALFORMED),
        (None, None) => Ok(BodyCoding::Sized(0)),
        (None, Some(length)) => match length.trim().parse() {
            Ok(length) if length <= BODY_BYTES_MAX => Ok(BodyCoding::Sized(length)),
            Ok(_) => Err(BODY_TOO_LARGE),
            Err(_) => Err(MALFORMED),
        },
    }
}

async fn read_chunks<S>(stream: &mut S, buffer: &mut BytesMut) -> Result<Bytes, Unreadable>
where
    S: AsyncRead + Unpin,
{
    let mut body = BytesMut::new();
    loop {
        let length = read_chunk_length(stream, buffer).await?;
        if length > BODY_BYTES_MAX - body.len() {
            return Err(BODY_TOO_LARGE);
        }
        body.extend_from_slice(&take(stream, buffer, length).await?);
        if take(stream, buffer, 2).await? != "\r\n" {
            return Err(MALFORMED);
        }
        if length == 0 {
            return Ok(body.freeze());
        }
    }
}

async fn read_chunk_length<S>(stream: &mut S, buffer: &mut BytesMut) -> Result<usize, Unreadable>
where
    S: AsyncRead + Unpin,
{
    loop {
        match httparse::parse_chunk_size(buffer) {
            Ok(httparse::Status::Complete((line, length))) => {
                buffer.advance(line);
                return usize::try_from(length).map_err(|_| BODY_TOO_LARGE);
            }
            Ok(httparse::Status::Partial) if buffer.len() < CHUNK_LINE_BYTES_MAX => {
                fill(stream, buffer).await?;
            }
            Ok(httparse::Status::Partial) | Err(_) => return Err(MALFORMED),
        }
    }
}

/// Takes exactly `length` bytes off the front.
async fn take<S>(stream: &mut S, buffer: &mut BytesMut, length: usize) -> Result<Bytes, Unreadable>
where
    S: AsyncRead + Unpin,
{
    while buffer.len() < length {
        fill(stream, buffer).await?;
    }
    Ok(buffer.split_to(length).freeze())
}

/// Reads some more, at least one byte.
async fn fill<S>(stream: &mut S, buffer: &mut BytesMut) -> Result<(), Unreadable>
where
    S: AsyncRead + Unpin,
{
    match stream.read_buf(buffer).await {
        Ok(0) | Err(_) => Err(Unreadable::Gone),
        Ok(_) => Ok(()),
    }
}
