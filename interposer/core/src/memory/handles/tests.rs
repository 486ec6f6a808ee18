//! Uses of pieces, and memory that has a name.

use super::*;
use crate::driver::types::AllocationProperties;
use crate::remap::chunk::Backing;
use crate::remap::vmm::{Span, Tier};

const PIECE: Ended = fixed(0, 0x1000);
const OTHER: Ended = fixed(1, 0x2000);

const fn fixed(device: CUdevice, bytes: u64) -> Ended {
    Ended {
        charge: Charge { device, bytes: Bytes(bytes), kind: MemoryKind::Fixed },
        held: None,
    }
}

fn one() -> Handles {
    let mut handles = Handles::default();
    handles.create(7, PIECE.charge);
    handles
}

fn tile(from: u64, size: u64) -> Tile {
    Tile { resource: 5, kind: 0, plane: [0; 2], from: [from, 0, 0], size: [size, 64, 1] }
}

#[test]
fn a_piece_lives_until_its_handle_is_released() {
    let mut handles = one();
    assert_eq!(handles.release(7), Some(PIECE));
    assert_eq!(handles.release(7), None);
}

#[test]
fn a_released_piece_lives_on_while_it_is_mapped() {
    let mut handles = one();
    handles.map(0x10000, Bytes(0x1000), 7);
    handles.map(0x20000, Bytes(0x1000), 7);
    assert_eq!(handles.release(7), None);
    assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
    assert_eq!(handles.unmap(0x20000, Bytes(0x1000)), [PIECE]);
}

#[test]
fn one_range_may_hold_several_pieces() {
    let mut handles = one();
    handles.create(8, OTHER.charge);
    handles.map(0x10000, Bytes(0x1000), 7);
    handles.map(0x11000, Bytes(0x2000), 8);
    assert_eq!((handles.release(7), handles.release(8)), (None, None));
    assert_eq!(handles.unmap(0x10000, Bytes(0x3000)), [PIECE, OTHER]);
}

#[test]
fn a_handle_given_out_again_names_the_new_piece() {
    let mut handles = one();
    handles.map(0x10000, Bytes(0x1000), 7);
    assert_eq!(handles.release(7), None);
    handles.create(7, OTHER.charge);
    assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), [PIECE]);
    assert_eq!(handles.release(7), Some(OTHER));
}

#[test]
fn a_retained_handle_keeps_its_piece() {
    let mut handles = one();
    handles.map(0x10000, Bytes(0x1000), 7);
    handles.retain(9, 0x10fff);
    handles.retain(9, 0x11000);
    assert_eq!(handles.release(7), None);
    assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
    assert_eq!(handles.release(9), Some(PIECE));
}

#[test]
fn a_sparse_array_keeps_its_pieces_until_unmapped_or_destroyed() {
    let mut handles = one();
    handles.create(8, OTHER.charge);
    assert_eq!(handles.tile(tile(0, 64), Some(7)), []);
    assert_eq!(handles.tile(tile(64, 64), Some(8)), []);
    assert_eq!((handles.release(7), handles.release(8)), (None, None));
    assert_eq!(handles.tile(tile(0, 64), None), [PIECE]);
    assert!(handles.take_parts(4).is_empty());
    let parts = handles.take_parts(5);
    assert_eq!(handles.end(parts), [OTHER]);
}

#[test]
fn several_parts_may_be_unmapped_at_once() {
    let mut handles = one();
    handles.create(8, OTHER.charge);
    handles.tile(tile(0, 64), Some(7));
    handles.tile(tile(64, 64), Some(8));
    handles.tile(Tile { plane: [1, 0], ..tile(0, 64) }, Some(8));
    assert_eq!((handles.release(7), handles.release(8)), (None, None));
    assert_eq!(handles.tile(tile(0, 128), None), [PIECE]);
    assert_eq!(handles.tile(Tile { plane: [1, 0], ..tile(0, 128) }, None), [OTHER]);
}

#[test]
fn a_piece_is_charged_while_a_part_of_it_is_mapped() {
    let mut handles = one();
    handles.tile(tile(0, 128), Some(7));
    assert_eq!(handles.release(7), None);
    assert_eq!(handles.tile(tile(0, 64), None), []);
    let parts = handles.take_parts(5);
    assert_eq!(handles.end(parts), [PIECE]);
}

#[test]
fn an_array_under_a_reused_handle_keeps_its_pieces() {
    let mut handles = one();
    handles.create(8, OTHER.charge);
    handles.tile(tile(0, 64), Some(7));
    let parts = handles.take_parts(5);
    handles.tile(tile(0, 64), Some(8));
    assert_eq!((handles.release(7), handles.release(8)), (None, None));
    assert_eq!(handles.end(parts), [PIECE]);
    let parts = handles.take_parts(5);
    handles.put_back(parts);
    assert_eq!(handles.tile(tile(0, 64), None), [OTHER]);
}

#[test]
fn unknown_handles_are_not_charged() {
    let mut handles = Handles::default();
    handles.map(0x10000, Bytes(0x1000), 7);
    handles.retain(7, 0x10000);
    assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
    assert_eq!(handles.release(7), None);
}

const SIZE: Bytes = Bytes(0x1000);
const MOVABLE: Charge = Charge::movable(0, SIZE);
const PROPERTIES: AllocationProperties = AllocationProperties::new(1, 1, [1, 0]);

const fn span(address: CUdeviceptr, pieces: u64) -> Span {
    Span { address, size: Bytes(SIZE.0 * pieces) }
}

/// Memory of a name by the driver's handle `held`, which is mapped at an address.
fn mapped_own(handles: &mut Handles, held: CUmemHandle, address: CUdeviceptr) -> CUmemHandle {
    let name = handles.create_own(held, MOVABLE, PROPERTIES);
    handles.map(address, SIZE, name);
    name
}

/// Adopts what can be adopted in a range, and returns where that is.
fn adopt(handles: &mut Handles, range: Span) -> Vec<CUdeviceptr> {
    let adoptable = handles.adoptable_in(range, 0);
    adoptable.iter().for_each(|&adoptable| handles.note_adopted(adoptable));
    adoptable.iter().map(|adoptable| adoptable.span.address).collect()
}

const fn on_card(handle: CUmemHandle) -> Backing {
    Backing { tier: Tier::Device, handle }
}

fn ended(held: Option<CUmemHandle>) -> Ended {
    Ended { charge: MOVABLE, held: held.map(on_card) }
}

#[test]
fn a_name_stands_for_the_drivers_handle_and_is_given_out_once() {
    let mut handles = Handles::default();
    let first = handles.create_own(7, MOVABLE, PROPERTIES);
    assert!(is_name(first) && !is_name(7));
    assert_eq!((handles.with_driver(first), handles.with_driver(7)), (Some(7), Some(7)));
    assert_eq!(handles.properties(first), Some(PROPERTIES));
    assert_eq!(handles.release(first), Some(ended(Some(7))));
    assert_eq!((handles.with_driver(first), handles.properties(first)), (None, None));
    let second = handles.create_own(7, MOVABLE, PROPERTIES);
    assert_ne!(first, second, "the driver's handle is the same");
}

#[test]
fn what_is_mapped_once_and_whole_is_adopted() {
    let mut handles = Handles::default();
    let once = mapped_own(&mut handles, 7, 0x10000);
    let twice = mapped_own(&mut handles, 8, 0x11000);
    handles.map(0x50000, SIZE, twice);
    let part = handles.create_own(9, MOVABLE, PROPERTIES);
    handles.map(0x12000, Bytes(0x800), part);
    handles.create(10, PIECE.charge);
    handles.map(0x13000, SIZE, 10);
    mapped_own(&mut handles, 11, 0x14000);
    let exported = mapped_own(&mut handles, 12, 0x15000);
    handles.keep_named(exported);
    assert_eq!(handles.adoptable_in(span(0x10000, 8), 1), [], "access of another device");
    assert_eq!(handles.adoptable_in(Span { size: Bytes(0x800), ..span(0x10000, 1) }, 0), [], "a part");
    assert_eq!(adopt(&mut handles, span(0x10000, 8)), [0x10000, 0x14000]);
    assert_eq!(adopt(&mut handles, span(0x10000, 8)), [0_u64; 0], "adopted already");
    assert_eq!((handles.with_driver(once), handles.with_driver(twice)), (None, Some(8)));
    // The second mapping is gone, and nothing else remembers the memory.
    assert_eq!(handles.unmap(0x50000, SIZE), []);
    assert_eq!(adopt(&mut handles, span(0x11000, 1)), [0x11000]);
}

#[test]
fn memory_that_a_peer_may_use_stays() {
    // The peer's access comes first, or last.
    for calls in [[1, 0], [0, 1]] {
        let mut handles = Handles::default();
        mapped_own(&mut handles, 7, 0x10000);
        for device in calls {
            for adopted in handles.adopted_in(span(0x10000, 1)) {
                handles.give_to_driver(adopted, on_card(8));
            }
            handles.keep_but(span(0x10000, 1), Some(device));
            let adoptable = handles.adoptable_in(span(0x10000, 1), device);
            adoptable.into_iter().for_each(|adoptable| handles.note_adopted(adoptable));
        }
        assert_eq!(handles.adopted_in(span(0x10000, 1)), [], "{calls:?}");
        assert_eq!(adopt(&mut handles, span(0x10000, 1)), [0_u64; 0], "access of its own device again");
    }
}

#[test]
fn adopted_memory_is_found_by_address_and_by_name() {
    let mut handles = Handles::default();
    let name = mapped_own(&mut handles, 7, 0x10000);
    mapped_own(&mut handles, 8, 0x11000);
    adopt(&mut handles, span(0x10000, 2));
    let at = |found: Vec<Adopted>| found.iter().map(|adopted| adopted.span.address).collect::<Vec<_>>();
    assert_eq!(at(handles.adopted_of(name)), [0x10000]);
    assert_eq!(at(handles.adopted_in(Span { address: 0x10fff, size: Bytes(2) })), [0x11000, 0x10000]);
    assert_eq!(at(handles.adopted_in(span(0x12000, 1))), [0_u64; 0]);
    let adopted = handles.adopted_of(name)[0];
    handles.give_to_driver(adopted, on_card(9));
    assert_eq!((handles.with_driver(name), handles.adopted_of(name)), (Some(9), vec![]));
    assert_eq!(handles.release(name), None);
    assert_eq!(handles.unmap(0x10000, SIZE), [ended(Some(9))]);
}

#[test]
fn a_range_ends_with_its_mappings_where_no_name_is_left() {
    let mut handles = Handles::default();
    let names = [0x10000, 0x11000, 0x12000].map(|address| mapped_own(&mut handles, address, address));
    adopt(&mut handles, span(0x10000, 3));
    assert_eq!(handles.release(names[0]), None);
    assert_eq!(handles.release(names[1]), None);
    assert_eq!(handles.ends_with(span(0x10000, 2), false).map(|ending| ending.len()), Some(2));
    assert_eq!(handles.ends_with(span(0x10000, 3), false), None, "the last one has a name");
    assert_eq!(handles.ends_with(span(0xf000, 2), false), None, "nothing is mapped at the beginning");
    assert_eq!(handles.ends_with(Span { address: 0x10800, size: SIZE }, false), None, "parts of two");
    assert_eq!(handles.retain_own(0x10fff), Some(names[0]), "it has its name again");
    assert_eq!(handles.ends_with(span(0x10000, 1), false), None);
    assert_eq!(handles.unmap(0x11000, SIZE), [ended(None)]);
}

#[test]
fn at_the_exit_a_name_outlives_its_memory() {
    let mut handles = Handles::default();
    let name = mapped_own(&mut handles, 7, 0x10000);
    adopt(&mut handles, span(0x10000, 1));
    assert_eq!(handles.ends_with(span(0x10000, 1), true).map(|ending| ending.len()), Some(1));
    assert_eq!(handles.unmap(0x10000, SIZE), []);
    assert_eq!((handles.with_driver(name), handles.adopted_of(name)), (None, vec![]));
    assert_eq!(handles.release(name), Some(ended(None)));
}
