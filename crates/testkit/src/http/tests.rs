//! What the scripted server promises, seen by a client that has nothing but a socket.

use std::io::ErrorKind;

use super::reply::{Selection, resolve_range};
use super::request::BODY_BYTES_MAX;
use super::*;

async fn server() -> ScriptedServer {
    ScriptedServer::start().await.unwrap()
}

async fn connect(server: &ScriptedServer) -> TcpStream {
    TcpStream::connect(server.address()).await.unwrap()
}

/// Sends `request` on a connection of its own and reads until the server closes it.
async fn exchange(server: &ScriptedServer, request: &str) -> String {
    let mut client = connect(server).await;
    client.write_all(request.as_bytes()).await.unwrap();
    read_all(&mut client).await
}

async fn read_all(client: &mut TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Reads as many bytes as `expected` has from a connection that stays open.
async fn read_expected(client: &mut TcpStream, expected: &str) {
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), expected);
}

async fn get(server: &ScriptedServer, target: &str) -> String {
    exchange(server, &format!("GET {target} HTTP/1.1\r\nConnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn a_scripted_reply_is_given_and_the_request_recorded() {
    let server = server().await;
    server.script("POST", "/ingest", [Reply::new(202).with_header("X-Seen", "yes").with_body("thanks")]);
    let answer = exchange(
        &server,
        "POST /ingest?run=7 HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
    )
    .await;
    assert_eq!(answer, "HTTP/1.1 202 \r\nX-Seen: yes\r\nContent-Length: 6\r\n\r\nthanks");

    let headers = [("Host", "here"), ("Connection", "close"), ("Content-Length", "5")];
    let expected = Request {
        method: "POST".to_owned(),
        target: "/ingest?run=7".to_owned(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        body: "hello".into(),
    };
    assert_eq!((expected.path(), expected.header("HOST")), ("/ingest", Some("here")));
    assert_eq!(server.requests(), [expected]);
    assert_eq!(server.url("/ingest"), format!("http://{}/ingest", server.address()));
}

#[tokio::test]
async fn replies_are_given_in_order_then_the_standing_one() {
    let server = server().await;
    server.always("GET", "/a", Reply::ok("standing"));
    server.script("GET", "/a", [Reply::new(503), Reply::ok("second")]);
    assert_eq!(server.script_left(), 2);
    assert_eq!(get(&server, "/a").await, "HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n");
    assert!(get(&server, "/a").await.ends_with("\r\n\r\nsecond"));
    assert!(get(&server, "/a").await.ends_with("\r\n\r\nstanding"));
    assert!(get(&server, "/a").await.ends_with("\r\n\r\nstanding"));
    assert_eq!(server.script_left(), 0);
}

#[tokio::test]
async fn a_reply_for_a_query_goes_before_the_one_for_its_path() {
    let server = server().await;
    server.always("GET", "/entries", Reply::ok("any"));
    server.always("GET", "/entries?start=0", Reply::ok("first page"));
    assert!(get(&server, "/entries?start=0").await.ends_with("\r\n\r\nfirst page"));
    assert!(get(&server, "/entries?start=32").await.ends_with("\r\n\r\nany"));
}

#[tokio::test]
async fn an_unscripted_request_is_answered_with_501_and_recorded() {
    let server = server().await;
    server.always("PUT", "/a", Reply::ok(""));
    let expected = "HTTP/1.1 501 \r\nContent-Length: 30\r\n\r\nnothing is scripted for GET /a";
    assert_eq!(get(&server, "/a").await, expected);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_reset_breaks_the_connection_before_any_answer() {
    let server = server().await;
    server.script("GET", "/a", [Reply::reset()]);
    let mut client = connect(&server).await;
    client.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.unwrap();
    let error = client.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.requests().len(), 1, "the request was read");
}

#[tokio::test]
async fn a_truncated_body_is_shorter_than_announced() {
    let server = server().await;
    server.script("GET", "/a", [Reply::ok("0123456789").truncated_after(4)]);
    let answer = exchange(&server, "GET /a HTTP/1.1\r\n\r\n").await;
    assert_eq!(answer, "HTTP/1.1 200 \r\nContent-Length: 10\r\n\r\n0123");
}

#[tokio::test]
async fn a_held_reply_waits_for_its_gate() {
    let server = server().await;
    let gate = Gate::closed();
    server.script("GET", "/slow", [Reply::ok("late").held_by(&gate)]);
    server.script("GET", "/fast", [Reply::ok("early")]);
    let mut slow = connect(&server).await;
    slow.write_all(b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    server.received(1).await;
    assert!(get(&server, "/fast").await.ends_with("early"), "others are not held");
    assert_eq!(slow.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    gate.open();
    assert!(read_all(&mut slow).await.ends_with("late"));
    gate.passed().await;
}

#[tokio::test]
async fn a_blob_is_served_whole_and_in_ranges() {
    let server = server().await;
    server.serve_blob("/blob", "0123456789");
    let ranged = |range: &str| format!("GET /blob HTTP/1.1\r\nRange: {range}\r\nConnection: close\r\n\r\n");
    assert_eq!(
        get(&server, "/blob").await,
        "HTTP/1.1 200 \r\nAccept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n0123456789"
    );
    assert_eq!(
        exchange(&server, &ranged("bytes=2-4")).await,
        "HTTP/1.1 206 \r\nAccept-Ranges: bytes\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\n\r\n234"
    );
    assert_eq!(
        exchange(&server, &ranged("bytes=10-")).await,
        "HTTP/1.1 416 \r\nAccept-Ranges: bytes\r\nContent-Range: bytes */10\r\nContent-Length: 0\r\n\r\n"
    );
    assert_eq!(
        exchange(&server, "HEAD /blob HTTP/1.1\r\nConnection: close\r\n\r\n").await,
        "HTTP/1.1 200 \r\nAccept-Ranges: bytes\r\nContent-Length: 10\r\n\r\n"
    );
}

#[tokio::test]
async fn a_truncated_range_announces_the_length_of_the_range() {
    let server = server().await;
    server.always("GET", "/blob", Reply::blob("0123456789").truncated_after(1));
    let answer = exchange(&server, "GET /blob HTTP/1.1\r\nRange: bytes=2-4\r\n\r\n").await;
    assert!(answer.ends_with("Content-Length: 3\r\n\r\n2"), "{answer}");
}

#[test]
fn ranges_are_resolved_as_rfc_9110_says() {
    let resolve = |header| resolve_range(Some(header), 10);
    for (header, expected) in [
        ("bytes=0-0", Selection::Part(0..1)),
        ("bytes=7-99", Selection::Part(7..10)),
        ("bytes=7-", Selection::Part(7..10)),
        ("bytes=-3", Selection::Part(7..10)),
        ("bytes=-99", Selection::Part(0..10)),
        ("bytes=9-18446744073709551615", Selection::Part(9..10)),
        ("bytes=-0", Selection::Unsatisfiable),
        ("bytes=10-20", Selection::Unsatisfiable),
        ("bytes=5-4", Selection::Whole),
        ("bytes=0-1,3-4", Selection::Whole),
        ("bytes=-", Selection::Whole),
        ("lines=0-1", Selection::Whole),
    ] {
        assert_eq!(resolve(header), expected, "{header}");
    }
    assert_eq!(resolve_range(Some("bytes=0-"), 0), Selection::Unsatisfiable);
    assert_eq!(resolve_range(None, 10), Selection::Whole);
}

#[tokio::test]
async fn a_connection_carries_many_requests_even_sent_at_once() {
    let server = server().await;
    server.script("GET", "/a", [Reply::ok("one"), Reply::new(204), Reply::ok("three")]);
    let mut client = connect(&server).await;
    client.write_all(b"GET /a HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\nGET /a HT").await.unwrap();
    read_expected(&mut client, "HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\none").await;
    read_expected(&mut client, "HTTP/1.1 204 \r\n\r\n").await;
    client.write_all(b"TP/1.1\r\n\r\n").await.unwrap();
    read_expected(&mut client, "HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nthree").await;
}

#[tokio::test]
async fn a_chunked_body_is_joined() {
    let server = server().await;
    server.always("PUT", "/a", Reply::new(201));
    let head = "PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let answer = exchange(&server, &format!("{head}5\r\nhello\r\n7;note=x\r\n, world\r\n0\r\n\r\n")).await;
    assert_eq!(answer, "HTTP/1.1 201 \r\nContent-Length: 0\r\n\r\n");
    assert_eq!(server.requests()[0].body, "hello, world");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_a_reason_and_not_recorded() {
    let server = server().await;
    let many_headers = "X: y\r\n".repeat(101);
    let chunked = "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (request, status) in [
        ("no http at all\r\n\r\n".to_owned(), 400),
        ("PUT / HTTP/1.1\r\nContent-Length: many\r\n\r\n".to_owned(), 400),
        ("PUT / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n".to_owned(), 400),
        (format!("{chunked}2\r\nabcd"), 400),
        (format!("PUT / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", BODY_BYTES_MAX + 1), 413),
        (format!("{chunked}{:x}\r\n", BODY_BYTES_MAX + 1), 413),
        (format!("GET / HTTP/1.1\r\n{many_headers}\r\n"), 431),
        (format!("GET /{}", "a".repeat(16 * 1024)), 431),
    ] {
        let answer = exchange(&server, &request).await;
        assert_eq!(answer, format!("HTTP/1.1 {status} \r\nContent-Length: 0\r\n\r\n"), "{request:.60}");
    }
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn a_client_reads_the_refusal_of_a_body_that_it_has_already_sent() {
    let server = server().await;
    let body = "x".repeat(1 << 20);
    let answer = exchange(&server, &format!("PUT / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{body}")).await;
    assert_eq!(answer, "HTTP/1.1 400 \r\nContent-Length: 0\r\n\r\n");
}

#[tokio::test]
async fn a_length_of_its_own_is_sent_as_it_is() {
    let server = server().await;
    server.script("GET", "/a", [Reply::ok("abc").with_header("Content-Length", "2")]);
    let answer = exchange(&server, "GET /a HTTP/1.1\r\n\r\n").await;
    assert_eq!(answer, "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nabc");
}

#[tokio::test]
async fn a_dropped_server_ends_its_connections() {
    let server = server().await;
    server.script("GET", "/a", [Reply::ok("never").held_by(&Gate::closed())]);
    let mut client = connect(&server).await;
    client.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.unwrap();
    server.received(1).await;
    drop(server);
    assert_eq!(read_all(&mut client).await, "");
}

#[tokio::test]
async fn a_stopped_server_refuses_connections() {
    let server = server().await;
    let address = server.address();
    server.stop().await;
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
