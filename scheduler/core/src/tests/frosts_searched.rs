//! Frozen sessions, searched exhaustively: every order of a bounded number of events among a program whose
//! memory never moves and a remapped one on one card.
//!
//! ```text
//!   start ─┬─ a session is to be frozen, or no longer ────────────────────────┬─ ... so many events deep
//!          ├─ a process asks, lets go, calls the driver, parks, moves, dies   │
//!          ├─ an attempt of the driver ends in each of its ways               │
//!          └─ time passes until the machine wants to be woken ────────────────┘
//! ```
//!
//! After every event the invariants hold (`World::send`). From every end, once all answer, every process that
//! has work runs, whatever was frozen.

use gpushare_proto::{Bytes, ClientId, GateState, Nanos, SessionId};

use super::world::{GPU, Habits, World, gib, ms, plain};
use crate::session::frost::Stage;
use crate::{Config, Event, FreezeEnd, ThawEnd};

#[derive(Clone, Copy, Debug)]
enum Move {
    Freezes(SessionId, bool),
    Asks(ClientId),
    LetsGo(ClientId),
    GoesIdle(ClientId),
    Calls(ClientId),
    Parks(ClientId),
    Steps(ClientId),
    EndsFreeze(ClientId, FreezeEnd),
    EndsThaw(ClientId, ThawEnd),
    Dies(ClientId),
    Waits,
}

#[derive(Clone)]
struct Search {
    world: World,
    programs: Vec<(SessionId, ClientId)>,
    may_die: bool,
    path: Vec<Move>,
}

impl Search {
    fn new() -> Self {
        let mut world = World::new(Config { quantum: Some(ms(100)), switch_cost: Nanos::ZERO, ..plain() });
        world.send(Event::HostBudget { bytes: gib(100) });
        let native = world.program(Bytes::ZERO);
        assert!(world.allocate_fixed(native.1, GPU, gib(4)));
        let remapped = world.remapping_program(gib(3));
        let programs = vec![native, remapped];
        for &(_, client) in &programs {
            world.habits(client).answers = false;
            world.send(Event::Overhead { client, gpu: GPU, bytes: Some(Bytes::mib(512)) });
            world.send(Event::Freezable { client, obstacle: None });
        }
        Self { world, programs, may_die: true, path: Vec::new() }
    }

    fn stage(&self, client: ClientId) -> Stage {
        self.world.core.view.sessions.client(client).unwrap().frost.stage()
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for &(session, client) in &self.programs {
            let wants = self.world.core.view.sessions.get(session).unwrap().wants_frost;
            moves.push(Move::Freezes(session, !wants));
            let word = self.world.gate(client);
            match word.state() {
                GateState::Closed if self.world.has_work_in_flight(client) => {
                    moves.push(Move::LetsGo(client));
                }
                GateState::Closed => moves.push(Move::Asks(client)),
                GateState::Open => moves.push(Move::GoesIdle(client)),
                _ => {}
            }
            match self.stage(client) {
                Stage::Parking(_) => moves.extend([Move::Parks(client), Move::Calls(client)]),
                Stage::Parked | Stage::Frozen => moves.push(Move::Calls(client)),
                Stage::Freezing => {
                    let ends = [FreezeEnd::Frozen, FreezeEnd::Refused, FreezeEnd::BrokeOff, FreezeEnd::Busy];
                    moves.extend(ends.map(|end| Move::EndsFreeze(client, end)));
                    moves.push(Move::EndsFreeze(client, FreezeEnd::TrialFailed { gpu: GPU }));
                    moves.push(Move::Calls(client));
                }
                Stage::Thawing(_) => {
                    let ends = [ThawEnd::Thawed, ThawEnd::BrokeOff, ThawEnd::NoRoom, ThawEnd::Lost];
                    moves.extend(ends.map(|end| Move::EndsThaw(client, end)));
                }
                Stage::Warm | Stage::Queued(_) | Stage::Due(..) | Stage::Lost => {}
            }
            if let Some((_, goal)) = self.world.goal(client, GPU)
                && goal != self.world.resident(client, GPU)
            {
                moves.push(Move::Steps(client));
            }
        }
        if self.may_die {
            moves.extend(self.programs.first().map(|&(_, client)| Move::Dies(client)));
        }
        if self.world.core.next_deadline().is_some() {
            moves.push(Move::Waits);
        }
        moves
    }

    fn after(&self, one: Move) -> Self {
        let mut next = self.clone();
        let world = &mut next.world;
        world.now += ms(1);
        match one {
            Move::Freezes(session, wanted) => world.send(Event::Freeze { session, wanted }),
            Move::Asks(client) => world.arrives(client),
            Move::LetsGo(client) => world.lets_go(client, ms(2)),
            Move::GoesIdle(client) => world.goes_idle(client),
            Move::Calls(client) => world.send(Event::Called { client }),
            Move::Parks(client) => world.send(Event::Parked { client }),
            Move::Steps(client) => world.step(client, GPU),
            Move::EndsFreeze(client, end) => world.send(Event::FreezeEnded { client, end }),
            Move::EndsThaw(client, end) => world.send(Event::ThawEnded { client, end }),
            Move::Dies(client) => {
                next.may_die = false;
                next.programs.retain(|&(_, other)| other != client);
                world.dies(client);
            }
            Move::Waits => {
                let deadline = world.core.next_deadline().unwrap_or_default();
                world.now = world.now.max(deadline);
                world.send(Event::Tick);
            }
        }
        next.path.push(one);
        next
    }

    /// Every order of `depth` more events; how many orders there are.
    fn orders(&self, depth: u32) -> u64 {
        if depth == 0 {
            self.clone().everybody_runs();
            return 1;
        }
        self.moves().into_iter().map(|one| self.after(one).orders(depth - 1)).sum()
    }

    fn everybody_runs(mut self) {
        for &(_, client) in &self.programs {
            *self.world.habits(client) = Habits { busy: true, ..Habits::default() };
            if self.world.gate(client).state() == GateState::Closed && self.world.has_work_in_flight(client) {
                self.world.lets_go(client, ms(2));
            }
            match self.stage(client) {
                Stage::Freezing => {
                    self.world.send(Event::FreezeEnded { client, end: FreezeEnd::BrokeOff });
                }
                Stage::Thawing(_) => self.world.send(Event::ThawEnded { client, end: ThawEnd::Thawed }),
                _ => {}
            }
            self.world.arrives(client);
            self.world.step(client, GPU);
        }
        let mut waiting: Vec<ClientId> = self.programs.iter().map(|&(_, client)| client).collect();
        let end = self.world.now + Nanos::from_secs(10);
        while !waiting.is_empty() {
            waiting.retain(|&client| !self.world.passes(client));
            assert!(
                waiting.is_empty() || self.world.now < end,
                "{waiting:?} did not run after {:?}: {:?}",
                self.path,
                waiting.iter().map(|&client| self.stage(client)).collect::<Vec<_>>(),
            );
            self.world.run_for(ms(10));
        }
    }
}

#[test]
fn every_process_with_work_runs_whatever_was_frozen() {
    let orders = Search::new().orders(4);
    assert!(orders > 500, "{orders}");
}

#[test]
fn a_frozen_process_comes_back_whatever_happens_on_its_way() {
    let mut search = Search::new();
    let (session, client) = search.programs[0];
    let way = [
        Move::Freezes(session, true),
        Move::LetsGo(client),
        Move::Parks(client),
        Move::EndsFreeze(client, FreezeEnd::Frozen),
    ];
    for one in way {
        search = search.after(one);
    }
    assert_eq!(search.stage(client), Stage::Frozen);
    let orders = search.orders(4);
    assert!(orders > 500, "{orders}");
}

#[test]
#[ignore = "takes minutes; run it by cargo test -p gpushare-core deeper_ -- --ignored"]
fn deeper_every_process_with_work_runs_whatever_was_frozen() {
    let orders = Search::new().orders(6);
    assert!(orders > 50_000, "{orders}");
}
