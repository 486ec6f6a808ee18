//! Sessions that always want the card: each uses its turn until the daemon wants the card back.
//!
//! ```text
//!   Wait ─▶ Gate{moving, open} ─▶ Entered ─▶ Gate{closed} ─▶ Released, Wait
//! ```

use anyhow::Context;
use clap::ValueEnum;
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, GateWord, Nanos};
use gpushare_sys::clock;
use rustix::event::epoll;

use super::MEMORY;
use super::timeline::{Moment, What};
use crate::peer::Client;

/// Lie in the messages about turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lie {
    /// A thousand contexts.
    Contexts,
    /// Drains of 2 s.
    Drains,
    /// Moves of 23 GB in 1 s.
    Moves,
}

/// Sessions that want the card, with one client each.
pub(super) struct Turns {
    clients: Vec<Client>,
    /// Whether each of them has the card.
    holds: Vec<bool>,
    lie: Option<Lie>,
    poll: std::os::fd::OwnedFd,
}

impl Turns {
    pub(super) fn new(clients: Vec<Client>, lie: Option<Lie>) -> anyhow::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, client) in clients.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&poll, &client.peer, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { holds: vec![false; clients.len()], clients, lie, poll })
    }

    /// Takes turns for ever, and tells what happens.
    pub(super) fn take(mut self, mut tell: impl FnMut(Moment) -> anyhow::Result<()>) -> anyhow::Result<()> {
        for number in 0..self.clients.len() {
            if self.lie == Some(Lie::Contexts) {
                let gpu = self.clients[number].gpu;
                self.clients[number].peer.say(&TenantRequest::Contexts { gpu, live: 1000 })?;
            }
            tell(self.wait(number)?)?;
        }
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; 64];
        loop {
            let ready = epoll::wait(&self.poll, &mut events, None)?;
            for event in &events[..ready] {
                let number = event.data.u64() as usize;
                self.clients[number].peer.read()?;
                while let Some(reply) = self.clients[number].peer.heard()? {
                    if let TenantReply::Gate { word, .. } = reply {
                        self.gate(number, word, &mut tell)?;
                    }
                }
            }
        }
    }

    fn wait(&mut self, number: usize) -> anyhow::Result<Moment> {
        let client = &mut self.clients[number];
        let word = client.gate();
        let moment = Moment { client: number, at: clock::monotonic(), what: What::Waits };
        client.peer.say(&TenantRequest::Wait { word })?;
        Ok(moment)
    }

    fn gate(
        &mut self,
        number: usize,
        word: GateWord,
        tell: &mut impl FnMut(Moment) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let at = clock::monotonic();
        let client = &mut self.clients[number];
        if word.state() != GateState::Closed {
            if !self.holds[number] {
                self.holds[number] = true;
                tell(Moment { client: number, at, what: What::Granted })?;
            }
            if word.state() == GateState::Moving {
                client.open_gate(word);
                let (moved, took) = match self.lie {
                    Some(Lie::Moves) => (Bytes(23_000_000_000), Nanos::from_secs(1)),
                    _ => (MEMORY, Nanos(100_000)),
                };
                client.peer.say(&TenantRequest::Entered { word, moved, took })?;
            }
        } else if self.holds[number] {
            self.holds[number] = false;
            let drain = match self.lie {
                Some(Lie::Drains) => Nanos::from_secs(2),
                _ => Nanos::ZERO,
            };
            client.peer.say(&TenantRequest::Released { word, drain })?;
            tell(Moment { client: number, at, what: What::Freed })?;
            let waits = self.wait(number)?;
            tell(waits)?;
        }
        Ok(())
    }
}

/// Moments that another process told, one a line. The last line may be cut.
pub(super) fn parsed(lines: &str) -> anyhow::Result<Vec<Moment>> {
    let (whole, _) = lines.rsplit_once('\n').unwrap_or_default();
    let moments = whole
        .lines()
        .map(|line| line.parse().with_context(|| format!("no moment: {line}")));
    moments.collect()
}
