//! Remapped memory, searched exhaustively: every order of a bounded number of events among three processes on
//! one card, of which two never fit together.
//!
//! ```text
//!   start ─┬─ a process asks, lets go, goes idle ───────────────────┬─ ... so many events deep
//!          ├─ a process moves one chunk, or only says what it has   │
//!          ├─ a process says that it could not move, or dies        │
//!          └─ time passes until the machine wants to be woken ──────┘
//! ```
//!
//! After every event the invariants hold (`World::send`). From every end, once all answer and always have
//! work, each process has its turn with all its memory.

use std::collections::BTreeSet;

use gpushare_proto::{Bytes, ClientId, GateState, GateWord, Nanos};

use super::world::{GPU, Habits, World, gib, ms, plain};
use crate::{Config, Event};

/// Longest time to a turn beside that for which the others may have to catch up: modes, drops and moves that are
/// late.
const DELAYS: Nanos = Nanos::from_secs(6);

#[derive(Clone, Copy, Debug)]
enum Move {
    Asks(ClientId),
    LetsGo(ClientId),
    GoesIdle(ClientId),
    Steps(ClientId),
    Fails(ClientId),
    Dies(ClientId),
    Waits,
}

#[derive(Clone)]
struct Search {
    world: World,
    clients: Vec<ClientId>,
    asked: Vec<(ClientId, GateWord)>,
    may_die: bool,
    path: Vec<Move>,
}

impl Search {
    fn new(needs: &[Bytes], host: Bytes) -> Self {
        let mut world = World::new(Config { quantum: Some(ms(100)), switch_cost: Nanos::ZERO, ..plain() });
        world.send(Event::HostBudget { bytes: host });
        let clients = needs.iter().map(|&bytes| {
            let session = world.session_with(None, bytes > gib(10));
            let client = world.join_remapping(session);
            world.habits(client).answers = false;
            world.attach(client, GPU);
            world.allocate(client, GPU, bytes);
            client
        });
        let clients = clients.collect();
        Self { world, clients, asked: Vec::new(), may_die: true, path: Vec::new() }
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for &client in &self.clients {
            let word = self.world.gate(client);
            match word.state() {
                GateState::Closed if self.world.has_work_in_flight(client) => {
                    moves.push(Move::LetsGo(client));
                }
                GateState::Closed if !self.asked.contains(&(client, word)) => moves.push(Move::Asks(client)),
                GateState::Open => moves.push(Move::GoesIdle(client)),
                _ => {}
            }
            if let Some((_, goal)) = self.world.goal(client, GPU)
                && (goal != self.world.resident(client, GPU) || self.world.overflows(client, GPU))
            {
                moves.extend([Move::Steps(client), Move::Fails(client)]);
            }
        }
        if self.may_die {
            moves.extend(self.clients.first().map(|&client| Move::Dies(client)));
        }
        if self.world.core.next_deadline().is_some() {
            moves.push(Move::Waits);
        }
        moves
    }

    fn after(&self, one: Move) -> Self {
        let mut next = self.clone();
        next.world.now += ms(1);
        next.path.push(one);
        match one {
            Move::Asks(client) => {
                next.asked.push((client, next.world.gate(client)));
                next.world.arrives(client);
            }
            Move::LetsGo(client) => next.world.lets_go(client, ms(2)),
            Move::GoesIdle(client) => next.world.goes_idle(client),
            Move::Steps(client) => next.world.step(client, GPU),
            Move::Fails(client) => {
                if let Some((number, _)) = next.world.goal(client, GPU) {
                    let refused = Bytes::ZERO;
                    next.world.send(Event::MoveFailed { client, gpu: GPU, number, refused });
                }
            }
            Move::Dies(client) => {
                next.may_die = false;
                next.clients.retain(|&other| other != client);
                next.world.dies(client);
            }
            Move::Waits => {
                let deadline = next.world.core.next_deadline().unwrap_or_default();
                next.world.now = next.world.now.max(deadline);
                next.world.send(Event::Tick);
            }
        }
        next
    }

    /// Every order of `depth` more events; how many orders there are.
    fn orders(&self, depth: u32) -> u64 {
        let moves = self.moves();
        if depth == 0 || moves.is_empty() {
            self.clone().everybody_has_a_turn();
            return 1;
        }
        moves.into_iter().map(|one| self.after(one).orders(depth - 1)).sum()
    }

    fn everybody_has_a_turn(mut self) {
        for &client in &self.clients {
            *self.world.habits(client) = Habits { busy: true, ..Habits::default() };
        }
        for client in self.clients.clone() {
            if self.world.gate(client).state() == GateState::Closed && self.world.has_work_in_flight(client) {
                self.world.lets_go(client, ms(2));
            }
            self.world.arrives(client);
            self.world.step(client, GPU);
        }
        // Each of the others catches up with all that one may have had so far.
        let had = self.world.now - World::START + Nanos::from_secs(1);
        let end = self.world.now + Nanos(had.0 * self.clients.len() as u64) + DELAYS;
        let mut waiting: BTreeSet<ClientId> = self.clients.iter().copied().collect();
        while !waiting.is_empty() {
            waiting.retain(|&client| {
                let reached = self.world.resident(client, GPU) + self.world.mapped(client, GPU);
                let whole = reached == self.world.used(client, GPU);
                !(self.world.passes(client) && whole)
            });
            assert!(
                waiting.is_empty() || self.world.now < end,
                "{waiting:?} had no turn with all memory after {:?}: {:?}",
                self.path,
                self.world.core.view.rows(GPU),
            );
            self.world.run_for(ms(10));
        }
    }
}

#[test]
fn three_processes_have_their_turns_with_all_memory_whatever_the_order() {
    let orders = Search::new(&[gib(6), gib(5), gib(6)], gib(100)).orders(5);
    assert!(orders > 1000, "{orders}");
}

#[test]
fn the_same_with_hardly_enough_host_memory() {
    let orders = Search::new(&[gib(6), gib(5), gib(6)], gib(9)).orders(4);
    assert!(orders > 100, "{orders}");
}

#[test]
fn a_process_larger_than_the_card_and_others_have_their_turns_whatever_the_order() {
    let orders = Search::new(&[gib(12), gib(5), gib(6)], gib(100)).orders(4);
    assert!(orders > 100, "{orders}");
    let orders = Search::new(&[gib(12), gib(11)], gib(100)).orders(5);
    assert!(orders > 100, "{orders}");
}

#[test]
#[ignore = "takes minutes; run it by cargo test -p gpushare-core deeper_ -- --ignored"]
fn deeper_three_processes_have_their_turns_with_all_memory_whatever_the_order() {
    let orders = Search::new(&[gib(6), gib(5), gib(6)], gib(100)).orders(7);
    assert!(orders > 100_000, "{orders}");
}
