//! Copies: who can do them.
//!
//! | to | from | done by |
//! |---|---|---|
//! | card | card | the card, in the stream |
//! | card | host | the bytes go along in the message; the caller has them back at once |
//! | host | card | the caller waits for the bytes |
//! | host | host | the caller, after the stream's work |
//!
//! *Card* is all memory the card knows: device, managed, pinned, registered. Registered memory that is staged
//! (`registered.rs`) is the host's, and copied at the rate of registered memory.
//!
//! An address that is reserved and not mapped is nobody's: a copy to or from it is refused. So is a copy to
//! memory that was registered for reading only.

use simgpu_card::ids::StreamId;
use simgpu_card::wire::{Kind, Op, Plane, Shape, Work};

use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::ffi::Host;
use crate::registered;
use crate::work;

/// The most bytes in one message.
const CHUNK: u64 = 4 << 20;

/// Whether the caller waits for the end, as far as the real driver would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Never,
    AsTheDriverDoes,
}

/// Copies rows of bytes in a stream.
pub(crate) fn copy(stream: StreamId, to: Plane, from: Plane, shape: Shape, wait: Wait) -> Answer {
    if shape.width == 0 || shape.rows == 0 {
        return Ok(());
    }
    let driver = driver()?;
    let (to_kind, from_kind, registered) = {
        let mut state = driver.state();
        if wait == Wait::AsTheDriverDoes {
            state.unsafe_call()?;
        }
        let (to_kind, from_kind) = (state.kind_at(to.address), state.kind_at(from.address));
        for (plane, kind) in [(to, to_kind), (from, from_kind)] {
            let len = (shape.rows - 1) * plane.pitch + shape.width;
            let covered = match kind {
                Some(_) => state.covers(plane.address, len),
                None => !state.is_hole(plane.address),
            };
            if !covered {
                return Err(Code::INVALID_VALUE);
            }
        }
        let target = state.staged_at(to.address);
        if target.is_some_and(|(_, _, flags)| flags & registered::READ_ONLY != 0) {
            return Err(Code::INVALID_VALUE);
        }
        let host = if to_kind.is_none() { to } else { from };
        (to_kind, from_kind, state.staged_at(host.address).is_some())
    };
    match (to_kind, from_kind) {
        (Some(to_kind), Some(from_kind)) => {
            work::submit(stream, Op::Copy { to, from, shape })?;
            let on_card = |kind| kind == Kind::Device;
            if wait == Wait::AsTheDriverDoes && !(on_card(to_kind) && on_card(from_kind)) {
                work::synchronize(Work::Stream(stream))?;
            }
            Ok(())
        }
        (Some(_), None) => pieces(to, from, shape, |to, from, shape| {
            work::upload(stream, Op::Upload { to, shape, registered }, &gather(from, shape))
        }),
        (None, Some(_)) => pieces(to, from, shape, |to, from, shape| {
            let bytes = work::download(stream, Op::Download { from, shape, registered })?;
            scatter(to, shape, &bytes);
            Ok(())
        }),
        (None, None) => {
            work::synchronize(Work::Stream(stream))?;
            scatter(to, shape, &gather(from, shape));
            Ok(())
        }
    }?;
    let pageable = to_kind.is_none() || from_kind.is_none();
    if wait == Wait::AsTheDriverDoes && pageable {
        work::synchronize(Work::Stream(stream))?;
    }
    Ok(())
}

/// Fills rows with a pattern in a stream. A synchronous fill of managed or pinned memory waits, one of
/// device memory does not.
pub(crate) fn set(stream: StreamId, to: Plane, shape: Shape, value: u32, element: u8, wait: Wait) -> Answer {
    if shape.width == 0 || shape.rows == 0 {
        return Ok(());
    }
    let kind = driver()?.state().kind_at(to.address).ok_or(Code::INVALID_VALUE)?;
    if !to.address.is_multiple_of(u64::from(element)) {
        return Err(Code::INVALID_VALUE);
    }
    work::submit(stream, Op::Set { to, shape, value, element })?;
    if wait == Wait::AsTheDriverDoes && kind != Kind::Device {
        work::synchronize(Work::Stream(stream))?;
    }
    Ok(())
}

/// Cuts a copy into messages of a bearable size: whole rows, or parts of one.
fn pieces(to: Plane, from: Plane, shape: Shape, copy: impl Fn(Plane, Plane, Shape) -> Answer) -> Answer {
    let rows = (CHUNK / shape.width).clamp(1, shape.rows);
    let width = if rows > 1 { shape.width } else { shape.width.min(CHUNK) };
    let at = |plane: Plane, row: u64, column: u64| Plane {
        address: plane.address + row * plane.pitch + column,
        ..plane
    };
    for row in (0..shape.rows).step_by(usize::try_from(rows).unwrap_or(1)) {
        for column in (0..shape.width).step_by(usize::try_from(width).unwrap_or(1)) {
            let part = Shape { width: width.min(shape.width - column), rows: rows.min(shape.rows - row) };
            copy(at(to, row, column), at(from, row, column), part)?;
        }
    }
    Ok(())
}

fn gather(from: Plane, shape: Shape) -> Vec<u8> {
    let width = usize::try_from(shape.width).unwrap_or(0);
    if shape.rows == 1 {
        return Host(from.address).read(width);
    }
    (0..shape.rows)
        .flat_map(|row| Host(from.address + row * from.pitch).read(width))
        .collect()
}

fn scatter(to: Plane, shape: Shape, bytes: &[u8]) {
    let width = usize::try_from(shape.width).unwrap_or(0).max(1);
    for (row, bytes) in (0..shape.rows).zip(bytes.chunks(width)) {
        Host(to.address + row * to.pitch).write(bytes);
    }
}
