//! HTTP server of the metrics: three paths, one request a connection, and a time limit for each connection.
//!
//! Every connection is accepted at once. If there are too many, another one is closed: the oldest without a
//! request, or else the oldest of all (`http/connections.rs`). So neither silent nor slow readers block a scraper.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the page |
//! | `/healthz` | 200 if the daemon's task answers, else 503 |
//! | `/readyz` | 200 if grants are given, 503 while the daemon waits for processes of the last daemon |

use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};
use tracing::{debug, warn};

use super::cache::Cache;
use super::page;
use crate::http::{self, Rank};

/// Largest number of open connections to the metrics server.
const CONNECTIONS: usize = 32;
/// Largest accepted length of a request, in bytes.
const REQUEST_BYTES: usize = 8 * 1024;
/// Interval at which recorded values are sorted into histograms without a scrape.
const UPKEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct Limits {
    request: Duration,
    lifetime: Duration,
}

const LIMITS: Limits = Limits { request: Duration::from_secs(5), lifetime: Duration::from_secs(15) };

const PLAIN: &str = "text/plain; charset=utf-8";

type Answer = Response<Full<Bytes>>;

pub(super) async fn serve(listener: StdListener, cache: Cache, served: oneshot::Receiver<()>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(cause) => return warn!("cannot serve metrics: {cause}"),
    };
    let cache = Arc::new(cache);
    tokio::select! {
        () = accept(&listener, &cache, LIMITS) => {}
        () = upkeep(&cache) => {}
        _ = served => {}
    }
}

async fn upkeep(cache: &Cache) {
    let mut due = interval(UPKEEP);
    loop {
        due.tick().await;
        // Sorts the samples that histograms have gathered since the last scrape into their buckets.
        cache.events.run_upkeep();
    }
}

async fn accept(listener: &TcpListener, cache: &Arc<Cache>, limits: Limits) {
    http::accept(listener, CONNECTIONS, "metrics", |stream, rank| {
        serve_one(stream, cache.clone(), limits, rank)
    })
    .await;
}

async fn serve_one(stream: TcpStream, cache: Arc<Cache>, limits: Limits, rank: Rank) {
    let service = service_fn(|request| {
        rank.asked();
        answer(request, &cache)
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.request)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limits.lifetime, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => debug!("a reader of metrics left: {cause}"),
        Err(_) => debug!("a reader of metrics took longer than {:?}", limits.lifetime),
    }
}

async fn answer(request: Request<Incoming>, cache: &Cache) -> Result<Answer, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = respond(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(answer);
    }
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
        return Ok(respond(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"));
    }
    let Some(view) = cache.view().await else {
        return Ok(respond(StatusCode::SERVICE_UNAVAILABLE, "the scheduler does not answer\n"));
    };
    let picture = &view.picture;
    Ok(match path {
        "/metrics" => with_type(StatusCode::OK, page::CONTENT_TYPE, cache.text(&view).await),
        "/readyz" if !picture.ready => respond(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("recovering: waiting for {} processes of the last daemon\n", picture.recovering),
        ),
        _ => respond(StatusCode::OK, "ok\n"),
    })
}

fn respond(status: StatusCode, words: impl Into<Bytes>) -> Answer {
    with_type(status, PLAIN, words.into())
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::thread;

    use tokio::sync::mpsc;

    use super::super::cache::PictureRequest;
    use super::super::events::Events;
    use super::super::picture::Picture;
    use super::super::sensors::Sensors;
    use super::*;

    /// Limits that no connection reaches in these tests.
    const FOR_EVER: Limits =
        Limits { request: Duration::from_secs(3600), lifetime: Duration::from_secs(3600) };
    /// Time-out of a failing test.
    const LONG: Duration = Duration::from_secs(60);

    /// Starts a server without time limits, which ends when the test drops the sender.
    fn start() -> (SocketAddr, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        thread::spawn(move || {
            runtime.block_on(async {
                let (requests, mut asked) = mpsc::channel::<PictureRequest>(1);
                let sensors = Sensors::start().unwrap();
                let cache = Arc::new(Cache::new(requests, Events::new().handle(), sensors, true));
                let core = async {
                    while let Some(answer) = asked.recv().await {
                        let _ = answer.send(Picture { ready: true, ..Picture::default() });
                    }
                };
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(&listener, &cache, FOR_EVER) => {}
                    () = core => {}
                    _ = ended => {}
                }
            });
        });
        (address, end)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    fn asking(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream
    }

    fn status_of(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap().chars().take(15).collect()
    }

    fn is_open(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let open = matches!(stream.peek(&mut [0]), Err(cause) if cause.kind() == io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        open
    }

    #[test]
    fn silent_and_slow_readers_keep_no_scraper_out() {
        let (address, _end) = start();
        let silent: Vec<_> = (0..200).map(|_| connect(address)).collect();
        let _slow: Vec<_> = (0..40).map(|_| asking(address, "/metrics")).collect();
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(status_of(asking(address, path)), "HTTP/1.1 200 OK");
        }
        // No time limit was reached: connections were closed to make room.
        let gone = silent.iter().filter(|silent| !is_open(silent)).count();
        assert!(gone > 200 - CONNECTIONS, "{gone}");
    }

    #[test]
    fn the_oldest_silent_connection_is_closed_first() {
        let (address, _end) = start();
        let silent: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        let mut half = connect(address);
        half.write_all(b"GET /metrics HT").unwrap();
        for _ in 0..20 {
            assert_eq!(status_of(asking(address, "/readyz")), "HTTP/1.1 200 OK");
        }
        // One was closed for the half request and one for the first full one; an answered connection ends by
        // itself.
        let open: Vec<bool> = silent.iter().map(is_open).collect();
        assert_eq!(open[..2], [false; 2]);
        assert_eq!(open[2..], [true; CONNECTIONS - 2]);
        half.write_all(b"TP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(status_of(half), "HTTP/1.1 200 OK");
    }
}
