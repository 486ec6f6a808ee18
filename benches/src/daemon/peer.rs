//! A client of the daemon as light as can be: a connection and a page.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail, ensure};
use gpushare_proto::codec::{self, Message};
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{GpuChoice, GpuInfo, Hello, NewSession, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, GateWord, GpuId, GpuUuid, RequestId, Token};
use gpushare_sys::page::{self, SharedPage};
use gpushare_sys::{lease, socket};

/// The card that all of them say they use.
fn card() -> GpuInfo {
    GpuInfo {
        uuid: GpuUuid::gpu(*b"quota bench card"),
        name: "card of the bench".to_owned(),
        total: Bytes::gib(80),
    }
}

/// One end of a conversation.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: UnixStream,
    buffer: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl Peer {
    /// Connects and says nothing.
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("no daemon at {}", socket.display()))?;
        Ok(Self { stream, buffer: Vec::new(), descriptor: None })
    }

    pub(crate) fn greet(socket: &Path, role: Role) -> anyhow::Result<(Self, TenantReply)> {
        let mut peer = Self::connect(socket)?;
        peer.say(&TenantRequest::Hello(Hello::new(role)))?;
        let answer = peer.hear()?;
        Ok((peer, answer))
    }

    pub(crate) fn say<M: Message>(&mut self, request: &M) -> anyhow::Result<()> {
        Ok(self.stream.write_all(&codec::encode(request)?)?)
    }

    /// Both with one system call.
    pub(crate) fn say_both(&mut self, first: &TenantRequest, second: &TenantRequest) -> anyhow::Result<()> {
        let mut frames = codec::encode(first)?;
        frames.extend(codec::encode(second)?);
        Ok(self.stream.write_all(&frames)?)
    }

    /// The next message; waits for it.
    pub(crate) fn hear<M: Message>(&mut self) -> anyhow::Result<M> {
        loop {
            if let Some(reply) = self.heard()? {
                return Ok(reply);
            }
            self.read()?;
        }
    }

    /// The next message that has come already.
    pub(crate) fn heard<M: Message>(&mut self) -> anyhow::Result<Option<M>> {
        let message = codec::split(&self.buffer)?;
        Ok(message.map(|(reply, length)| {
            self.buffer.drain(..length);
            reply
        }))
    }

    /// Takes in what has come; waits for it as the library does.
    pub(crate) fn read(&mut self) -> anyhow::Result<()> {
        socket::await_bytes(&self.stream);
        let mut chunk = [0; 4096];
        let (length, descriptor) = socket::recv_with_fd(&self.stream, &mut chunk)?;
        ensure!(length > 0, "the daemon closed the connection");
        self.buffer.extend_from_slice(&chunk[..length]);
        self.descriptor = descriptor.or(self.descriptor.take());
        Ok(())
    }

    /// Drops what was taken in.
    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
    }

    pub(crate) fn wait_for<T>(&mut self, found: impl Fn(TenantReply) -> Option<T>) -> anyhow::Result<T> {
        loop {
            match self.hear()? {
                TenantReply::Error(failure) => bail!("the daemon refused: {}", failure.message),
                other => {
                    if let Some(found) = found(other) {
                        return Ok(found);
                    }
                }
            }
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Connection that registers sessions and keeps them alive.
#[derive(Debug)]
pub(crate) struct Registrar(Peer);

impl Registrar {
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        Ok(Self(Peer::greet(socket, Role::Tool)?.0))
    }

    pub(crate) fn register(&mut self, name: &str, memory: Bytes) -> anyhow::Result<Token> {
        self.0.say(&TenantRequest::Register(NewSession {
            name: Some(name.to_owned()),
            terms: Terms::with_memory(Some(memory)),
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        }))?;
        self.0.wait_for(|reply| match reply {
            TenantReply::Session { token, .. } => Some(token),
            _ => None,
        })
    }
}

/// A process of a session, on the card.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) peer: Peer,
    page: SharedPage,
    pub(crate) gpu: GpuId,
}

impl Client {
    pub(crate) fn join(socket: &Path, token: &Token) -> anyhow::Result<Self> {
        let role = Role::Client { token: Some(token.clone()), returning: None };
        let (mut peer, answer) = Peer::greet(socket, role)?;
        ensure!(matches!(answer, TenantReply::Welcome(_)), "not welcome: {answer:?}");
        let page = page::map(peer.descriptor.take().context("the welcome came without a page")?)?;
        peer.say(&TenantRequest::Attach(card()))?;
        let gpu = peer.wait_for(|reply| match reply {
            TenantReply::Attached { gpu, .. } => Some(gpu),
            _ => None,
        })?;
        Ok(Self { peer, page, gpu })
    }

    /// Asks for memory beyond the lease and waits for the answer.
    pub(crate) fn reserve(&mut self, bytes: Bytes) -> anyhow::Result<()> {
        self.peer.say(&Self::question(self.gpu, bytes))?;
        let given = self.peer.wait_for(|reply| match reply {
            TenantReply::Reserved { bytes, .. } => Some(Ok(bytes)),
            TenantReply::Refused { refusal, .. } => Some(Err(refusal)),
            _ => None,
        })?;
        ensure!(given == Ok(bytes), "asked for {bytes}, was given {given:?}");
        Ok(())
    }

    pub(crate) fn question(gpu: GpuId, bytes: Bytes) -> TenantRequest {
        TenantRequest::Reserve { request: RequestId(1), gpu, bytes }
    }

    /// Leaves bytes that it has unused.
    pub(crate) fn free(&self, bytes: Bytes) {
        lease::put(&self.page.gpus[usize::from(self.gpu.0)], bytes);
    }

    pub(crate) fn gate(&self) -> GateWord {
        gate(&self.page)
    }

    /// Opens the gate after the memory came in, unless the daemon has changed the gate since it sent this word.
    pub(crate) fn open_gate(&self, word: GateWord) {
        let open = word.with(GateState::Open);
        let gate = &self.page.gate;
        let _ = gate.compare_exchange(word.0, open.0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Writes a state under the present change, as the library's mover does; the word that was there.
    pub(crate) fn set_gate(&self, state: GateState) -> GateWord {
        set_gate(&self.page, state)
    }

    /// Splits the client into the reader of its messages and the rest.
    pub(crate) fn split(self) -> anyhow::Result<(Peer, Member)> {
        let member = Member { sender: self.peer.stream.try_clone()?, page: self.page, gpu: self.gpu };
        Ok((self.peer, member))
    }
}

/// A client for which another thread hears.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) sender: UnixStream,
    page: SharedPage,
    pub(crate) gpu: GpuId,
}

impl Member {
    /// Leaves bytes that it has unused.
    pub(crate) fn free(&self, bytes: Bytes) {
        lease::put(&self.page.gpus[usize::from(self.gpu.0)], bytes);
    }

    pub(crate) fn say(&mut self, request: &TenantRequest) -> anyhow::Result<()> {
        Ok(self.sender.write_all(&codec::encode(request)?)?)
    }

    pub(crate) fn gate(&self) -> GateWord {
        gate(&self.page)
    }

    /// Writes the gate, like [`Client::set_gate`].
    pub(crate) fn set_gate(&self, state: GateState) -> GateWord {
        set_gate(&self.page, state)
    }
}

fn gate(page: &SharedPage) -> GateWord {
    GateWord(page.gate.load(Ordering::Acquire))
}

fn set_gate(page: &SharedPage, state: GateState) -> GateWord {
    let word = gate(page);
    // A word that the daemon wrote meanwhile stays.
    let _ = page
        .gate
        .compare_exchange(word.0, word.with(state).0, Ordering::AcqRel, Ordering::Acquire);
    word
}
