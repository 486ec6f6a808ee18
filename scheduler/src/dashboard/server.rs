//! HTTP server of the page: its files, its events, and what an administrator changes.
//!
//! | path | method | answer |
//! |---|---|---|
//! | `/`, `/app.js`, `/style.css`, `/icon.svg` | GET | the page |
//! | `/api/events` | GET | server-sent events, with names if a key is shown |
//! | `/api/key` | POST | a key for a link |
//! | `/api/end` | POST | ends the key that is shown |
//! | `/api/change` | POST | carries out a change, for the key of an administrator |
//!
//! A key comes as `Authorization: Bearer …`, which no browser adds by itself. A cookie would also go to the
//! servers of other users at other ports of this machine.

use std::convert::Infallible;
use std::net::TcpListener as StdListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpushare_proto::admin::AdminReply;
use gpushare_proto::tenant::FailureCode;
use gpushare_proto::{Nanos, Token};
use gpushare_sys::clock;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::feed::{Feed, Stream};
use super::guard::{check_host, check_origin};
use super::keys::{Keys, Rights, Role};
use super::{Source, control};
use crate::connections::InternalConnection;
use crate::http::{self, Rank};
use crate::identity::PeerProcess;
use crate::log::limiter::LogLimiter;

/// Largest number of open connections. Viewers take at most half of it.
const CONNECTIONS: usize = 64;
/// Largest accepted length of a request's head, in bytes.
const HEAD_BYTES: usize = 8 * 1024;
/// Largest accepted length of a request's body, in bytes.
const BODY_BYTES: usize = 4 * 1024;
/// Longest wait for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Longest life of a connection that is no viewer's.
const LIFETIME: Duration = Duration::from_secs(15);
/// Longest wait for the engine to carry out a change.
const PATIENCE: Duration = Duration::from_secs(10);

/// Headers of every answer. The page needs nothing from elsewhere, and is shown in no frame.
const HEADERS: [(&str, &str); 8] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// Files of the page: path, type and content.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("assets/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("assets/app.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("assets/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

type Answer = Response<Either<Full<Bytes>, Stream>>;

/// State that all connections share.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) source: Source,
    pub(super) keys: Arc<Mutex<Keys>>,
    pub(super) feed: Feed,
    /// Whether browsers without a key may look.
    pub(super) guests: bool,
    /// Names of hosts by which browsers may ask.
    pub(super) hosts: Vec<String>,
    /// Duration for which a key is valid.
    pub(super) lifetime: Nanos,
    /// Limiter of log lines about wrong keys.
    pub(super) refusals: Mutex<LogLimiter<(), 1>>,
}

/// Key of a link, as JSON.
#[derive(Serialize)]
struct KeyView<'a> {
    key: String,
    role: &'a str,
}

/// Result of a change, in the daemon's words.
#[derive(Serialize)]
struct ChangedView {
    old: String,
    new: String,
}

/// Refused request: status and sentence.
struct Refusal(StatusCode, String);

impl Refusal {
    fn new(status: StatusCode, sentence: impl Into<String>) -> Self {
        Self(status, sentence.into())
    }
}

/// Serves until the engine drops its end of `served`.
pub(super) async fn serve(
    listener: StdListener,
    server: Server,
    own: PeerProcess,
    served: oneshot::Receiver<Infallible>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(cause) => return warn!("cannot serve the page: {cause}"),
    };
    let server = Arc::new(server);
    let accepted = http::accept(&listener, CONNECTIONS, "the page", |stream, rank| {
        serve_one(stream, server.clone(), rank)
    });
    tokio::select! {
        () = accepted => {}
        () = server.feed.produce(&server.source, own) => {}
        _ = served => {}
    }
}

async fn serve_one(stream: TcpStream, server: Arc<Server>, rank: Rank) {
    let cut = Arc::new(Notify::new());
    let streams = Arc::new(Notify::new());
    let service = service_fn(|request| {
        rank.asked();
        answer(request, &server, &rank, &cut, &streams)
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A viewer's connection ends when it or the feed ends it, any other one after a while.
    let over = async {
        if timeout(LIFETIME, streams.notified()).await.is_ok() {
            cut.notified().await;
        }
    };
    tokio::select! {
        ended = connection => if let Err(cause) = ended {
            debug!("a reader of the page left: {cause}");
        },
        () = over => debug!("a reader of the page was too slow, or its key is over"),
    }
}

async fn answer(
    request: Request<Incoming>,
    server: &Server,
    rank: &Rank,
    cut: &Arc<Notify>,
    streams: &Notify,
) -> Result<Answer, Infallible> {
    let answered = server.answer(request, rank, cut, streams).await;
    let mut answer = answered.unwrap_or_else(|Refusal(status, sentence)| {
        let mut answer = respond(PLAIN, sentence + "\n");
        *answer.status_mut() = status;
        if status == StatusCode::METHOD_NOT_ALLOWED {
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        }
        answer
    });
    for (name, value) in HEADERS {
        answer
            .headers_mut()
            .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(answer)
}

impl Server {
    async fn answer(
        &self,
        request: Request<Incoming>,
        rank: &Rank,
        cut: &Arc<Notify>,
        streams: &Notify,
    ) -> Result<Answer, Refusal> {
        let forbidden =
            |foreign: super::guard::Foreign| Refusal::new(StatusCode::FORBIDDEN, foreign.to_string());
        let host = check_host(request.headers(), &self.hosts).map_err(forbidden)?;
        let (path, method) = (request.uri().path(), request.method());
        if let Some((_, kind, content)) = FILES.iter().find(|(file, ..)| *file == path) {
            return match *method {
                Method::GET | Method::HEAD => Ok(respond(kind, *content)),
                _ => Err(wrong_method()),
            };
        }
        check_origin(request.headers(), host).map_err(forbidden)?;
        match path {
            "/api/events" if method == Method::GET => {
                let rights = self.rights(request.headers())?;
                if rights.is_none() && !self.guests {
                    return Err(Refusal::new(
                        StatusCode::UNAUTHORIZED,
                        "this page needs a link; run `gpushare-ctl dashboard`",
                    ));
                }
                let stream = self.feed.join(rights.as_ref(), cut.clone()).ok_or_else(|| {
                    Refusal::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "too many browsers show this page; close one of them",
                    )
                })?;
                streams.notify_one();
                if rights.is_some() {
                    rank.known();
                }
                let mut answer = Response::new(Either::Right(stream));
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
                Ok(answer)
            }
            "/api/key" if method == Method::POST => self.exchange(request.headers()),
            "/api/end" if method == Method::POST => {
                if let Some(key) = secret(request.headers())? {
                    self.keys().revoke(&key, clock::boot());
                }
                Ok(respond(JSON, "{}"))
            }
            "/api/change" if method == Method::POST => self.change(request, rank).await,
            "/api/events" | "/api/key" | "/api/end" | "/api/change" => Err(wrong_method()),
            _ => Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such page; open /")),
        }
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rights of the key that a request shows; none if it shows no key.
    fn rights(&self, headers: &HeaderMap) -> Result<Option<Rights>, Refusal> {
        let Some(key) = secret(headers)? else { return Ok(None) };
        let rights = self.keys().rights(&key, clock::boot());
        rights.map(Some).ok_or_else(|| {
            self.log_refusal("key");
            wrong_key()
        })
    }

    fn exchange(&self, headers: &HeaderMap) -> Result<Answer, Refusal> {
        let link = secret(headers)?.ok_or_else(wrong_key)?;
        let exchanged = self.keys().exchange(&link, self.lifetime, clock::boot());
        let made = exchanged.map_err(|cause| {
            let sentence = format!("the system has no random bytes for a key ({cause}); try again");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, sentence)
        })?;
        let Some((key, rights)) = made else {
            self.log_refusal("link");
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "this link is wrong, was used before, or is older than two minutes; run `gpushare-ctl \
                 dashboard` again",
            ));
        };
        Ok(json(&KeyView { key: key.to_hex(), role: rights.role.name() }))
    }

    async fn change(&self, request: Request<Incoming>, rank: &Rank) -> Result<Answer, Refusal> {
        let rights = self.rights(request.headers())?.ok_or_else(wrong_key)?;
        rank.known();
        if rights.role < Role::Admin {
            let sentence =
                "this key may look and not change; run `gpushare-ctl dashboard` without --read-only";
            return Err(Refusal::new(StatusCode::FORBIDDEN, sentence));
        }
        if request.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != JSON) {
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a change is application/json"));
        }
        let body = Limited::new(request.into_body(), BODY_BYTES).collect().await.map_err(|_| {
            let sentence =
                format!("a change has at most {BODY_BYTES} bytes, and this one is longer or was cut");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, sentence)
        })?;
        let wrong = |sentence| Refusal::new(StatusCode::BAD_REQUEST, sentence);
        let asked = control::read(&body.to_bytes()).map_err(wrong)?;
        // The key may have ended while the body came.
        if rights.are_over(clock::boot()) {
            return Err(wrong_key());
        }
        let answered = async {
            let mut connection = InternalConnection::open(&self.source.acceptor, rights.peer).await;
            connection.ask(asked).await;
            connection.hear().await
        };
        match timeout(PATIENCE, answered).await {
            Ok(Some(AdminReply::Changed { old, new })) => Ok(json(&ChangedView { old, new })),
            Ok(Some(AdminReply::Error(failure))) => Err(Refusal(status_of(failure.code), failure.message)),
            _ => Err(Refusal::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the scheduler did not answer, so the change may or may not be in effect; look at the page",
            )),
        }
    }

    /// Logs that a wrong key or link came, at most once a second and without it.
    fn log_refusal(&self, what: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(more) = refusals.admit((), clock::monotonic()) {
            warn!("a browser showed a {what} of the page that is wrong or over ({more} more before)");
        }
    }
}

/// Returns the key or link that a request shows; none if it shows none.
fn secret(headers: &HeaderMap) -> Result<Option<Token>, Refusal> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let bearer = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
    bearer.and_then(Token::from_hex).map(Some).ok_or_else(wrong_key)
}

fn wrong_key() -> Refusal {
    let sentence =
        "the key of this page is missing, wrong or over; run `gpushare-ctl dashboard` for a new link";
    Refusal::new(StatusCode::UNAUTHORIZED, sentence)
}

fn wrong_method() -> Refusal {
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not take that method")
}

const fn status_of(code: FailureCode) -> StatusCode {
    match code {
        FailureCode::Permission => StatusCode::FORBIDDEN,
        FailureCode::NotFound => StatusCode::NOT_FOUND,
        FailureCode::BadRequest | FailureCode::Protocol => StatusCode::BAD_REQUEST,
        FailureCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn json(value: &impl Serialize) -> Answer {
    // The views are texts, which always have a JSON form.
    respond(JSON, serde_json::to_vec(value).unwrap_or_default())
}

fn respond(kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body.into())));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
