//! Runs the daemon: takes its folders, reads the registry, takes the cards, listens, serves and cleans up. It
//! ends on a signal, or when it has been idle for the configured time.

use std::future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_proto::names::AUDIT;
use gpushare_sys::{clock, cpu};
use rustix::process::Signal;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use crate::alarm::Alarm;
use crate::audit::Audit;
use crate::config::{Reader, Settings};
use crate::connections::{Acceptor, Admin, Closer, ConnectionLimit, Identifier, Inbox, Tenant, accept};
use crate::dashboard::{Dashboard, Source};
use crate::engine::Engine;
use crate::errors::failed;
use crate::identity::Genealogist;
use crate::input::Input;
use crate::log::LostLines;
use crate::metrics;
use crate::persist::store;
use crate::ready::{Manager, Signs};
use crate::record::RecordTo;
use crate::registry::{Store, Writer};
use crate::report::sketch::Sketch;
use crate::sockets::{Folder, Sockets};
use crate::state::State;

/// Largest number of waiting inputs from the daemon's own tasks and threads.
const INPUTS: usize = 256;
/// Longest time for which the daemon's task works without a look at the sockets, unless one input takes
/// longer.
const STRETCH: Nanos = Nanos(100_000);
/// Number of polls of tasks after which the runtime looks at the sockets.
const POLLS: u32 = 16;
/// Length of the turns that the daemon's task, and threads that start later, ask for on their processors. The
/// task then waits less for busy programs.
const TURN: Nanos = Nanos(100_000);
/// Interval of the checks that the runtime folder is still at its path.
const FOLDER_WATCH: Duration = Duration::from_secs(2);

/// Longest time in which the daemon lets all frozen processes come back before it ends. A service manager waits some
/// 90 seconds before it kills, and so does Kubernetes by the chart. A second signal ends the daemon at once.
pub const THAWING: Duration = Duration::from_secs(60);
/// Warning of a daemon that ends before all frozen processes have come back.
const LEFT_FROZEN: &str = "the daemon ends although processes are frozen; the next one lets them come back";

/// Serves until a signal arrives, or until no session existed for the configured time.
///
/// Uses the sockets that systemd `passed`, if any. Reads settings again with `reader` on request. Writes to
/// the pipe with descriptor number `ready` when both sockets listen.
pub(crate) fn run(
    settings: Settings,
    reader: Reader,
    passed: Vec<(String, OwnedFd)>,
    ready: Option<u32>,
    lost: LostLines,
) -> anyhow::Result<()> {
    raise_descriptor_limit();
    // A kernel that cannot, or a container that may not, keeps the usual turns.
    let _ = cpu::ask_for_turns_of(TURN);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(POLLS)
        .build();
    let runtime = runtime.map_err(failed("start an event loop"))?;
    // Run as a task, so that tokio can switch from a connection's task to this one without polling the
    // sockets first.
    let served = runtime.block_on(runtime.spawn(serve(settings, reader, passed, ready, lost)));
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
    lost: LostLines,
) -> anyhow::Result<()> {
    // A file at its limit (`ulimit -f`) is then an error of the write, as a full disk is, and not a deadly
    // signal.
    let _too_large =
        signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map_err(failed("wait for signals"))?;
    let mut folder = Folder::take(&settings.runtime, settings.owner)?;
    folder.adopt(passed)?;
    let state = State::take(&settings, &folder)?;
    folder.link_state(state.is_apart().then_some(&settings.state));
    let registry = settings.runtime.registry();
    let (inputs, mut arriving) = mpsc::channel(INPUTS);
    let uid = rustix::process::geteuid().as_raw();
    let limit = ConnectionLimit::new(settings.connections_per_user);
    let inbox = Inbox::new();
    let genealogist = Genealogist::start().map_err(failed("start a thread for the parents of processes"))?;
    let identifier = Identifier::start(settings.user_groups.clone())
        .map_err(failed("start a thread that identifies peers"))?;
    let closer = Closer::start().map_err(failed("start a thread that closes sockets"))?;
    let acceptor =
        Arc::new(Acceptor::new(uid, limit.clone(), inbox.clone(), genealogist, identifier, closer));
    let root = settings.runtime.root().display().to_string();
    let (metrics, names) = (settings.metrics, settings.metrics_names);
    let (requests, mut observed) = mpsc::channel(1);
    let audit = Audit::start(&settings.audit, state.descriptor(&folder), settings.state.join(AUDIT));
    let reel = settings.record.as_ref().map(RecordTo::create).transpose()?;
    let (at, before) = state.places(&folder, &registry).map_err(failed("keep its folder open"))?;
    let (store, book) = Store::open(at, before).map_err(failed("open its registry"))?;
    let stored = book.clone();
    let mut engine = Engine::resume(settings, book, store.complete, (inputs, limit), reel)?;
    engine.audit.log = audit;
    engine.lost_log_lines = lost;
    engine.reader = Some(reader);
    engine.metrics = metrics
        .map(|address| metrics::start(address, names, requests))
        .unwrap_or_default();
    let source = Source { acceptor: acceptor.clone(), started: engine.started };
    engine.dashboard = Dashboard::new(source, &engine.settings.dashboard);
    let Sockets { tenant, admin } = folder.listen()?;
    let mut writer = Writer::start(store, stored).map_err(failed("start a thread for its registry"))?;
    let listener = |socket| UnixListener::from_std(socket).map_err(failed("listen on a socket"));
    let listeners = [
        tokio::spawn(accept::<Tenant>(listener(tenant)?, acceptor.clone())),
        tokio::spawn(accept::<Admin>(listener(admin)?, acceptor)),
    ];
    let manager = Manager::of_this_process();
    let mut chores = Chore::watch(Manager::signs()).map_err(failed("wait for signals"))?;
    info!("serving {root}");
    manager.ready(ready);

    let mut gone = None;
    let mut pauses = Pauses::new();
    let mut alarm = Alarm::new();
    // Time at which the daemon ends at the latest, once it has begun to let all frozen processes come back, which would
    // have nobody else for that.
    let mut end_at = None;
    while !ends(&mut engine, &inbox) && (end_at.is_none() || engine.thaw_all()) {
        pauses.pause_if_due(inbox.take_waited()).await;
        store::write_if_due(&mut engine, &writer);
        alarm.set(engine.next_wake());
        tokio::select! {
            input = arriving.recv() => match input {
                Some(input) => engine.handle(input),
                None => break,
            },
            (event, handling) = inbox.next() => {
                engine.handle(Input::Connection(event));
                drop(handling);
            }
            Some(answer) = observed.recv(), if engine.sketch.is_none() => {
                engine.sketch = Some(Sketch::begin(answer));
            }
            () = future::ready(()), if engine.has_slices() => engine.do_slice(),
            word = writer.word() => store::written(&mut engine, &word),
            () = alarm.ring() => engine.wake(),
            () = time_comes(end_at) => {
                warn!("{LEFT_FROZEN}");
                break;
            }
            Some(chore) = chores.recv() => match chore {
                Chore::CheckFolder => if let Err(error) = folder.check() {
                    gone = Some(error);
                    break;
                },
                Chore::ShowLife => manager.is_alive(),
                Chore::ReadSettings => engine.read_settings(None),
                Chore::End if end_at.is_some() => {
                    warn!("{LEFT_FROZEN}");
                    break;
                }
                Chore::End => end_at = Some(Instant::now() + THAWING),
            },
        }
    }

    manager.stops();
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

/// Waits until a point in time, for ever without one.
async fn time_comes(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => future::pending().await,
    }
}

/// Seldom work of the daemon's task.
#[derive(Clone, Copy, Debug)]
enum Chore {
    /// Checks that the runtime folder is still at its path.
    CheckFolder,
    /// Sends a sign of life to the service manager.
    ShowLife,
    ReadSettings,
    End,
}

impl Chore {
    /// Starts a task that waits for signals and for the times of chores, and returns the chores as they become
    /// due. The daemon's task looks at all that it waits for at each input, so this is one thing and not five.
    fn watch(mut signs: Signs) -> io::Result<mpsc::Receiver<Self>> {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut hung_up = signal(SignalKind::hangup())?;
        let mut folder = interval(FOLDER_WATCH);
        folder.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (due, chores) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let chore = tokio::select! {
                    _ = folder.tick() => Self::CheckFolder,
                    () = signs.due() => Self::ShowLife,
                    _ = hung_up.recv() => Self::ReadSettings,
                    _ = terminated.recv() => Self::End,
                    _ = interrupted.recv() => Self::End,
                };
                if due.send(chore).await.is_err() {
                    return;
                }
            }
        });
        Ok(chores)
    }
}

/// Whether the daemon has been idle for the configured time, and no connection is about to need it.
fn ends(engine: &mut Engine, inbox: &Inbox) -> bool {
    let is_idle = engine.is_idle_for_long();
    if is_idle && inbox.has_newcomers() {
        engine.stay();
    }
    is_idle && !inbox.has_newcomers()
}

/// Pauses of the daemon's task, in which the runtime looks at the sockets and runs other tasks.
///
/// Without them the task would first handle all that is queued, while messages of others are not even read.
struct Pauses {
    last: Nanos,
}

impl Pauses {
    fn new() -> Self {
        Self { last: clock::monotonic() }
    }

    /// Pauses if the last pause is long ago. A wait for connections was a pause.
    async fn pause_if_due(&mut self, has_waited: bool) {
        let now = clock::monotonic();
        if has_waited {
            self.last = now;
        } else if now - self.last >= STRETCH {
            yield_now().await;
            self.last = clock::monotonic();
        }
    }
}

/// Raises the soft limit on open descriptors to the hard limit, because each client takes two.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
