//! Events that no process meant: wrong words, wrong numbers, and figures that lie either way.

use gpushare_proto::{Bytes, ClientId, GateState, GateWord, GpuId, Nanos, RequestId, SessionId};
use proptest::prelude::*;

use super::{gpu, nth};
use crate::tests::world::{World, gib};
use gpushare_proto::page::GoalNumber;
use gpushare_proto::tenant::Residence;

use crate::Event;

/// Material for an event that no process meant. `kind` chooses the event, which uses some of the fields.
#[derive(Clone, Debug)]
pub(in crate::tests) struct Forgery {
    kind: u8,
    who: usize,
    gpu: GpuId,
    /// Distance of the change number from the current one.
    off: i32,
    state: GateState,
    amount: u64,
    time: u64,
}

pub(super) fn forgery() -> impl Strategy<Value = Forgery> {
    let state = [GateState::Closed, GateState::Moving, GateState::Open, GateState::Idle];
    let number = || prop_oneof![0..gib(20).0, Just(u64::MAX), any::<u64>()];
    (0_u8..18, 0_usize..8, gpu(), -1..=1, prop::sample::select(state.to_vec()), number(), number()).prop_map(
        |(kind, who, gpu, off, state, amount, time)| Forgery { kind, who, gpu, off, state, amount, time },
    )
}

pub(super) fn forge(world: &mut World, forgery: &Forgery) {
    let Forgery { kind, who, gpu, off, state, amount, time } = *forgery;
    let known = nth(world.clients(), who);
    let client = known.unwrap_or(ClientId(u64::MAX));
    let change = known.map_or(0, |client| world.gate(client).change().wrapping_add_signed(off));
    let (word, bytes, request) = (GateWord::new(change, state), Bytes(amount), RequestId(amount));
    world.send(match kind {
        0 => Event::Wait { client, word },
        1 => Event::Entered { client, word, moved: bytes, took: Nanos(time) },
        2 => Event::Released { client, word, drain: Nanos(time) },
        11 => Event::NearlyDrained { client, word },
        3 => Event::Recalled { client, gpu, bytes },
        4 => Event::LeaseSeen { client, gpu, free: bytes },
        5 => Event::Reserve { client, gpu, request, bytes },
        6 => Event::Contexts { client, gpu, live: (amount % 6) as u32 },
        7 => Event::Fixed { client, gpu, bytes },
        8 => Event::Returned { client, gpu, bytes },
        17 => Event::ReservePiece { client, gpu, request, bytes },
        9 => Event::ReserveFixed { client, gpu, request, bytes },
        12 => Event::Resides {
            client,
            gpu,
            seen: GoalNumber(time % 8),
            residence: Residence {
                resident: bytes,
                hosted: Bytes(time),
                pinned: Bytes(amount / 2),
                mapped: Bytes(time / 2),
                ..Residence::default()
            },
        },
        13 => Event::Resides {
            client,
            gpu,
            seen: GoalNumber(time),
            residence: Residence {
                resident: Bytes::ZERO,
                hosted: bytes,
                unbacked: Bytes(amount / 2),
                pinned: bytes,
                prepared: Bytes(time),
                mapped: bytes,
                copied_out: Bytes(amount),
            },
        },
        14 => Event::MoveFailed { client, gpu, number: GoalNumber(time % 8), refused: bytes },
        15 => Event::Remaps { client },
        10 => Event::RefusedHere { client, gpu, bytes, times: amount },
        _ => Event::ClientJoined { client: ClientId(time), session: SessionId(time), holding: None },
    });
}
