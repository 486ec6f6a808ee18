//! One end of a conversation with a daemon: what speaks its language, or only begins to.
//!
//! For questions that come too often to start `gpushare-ctl` for each, and for peers that no tool of ours
//! would be.

use std::io::{Read, Write};
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use gpushare_proto::admin::{AdminReply, AdminRequest, Status};
use gpushare_proto::codec::{self, Message};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{GpuChoice, Hello, NewSession, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, SessionId, Token};

/// How long one step may take.
const STEP: Duration = Duration::from_secs(10);

/// A connection on which requests go out and replies come in.
#[derive(Debug)]
pub struct Peer<Request, Reply> {
    stream: UnixStream,
    buffer: Vec<u8>,
    kinds: PhantomData<(Request, Reply)>,
}

/// Connection to the administrator's socket of the daemon.
pub type Administrator = Peer<AdminRequest, AdminReply>;
/// Connection to the tenants' socket of the daemon.
pub type Tenant = Peer<TenantRequest, TenantReply>;

impl<Request: Message, Reply: Message> Peer<Request, Reply> {
    fn connect(path: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("nobody is at {}", path.display()))?;
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        Ok(Self { stream, buffer: Vec::new(), kinds: PhantomData })
    }

    /// Says something.
    pub fn say(&mut self, request: &Request) -> anyhow::Result<()> {
        self.write(&codec::encode(request)?)
    }

    /// Writes bytes, whether or not they are a message.
    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Bounds every step from now on.
    pub fn set_patience(&self, patience: Duration) -> anyhow::Result<()> {
        self.stream.set_write_timeout(Some(patience))?;
        Ok(self.stream.set_read_timeout(Some(patience))?)
    }

    /// The next reply.
    pub fn hear(&mut self) -> anyhow::Result<Reply> {
        loop {
            if let Some((reply, read)) = codec::split(&self.buffer)? {
                self.buffer.drain(..read);
                return Ok(reply);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => bail!("the daemon closed the connection"),
                read => self.buffer.extend(&bytes[..read]),
            }
        }
    }
}

impl Administrator {
    /// On the administrator's socket, before anything is said.
    pub fn at(runtime: &RuntimeDir) -> anyhow::Result<Self> {
        Self::connect(&runtime.admin_socket())
    }

    /// On the administrator's socket, introduced.
    pub fn of(runtime: &RuntimeDir) -> anyhow::Result<Self> {
        let mut peer = Self::at(runtime)?;
        peer.say(&AdminRequest::Hello(Hello::new(Role::Tool)))?;
        match peer.hear()? {
            AdminReply::Ready { .. } => Ok(peer),
            other => bail!("the daemon answered a hello with {other:?}"),
        }
    }

    /// How things are.
    pub fn status(&mut self) -> anyhow::Result<Status> {
        self.say(&AdminRequest::Status)?;
        match self.hear()? {
            AdminReply::Status(status) => Ok(*status),
            other => bail!("the daemon answered {other:?} for its status"),
        }
    }
}

impl Tenant {
    /// On the tenants' socket, before anything is said.
    pub fn at(runtime: &RuntimeDir) -> anyhow::Result<Self> {
        Self::connect(&runtime.tenant_socket())
    }

    /// On the tenants' socket, introduced as a tool.
    pub fn tool(runtime: &RuntimeDir) -> anyhow::Result<Self> {
        let mut peer = Self::at(runtime)?;
        peer.say(&TenantRequest::Hello(Hello::new(Role::Tool)))?;
        match peer.hear()? {
            TenantReply::Ready { .. } => Ok(peer),
            other => bail!("the daemon answered a hello with {other:?}"),
        }
    }

    /// Registers a session that lasts as long as this process.
    pub fn register(&mut self, name: &str, memory: Bytes) -> anyhow::Result<(SessionId, Token)> {
        self.say(&TenantRequest::Register(NewSession {
            name: Some(name.to_owned()),
            terms: Terms::with_memory(Some(memory)),
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        }))?;
        match self.hear()? {
            TenantReply::Session { session, token, .. } => Ok((session, token)),
            other => bail!("the daemon answered {other:?} to a registration"),
        }
    }
}
