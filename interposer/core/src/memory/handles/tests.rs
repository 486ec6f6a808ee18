//! Uses of pieces, and memory that has a name.

use super::*;

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
