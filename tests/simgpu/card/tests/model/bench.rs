//! A card on a workbench: processes without sockets, time that passes when told.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use simgpu_card::board;
use simgpu_card::constants::Constants;
use simgpu_card::ids::{ClientId, ContextId, EventId, GpuIndex, GraphId, HandleId, StreamId, Time};
use simgpu_card::machine::{Card, Effect, Input};
use simgpu_card::stats::{Counters, ProcessStats};
use simgpu_card::wire::{
    Answer, Failure, GpuDescription, Kind, Message, Op, Plane, Question, Request, Role, Shape, Sticky,
    StreamKind, Work,
};

pub(crate) const MIB: u64 = 1 << 20;
/// Where tests put their first allocation.
pub(crate) const BASE: u64 = 1 << 32;

const CONTEXT: ContextId = ContextId(0);
const LEGACY: StreamId = StreamId(0);
const GRAPH: GraphId = GraphId(0);

type Reply = (Result<Answer, Failure>, Vec<u8>, Option<OwnedFd>);

pub(crate) struct Bench {
    card: Card,
    now: Time,
    clients: u32,
    tokens: u64,
    replies: BTreeMap<u64, Reply>,
    /// Memfd of the board of each process.
    boards: BTreeMap<ClientId, File>,
}

impl Bench {
    pub(crate) fn new(constants: Constants) -> Self {
        Self::with_gpus(constants, 1)
    }

    pub(crate) fn with_gpus(constants: Constants, count: usize) -> Self {
        let gpu = GpuDescription {
            name: "bench".to_owned(),
            uuid: [0; 16],
            memory: constants.memory,
            bus: 1,
            concurrent_managed: true,
            read_only_registration: true,
            host_node: 0,
            persistence: true,
            refuses_exportable: false,
            part_of: None,
        };
        let card = Card::new(constants, vec![gpu; count]);
        Self {
            card,
            now: Time::ZERO,
            clients: 0,
            tokens: 0,
            replies: BTreeMap::new(),
            boards: BTreeMap::new(),
        }
    }

    /// A card of the usual numbers and a process on it.
    pub(crate) fn with_process() -> (Self, ClientId) {
        let mut bench = Self::new(Constants::default());
        let process = bench.process();
        (bench, process)
    }

    /// A process with a context and its legacy stream. Its pid is its number.
    pub(crate) fn process(&mut self) -> ClientId {
        self.clients += 1;
        let client = ClientId(self.clients);
        self.handle(Input::Connected { client, pid: self.clients, user: 1000 });
        let (_, _, board) = self.ask(client, Request::Hello(Role::Driver)).unwrap();
        self.boards.insert(client, File::from(board.unwrap()));
        self.ask(client, Request::CreateContext(CONTEXT, GpuIndex(0))).unwrap();
        self.stream(client, LEGACY, StreamKind::Legacy);
        client
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.card.next_deadline()
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.now += time;
        self.handle(Input::Tick);
    }

    /// Lets time pass until nothing is left to do.
    pub(crate) fn finish(&mut self) {
        while let Some(time) = self.card.next_deadline() {
            self.now = self.now.max(time);
            self.handle(Input::Tick);
        }
    }

    pub(crate) fn stream(&mut self, client: ClientId, stream: StreamId, kind: StreamKind) {
        self.tell(client, Request::CreateStream(stream, CONTEXT, kind));
    }

    pub(crate) fn allocate(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
        kind: Kind,
    ) -> Result<(), Failure> {
        self.ask(client, Request::Allocate { address, len, kind, context: CONTEXT })
            .map(|_| ())
    }

    pub(crate) fn free_memory(&mut self, client: ClientId, address: u64) {
        self.ask(client, Request::Free(address)).unwrap();
    }

    pub(crate) fn submit(&mut self, client: ClientId, op: Op) {
        self.submit_to(client, LEGACY, op);
    }

    pub(crate) fn submit_to(&mut self, client: ClientId, stream: StreamId, op: Op) {
        self.tell(client, Request::Submit(stream, op));
    }

    /// How long a piece of work takes, everything else being done.
    pub(crate) fn time(&mut self, client: ClientId, op: Op) -> Duration {
        self.finish();
        self.time_beside_others(client, op)
    }

    /// How long a piece of work of the legacy stream takes.
    pub(crate) fn time_beside_others(&mut self, client: ClientId, op: Op) -> Duration {
        let start = self.now;
        self.submit(client, op);
        self.request(client, Request::Synchronize(Work::Stream(LEGACY))).unwrap();
        self.now - start
    }

    pub(crate) fn synchronize(&mut self, client: ClientId) -> Result<(), Failure> {
        self.ask(client, Request::Synchronize(Work::Context(CONTEXT))).map(|_| ())
    }

    pub(crate) fn done(&mut self, client: ClientId, work: Work) -> bool {
        matches!(self.ask(client, Request::Query(work)).unwrap().0, Answer::Ready(true))
    }

    pub(crate) fn download(&mut self, client: ClientId, address: u64, len: u64) -> Vec<u8> {
        let from = Plane { address, pitch: 0 };
        let op = Op::Download { from, shape: Shape { width: len, rows: 1 }, registered: false };
        self.ask(client, Request::Submit(LEGACY, op)).unwrap().1
    }

    pub(crate) fn define_graph(&mut self, client: ClientId, ops: Vec<Op>) {
        self.tell(client, Request::DefineGraph(GRAPH, ops));
    }

    pub(crate) fn launch_graph_and_hear(&mut self, client: ClientId) -> Result<(), Failure> {
        self.request(client, Request::LaunchGraph(LEGACY, GRAPH)).map(|_| ())
    }

    pub(crate) fn launch_graph(&mut self, client: ClientId) {
        self.tell(client, Request::LaunchGraph(LEGACY, GRAPH));
    }

    pub(crate) fn hang_up(&mut self, client: ClientId) {
        self.handle(Input::Gone(client));
    }

    pub(crate) fn goodbye(&mut self, client: ClientId) {
        self.ask(client, Request::Goodbye).unwrap();
    }

    pub(crate) fn free(&self) -> u64 {
        self.free_of(GpuIndex(0))
    }

    pub(crate) fn free_of(&self, gpu: GpuIndex) -> u64 {
        self.card.stats().gpus[gpu.0 as usize].free
    }

    /// Which GPUs have fallen off.
    pub(crate) fn lost(&self) -> Vec<bool> {
        self.card.stats().gpus.iter().map(|gpu| gpu.lost).collect()
    }

    /// Degrees and milliwatts of the first GPU.
    pub(crate) fn sensors(&self) -> (u32, u32) {
        let gpu = &self.card.stats().gpus[0];
        (gpu.degrees, gpu.milliwatts)
    }

    /// The number of an event's last record that was reached and the time of it, as the board of a process
    /// tells.
    pub(crate) fn reached(&self, client: ClientId, event: EventId) -> (u64, Time) {
        let place = board::place(event).unwrap();
        let [record, at] = [place, place + 8].map(|offset| {
            let mut word = [0; 8];
            self.boards[&client].read_exact_at(&mut word, offset).unwrap();
            u64::from_le_bytes(word)
        });
        (record, Time::from_nanos(at))
    }

    /// The error that the board of a process tells, as a number.
    pub(crate) fn health(&self, client: ClientId) -> u32 {
        let mut word = [0; 4];
        self.boards[&client].read_exact_at(&mut word, 0).unwrap();
        u32::from_le_bytes(word)
    }

    /// Shares a handle and answers the inode of its descriptor.
    pub(crate) fn share(&mut self, client: ClientId, handle: HandleId) -> u64 {
        let (_, _, fd) = self.ask(client, Request::ShareHandle(handle)).unwrap();
        File::from(fd.unwrap()).metadata().unwrap().ino()
    }

    pub(crate) fn turns(&self) -> usize {
        self.card.stats().timeline.len()
    }

    pub(crate) fn counters(&self, client: ClientId) -> Counters {
        self.stats_of(client).counters
    }

    pub(crate) fn resident(&self, client: ClientId) -> u64 {
        self.stats_of(client).resident_bytes
    }

    /// Bytes of the host that are kept in place for a process.
    pub(crate) fn host_bytes(&self, client: ClientId) -> u64 {
        self.stats_of(client).host_bytes
    }

    /// The error from which a process does not recover.
    pub(crate) fn lost_process(&self, client: ClientId) -> Option<Sticky> {
        self.stats_of(client).lost
    }

    /// Bytes of the host that are kept in place for everybody.
    pub(crate) fn host_used(&self) -> u64 {
        self.card.stats().host_bytes
    }

    fn stats_of(&self, client: ClientId) -> ProcessStats {
        let processes = self.card.stats().processes;
        processes.into_iter().find(|process| process.pid == client.0).unwrap()
    }

    pub(crate) fn request(&mut self, client: ClientId, request: Request) -> Result<Answer, Failure> {
        self.ask(client, request).map(|(answer, ..)| answer)
    }

    fn tell(&mut self, client: ClientId, request: Request) {
        let question = Question { token: None, request };
        self.handle(Input::Said { client, question, payload: Vec::new() });
    }

    /// Asks and lets time pass until the answer is there.
    fn ask(
        &mut self,
        client: ClientId,
        request: Request,
    ) -> Result<(Answer, Vec<u8>, Option<OwnedFd>), Failure> {
        let token = self.say(client, request);
        self.wait(token)
    }

    /// Asks without waiting and returns the token of the answer.
    pub(crate) fn say(&mut self, client: ClientId, request: Request) -> u64 {
        self.tokens += 1;
        let question = Question { token: Some(self.tokens), request };
        self.handle(Input::Said { client, question, payload: Vec::new() });
        self.tokens
    }

    /// Lets time pass until an answer is there.
    pub(crate) fn wait(&mut self, token: u64) -> Result<(Answer, Vec<u8>, Option<OwnedFd>), Failure> {
        loop {
            if let Some((result, payload, fd)) = self.replies.remove(&token) {
                return result.map(|answer| (answer, payload, fd));
            }
            self.now = self.card.next_deadline().expect("no answer, and nothing will happen any more");
            self.handle(Input::Tick);
        }
    }

    fn handle(&mut self, input: Input) {
        self.card.handle(self.now, input);
        while let Some(effect) = self.card.poll_effect() {
            if let Effect::Say { message: Message::Answer(token, result), payload, fd, .. } = effect {
                self.replies.insert(token, (result, payload, fd));
            }
        }
    }
}
