//! Runs the daemon: takes its folders, reads the registry, takes the cards, listens, serves and cleans up. It
//! ends on a signal, or when it has been idle for the configured time.

use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_proto::names::AUDIT;
use gpushare_sys::clock;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::info;

use crate::audit::Audit;
use crate::config::{Reader, Settings};
use crate::connections::{Acceptor, Admin, ConnectionLimit, Tenant, accept};
use crate::engine::Engine;
use crate::errors::failed;
use crate::input::Input;
use crate::persist::store;
use crate::record::RecordTo;
use crate::registry::{Store, Writer};
use crate::sockets::{Folder, Sockets};
use crate::state::State;
use crate::{metrics, ready};

/// Largest number of waiting messages from all connections together.
const EVENTS: usize = 256;
/// Largest number of waiting inputs from the daemon's own tasks and threads.
const INPUTS: usize = 256;
/// Interval of the checks that the runtime folder is still at its path.
const FOLDER_WATCH: Duration = Duration::from_secs(2);

/// Serves until a signal arrives, or until no session existed for the configured time.
///
/// Uses the sockets that systemd `passed`, if any. Reads settings again with `reader` on request. Writes to
/// the pipe with descriptor number `ready` when both sockets listen.
pub(crate) fn run(
    settings: Settings,
    reader: Reader,
    passed: Vec<(String, OwnedFd)>,
    ready: Option<u32>,
) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed("start an event loop"))?;
    // Run as a task, so that tokio can switch from a connection's task to this one without polling the
    // sockets first.
    let served = runtime.block_on(runtime.spawn(serve(settings, reader, passed, ready)));
    served.unwrap_or_else(|cause| match cause.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        // The task is never aborted.
        Err(_) => Ok(()),
    })
}

async fn serve(
    settings: Settings,
    reader: Reader,
    passed: Vec<(String, OwnedFd)>,
    ready: Option<u32>,
) -> anyhow::Result<()> {
    let mut folder = Folder::take(&settings.runtime, settings.owner)?;
    folder.adopt(passed)?;
    let state = State::take(&settings, &folder)?;
    folder.link_state(state.is_apart().then_some(&settings.state));
    let registry = settings.runtime.registry();
    let (inputs, mut arriving) = mpsc::channel(INPUTS);
    let uid = rustix::process::geteuid().as_raw();
    let limit = ConnectionLimit::new(settings.connections_per_user);
    let (events, mut from_peers) = mpsc::channel(EVENTS);
    let acceptor = Arc::new(Acceptor::new(uid, limit.clone(), events));
    let root = settings.runtime.root().display().to_string();
    let metrics = settings.metrics;
    let (requests, mut observed) = mpsc::channel(1);
    let audit = Audit::start(&settings.audit, state.descriptor(&folder), settings.state.join(AUDIT));
    let reel = settings.record.as_ref().map(RecordTo::create).transpose()?;
    let (at, before) = state.places(&folder, &registry).map_err(failed("keep its folder open"))?;
    let (store, book) = Store::open(at, before).map_err(failed("open its registry"))?;
    let mut engine = Engine::resume(settings, book, store.complete, (inputs, limit), reel)?;
    engine.audit.log = audit;
    engine.reader = Some(reader);
    engine.metrics = metrics.map(|address| metrics::start(address, requests)).unwrap_or_default();
    let Sockets { tenant, admin } = folder.listen()?;
    let mut writer = Writer::start(store).map_err(failed("start a thread for its registry"))?;
    let listener = |socket| UnixListener::from_std(socket).map_err(failed("listen on a socket"));
    let listeners = [
        tokio::spawn(accept::<Tenant>(listener(tenant)?, acceptor.clone())),
        tokio::spawn(accept::<Admin>(listener(admin)?, acceptor)),
    ];
    let mut terminated = signal(SignalKind::terminate()).map_err(failed("wait for signals"))?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(failed("wait for signals"))?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(failed("wait for signals"))?;
    info!("serving {root}");
    ready::report(ready);

    let mut watch = interval(FOLDER_WATCH);
    watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut gone = None;
    while !engine.is_idle_for_long() {
        store::write_if_due(&mut engine, &writer);
        let due = engine.next_wake();
        tokio::select! {
            input = arriving.recv() => match input {
                Some(input) => engine.handle(input),
                None => break,
            },
            Some(event) = from_peers.recv() => engine.handle(Input::Connection(event)),
            Some(answer) = observed.recv() => engine.handle(Input::Observe(answer)),
            word = writer.word() => store::written(&mut engine, &word),
            () = sleep(until(due)), if due.is_some() => engine.wake(),
            _ = watch.tick() => if let Err(error) = folder.check() {
                gone = Some(error);
                break;
            },
            _ = hung_up.recv() => engine.read_settings(None),
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
        }
    }

    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    store::write_last(&mut engine, &writer);
    let (word, has_usage) = writer.finish().await;
    store::written(&mut engine, &word);
    // With a separate state folder, a registry in the runtime folder is one that could not be taken over.
    let lasting = if state.is_apart() { registry.exists() } else { has_usage };
    std::mem::take(&mut engine.audit.log).finish().await;
    if let Some(error) = gone {
        return Err(error.into());
    }
    let awaited = engine.is_needed();
    folder.leave(awaited, lasting);
    info!("ended{}", if awaited { "; the processes it served run on" } else { "" });
    Ok(())
}

fn until(due: Option<Nanos>) -> Duration {
    due.map_or(Duration::ZERO, |due| (due - clock::monotonic()).into())
}

/// Raises the soft limit on open descriptors to the hard limit, because each client takes two.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
