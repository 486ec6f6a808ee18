//! Bug 13: peers that forge what they are, what they have and what they may: pid, size, release, token.
//! None of it changes anything in anybody else's books, and the daemon goes on.
//!
//! The liars speak to the sockets themselves. Beside them a program of a session with a quota holds the
//! card and a second one waits for it: after every lie both are what they were. What another user may try
//! is in the daemon's own tests (`scheduler/tests/it/`), which can start the system's.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use gpushare_proto::admin::{ClientView, LockView, SessionGpuView};
use gpushare_proto::tenant::{
    GpuInfo, Hello, Returning, ReturningGpu, Role, TenantReply, TenantRequest, Welcome,
};
use gpushare_proto::{
    Bytes, ClientId, Epoch, GateState, GateWord, GpuId, Nanos, RequestId, SessionId, Token, codec,
};
use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};

use crate::tenants::{LONG_TURNS, holds, token_file, waits};

const QUOTA: Bytes = Bytes::mib(64);

/// Two honest programs, of which the card has room for one.
struct Honest {
    holder: Program,
    waiter: Program,
}

/// Everything of a session that a lie could change.
type Books = (Option<Bytes>, Vec<SessionGpuView>, Vec<ClientView>, LockView, u64);

fn world() -> anyhow::Result<World> {
    // Room for one quota beside a few contexts, and not for two working sets.
    let flags = ["--memory", "84MiB", "--context-memory", "1MiB"];
    World::with_card_flags(Artifacts::of_tests()?, &flags)
}

impl Honest {
    fn start(world: &World, daemon: &Daemon) -> anyhow::Result<Self> {
        let mut holder = Program::hold(world, &Sharing::limited("holder", QUOTA), "holder")?;
        let mut waiter = Program::hold(world, &Sharing::limited("waiter", QUOTA), "waiter")?;
        for program in [&mut holder, &mut waiter] {
            program.must("alloc x 44MiB")?;
        }
        // It has work in flight, so it does not let go.
        holder.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
        waiter.tell("fill x 2")?;
        daemon
            .until("one holds and one waits", |status| holds(status, "holder") && waits(status, "waiter"))?;
        Ok(Self { holder, waiter })
    }

    fn books(daemon: &Daemon) -> anyhow::Result<[Books; 2]> {
        let books = |name| {
            let view = daemon.session(name)?;
            anyhow::Ok((view.memory_limit_bytes, view.gpus, view.clients, view.lock, view.refusals))
        };
        Ok([books("holder")?, books("waiter")?])
    }

    /// Tells the lies and holds the books against what they were before.
    fn are_unmoved_by(
        &mut self,
        daemon: &Daemon,
        what: &str,
        lie: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before = Self::books(daemon)?;
        let free = self.free()?;
        lie().with_context(|| what.to_owned())?;
        assert_eq!(Self::books(daemon)?, before, "{what}");
        assert_eq!(self.free()?, free, "{what}");
        Ok(())
    }

    fn free(&mut self) -> anyhow::Result<u64> {
        Ok(self.holder.must("mem-info")?.number("free_bytes"))
    }

    /// The turn goes on as if nothing had been, and there is memory to the last byte of the quota.
    fn go_on(mut self) -> anyhow::Result<()> {
        let rest = self.free()?;
        self.holder.must(&format!("alloc rest {rest}; write-value stop 1; sync"))?;
        self.waiter.must("check x 2")?;
        Ok(())
    }
}

/// One end of a conversation.
struct Liar(UnixStream);

impl Liar {
    fn connect(world: &World) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(world.runtime_dir().tenant_socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self(stream))
    }

    fn say(&mut self, request: &TenantRequest) -> anyhow::Result<()> {
        Ok(self.0.write_all(&codec::encode(request)?)?)
    }

    /// The next message. The page that comes with the welcome is of no use to it.
    fn hear(&mut self) -> anyhow::Result<TenantReply> {
        let mut header = [0; codec::HEADER];
        self.0.read_exact(&mut header)?;
        let mut body = vec![0; codec::body_length::<TenantReply>(header)?];
        self.0.read_exact(&mut body)?;
        Ok(codec::decode(&body)?)
    }

    fn hear_until<T>(&mut self, found: impl Fn(TenantReply) -> Option<T>) -> anyhow::Result<T> {
        loop {
            if let Some(found) = found(self.hear()?) {
                return Ok(found);
            }
        }
    }

    fn greet(world: &World, role: Role) -> anyhow::Result<(Self, TenantReply)> {
        let mut liar = Self::connect(world)?;
        liar.say(&TenantRequest::Hello(Hello::new(role)))?;
        let answer = liar.hear()?;
        Ok((liar, answer))
    }

    fn join(
        world: &World,
        token: Option<Token>,
        returning: Option<Returning>,
    ) -> anyhow::Result<(Self, Welcome)> {
        match Self::greet(world, Role::Client { token, returning })? {
            (liar, TenantReply::Welcome(welcome)) => Ok((liar, welcome)),
            (_, TenantReply::Error(failure)) => bail!("{}", failure.message),
            (_, other) => bail!("unexpected: {other:?}"),
        }
    }

    /// On the card that the honest ones use.
    fn on_card(world: &World, daemon: &Daemon) -> anyhow::Result<(Self, GpuId)> {
        let (mut liar, _) = Self::join(world, None, None)?;
        liar.say(&TenantRequest::Attach(card(daemon, Bytes::gib(1 << 20))?))?;
        let gpu = liar.hear_until(|reply| match reply {
            TenantReply::Attached { gpu, .. } => Some(gpu),
            _ => None,
        })?;
        Ok((liar, gpu))
    }

    /// Until everything that was said has been taken in.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.say(&TenantRequest::Gpus)?;
        self.hear_until(|reply| matches!(reply, TenantReply::Gpus(_)).then_some(()))
    }
}

/// The card, with a size of the liar's own.
fn card(daemon: &Daemon, total: Bytes) -> anyhow::Result<GpuInfo> {
    let card = daemon.status()?.gpus.remove(0);
    Ok(GpuInfo { uuid: card.uuid, name: "another name\n\x1b[2J".to_owned(), total })
}

#[test]
fn forged_sizes_cost_only_who_forges_them() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut honest = Honest::start(&world, &daemon)?;
    let total = daemon.status()?.gpus[0].total_bytes;
    let (mut liar, gpu) = Liar::on_card(&world, &daemon)?;
    assert_eq!(daemon.status()?.gpus[0].total_bytes, total, "a card is as large as it was");
    let (request, bytes) = (RequestId(7), Bytes::MAX);
    for lie in [
        TenantRequest::Contexts { gpu, live: u32::MAX },
        TenantRequest::Fixed { gpu, bytes },
        TenantRequest::ReturnFixed { gpu, bytes },
        TenantRequest::Trim { gpu },
        TenantRequest::RefusedLocally { gpu, bytes },
        TenantRequest::Headroom { request, gpu, bytes },
        TenantRequest::Entered { word: GateWord::new(1, GateState::Moving), moved: bytes, took: Nanos(1) },
    ] {
        honest.are_unmoved_by(&daemon, &format!("{lie:?}"), || {
            liar.say(&lie)?;
            liar.settle()
        })?;
    }
    for lie in
        [TenantRequest::Reserve { request, gpu, bytes }, TenantRequest::ReserveFixed { request, gpu, bytes }]
    {
        honest.are_unmoved_by(&daemon, &format!("{lie:?}"), || {
            liar.say(&lie)?;
            let refused = liar.hear_until(|reply| match reply {
                TenantReply::Refused { refusal, .. } => Some(refusal),
                _ => None,
            })?;
            assert_eq!(refused.requested, bytes);
            Ok(())
        })?;
    }
    honest.go_on()
}

/// Of a gate that it never had, of the holder's, and of every change that there could be.
#[test]
fn a_forged_release_takes_the_lock_from_nobody() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut honest = Honest::start(&world, &daemon)?;
    let (mut liar, _) = Liar::on_card(&world, &daemon)?;
    honest.are_unmoved_by(&daemon, "releases", || {
        for change in (0..40).chain([u32::MAX >> 2]) {
            for state in [GateState::Closed, GateState::Moving, GateState::Open, GateState::Idle] {
                let word = GateWord::new(change, state);
                liar.say(&TenantRequest::Released { word, drain: Nanos(u64::MAX) })?;
                liar.say(&TenantRequest::Entered { word, moved: Bytes::MAX, took: Nanos::ZERO })?;
            }
        }
        liar.settle()
    })?;
    honest.go_on()
}

#[test]
fn a_process_that_claims_another_identity_is_a_new_client() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut honest = Honest::start(&world, &daemon)?;
    let view = daemon.session("holder")?;
    let (session, client) = (view.session, view.clients[0].client);
    let LockView::Holding { epoch } = view.lock else {
        bail!("the holder holds nothing: {view:?}");
    };
    let info = card(&daemon, Bytes::gib(1))?;
    for (who, of) in [(client, session), (client, SessionId(999)), (ClientId(999), session)] {
        for holding in [Some(epoch), Some(Epoch { generation: u64::MAX, counter: u64::MAX })] {
            let returning = Returning {
                client: who,
                session: of,
                holding,
                gpus: vec![ReturningGpu { info: info.clone(), used: Bytes::ZERO, contexts: u32::MAX }],
                waiting: true,
            };
            honest.are_unmoved_by(&daemon, &format!("{returning:?}"), || {
                let (_liar, welcome) = Liar::join(&world, None, Some(returning.clone()))?;
                ensure!(welcome.client != client && welcome.session != session, "{welcome:?}");
                let own = daemon.status()?.sessions.into_iter().find(|own| own.session == welcome.session);
                let pids: Vec<u32> =
                    own.context("no session")?.clients.iter().map(|client| client.pid).collect();
                // By the kernel's word, whatever was said.
                ensure!(pids.iter().all(|pid| *pid == std::process::id()), "{pids:?}");
                Ok(())
            })?;
        }
    }
    honest.go_on()
}

#[test]
fn a_forged_token_opens_nothing_and_tells_nothing() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut honest = Honest::start(&world, &daemon)?;
    let text = std::fs::read_to_string(token_file(&honest.holder)?)?;
    let token = Token::from_hex(&text).context("no token")?;
    let mut forged = vec![[0; 32], [0xff; 32]];
    for byte in 0..32 {
        let mut almost = token.0;
        almost[byte] ^= 1 << (byte % 8);
        forged.push(almost);
    }
    honest.are_unmoved_by(&daemon, "tokens", || {
        for forged in forged {
            let refused = Liar::join(&world, Some(Token(forged)), None).map(drop);
            let message = format!("{:#}", refused.err().context("it was let in")?);
            ensure!(message.contains("knows no session with that token"), "{message}");
            let (mut tool, _) = Liar::greet(&world, Role::Tool)?;
            tool.say(&TenantRequest::SessionMemory(Some(Token(forged))))?;
            ensure!(tool.hear()? == TenantReply::SessionMemory(None));
        }
        Ok(())
    })?;
    // The real one is its session's, for whoever has the file.
    let (mut tool, _) = Liar::greet(&world, Role::Tool)?;
    tool.say(&TenantRequest::SessionMemory(Some(token)))?;
    assert!(matches!(tool.hear()?, TenantReply::SessionMemory(Some(account)) if account.name == "holder"));
    let log = daemon.process().stderr();
    assert!(!log.contains(text.trim()), "the log holds a token");
    honest.go_on()
}

#[test]
fn a_frame_that_claims_a_terabyte_is_refused_on_both_sockets() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut honest = Honest::start(&world, &daemon)?;
    let mut terabyte = [0; 9];
    terabyte[..8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    // A body of the right length that is the registration of a name of a terabyte.
    let name = [&[11, 0, 0, 0, 8, 1, 0xfd][..], &(1_u64 << 40).to_le_bytes()].concat();
    let runtime = world.runtime_dir();
    honest.are_unmoved_by(&daemon, "claims", || {
        for claim in [&terabyte[..], &[0xff; 9], &name] {
            for door in [runtime.tenant_socket(), runtime.admin_socket()] {
                for _ in 0..50 {
                    let mut stream = UnixStream::connect(&door)?;
                    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
                    stream.write_all(claim)?;
                    stream.shutdown(std::net::Shutdown::Write)?;
                    // A reason or none, and the end.
                    stream.read_to_end(&mut Vec::new()).or_else(|error| match error.kind() {
                        std::io::ErrorKind::ConnectionReset => Ok(0),
                        _ => Err(error),
                    })?;
                }
            }
            // And of one that was let in before.
            let (mut liar, _) = Liar::join(&world, None, None)?;
            liar.0.write_all(claim)?;
            liar.0.shutdown(std::net::Shutdown::Write)?;
            while liar.hear().is_ok() {}
        }
        Ok(())
    })?;
    honest.go_on()
}
