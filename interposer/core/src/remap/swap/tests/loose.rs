//! Memory that the program creates and maps itself: it counts as soon as it is created, and moves while it is
//! adopted.

use super::moves::{enter, evict};
use super::*;
use crate::driver::types::CUmemHandle;
use crate::remap::chunk::Place;
use crate::remap::vmm::Vmm as _;

const ADDRESS: CUdeviceptr = 7 << 40;

impl World {
    /// Creates and maps memory as a program does; `None` if there is no room for it.
    fn map(&mut self, size: Bytes) -> Option<(Span, CUmemHandle)> {
        let span = Span { address: ADDRESS + self.next_address, size };
        self.next_address += size.0;
        if !self.engine.begin_loose(size) {
            return None;
        }
        let Ok(handle) = self.card.create(Tier::Device, span) else {
            self.engine.end_loose(size);
            return None;
        };
        self.card.map(span, handle).unwrap();
        self.card.set_access(span).unwrap();
        Some((span, handle))
    }

    pub(super) fn adopt(&mut self, size: Bytes) -> Option<Span> {
        let (span, handle) = self.map(size)?;
        self.engine.adopt(span, handle);
        self.truth.insert(span.address, (size, 0));
        Some(span)
    }
}

fn adopted(world: &mut World, size: Bytes) -> Span {
    let span = world.adopt(size).unwrap();
    world.work();
    span
}

#[test]
fn adopted_memory_leaves_and_returns_at_its_address() {
    let mut world = World::with(&[SMALL]);
    let spans = [Bytes::mib(20), Bytes::mib(2)].map(|size| adopted(&mut world, size));
    evict(&mut world, 1, Bytes::ZERO);
    assert_eq!(spans.map(|span| world.engine.place(span.address)), [Some(Place::Pinned); 2]);
    assert_eq!(world.engine.figures().hosted, Bytes::mib(22) + SMALL);
    assert_eq!(enter(&mut world, 2, Bytes::gib(1)), Ok(()));
    world.end();
}

#[test]
fn loose_memory_is_resident_and_immovable_and_needs_room_in_the_goal() {
    let mut world = World::new(false);
    world.set_goal(1, Bytes::mib(64));
    let (span, handle) = world.map(Bytes::mib(40)).unwrap();
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.immovable), (Bytes::mib(40), Bytes::mib(40)));
    assert!(!world.engine.begin_loose(Bytes::mib(40)), "beyond the goal");
    assert_eq!(world.engine.room(), Bytes::mib(24));
    assert_eq!(world.engine.add(Span { address: 1 << 41, size: SMALL }), Birth::NoRoom);
    evict(&mut world, 2, Bytes::ZERO);
    assert_eq!(world.engine.figures().resident, Bytes::mib(40), "it has no chunk");
    world.card.unmap(span).unwrap();
    world.card.release(handle).unwrap();
    world.engine.end_loose(span.size);
    assert_eq!(world.engine.figures().resident, Bytes::ZERO);
    world.end();
}

#[test]
fn memory_that_is_given_up_keeps_its_mapping_and_its_bytes() {
    let mut world = World::with(&[SMALL]);
    let span = adopted(&mut world, Bytes::mib(20));
    evict(&mut world, 1, Bytes::ZERO);
    assert!(world.engine.give_up(span.address).is_none(), "it is away");
    assert_eq!(enter(&mut world, 2, Bytes::gib(1)), Ok(()));
    let (_, value) = world.truth.remove(&span.address).unwrap();
    let (handle, slot) = world.engine.give_up(span.address).unwrap();
    slot.into_iter().for_each(|slot| world.pool.put(slot));
    assert_eq!(world.card.at(span.address), Some(value));
    assert_eq!(world.engine.place(span.address), None);
    evict(&mut world, 3, Bytes::ZERO);
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.immovable), (span.size, span.size));
    // And adopted again.
    world.engine.adopt(span, handle);
    world.truth.insert(span.address, (span.size, value));
    world.run();
    assert_eq!(world.engine.figures().resident, Bytes::ZERO);
    world.end();
}

#[test]
fn memory_that_moves_is_not_given_up_before_its_step_has_ended() {
    let mut world = World::new(false);
    let span = adopted(&mut world, Bytes::mib(20));
    world.pool.set_target(Bytes::mib(128));
    while world.prepare() {}
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    world.go_until(|world| world.engine.is_copying());
    world.set_phase(Phase::Entering);
    world.set_goal(2, Bytes::gib(1));
    assert!(world.engine.give_up(span.address).is_none(), "a copy is under way");
    world.run();
    assert_eq!(world.open(), Ok(()));
    world.truth.remove(&span.address);
    let (handle, slot) = world.engine.give_up(span.address).unwrap();
    slot.into_iter().for_each(|slot| world.pool.put(slot));
    world.card.unmap(span).unwrap();
    world.card.release(handle).unwrap();
    world.engine.end_loose(span.size);
    world.end();
}

#[test]
fn memory_that_is_adopted_by_a_pinned_process_stays() {
    let mut world = World::new(false);
    world.engine.pin_all();
    let span = adopted(&mut world, Bytes::mib(20));
    evict(&mut world, 1, Bytes::ZERO);
    assert_eq!(world.engine.place(span.address), Some(Place::Immovable));
    world.set_phase(Phase::Open);
    world.end();
}

#[test]
fn adopted_memory_is_on_the_card_where_the_process_overflows_it() {
    let mut world = World::with(&[SMALL; 2]);
    let span = adopted(&mut world, SMALL);
    evict(&mut world, 1, Bytes::ZERO);
    world.engine.set_overflows(true);
    assert_eq!(enter(&mut world, 2, SMALL), Ok(()), "the others are mapped from the host");
    assert_eq!(world.engine.place(span.address), Some(Place::Device));
    assert_eq!(world.engine.figures().mapped, SMALL + SMALL);
    // Work names the others, and still they do not take its place.
    let others = world.truth.keys().copied().filter(|address| *address != span.address);
    let others: BTreeSet<_> = others.collect();
    for _ in 0..3 {
        world.set_phase(Phase::Drained);
        world.engine.note_uses(&others);
        world.run();
        assert_eq!(world.engine.place(span.address), Some(Place::Device));
        assert_eq!(enter(&mut world, 2, SMALL), Ok(()));
    }
    // Without room for it the process waits.
    evict(&mut world, 3, Bytes::ZERO);
    assert_eq!(enter(&mut world, 4, Bytes::mib(16)), Err(Obstacle::Goal(Bytes::mib(16))));
    world.engine.pin_all();
    world.run();
    assert!(world.engine.can_open().is_err(), "also if it must not move");
    assert_eq!(enter(&mut world, 5, SMALL), Ok(()));
    assert_eq!(world.engine.place(span.address), Some(Place::Immovable));
    world.end();
}

#[test]
fn adopted_memory_leaves_last_where_the_process_overflows_the_card() {
    let mut world = World::with(&[SMALL; 2]);
    // Smaller than the others, so that it would leave first.
    let span = adopted(&mut world, Bytes::mib(16));
    world.engine.set_overflows(true);
    evict(&mut world, 1, SMALL + Bytes::mib(16));
    assert_eq!(world.engine.place(span.address), Some(Place::Device));
    evict(&mut world, 2, Bytes::ZERO);
    assert_eq!(world.engine.place(span.address), Some(Place::Pinned));
    assert_eq!(enter(&mut world, 3, SMALL + SMALL + SMALL), Ok(()));
    world.end();
}

#[test]
fn adopted_memory_that_the_driver_does_not_take_back_is_freed_again() {
    // The mapping, or the handle.
    for fails in [0, 1] {
        let mut world = World::new(false);
        let span = adopted(&mut world, SMALL);
        world.card.fail_at(&[fails]);
        world.engine.free(span.address);
        assert_eq!(world.engine.end_of(span.address), None, "it has not ended");
        world.truth.remove(&span.address);
        world.run();
        assert_eq!(world.engine.end_of(span.address), Some(Err(VmmError::Refused(1))));
        assert_eq!(world.engine.figures().resident, SMALL);
        assert!(world.engine.give_up(span.address).is_none());
        world.engine.free(span.address);
        world.run();
        assert_eq!(world.engine.end_of(span.address), Some(Ok(())));
        assert_eq!(world.engine.take_gone(), [], "its addresses are the program's");
        world.end();
    }
}
