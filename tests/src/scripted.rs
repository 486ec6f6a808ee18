//! Daemon that a test plays: one client, one card, and a page whose words the test writes.
//!
//! For what the client does about words of the page that the scheduler would not write at that moment. It grants all
//! memory that is asked for, and notes what the client reports.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use gpushare_proto::page::{FEATURE_FREEZE, FEATURE_GOALS, FLAG_FROZEN, Goal, GoalNumber};
use gpushare_proto::tenant::{
    GpuInfo, Hello, PROTOCOL, Residence, Role, TenantReply, TenantRequest, Welcome,
};
use gpushare_proto::{Bytes, ClientId, Epoch, GateState, GateWord, GpuId, SessionId, codec};
use gpushare_sys::page::SharedPage;
use gpushare_sys::{bell, page, socket};

use crate::patience::until;
use crate::world::World;

/// Quota that the client may use without asking.
const LEASE: Bytes = Bytes::gib(64);

/// Daemon of one client. Its gate is open at first, and changes only by the test.
#[derive(Debug)]
pub struct ScriptedDaemon {
    page: Arc<SharedPage>,
    /// File of the page, which each client gets.
    file: Arc<Mutex<OwnedFd>>,
    said: Arc<Mutex<Vec<TenantRequest>>>,
    stream: Arc<Mutex<Option<UnixStream>>>,
    word: GateWord,
    goal: Goal,
}

impl ScriptedDaemon {
    /// Listens at the tenants' socket of a world.
    pub fn listen(world: &World) -> anyhow::Result<Self> {
        let path = world.runtime_dir().tenant_socket();
        fs::create_dir_all(world.runtime_dir().tenant_dir())?;
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot bind {}", path.display()))?;
        let word = GateWord::new(1, GateState::Open);
        let (file, page) = open_page(word)?;
        let (file, said, stream) = (Arc::new(Mutex::new(file)), Arc::default(), Arc::default());
        let daemon = Self { page: Arc::new(page), file, said, stream, word, goal: Goal::default() };
        let (said, kept, file) = (daemon.said.clone(), daemon.stream.clone(), daemon.file.clone());
        thread::spawn(move || {
            // Tools connect too; the client is who says so.
            while let Ok((stream, _)) = listener.accept() {
                let (said, kept, file) = (said.clone(), kept.clone(), file.clone());
                thread::spawn(move || serve(stream, &file, &said, &kept));
            }
        });
        Ok(daemon)
    }

    /// Becomes the next daemon: another page, whose gate is open, and no connection until the client comes back. What
    /// was said to the last one is forgotten.
    pub fn die(&mut self) -> anyhow::Result<()> {
        self.die_for(0)
    }

    /// Becomes the next daemon as [`Self::die`] does, one that knows how to freeze clients.
    pub fn die_for_one_that_freezes(&mut self) -> anyhow::Result<()> {
        self.die_for(FEATURE_FREEZE)
    }

    fn die_for(&mut self, features: u32) -> anyhow::Result<()> {
        let (file, page) = open_page(self.word)?;
        page.features.store(features, Ordering::SeqCst);
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        self.page = Arc::new(page);
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream.context("no client has come")?.shutdown(Shutdown::Both)?;
        Ok(())
    }

    /// Says that it knows how to freeze clients.
    pub fn knows_freezing(&self) {
        self.page.features.fetch_or(FEATURE_FREEZE, Ordering::SeqCst);
    }

    /// Asks the client to hold its calls back, or to let them go on.
    pub fn hold(&self, is_held: bool) {
        if is_held {
            self.page.freezes.fetch_add(1, Ordering::SeqCst);
            self.page.flags.fetch_or(FLAG_FROZEN, Ordering::SeqCst);
        } else {
            self.page.flags.fetch_and(!FLAG_FROZEN, Ordering::SeqCst);
        }
        bell::ring(&self.page);
    }

    /// Whether the client has said it.
    pub fn has_heard(&self, request: &TenantRequest) -> bool {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).contains(request)
    }

    /// Waits until the client says it.
    pub fn hears(&self, request: &TenantRequest) -> anyhow::Result<()> {
        self.wait_for(&format!("the client says {request:?}"), |said| said == request)
    }

    /// Places of the client's memory, and the number of the goal that it has seen, as it said last.
    pub fn residence(&self) -> (GoalNumber, Residence) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = said.iter().rev().filter_map(|said| match said {
            TenantRequest::Resides { seen, residence, .. } => Some((*seen, *residence)),
            _ => None,
        });
        reports.into_iter().next().unwrap_or_default()
    }

    /// Present word of the gate.
    pub fn gate(&self) -> GateWord {
        GateWord(self.page.gate.load(Ordering::SeqCst))
    }

    /// Writes the next gate word, and keeps the client's bit, as the scheduler does.
    pub fn set_gate(&mut self, state: GateState) -> anyhow::Result<()> {
        self.word = self.word.next(state);
        let (gate, word) = (&self.page.gate, self.word.0);
        let keep = |before: u32| Some(word | (before & GateWord::EVICTING));
        gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, keep).ok();
        bell::ring(&self.page);
        self.say(&TenantReply::Gate { word: self.word, epoch: Epoch::default() })
    }

    /// Closes the gate, and waits until the client has given the lock back.
    pub fn take_back(&mut self) -> anyhow::Result<()> {
        self.set_gate(GateState::Closed)?;
        let word = self.word;
        self.wait_for(
            "the client has drained",
            |said| matches!(said, TenantRequest::Released { word: of, .. } if *of == word),
        )
    }

    /// Sets the most bytes that may be on the card.
    pub fn set_goal(&mut self, bytes: Bytes) {
        self.goal = Goal { number: self.goal.number.next(), bytes };
        self.page.goals[0].store(self.goal.to_bits(), Ordering::SeqCst);
        self.give_goals();
    }

    /// Gives goals from now on. Until then the client has the card for itself.
    pub fn give_goals(&self) {
        self.page.features.store(FEATURE_GOALS, Ordering::SeqCst);
        bell::ring(&self.page);
    }

    /// Waits until the client acts under the present goal, with at most its bytes on the card.
    pub fn is_followed(&self) -> anyhow::Result<()> {
        until("the client follows its goal", || {
            let (seen, residence) = self.residence();
            Ok((seen == self.goal.number && residence.resident <= self.goal.bytes).then_some(()))
        })
    }

    /// Waits for the client's report that the gate under the present word is open, and returns the bytes that came
    /// in.
    pub fn entered(&self) -> anyhow::Result<Bytes> {
        let word = self.word;
        until("the client has entered", || {
            let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(said.iter().find_map(|said| match said {
                TenantRequest::Entered { word: of, moved, .. } if *of == word => Some(*moved),
                _ => None,
            }))
        })
    }

    /// Waits until a thread of the client waits at the closed gate.
    pub fn is_asked_for_turn(&self) -> anyhow::Result<()> {
        let word = self.word;
        self.wait_for(
            "a thread asks for the card",
            |said| matches!(said, TenantRequest::Wait { word: of } if *of == word),
        )
    }

    fn wait_for(&self, what: &str, is_it: impl Fn(&TenantRequest) -> bool) -> anyhow::Result<()> {
        until(what, || {
            let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(said.iter().any(&is_it).then_some(()))
        })
    }

    fn say(&self, reply: &TenantReply) -> anyhow::Result<()> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = stream.as_ref().context("no client has come")?;
        Ok(stream.write_all(&codec::encode(reply)?)?)
    }
}

/// Whether a client that had another daemon before says hello.
fn is_returning(request: &TenantRequest) -> bool {
    let TenantRequest::Hello(hello) = request else { return false };
    match &hello.role {
        Role::Remapping { returning, .. } | Role::Client { returning, .. } => returning.is_some(),
        Role::Tool => false,
    }
}

/// Makes a page with all memory and this gate word.
fn open_page(word: GateWord) -> anyhow::Result<(OwnedFd, SharedPage)> {
    let (file, page) = page::create()?;
    page.gate.store(word.0, Ordering::SeqCst);
    page.gpus[0].free.store(LEASE.0, Ordering::SeqCst);
    page.gpus[0].limit.store(u64::MAX, Ordering::SeqCst);
    page.gpus[0].ceiling.store(u64::MAX, Ordering::SeqCst);
    Ok((file, page))
}

/// Talks with one client until it is gone.
fn serve(
    mut stream: UnixStream,
    file: &Mutex<OwnedFd>,
    said: &Mutex<Vec<TenantRequest>>,
    kept: &Mutex<Option<UnixStream>>,
) -> anyhow::Result<()> {
    loop {
        let request = receive(&mut stream)?;
        let reply = match &request {
            TenantRequest::Hello(Hello { role: Role::Remapping { .. } | Role::Client { .. }, .. }) => {
                let (client, session, name) = (ClientId(1), SessionId(1), "scripted".to_owned());
                let gpus = if is_returning(&request) { vec![GpuId(0)] } else { Vec::new() };
                let welcome = Welcome { protocol: PROTOCOL, client, session, name, gpus };
                let frame = codec::encode(&TenantReply::Welcome(welcome))?;
                let file = file.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
                socket::send_with_fd(&stream, &frame, Some(file.as_fd()))?;
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.try_clone()?);
                None
            }
            TenantRequest::Hello(_) => Some(TenantReply::Ready { protocol: PROTOCOL }),
            TenantRequest::Attach(GpuInfo { uuid, .. }) => {
                Some(TenantReply::Attached { uuid: *uuid, gpu: GpuId(0) })
            }
            TenantRequest::Reserve { request, bytes, .. }
            | TenantRequest::ReservePiece { request, bytes, .. }
            | TenantRequest::ReserveFixed { request, bytes, .. } => {
                Some(TenantReply::Reserved { request: *request, bytes: *bytes })
            }
            TenantRequest::Headroom { request, .. } => {
                Some(TenantReply::Headroom { request: *request, bytes: Bytes::ZERO })
            }
            _ => None,
        };
        said.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        if let Some(reply) = reply {
            stream.write_all(&codec::encode(&reply)?)?;
        }
    }
}

fn receive(stream: &mut UnixStream) -> anyhow::Result<TenantRequest> {
    let mut header = [0; codec::HEADER];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; codec::body_length::<TenantRequest>(header)?];
    stream.read_exact(&mut body)?;
    Ok(codec::decode(&body)?)
}
