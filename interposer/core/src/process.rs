//! The process as a whole: one gate, one page, and the state that begins with the first context.
//!
//! Everything hangs on one pointer, so that the child of a fork can forget it all in one store, locks
//! that its parent's threads held included.
//!
//! ```text
//!   GATE, PAGE      always there; PAGE is a page of our own, open, until a daemon gives one
//!   STATE ──▶ State  driver, books, contexts, captures, leases; made by the first hooked call
//!               └──▶ Standing   decided by the first context: shared with a daemon, native, or refused
//! ```

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use gpushare_proto::page::Page;
use gpushare_proto::session::{Quota, QuotaError};
use gpushare_proto::tenant::{GpuInfo, Returning, ReturningGpu, TenantRequest};
use gpushare_proto::{Backend, Bytes, GateState, GateWord, GpuId, GpuUuid, names};
use gpushare_sys::futex;
use gpushare_sys::unwind::uncancelled;

use crate::books::Books;
use crate::capture::Captures;
use crate::collectives::Collectives;
use crate::connection::{Address, ConnectError, Connection};
use crate::driver::Driver;
use crate::driver::contexts::Contexts;
use crate::driver::dynlink::LIBCUDA;
use crate::driver::types::{CUDA_ERROR_SYSTEM_NOT_READY, CUcontext, CUdevice, CUresult, CUstream};
use crate::gate::Gate;
use crate::handles::Handles;
use crate::hooks::figures::Sizes;
use crate::hooks::graph_memory::GraphMemory;
use crate::leases::Leases;
use crate::link::{AskError, Link};
use crate::marked::Marked;
use crate::mover::{self, LetGo};
use crate::pools::Pools;
use crate::waiting::Waiting;
use crate::window::driver::OnDriver;
use crate::window::graphs::Graphs;
use crate::window::markers::Frozen;
use crate::window::throttle::{Counters, Window};
use crate::{account, lifecycle, lock, notice};

/// The process's one gate.
pub static GATE: Gate = Gate::new();

/// The page of a process that shares with nobody: always open.
static ALONE: Page = Page::new(GateState::Open);
static PAGE: AtomicPtr<Page> = AtomicPtr::new((&raw const ALONE).cast_mut());
static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());
/// Whether the process must share and its driver cannot be shared.
static MUST_NOT_RUN: AtomicBool = AtomicBool::new(false);

/// What the hook to a context answers where there is no state.
pub(crate) fn without_state(real: impl FnOnce() -> CUresult) -> CUresult {
    if MUST_NOT_RUN.load(Ordering::Relaxed) {
        CUDA_ERROR_SYSTEM_NOT_READY
    } else {
        real()
    }
}

/// The page whose gate and flags hold now.
#[inline]
#[must_use]
pub fn page() -> &'static Page {
    // SAFETY: points to ALONE or to a leaked page, both for ever.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// What begins with the first hooked call.
#[derive(Debug)]
pub struct State {
    /// The real driver.
    pub driver: Driver,
    /// How the application's memory is allocated.
    pub backend: Backend,
    /// What is allocated.
    pub books: Books,
    /// Arrays, by handle.
    pub arrays: Books,
    /// Memory by handle.
    pub handles: Mutex<Handles>,
    /// Captures that run.
    pub captures: Captures,
    /// Kernels that talk to other cards.
    pub collectives: Collectives,
    /// Streams that the program says carry their work.
    pub marked: Marked,
    /// Live contexts.
    pub contexts: Contexts,
    /// Quota.
    pub leases: Leases,
    /// Pools that memory came from.
    pub pools: Pools,
    /// How large the cards are.
    pub sizes: Sizes,
    /// Whether graphs have memory of their own.
    pub graph_memory: GraphMemory,
    /// What is in flight; made when the process shares a card.
    pub window: OnceLock<Window>,
    /// What graphs count as there.
    pub graphs: Graphs,
    /// Threads at the gate.
    pub waiting: Waiting,
    /// The last drop that was answered.
    pub let_go: LetGo,
    /// Bytes that movers asked to move to the card.
    pub moved: AtomicU64,
    /// When it began.
    pub started: Instant,
    /// Our own nanoseconds while the first context was made; 0 before.
    first_context: AtomicU64,
    announced: Mutex<Vec<(CUdevice, GpuInfo)>>,
    attaching: Mutex<()>,
    /// Held by the thread that asks for what is owed.
    pub(crate) settling: Mutex<()>,
    mover: AtomicBool,
    standing: OnceLock<Standing>,
}

/// How the process stands to a daemon.
#[derive(Debug)]
enum Standing {
    Shared(Box<Link>),
    Native,
    Refused,
}

impl State {
    /// The state; made now if this is the first hooked call. `None` without a usable driver.
    #[must_use]
    pub fn get() -> Option<&'static Self> {
        Self::existing().or_else(Self::begin)
    }

    /// The state if there is one.
    #[must_use]
    pub fn existing() -> Option<&'static Self> {
        // SAFETY: null, or a leaked State.
        unsafe { STATE.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn begin() -> Option<&'static Self> {
        static SAID: AtomicBool = AtomicBool::new(false);
        let driver = match Driver::load(|name| LIBCUDA.symbol(name)) {
            Ok(driver) => driver,
            Err(missing) => {
                let missing = missing.to_string_lossy();
                // Without readable settings too: what nobody understands is no leave to run.
                let required = Address::from_environment().map_or(true, |address| address.required);
                MUST_NOT_RUN.store(required, Ordering::Relaxed);
                let what = match required {
                    true => "this process must not use the GPU without sharing it",
                    false => "this process runs without sharing",
                };
                notice::say_once(
                    &SAID,
                    format_args!("the CUDA driver lacks {missing}; {what} (update the driver)"),
                );
                return None;
            }
        };
        let fresh = Box::into_raw(Box::new(Self::new(driver)));
        match STATE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => Some(unsafe { &*fresh }),
            Err(theirs) => {
                // SAFETY: nobody else has seen `fresh`; `theirs` is leaked.
                unsafe {
                    drop(Box::from_raw(fresh));
                    theirs.as_ref()
                }
            }
        }
    }

    fn new(driver: Driver) -> Self {
        Self {
            driver,
            backend: backend(),
            books: Books::default(),
            arrays: Books::default(),
            handles: Mutex::default(),
            captures: Captures::default(),
            collectives: Collectives::of_environment(),
            marked: Marked::default(),
            contexts: Contexts::default(),
            leases: Leases::default(),
            pools: Pools::default(),
            sizes: Sizes::default(),
            graph_memory: GraphMemory::default(),
            window: OnceLock::new(),
            graphs: Graphs::default(),
            waiting: Waiting::default(),
            let_go: LetGo::default(),
            moved: AtomicU64::new(0),
            started: Instant::now(),
            first_context: AtomicU64::new(0),
            announced: Mutex::default(),
            attaching: Mutex::default(),
            settling: Mutex::default(),
            mover: AtomicBool::new(false),
            standing: OnceLock::new(),
        }
    }

    /// The link, if the process shares.
    #[must_use]
    pub fn link(&self) -> Option<&Link> {
        match self.standing.get() {
            Some(Standing::Shared(link)) => Some(link),
            _ => None,
        }
    }

    /// Comes before anything that makes a context on `device`: connects, and announces the card.
    ///
    /// # Errors
    /// `CUDA_ERROR_SYSTEM_NOT_READY` for a process that must not run without a daemon and has none.
    pub fn admit(&'static self, device: CUdevice) -> Result<(), CUresult> {
        // It opens files and sockets, by calls that must not end a thread.
        uncancelled(|| self.admit_here(device))
    }

    fn admit_here(&'static self, device: CUdevice) -> Result<(), CUresult> {
        match self.standing.get_or_init(|| self.stand()) {
            Standing::Native => Ok(()),
            Standing::Refused => Err(CUDA_ERROR_SYSTEM_NOT_READY),
            Standing::Shared(link) => self.attach(link, device),
        }
    }

    fn stand(&'static self) -> Standing {
        lifecycle::watch();
        let address = match Address::from_environment() {
            Ok(address) => address,
            Err(error) => {
                notice::say(format_args!("{error}"));
                return Standing::Refused;
            }
        };
        let limits = match limits() {
            Ok(limits) => limits,
            Err((name, error)) => {
                notice::say(format_args!(
                    "{name}: {error}; this process must not use the GPU with a limit that nobody understands"
                ));
                return Standing::Refused;
            }
        };
        let error = match address.connect(None) {
            Ok((connection, welcome, page)) => match Link::new(&connection, &welcome) {
                Ok(link) => {
                    let limits = limits.filter(|_| !address.has_token());
                    if let Some(limits) = &limits {
                        link.tell(limits);
                    }
                    self.leases.share(page);
                    turn_to(page);
                    self.start_link(address, limits, connection);
                    return Standing::Shared(Box::new(link));
                }
                Err(cause) => ConnectError::Broken { path: "its socket".into(), cause },
            },
            Err(error) => error,
        };
        // A scheduler that says no means no, also without a word: whoever has all the connections that a user may have gets none. So
        // does one that is closed to the user, or has no time for anybody. Only one that is not there leaves the process to itself.
        if address.required || !error.is_absence() {
            notice::say(format_args!("{error}; this process must not use the GPU without it"));
            return Standing::Refused;
        }
        notice::say(format_args!("{error}; this process uses the GPU without sharing"));
        Standing::Native
    }

    fn start_link(&'static self, address: Address, limits: Option<TenantRequest>, connection: Connection) {
        spawn("gpushare-link", move || {
            // `stand` stores the link right after this thread starts.
            let Standing::Shared(link) = self.standing.wait() else { return };
            self.listen(link, &address, limits.as_ref(), connection);
        });
    }

    /// The link thread: hears until the connection is lost, then returns to the next daemon.
    fn listen(
        &'static self,
        link: &Link,
        address: &Address,
        limits: Option<&TenantRequest>,
        mut connection: Connection,
    ) {
        loop {
            while let Ok(reply) = connection.receive() {
                link.hear(
                    reply,
                    |device, bytes, kind| self.leases.count(device, bytes, kind),
                    |device, bytes, kind| self.give_back(device, bytes, kind),
                );
                self.start_mover();
            }
            link.unplug();
            connection = self.come_back(link, address, limits);
        }
    }

    fn come_back(
        &'static self,
        link: &Link,
        address: &Address,
        limits: Option<&TenantRequest>,
    ) -> Connection {
        let mut pause = Duration::from_millis(20);
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(500));
            if let Ok(connection) = self.say_hello_again(link, address, limits) {
                return connection;
            }
        }
    }

    /// `limits`: what a session that is made for us may have. The daemon of before may not have written ours down; one that
    /// knows us from it does not listen to them.
    fn say_hello_again(
        &'static self,
        link: &Link,
        address: &Address,
        limits: Option<&TenantRequest>,
    ) -> Result<Connection, ConnectError> {
        // Before the lease's lock, during which nobody allocates: a daemon that does not answer keeps us out here.
        address.knock()?;
        // Also before it: a context that is being destroyed may wait for a thread that allocates.
        let contexts = self.contexts.devices();
        let mut met = None;
        self.leases.exchange(|used| {
            let (connection, welcome, page) = address.connect(Some(self.returning(link, used, &contexts)))?;
            let numbers = welcome.gpus.clone();
            met = Some((connection, welcome, page));
            Ok::<_, ConnectError>((page, numbers))
        })?;
        let Some((connection, welcome, page)) = met else {
            return Err(ConnectError::Absent(Vec::new()));
        };
        let old = self::page();
        self.waiting.ask_again();
        turn_to(page);
        // Nobody changes the old word any more: who sleeps on it is woken, and who was about to pass by it
        // looks at the new one.
        old.gate.store(GateWord::new(0, GateState::Closed).0, Ordering::SeqCst);
        futex::wake_all(&old.gate);
        link.plug(&connection, &welcome, |device| self.leases.gpu(device))
            .map_err(|cause| ConnectError::Broken { path: "its socket".into(), cause })?;
        link.tell(&TenantRequest::Reconciled);
        if let Some(limits) = limits {
            link.tell(limits);
        }
        self.tell_fixed();
        Ok(connection)
    }

    /// What the process has: bytes in use by device, and the device of each live context.
    fn returning(&self, link: &Link, used: &[(CUdevice, Bytes)], contexts: &[CUdevice]) -> Returning {
        let identity = link.identity();
        let page = page();
        let word = GateWord(page.gate.load(Ordering::Acquire));
        // Until a drop is answered, work may be in flight under the grant.
        let holds = word.state() != GateState::Closed || !self.let_go.under(page, word);
        let announced = lock(&self.announced);
        let gpu = |&(device, used): &(CUdevice, Bytes)| {
            let info = announced.iter().find(|(known, _)| *known == device)?.1.clone();
            let contexts = contexts.iter().filter(|&&on| on == device).count();
            Some(ReturningGpu { info, used, contexts: u32::try_from(contexts).unwrap_or(u32::MAX) })
        };
        Returning {
            client: identity.client,
            session: identity.session,
            holding: identity.epoch.filter(|_| holds),
            gpus: used.iter().filter_map(gpu).collect(),
            waiting: self.waiting.sleepers.load(Ordering::SeqCst) > 0,
        }
    }

    fn attach(&'static self, link: &Link, device: CUdevice) -> Result<(), CUresult> {
        if self.leases.gpu(device).is_some() {
            return Ok(());
        }
        let Some(info) = self.describe(device) else { return Ok(()) };
        // One thread asks, the others find the answer.
        let _one_at_a_time = lock(&self.attaching);
        if self.leases.gpu(device).is_some() {
            return Ok(());
        }
        match link.ask_card(info.clone()) {
            Ok(gpu) => {
                lock(&self.announced).push((device, info));
                self.leases.attach(device, gpu);
                // Here, because a launch must not allocate.
                self.window.get_or_init(Window::default);
                account::outdated();
                Ok(())
            }
            Err(error) => {
                let reason = match error {
                    AskError::Card(failure) => failure.message,
                    _ => "the scheduler does not answer".to_owned(),
                };
                notice::say(format_args!("this process may not use {} ({}): {reason}", info.name, info.uuid));
                Err(CUDA_ERROR_SYSTEM_NOT_READY)
            }
        }
    }

    /// A stream is being destroyed, and with it what is known of it.
    pub fn stream_is_gone(&'static self, stream: CUstream) {
        if let Some(window) = self.window.get() {
            window.forget(window.markers().stream_is_gone(stream.addr(), &OnDriver(self)));
        }
    }

    /// Keeps everybody off the markers in a context that may be destroyed, while the guard lives.
    #[must_use]
    pub fn freeze(&self, context: CUcontext) -> Option<Frozen<'_>> {
        Some(self.window.get()?.markers().freeze(context))
    }

    /// That context is dead.
    pub fn bury_markers(&self, frozen: Option<Frozen<'_>>) {
        if let (Some(window), Some(frozen)) = (self.window.get(), frozen) {
            window.forget(frozen.bury());
        }
    }

    /// The device as the driver tells it; `None` for an ordinal that is none.
    fn describe(&self, device: CUdevice) -> Option<GpuInfo> {
        let uuid = self.uuid(device)?;
        let mut name: [c_char; 128] = [0; 128];
        let total = self.total(device)?;
        // SAFETY: writes within the buffer that it is given.
        if unsafe { (self.driver.device_get_name)(name.as_mut_ptr(), 127, device) } != 0 {
            return None;
        }
        // SAFETY: the last byte of the buffer is never written.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Some(GpuInfo { uuid, name, total })
    }

    /// What the driver says that a device has.
    #[must_use]
    pub fn total(&self, device: CUdevice) -> Option<Bytes> {
        let mut total = 0;
        // SAFETY: writes one integer.
        let asked = unsafe { (self.driver.device_total_mem)(&raw mut total, device) };
        (asked == 0).then_some(Bytes(total as u64))
    }

    /// A device's identity; `None` for an ordinal that is none. The old question answers for an instance with the GPU
    /// that it is part of, the new one with its own: where they differ it is an instance.
    #[must_use]
    pub fn uuid(&self, device: CUdevice) -> Option<GpuUuid> {
        let ask = |get_uuid: unsafe extern "C-unwind" fn(*mut [u8; 16], CUdevice) -> CUresult| {
            let mut uuid = [0; 16];
            // SAFETY: writes sixteen bytes.
            (unsafe { get_uuid(&raw mut uuid, device) } == 0).then_some(uuid)
        };
        let whole = ask(self.driver.device_get_uuid);
        match self.driver.device_get_uuid_v2.and_then(ask) {
            Some(own) if whole.is_some_and(|whole| whole != own) => Some(GpuUuid::mig(own)),
            Some(own) => Some(GpuUuid::gpu(own)),
            None => whole.map(GpuUuid::gpu),
        }
    }

    /// The device of this process that is the card `uuid`, if the process attached to it.
    #[must_use]
    pub fn device_of(&self, uuid: GpuUuid) -> Option<CUdevice> {
        let announced = lock(&self.announced);
        announced.iter().find(|(_, info)| info.uuid == uuid).map(|(device, _)| *device)
    }

    /// The calling thread's device, if it is shared: allocations on it go through the books.
    #[must_use]
    pub fn shared_device(&'static self) -> Option<CUdevice> {
        self.link()?;
        let device = self.driver.current_device()?;
        // A context that came through a hook we do not know is noticed here.
        if self.leases.gpu(device).is_none() && self.admit(device).is_err() {
            return None;
        }
        Some(device)
    }

    /// The making of a context took `ours` besides the driver's time; the first is remembered.
    pub fn note_first_context(&self, ours: Duration) {
        let ours = u64::try_from(ours.as_nanos()).unwrap_or(u64::MAX).max(1);
        // Another thread's was first otherwise.
        let _ = self
            .first_context
            .compare_exchange(0, ours, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Tells the daemon how many contexts a device has.
    pub fn tell_contexts(&self, device: CUdevice, live: u32) {
        if let (Some(link), Some(gpu)) = (self.link(), self.gpu(device)) {
            link.tell(&TenantRequest::Contexts { gpu, live });
        }
    }

    /// Starts the mover after the first grant, also where that leaves it nothing to do yet: the flag that asks
    /// an idle holder to let go is only written into the page, so no later message would start it.
    fn start_mover(&'static self) {
        let word = GateWord(page().gate.load(Ordering::Acquire));
        // Change 0 is the word that every page begins with: nothing was granted, nothing is to be dropped.
        if word.change() > 0 && !self.mover.swap(true, Ordering::AcqRel) {
            spawn("gpushare-mover", move || mover::run(self));
        }
    }

    /// The daemon's number of a device.
    #[must_use]
    pub fn gpu(&self, device: CUdevice) -> Option<GpuId> {
        self.leases.gpu(device)
    }
}

/// The backend that the environment names.
fn backend() -> Backend {
    let Some(word) = std::env::var_os(names::BACKEND) else { return Backend::default() };
    word.to_string_lossy().parse().unwrap_or_else(|error| {
        notice::say(format_args!("{}: {error}; memory is managed now", names::BACKEND));
        Backend::default()
    })
}

/// What the environment says that the process's session may have, for the daemon that made it one.
fn limits() -> Result<Option<TenantRequest>, (&'static str, QuotaError)> {
    let read = |name: &'static str| match std::env::var_os(name) {
        Some(text) if !text.is_empty() => text.to_string_lossy().parse().map_err(|error| (name, error)),
        _ => Ok(Quota::default()),
    };
    let (memory, compute) = (read(names::MEMORY_LIMIT)?, read(names::COMPUTE_LIMIT)?);
    let says_nothing = memory == Quota::default() && compute == Quota::default();
    Ok((!says_nothing).then_some(TenantRequest::Limits { memory, compute }))
}

/// From now on `page` holds.
fn turn_to(page: &'static Page) {
    PAGE.store(std::ptr::from_ref(page).cast_mut(), Ordering::Release);
}

/// Starts a thread of ours: it takes none of the host's signals.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    // SAFETY: the sets are initialised by sigfillset and pthread_sigmask before they are read.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        if let Err(error) = spawned {
            notice::say(format_args!("cannot start a thread: {error}"));
        }
    }
}

/// In the child of a fork: as if CUDA was never touched. What the parent had is leaked, its locks with it.
pub fn forget() {
    account::forget();
    STATE.store(null_mut(), Ordering::Release);
    PAGE.store((&raw const ALONE).cast_mut(), Ordering::Release);
    GATE.reset();
}

/// One line at exit, if asked for by [`names::SUMMARY`].
pub fn summarise() {
    let wanted = std::env::var_os(names::SUMMARY).is_some_and(|value| value == "1");
    let Some(state) = State::existing().filter(|_| wanted) else { return };
    let Some(link) = state.link() else { return };
    let window = state.window.get().map(Window::counters);
    let counted =
        |counter: fn(&Counters) -> &AtomicU64| window.map_or(0, |all| counter(all).load(Ordering::Relaxed));
    notice::say(format_args!(
        "session {}: ran {:.1} s, waited {:.1} s at the gate, moved {} to the card, peak {}, first context {:.2} ms, \
         counted {} launches, most in flight {}, held back {}, let through {}",
        link.identity().name,
        state.started.elapsed().as_secs_f64(),
        state.waiting.waited.load(Ordering::Relaxed) as f64 / 1e9,
        Bytes(state.moved.load(Ordering::Relaxed)),
        state.leases.peak(),
        state.first_context.load(Ordering::Relaxed) as f64 / 1e6,
        counted(|all| &all.launches),
        counted(|all| &all.most),
        counted(|all| &all.held_back),
        counted(|all| &all.let_through),
    ));
}
