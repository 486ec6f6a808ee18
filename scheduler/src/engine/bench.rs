//! Engine of unit tests: one card, and clients that are entries without programs. The driver's part of a freeze is
//! only told to the decision machine.

use clap::Parser;
use gpushare_core::{Event, ThawEnd, log};
use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::{GpuInfo, Residence};
use gpushare_proto::{Bytes, ClientId, GpuId, GpuUuid, SessionId};
use gpushare_sys::clock;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::{Engine, Machine};
use crate::args::Args;
use crate::clients::page::ClientPage;
use crate::clients::table::Client;
use crate::config::{Environment, Settings};
use crate::connections::ConnectionLimit;
use crate::identity::{PeerProcess, ProcessId};
use crate::input::Input;
use crate::nvml::Usages;
use crate::registry::Origin;
use crate::sessions::Session;

/// The card of each bench.
pub(crate) const GPU: GpuId = GpuId(0);
const UUID: GpuUuid = GpuUuid::gpu([1; 16]);

/// An engine with one session and one card of 80 GiB, of which 4 GiB may be used. So nobody has goals that explain more.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    session: SessionId,
    /// Process of the test. Each client has a copy of it with another pid.
    peer: PeerProcess,
    _inputs: mpsc::Receiver<Input>,
    _folder: TempDir,
}

impl Bench {
    /// Creates an engine without clients. Must be called inside a tokio runtime.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["x", "--user", "--capacity=0=4GiB"];
        let args = Args { lock_dir: Some(folder.path().to_owned()), ..Args::parse_from(flags) };
        let settings = Settings::read(&args, &Environment::default()).unwrap();
        let started = clock::monotonic();
        let header = log::Header {
            format: log::FORMAT,
            version: String::new(),
            generation: 1,
            expected: [].into(),
            incomplete: false,
            started,
            unix_seconds: 0,
            config: settings.core.clone(),
        };
        let machine = Machine::start(header, None).unwrap();
        let limit = ConnectionLimit::new(settings.connections_per_user);
        let (inputs, _inputs) = mpsc::channel(8);
        let mut engine = Engine::new(settings, limit, inputs, machine, started, (1, 1));
        let info = GpuInfo { uuid: UUID, name: "card".to_owned(), total: Bytes::gib(80) };
        assert_eq!(engine.add_card(&info).unwrap(), GPU);
        let session = open_session(&mut engine);
        let (own, _other) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(&own).unwrap();
        Self { engine, session, peer, _inputs, _folder: folder }
    }

    /// Adds a session without clients.
    pub(crate) fn session(&mut self) -> SessionId {
        open_session(&mut self.engine)
    }

    /// Adds a client with this pid that has no connection, and so many bytes of remapped memory, all on the host.
    pub(crate) fn client(&mut self, pid: u32, bytes: Bytes) -> ClientId {
        let Self { engine, session, .. } = self;
        let id = engine.clients.new_id();
        let mut peer = self.peer.clone();
        (peer.pid, peer.id) = (pid, Some(ProcessId { pid, start: 1 }));
        let (_file, page) = ClientPage::create().unwrap();
        engine.clients.insert(id, Client::new(*session, &peer, page, false));
        engine.feed(Event::ClientJoined { client: id, session: *session, holding: None });
        engine.feed(Event::Remaps { client: id });
        engine.attach(id, GPU, bytes);
        let residence = Residence { hosted: bytes, ..Residence::default() };
        engine.feed(Event::Resides { client: id, gpu: GPU, seen: Default::default(), residence });
        id
    }

    /// Lets the decision machine take a process for one that the last daemon has frozen. Nobody thaws it.
    pub(crate) fn freeze(&mut self, client: ClientId) {
        self.engine.machine.decide(Event::FoundFrozen { client });
        while self.engine.machine.next_effect().is_some() {}
        assert!(self.engine.machine.is_frozen(client));
    }

    /// Lets a frozen process come back, for whose memory the card has room.
    pub(crate) fn thaw(&mut self, client: ClientId) {
        self.engine.feed(Event::ThawEnded { client, end: ThawEnd::Thawed });
        assert!(!self.engine.machine.is_frozen(client));
    }
}

fn open_session(engine: &mut Engine) -> SessionId {
    let origin = Origin::Created { token: None, binding: Binding::Token, uid: 0 };
    let make = |name| Session::new(name, Terms::default(), origin, false, None);
    engine.open_session(|id| id.to_string(), make)
}

/// NVML's answer that lists these processes with their bytes on the card.
pub(crate) fn usages(listed: &[(u32, Bytes)]) -> Usages {
    let on_card = listed.iter().map(|&(pid, bytes)| (pid, Some(bytes))).collect();
    [(UUID, Some(on_card))].into()
}
