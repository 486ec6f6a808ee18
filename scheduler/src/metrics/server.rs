//! The HTTP side: three paths, one request a connection, and an end to every patience.
//!
//! Every connection is taken at once. When there are too many, one is closed for it: the oldest that has asked for
//! nothing, or else the oldest of all (`guests.rs`). So neither silence nor slow reading keeps a scraper out.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the page |
//! | `/healthz` | 200 if the core's task answers |
//! | `/readyz` | 200 if grants are given, 503 while processes of the last daemon are awaited |

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
use tokio::task::yield_now;
use tokio::time::{interval, sleep, timeout};
use tracing::{debug, warn};

use super::desk::Desk;
use super::guests::{Guest, Guests};
use super::page;

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// The longest request that is read.
const REQUEST_BYTES: usize = 8 * 1024;
/// How often histograms are sorted while nobody reads them.
const UPKEEP: Duration = Duration::from_secs(60);
/// A pause after a connection that could not be had, which is mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// For its request to arrive.
    arrival: Duration,
    /// Altogether, so that a slow reader leaves at some time.
    lifetime: Duration,
}

const PATIENCE: Patience = Patience { arrival: Duration::from_secs(5), lifetime: Duration::from_secs(15) };

const PLAIN: &str = "text/plain; charset=utf-8";

type Answer = Response<Full<Bytes>>;

/// Serves until the daemon has ended.
pub(super) async fn serve(listener: StdListener, desk: Desk, served: oneshot::Receiver<()>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(cause) => return warn!("cannot serve metrics: {cause}"),
    };
    let desk = Arc::new(desk);
    tokio::select! {
        () = accept(&listener, &desk, PATIENCE) => {}
        () = upkeep(&desk) => {}
        _ = served => {}
    }
}

async fn upkeep(desk: &Desk) {
    let mut due = interval(UPKEEP);
    loop {
        due.tick().await;
        desk.sort_events();
    }
}

async fn accept(listener: &TcpListener, desk: &Arc<Desk>, patience: Patience) {
    let mut guests = Guests::new(CONNECTIONS);
    let mut refused = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let desk = desk.clone();
                guests.admit(|guest| attend(stream, desk, patience, guest));
                refused = false;
                // Once round for the driver to see what has arrived, once for the guest to read it: whoever came with
                // a request is no silent guest when the next one comes.
                yield_now().await;
                yield_now().await;
            }
            Err(cause) => {
                if !std::mem::replace(&mut refused, true) {
                    warn!("cannot take a connection for metrics: {cause}; trying again until it goes");
                }
                guests.dismiss_one();
                sleep(PAUSE).await;
            }
        }
    }
}

/// One connection, from its request to its end.
async fn attend(stream: TcpStream, desk: Arc<Desk>, patience: Patience, guest: Guest) {
    let service = service_fn(|request| {
        guest.asks();
        answer(request, &desk)
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(patience.arrival)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(patience.lifetime, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => debug!("a reader of metrics left: {cause}"),
        Err(_) => debug!("a reader of metrics took longer than {:?}", patience.lifetime),
    }
}

async fn answer(request: Request<Incoming>, desk: &Desk) -> Result<Answer, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = say(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(answer);
    }
    let path = request.uri().path();
    if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
        return Ok(say(StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n"));
    }
    let Some(view) = desk.view().await else {
        return Ok(say(StatusCode::SERVICE_UNAVAILABLE, "the scheduler does not answer\n"));
    };
    let picture = &view.picture;
    Ok(match path {
        "/metrics" => with_type(StatusCode::OK, page::CONTENT_TYPE, desk.text(&view).await),
        "/readyz" if !picture.ready => say(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("recovering: {} processes of the last daemon are awaited\n", picture.recovering),
        ),
        _ => say(StatusCode::OK, "ok\n"),
    })
}

fn say(status: StatusCode, words: impl Into<Bytes>) -> Answer {
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

    use gpushare_proto::Nanos;
    use tokio::sync::mpsc;

    use super::super::events::Events;
    use super::super::picture::Picture;
    use super::super::sensors::Sensors;
    use super::*;
    use crate::input::Input;

    /// Nobody leaves for want of patience in these tests.
    const FOR_EVER: Patience =
        Patience { arrival: Duration::from_secs(3600), lifetime: Duration::from_secs(3600) };
    /// Only a failing test waits so long.
    const LONG: Duration = Duration::from_secs(60);

    fn picture() -> Picture {
        Picture {
            uptime: Nanos(0),
            ready: true,
            recovering: 0,
            cards: Vec::new(),
            sessions: Vec::new(),
            audit: crate::metrics::AuditPicture::default(),
            living: 0,
        }
    }

    /// A server that loses patience with nobody, for as long as the test does not drop the sender.
    fn start() -> (SocketAddr, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        thread::spawn(move || {
            runtime.block_on(async {
                let (inputs, mut asked) = mpsc::channel(1);
                let desk = Arc::new(Desk::new(inputs, Events::new().text(), Sensors::start().unwrap()));
                let core = async {
                    while let Some(input) = asked.recv().await {
                        if let Input::Observe(answer) = input {
                            let _ = answer.send(picture());
                        }
                    }
                };
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(&listener, &desk, FOR_EVER) => {}
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
    fn neither_silent_nor_slow_readers_keep_a_scraper_out() {
        let (address, _end) = start();
        let silent: Vec<_> = (0..200).map(|_| connect(address)).collect();
        let _slow: Vec<_> = (0..40).map(|_| asking(address, "/metrics")).collect();
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(status_of(asking(address, path)), "HTTP/1.1 200 OK");
        }
        // Patience has ended nobody: those were closed who had to make room.
        let gone = silent.iter().filter(|silent| !is_open(silent)).count();
        assert!(gone > 200 - CONNECTIONS, "{gone}");
    }

    #[test]
    fn the_silent_leave_first_and_the_oldest_of_them() {
        let (address, _end) = start();
        let silent: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        let mut half = connect(address);
        half.write_all(b"GET /metrics HT").unwrap();
        for _ in 0..20 {
            assert_eq!(status_of(asking(address, "/readyz")), "HTTP/1.1 200 OK");
        }
        // One made room for the half request, and one for the first question; a question that is answered leaves.
        let open: Vec<bool> = silent.iter().map(is_open).collect();
        assert_eq!(open[..2], [false; 2]);
        assert_eq!(open[2..], [true; CONNECTIONS - 2]);
        half.write_all(b"TP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(status_of(half), "HTTP/1.1 200 OK");
    }
}
