//! Messages between clients and the card.
//!
//! ```text
//! client                                  card
//!   Hello(role)             ->  Welcome      with the memfd of a driver's board
//!   Submit, Record ...      ->            no answer: the socket keeps the order
//!   Allocate, Synchronize   ->  Answer    the answer carries the token of the question
//!                           <-  Call      a host function of a stream is due (to the callback connection)
//! ```
//!
//! A frame is a head (one of these types, encoded) and a payload: raw bytes that an upload or a download
//! carries. Lengths are in bytes, addresses are the client's.

mod description;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, ContextId, EventId, GpuIndex, GraphId, HandleId, HostCallId, PoolId, StreamId};
use crate::kernel::Kernel;

pub use description::{Description, Divided, GpuDescription};

/// A request and, if an answer is wanted, the token that it will carry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// `None` for what needs no answer.
    pub token: Option<u64>,
    /// The request.
    pub request: Request,
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that computes: its hang-up frees all it had.
    Driver,
    /// The second connection of a process, on which its host functions are called.
    Callbacks(ClientId),
    /// A test, a demo or NVML: asks, owns nothing.
    Observer,
}

/// Everything a client can ask.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the module says the units of fields")]
pub enum Request {
    /// The first message of a connection.
    Hello(Role),
    /// Makes a context. Answered when the time it takes is over.
    CreateContext(ContextId, GpuIndex),
    /// Ends a context, its streams and its allocations.
    DestroyContext(ContextId),
    /// Makes a stream.
    CreateStream(StreamId, ContextId, StreamKind),
    /// Ends a stream once its work is done.
    DestroyStream(StreamId),
    /// Makes an allocation at an address that the client has reserved. Managed and pinned ones answer with
    /// a memfd.
    Allocate { address: u64, len: u64, kind: Kind, context: ContextId },
    /// Ends an allocation after all work of the client.
    Free(u64),
    /// Registers memory of the client, of which so many bytes have never been touched. Answers with the memfd
    /// that the client puts in its place.
    Register { address: u64, len: u64, untouched: u64, context: ContextId },
    /// Ends a registration, without waiting for work.
    Unregister(u64),
    /// Takes the time of a registration. The memory stays the client's alone.
    PriceRegistration { len: u64, untouched: u64 },
    /// Takes the time of the end of such a registration.
    PriceUnregistration(u64),
    /// Puts work into a stream. An upload's bytes are the payload.
    Submit(StreamId, Op),
    /// Keeps a list of work under a number.
    DefineGraph(GraphId, Vec<Op>),
    /// Puts a kept list into a stream.
    LaunchGraph(StreamId, GraphId),
    /// Forgets a kept list.
    DropGraph(GraphId),
    /// Forgets an event.
    DropEvent(EventId),
    /// Answers when the work is done.
    Synchronize(Work),
    /// Answers at once whether the work is done.
    Query(Work),
    /// Answers how much time lies between two events.
    Elapsed(EventId, EventId),
    /// A host function has returned: the number of its call.
    HostDone(u64),
    /// Free and total memory of a GPU.
    MemoryInfo(GpuIndex),
    /// The page residency of a managed range.
    WhereIs { address: u64, len: u64 },
    /// Description of the card.
    Describe,
    /// Statistics so far.
    Stats,
    /// Makes physical memory without an address. Another process may get it if it is shareable.
    CreateHandle { handle: HandleId, len: u64, place: Place, shareable: bool },
    /// The client needs the handle no more; the memory lives as long as it is mapped or imported anywhere.
    ReleaseHandle(HandleId),
    /// Answers with the memfd of a shareable handle.
    ShareHandle(HandleId),
    /// Finds, by its inode, the memory of a memfd that another process got by `ShareHandle`.
    ImportHandle { handle: HandleId, inode: u64 },
    /// Maps the first `len` bytes of physical memory, without access yet. Host memory answers with its memfd.
    Map { address: u64, len: u64, handle: HandleId },
    /// Takes whole mappings out of a range, at once.
    Unmap { address: u64, len: u64 },
    /// Allows or forbids a GPU the mappings in a range.
    SetAccess { address: u64, len: u64, gpu: GpuIndex, allowed: bool },
    /// Makes a memory pool, which reserves at most `limit` bytes; 0 is no limit.
    CreatePool { pool: PoolId, gpu: GpuIndex, limit: u64 },
    /// Ends a pool; its blocks live on until they are freed.
    DestroyPool(PoolId),
    /// Gives back what a pool has reserved above so many bytes and does not use.
    TrimPool(PoolId, u64),
    /// Sets the bytes of a pool that a synchronise leaves reserved.
    SetPoolThreshold(PoolId, u64),
    /// Allows or forbids a GPU the blocks of a pool. Its own GPU always may.
    SetPoolAccess { pool: PoolId, gpu: GpuIndex, allowed: bool },
    /// Bytes that a pool has reserved and uses.
    PoolInfo(PoolId),
    /// The highest readings of a pool start over.
    ResetPool(PoolId),
    /// Kernels on one GPU may reach, or not, the other one's memory.
    Peer { from: GpuIndex, to: GpuIndex, allowed: bool },
    /// Counts advice about managed memory.
    Advise(Advice),
    /// A GPU falls off the bus: everybody who uses it has lost it, and nobody gets it until it is reset.
    FallOff(GpuIndex),
    /// A GPU that fell off is reset: those who come now get it.
    Reset(GpuIndex),
    /// A GPU reports an Xid.
    Xid(GpuIndex, u64),
    /// A GPU comes into persistence mode, or leaves it.
    SetPersistence(GpuIndex, bool),
    /// A step of the checkpoint of another process, or a question about it.
    Checkpoint { pid: u32, step: Step },
    /// The next calls of a process find no memory.
    Refuse { pid: u32, call: Refusable, count: u32 },
    /// The process ends properly: its memory comes back at once.
    Goodbye,
    /// The card ends.
    Shutdown,
}

/// How a stream stands to the legacy stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamKind {
    /// Waits for all blocking streams of its context, and they for it.
    Legacy,
    /// Is ordered with the legacy stream.
    Blocking,
    /// Is not.
    NonBlocking,
}

/// Kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// On the card from first to last.
    Device,
    /// Moves by 2 MiB pages between host and card.
    Managed,
    /// On the host, reachable from the card.
    Pinned,
}

/// Advice about a managed range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Advice {
    /// On which GPU it should be.
    Location,
    /// Which GPU should reach it where it is.
    Access,
}

/// Where physical memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On a GPU.
    Gpu(GpuIndex),
    /// On the host, reachable from every GPU.
    Host,
}

/// Calls that an observer can let fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Refusable {
    /// `cuMemCreate` on a GPU.
    CreateOnGpu,
    /// `cuMemCreate` on the host.
    CreateOnHost,
    /// `cuMemMap`.
    Map,
    /// `cuMemHostRegister`.
    Register,
    /// `cuMemAllocManaged`.
    AllocateManaged,
}

/// Steps of the checkpoint of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Holds its calls back once those under way and its work have ended, which may take so long.
    Lock(Option<Duration>),
    /// Moves all it has on the GPUs into its host memory.
    Checkpoint,
    /// Moves that back.
    Restore,
    /// Lets its calls go on.
    Unlock,
    /// Answers its state.
    Ask,
}

/// State of a process with regard to checkpoints. The number is that of `CUprocessState`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum ProcessState {
    /// Its calls run.
    #[default]
    Running = 0,
    /// Its calls wait.
    Locked = 1,
    /// Its calls wait, and it has next to nothing on the GPUs.
    Checkpointed = 2,
    /// A restore has failed. Nothing of it works any more.
    Failed = 3,
}

/// Bytes that a pool has reserved and uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUse {
    /// Taken from the GPU.
    pub reserved: u64,
    /// The most that was.
    pub reserved_high: u64,
    /// Allocated and not freed.
    pub used: u64,
    /// The most that was.
    pub used_high: u64,
}

/// Rows of bytes in memory: a plain range is one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// The first byte.
    pub address: u64,
    /// From one row to the next, in bytes.
    pub pitch: u64,
}

/// The shape of a copy or a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes of a row.
    pub width: u64,
    /// How many rows.
    pub rows: u64,
}

/// Work for a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the module says the units of fields")]
pub enum Op {
    /// A kernel.
    Kernel(Kernel),
    /// A copy between two places that the card knows.
    Copy { to: Plane, from: Plane, shape: Shape },
    /// Fills with a pattern of `element` bytes: 1, 2 or 4.
    Set { to: Plane, shape: Shape, value: u32, element: u8 },
    /// Writes the payload of the message, which comes from pageable or from registered memory.
    Upload { to: Plane, shape: Shape, registered: bool },
    /// Answers the message with bytes, for pageable or for registered memory.
    Download { from: Plane, shape: Shape, registered: bool },
    /// Moves managed pages to a GPU, or to the host.
    Prefetch { address: u64, len: u64, to: Option<GpuIndex> },
    /// Calls a function in the client and waits for its return.
    HostCall(HostCallId),
    /// Waits until a word of 4 bytes, or 8 if wide, passes a test against `value`.
    WaitValue { address: u64, value: u64, test: Test, wide: bool },
    /// Stores a word of 4 bytes, or 8 if wide.
    WriteValue { address: u64, value: u64, wide: bool },
    /// Takes the time once the stream comes here.
    Record(EventId),
    /// Takes the time once all work of the context that was there before is done.
    RecordContext(EventId),
    /// Waits for the last record of an event.
    WaitEvent(EventId),
    /// Makes a block of a pool. Its room is taken when this is put into the stream, which may fail.
    Allocate { address: u64, len: u64, pool: PoolId },
    /// Ends a block of a pool.
    Release(u64),
    /// Does nothing for so long.
    Pause(Duration),
    /// A kernel that fails like this.
    Fail(Sticky),
}

/// The tests of `cuStreamWaitValue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// `(signed)(word - value) >= 0`.
    GreaterOrEqual,
    /// `word == value`.
    Equal,
    /// `word & value != 0`.
    And,
    /// `!(word | value) != 0`.
    Nor,
}

/// Work that a client can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// All that is in a stream now.
    Stream(StreamId),
    /// The first so many pieces of work of a stream.
    Position(StreamId, u64),
    /// All that is in the streams of a context now.
    Context(ContextId),
    /// The last record of an event.
    Event(EventId),
}

/// Message of the card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Message {
    /// The answer to the question with this token. Bytes of a download are the payload.
    Answer(u64, Result<Answer, Failure>),
    /// A host function is due; the second number is this call's.
    Call(HostCallId, u64),
}

/// A good answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the module says the units of fields")]
pub enum Answer {
    /// The connection's own number.
    Welcome(ClientId),
    /// Done.
    Done,
    /// Whether the work is done.
    Ready(bool),
    /// Time between two events.
    Elapsed(Duration),
    /// Memory of a GPU, in bytes.
    Memory { free: u64, total: u64 },
    /// On which GPU all pages of the range are, if on one.
    Resident(Option<GpuIndex>),
    /// Physical memory that was imported.
    Imported { len: u64, place: Place },
    /// Bytes that a pool has reserved and uses.
    Pool(PoolUse),
    /// State of a process with regard to checkpoints.
    ProcessState(ProcessState),
    /// Description of the card.
    Description(Box<Description>),
    /// Statistics so far, as JSON of [`crate::stats::Stats`].
    Stats(String),
}

/// Why something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// No room on the card.
    OutOfMemory,
    /// No such context, stream, event, graph or allocation.
    Unknown,
    /// Earlier work failed: nothing of this process works any more.
    Sticky(Sticky),
    /// The GPU has fallen off the bus.
    Lost,
    /// An event that was never recorded, or not yet.
    NotReady,
    /// The card ran out of the host's means.
    Host,
    /// The process is not in the state from which this step leads on.
    WrongState,
    /// The process has what no checkpoint can hold.
    NotSupported,
    /// The process belongs to another user.
    NotPermitted,
    /// The restore failed, and the process is lost.
    Broken,
}

/// Errors from which a process does not recover. The number is what its board says (0 for none).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum Sticky {
    /// Work touched what is not memory.
    IllegalAddress = 1,
    /// A kernel found what it asserted to be wrong.
    Assert = 2,
    /// A GPU that it uses has fallen off the bus.
    Lost = 3,
    /// It could not be restored from a checkpoint.
    NotRestored = 4,
}

impl Sticky {
    /// The error that the first word of a board tells.
    pub fn from_word(word: u32) -> Option<Self> {
        [Self::IllegalAddress, Self::Assert, Self::Lost, Self::NotRestored]
            .into_iter()
            .find(|error| *error as u32 == word)
    }
}
