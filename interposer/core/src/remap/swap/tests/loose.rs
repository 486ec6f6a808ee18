//! Memory that the program creates and maps itself: it counts as soon as it is created, and moves while it is
//! adopted.

use super::moves::{enter, evict};
use super::*;
use crate::remap::chunk::{Backing, Place};
use crate::remap::vmm::Vmm as _;

const ADDRESS: CUdeviceptr = 7 << 40;

impl World {
    /// Creates and maps memory as a program does; `None` if there is no room for it.
    fn map(&mut self, size: Bytes) -> Option<(Span, Backing)> {
        let span = Span { address: ADDRESS + self.next_address, size };
        self.next_address += size.0;
        if !self.engine.begin_loose(size) {
            return None;
        }
        let Ok(handle) = self.card.create(Tier::Device, span) else {
            self.engine.end_loose(Tier::Device, size);
            return None;
        };
        self.card.map(span, handle).unwrap();
        self.card.set_access(span).unwrap();
        Some((span, Backing { tier: Tier::Device, handle }))
    }

    /// Gives memory up to the program.
    pub(super) fn give_up(&mut self, address: CUdeviceptr) -> Option<Backing> {
        let (backing, slot) = self.engine.give_up(address)?;
        slot.into_iter().for_each(|slot| self.pool.put(slot));
        Some(backing)
    }

    /// Unmaps and releases loose memory as a program does.
    fn end_loose(&mut self, span: Span, Backing { tier, handle }: Backing) {
        self.card.unmap(span).unwrap();
        self.card.release(handle).unwrap();
        self.engine.end_loose(tier, span.size);
    }

    pub(super) fn adopt(&mut self, size: Bytes) -> Option<Span> {
        let (span, backing) = self.map(size)?;
        self.engine.adopt(span, backing);
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
    let (span, backing) = world.map(Bytes::mib(40)).unwrap();
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.immovable), (Bytes::mib(40), Bytes::mib(40)));
    assert!(!world.engine.begin_loose(Bytes::mib(40)), "beyond the goal");
    assert_eq!(world.engine.room(), Bytes::mib(24));
    assert_eq!(world.engine.add(Span { address: 1 << 41, size: SMALL }), Birth::NoRoom);
    evict(&mut world, 2, Bytes::ZERO);
    assert_eq!(world.engine.figures().resident, Bytes::mib(40), "it has no chunk");
    world.end_loose(span, backing);
    assert_eq!(world.engine.figures().resident, Bytes::ZERO);
    world.end();
}

#[test]
fn memory_that_is_given_up_keeps_its_mapping_and_its_bytes() {
    let mut world = World::with(&[SMALL]);
    let span = adopted(&mut world, Bytes::mib(20));
    evict(&mut world, 1, Bytes::ZERO);
    assert!(world.give_up(span.address).is_none(), "it is away");
    assert_eq!(enter(&mut world, 2, Bytes::gib(1)), Ok(()));
    let (_, value) = world.truth.remove(&span.address).unwrap();
    let backing = world.give_up(span.address).unwrap();
    assert_eq!(world.card.at(span.address), Some(value));
    assert_eq!(world.engine.place(span.address), None);
    evict(&mut world, 3, Bytes::ZERO);
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.immovable), (span.size, span.size));
    // And adopted again.
    world.engine.adopt(span, backing);
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
    let backing = world.give_up(span.address).unwrap();
    world.end_loose(span, backing);
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
fn adopted_memory_is_mapped_from_the_host_where_the_process_overflows_the_card() {
    let mut world = World::with(&[SMALL]);
    let span = adopted(&mut world, SMALL);
    evict(&mut world, 1, Bytes::ZERO);
    world.engine.set_overflows(true);
    assert_eq!(enter(&mut world, 2, Bytes::ZERO), Ok(()), "the card has room for nothing");
    assert_eq!(world.engine.place(span.address), Some(Place::HostMapped));
    assert_eq!(world.engine.figures().mapped, SMALL + SMALL);
    world.engine.set_overflows(false);
    assert_eq!(enter(&mut world, 3, Bytes::gib(1)), Ok(()));
    assert_eq!(world.engine.place(span.address), Some(Place::Device));
    assert_eq!(world.engine.figures().mapped, Bytes::ZERO);
    world.end();
}

#[test]
fn memory_that_the_program_gets_back_while_it_is_mapped_from_the_host_stays_there_until_it_is_adopted_again()
{
    let mut world = World::new(false);
    let span = adopted(&mut world, SMALL);
    evict(&mut world, 1, Bytes::ZERO);
    world.engine.set_overflows(true);
    assert_eq!(enter(&mut world, 2, Bytes::ZERO), Ok(()));
    let (_, value) = world.truth.remove(&span.address).unwrap();
    let backing = world.give_up(span.address).unwrap();
    assert_eq!(backing.tier, Tier::Host);
    let figures = world.engine.figures();
    assert_eq!([figures.resident, figures.mapped, figures.hosted], [Bytes::ZERO, SMALL, SMALL]);
    world.engine.set_overflows(false);
    evict(&mut world, 3, Bytes::ZERO);
    assert_eq!(enter(&mut world, 4, Bytes::gib(1)), Ok(()));
    assert_eq!(world.card.at(span.address), Some(value));
    world.engine.adopt(span, backing);
    world.truth.insert(span.address, (span.size, value));
    evict(&mut world, 5, Bytes::ZERO);
    assert_eq!(enter(&mut world, 6, Bytes::gib(1)), Ok(()));
    assert_eq!(world.engine.place(span.address), Some(Place::Device));
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
