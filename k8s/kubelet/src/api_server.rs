//! An API server for tests: plain HTTP over loopback, with the calls that gpushare makes.
//!
//! ```text
//!   GET  /api/v1/pods?fieldSelector=spec.nodeName=…              list, as whole pods or as metadata only
//!   GET  /api/v1/pods?…&watch=true&resourceVersion=V             changes after V, one JSON line each
//!   POST /api/v1/namespaces/NS/events                            event, which is checked and kept
//!   …    /apis/resource.k8s.io/VERSION/…                         slices and claims (`resources`)
//! ```
//!
//! As by a real server, these are refused with a `Status` object: other calls, other selectors, an event of
//! another namespace than its pod, and a version that is no longer kept.

mod answers;
mod resources;
mod slice_rules;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

use answers::{Answer, as_json, failure, line, query, status};
pub use resources::Release;
use resources::{Claims, Slices};

/// Longest wait for an event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An API server that runs in this process. Dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Number of changes, for those who wait for one.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Version of the latest change.
    version: u64,
    /// Oldest version from which can be watched.
    oldest: u64,
    pods: BTreeMap<(String, String), Value>,
    slices: Slices,
    claims: Claims,
    release: Release,
    /// Changes of pods and slices: version, type and object.
    log: Vec<(u64, &'static str, Value)>,
    events: Vec<Value>,
    /// Whether every request is refused.
    is_down: bool,
    /// Whether requests to create events are not answered.
    holds_events: bool,
    /// Number of requests to create events that had to wait for an answer.
    held: u64,
    /// Number of connections that were made.
    connections: u64,
    /// Number of the present generation of watches. Those of an earlier one end.
    watches: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl State {
    fn put(&mut self, key: (String, String), mut pod: Value) {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let was_there = self.pods.insert(key, pod.clone()).is_some();
        let kind = if was_there { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, kind, pod));
    }
}

impl ApiServer {
    /// Starts a server without pods.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { state: Mutex::default(), changes: watch::Sender::new(0) });
        let server = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { shared, address, server })
    }

    /// Writes a file for `KUBECONFIG` that names this server.
    pub fn write_config(&self, path: &Path) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        });
        Ok(std::fs::write(path, config.to_string())?)
    }

    /// Creates a pod on a node, or replaces its annotations.
    pub fn put_pod(&self, node: &str, namespace: &str, name: &str, uid: &str, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.org/cuda"}]},
        });
        self.shared
            .change(|state| state.put((namespace.to_owned(), name.to_owned()), pod));
    }

    /// Deletes a pod.
    pub fn delete_pod(&self, namespace: &str, name: &str) {
        self.shared.change(|state| {
            if let Some(mut pod) = state.pods.remove(&(namespace.to_owned(), name.to_owned())) {
                state.version += 1;
                pod["metadata"]["resourceVersion"] = json!(state.version.to_string());
                state.log.push((state.version, "DELETED", pod));
            }
        });
    }

    /// Ends all watches and forgets the changes, so that clients must list again.
    pub fn forget_changes(&self) {
        self.shared.change(|state| {
            state.log.clear();
            // The present version is too old as well.
            state.version += 1;
            state.oldest = state.version;
            state.watches += 1;
        });
    }

    /// Refuses every request from now on, and ends all watches; or answers again.
    pub fn set_down(&self, is_down: bool) {
        self.shared.change(|state| {
            state.is_down = is_down;
            state.watches += 1;
        });
    }

    /// Leaves requests to create events without an answer from now on; or answers all of them.
    pub fn hold_events(&self, holds: bool) {
        self.shared.change(|state| state.holds_events = holds);
    }

    /// Waits until a request to create an event waits for its answer.
    pub async fn until_held(&self) -> anyhow::Result<()> {
        self.until("a request to create an event", |state| state.held > 0).await
    }

    /// Number of connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().connections
    }

    async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) -> anyhow::Result<()> {
        let mut changes = self.shared.changes.subscribe();
        let changed = changes.wait_for(|_| holds(&self.shared.state()));
        let waited = tokio::time::timeout(PATIENCE, changed).await.map(drop);
        waited.with_context(|| format!("waited in vain for {what}"))
    }

    /// Events that were created so far.
    pub fn events(&self) -> Vec<Value> {
        self.shared.state().events.clone()
    }

    /// Waits until there are so many events.
    pub async fn until_events(&self, count: usize) -> anyhow::Result<Vec<Value>> {
        let waited = self.until("events", |state| state.events.len() >= count).await;
        waited.with_context(|| format!("fewer than {count} events: {:?}", self.events()))?;
        Ok(self.events())
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    // They end with this task.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        shared.change(|state| state.connections += 1);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(answer(&shared, request).await) }
            });
            // A client may hang up at any time.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    if shared.state().is_down {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "the server is down");
    }
    let (parts, body) = request.into_parts();
    let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
    let query = query(parts.uri.query().unwrap_or_default());
    let accept = parts.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let metadata_only = accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata"));
    match (&parts.method, &path[..]) {
        (&Method::GET, ["api", "v1", "pods"]) => {
            let selector = query.get("fieldSelector").map(String::as_str).unwrap_or_default();
            let Some(node) = selector.strip_prefix("spec.nodeName=") else {
                return failure(StatusCode::BAD_REQUEST, "field label not supported");
            };
            let of = Selection { kind: "Pod", node: node.to_owned(), driver: None, metadata_only };
            match query.get("watch").map(String::as_str) {
                Some("true" | "1") => watch(shared, of, &query),
                _ => list_pods(shared, &of),
            }
        }
        (&Method::GET, ["api", "v1", "nodes", name]) if metadata_only => {
            let uid = format!("uid-of-{name}");
            as_json(StatusCode::OK, &metadata_of(&json!({"metadata": {"name": name, "uid": uid}})))
        }
        (method, ["apis", below @ ..]) => {
            let Ok(body) = body.collect().await else {
                return failure(StatusCode::BAD_REQUEST, "the body has no end");
            };
            resources::answer(shared, method, below, &query, &body.to_bytes())
        }
        (&Method::POST, ["api", "v1", "namespaces", namespace, "events"]) => {
            let Ok(body) = body.collect().await else {
                return failure(StatusCode::BAD_REQUEST, "the body has no end");
            };
            until_answered(shared).await;
            create_event(shared, namespace, &body.to_bytes())
        }
        (method, _) => {
            failure(StatusCode::NOT_FOUND, &format!("no such call: {method} {}", parts.uri.path()))
        }
    }
}

/// Which objects of a node a client asks for, and in which form.
#[derive(Clone, Debug)]
struct Selection {
    kind: &'static str,
    node: String,
    /// Driver of slices; none for pods.
    driver: Option<String>,
    metadata_only: bool,
}

impl Selection {
    fn has(&self, object: &Value) -> bool {
        let driver = self.driver.as_ref();
        object["kind"] == self.kind
            && object["spec"]["nodeName"] == *self.node
            && driver.is_none_or(|driver| object["spec"]["driver"] == **driver)
    }

    fn form(&self, object: &Value) -> Value {
        match self.metadata_only {
            true => metadata_of(object),
            false => object.clone(),
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": object["metadata"],
    })
}

fn list_pods(shared: &Shared, of: &Selection) -> Answer {
    let state = shared.state();
    let (version, kind) = match of.metadata_only {
        true => ("meta.k8s.io/v1", "PartialObjectMetadataList"),
        false => ("v1", "PodList"),
    };
    let pods = state.pods.values().filter(|pod| of.has(pod));
    as_json(
        StatusCode::OK,
        &json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": pods.map(|pod| of.form(pod)).collect::<Vec<_>>(),
        }),
    )
}

/// Sends the changes of selected objects after a version.
fn watch(shared: &Arc<Shared>, of: Selection, query: &BTreeMap<String, String>) -> Answer {
    let mut version = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    let (sender, lines) = mpsc::unbounded_channel();
    let shared = Arc::clone(shared);
    let watches = shared.state().watches;
    tokio::spawn(async move {
        let mut changes = shared.changes.subscribe();
        loop {
            // Marked as seen before the state is read, so that no change is missed.
            changes.borrow_and_update();
            {
                let state = shared.state();
                if state.watches != watches {
                    return;
                }
                if version < state.oldest {
                    let gone = status(StatusCode::GONE, "too old resource version");
                    let _ = sender.send(line("ERROR", &gone));
                    return;
                }
                let sent = version;
                for (at, kind, object) in state.log.iter().filter(|(at, ..)| *at > sent) {
                    if of.has(object) && sender.send(line(kind, &of.form(object))).is_err() {
                        return;
                    }
                    version = *at;
                }
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    let frames = UnboundedReceiverStream::new(lines).map(|line| Ok(Frame::data(line)));
    Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .body(StreamBody::new(frames).boxed())
        .unwrap_or_default()
}

/// Waits while requests to create events get no answer.
async fn until_answered(shared: &Shared) {
    if shared.state().holds_events {
        shared.change(|state| state.held += 1);
        let mut changes = shared.changes.subscribe();
        // The sender lives as long as the server.
        let _ = changes.wait_for(|_| !shared.state().holds_events).await;
    }
}

fn create_event(shared: &Shared, namespace: &str, body: &[u8]) -> Answer {
    let Ok(mut event) = serde_json::from_slice::<Value>(body) else {
        return failure(StatusCode::BAD_REQUEST, "the body is no JSON");
    };
    let about = &event["involvedObject"];
    let is_named = event["metadata"]["name"].is_string() || event["metadata"]["generateName"].is_string();
    let is_of_namespace = event["metadata"]["namespace"] == *namespace && about["namespace"] == *namespace;
    let is_event = event["kind"] == "Event" && event["apiVersion"] == "v1";
    let is_whole = ["reason", "message"].iter().all(|field| event[field].is_string())
        && matches!(event["type"].as_str(), Some("Normal" | "Warning"))
        && about["uid"].is_string();
    if !(is_named && is_of_namespace && is_event && is_whole) {
        return failure(StatusCode::UNPROCESSABLE_ENTITY, "the event is invalid");
    }
    shared.change(|state| {
        state.version += 1;
        event["metadata"]["name"] = json!(format!("event.{}", state.version));
        event["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.events.push(event.clone());
    });
    as_json(StatusCode::CREATED, &event)
}
