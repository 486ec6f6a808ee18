//! Room for pages of the host, in the control groups of the process and in the machine.
//!
//! The kernel kills a program when its control group exceeds its limit or the machine has no memory left, so the room
//! is looked at before pages are touched. Threads of all cards touch regions at once. The room must suffice for what
//! they all touch. A thread for which it does not waits until the others are done, and is refused if it does not
//! suffice then.
//!
//! Other processes of the group or the machine may take memory at the same time, perhaps for the same handoff. So a
//! region is touched in parts, and the room is looked at before each of them.
//!
//! The daemon's budget for host memory should keep processes from reaching either limit. But the daemon knows only the
//! outermost control group, and sees what other programs take up to half a second late.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_sys::memory_limit;

use crate::process::lock;
use crate::remap::host::{HostError, Limit};

/// Room that is left for the program.
const SPARE: Bytes = Bytes::mib(256);
/// Room that must be left while a region is touched.
const LEAST: Bytes = Bytes::mib(128);
/// Size of the parts in which a region is touched.
const PART: Bytes = Bytes::mib(16);
/// Pause in which others touch their regions. One takes tens of milliseconds.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes that threads of the process touch now.
static TOUCHED_NOW: Mutex<Bytes> = Mutex::new(Bytes::ZERO);

/// Touches memory of this size, if the control groups and the machine have room for it. `touch` is given the offset and
/// the size of each part.
///
/// # Errors
/// They have none, or no more after some parts; or the error of `touch`.
pub(super) fn touch(
    size: Bytes,
    touch: impl FnMut(Bytes, Bytes) -> Result<(), HostError>,
) -> Result<(), HostError> {
    touch_within(&TOUCHED_NOW, tighter_room, size, touch)
}

/// Room of the tighter of control groups and machine.
fn tighter_room() -> Option<(Bytes, Limit)> {
    let group = memory_limit::room().map(|room| (room, Limit::Group));
    let machine = memory_limit::machine().map(|machine| (machine.room(), Limit::Machine));
    group.into_iter().chain(machine).min_by_key(|&(room, _)| room)
}

fn touch_within(
    touched_now: &Mutex<Bytes>,
    room: impl Fn() -> Option<(Bytes, Limit)>,
    size: Bytes,
    touch: impl FnMut(Bytes, Bytes) -> Result<(), HostError>,
) -> Result<(), HostError> {
    loop {
        let mut now = lock(touched_now);
        match room().filter(|&(room, _)| room < *now + size + SPARE) {
            Some((room, limit)) if now.is_zero() => return Err(HostError::NoRoom { size, room, limit }),
            Some(_) => drop(now),
            None => {
                *now += size;
                break;
            }
        }
        thread::sleep(PAUSE);
    }
    let touched = touch_in_parts(room, size, touch);
    *lock(touched_now) -= size;
    touched
}

fn touch_in_parts(
    room: impl Fn() -> Option<(Bytes, Limit)>,
    size: Bytes,
    mut touch: impl FnMut(Bytes, Bytes) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let mut offset = Bytes::ZERO;
    while offset < size {
        let part = PART.min(size - offset);
        if let Some((room, limit)) = room().filter(|&(room, _)| room < part + LEAST) {
            return Err(HostError::NoRoom { size, room, limit });
        }
        touch(offset, part)?;
        offset += part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::remap::host::REGION;

    #[test]
    fn nothing_is_touched_without_room_for_it_and_a_spare() {
        for (room, touches) in [
            (None, true),
            (Some(REGION + SPARE), true),
            (Some(REGION + SPARE - Bytes(1)), false),
            (Some(Bytes::ZERO), false),
        ] {
            let touched = Cell::new(false);
            let touch = |_, _| {
                touched.set(true);
                Ok(())
            };
            let room = room.map(|room| (room, Limit::Group));
            let expected = match room.filter(|_| !touches) {
                Some((room, limit)) => Err(HostError::NoRoom { size: REGION, room, limit }),
                None => Ok(()),
            };
            assert_eq!(touch_within(&Mutex::default(), || room, REGION, touch), expected, "{room:?}");
            assert_eq!(touched.get(), touches, "{room:?}");
        }
    }

    #[test]
    fn threads_together_touch_no_more_than_a_narrow_group_has_room_for() {
        let (touched_now, left) = (Mutex::default(), Mutex::new(SPARE + Bytes(REGION.0 * 3)));
        let touch_part = |_, part| {
            thread::yield_now();
            *lock(&left) -= part;
            Ok(())
        };
        let room = || Some((*lock(&left), Limit::Machine));
        let touch = || touch_within(&touched_now, room, REGION, touch_part);
        let touched = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(touch)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .filter(Result::is_ok)
                .count()
        });
        assert_eq!((touched, *lock(&left)), (3, SPARE));
        let refused = HostError::NoRoom { size: REGION, room: SPARE, limit: Limit::Machine };
        assert_eq!(touch(), Err(refused));
    }

    #[test]
    fn a_region_is_given_up_half_way_if_other_processes_have_taken_the_room() {
        let (left, touched) = (Cell::new(SPARE + REGION), Cell::new(Bytes::ZERO));
        let touch = |offset, part: Bytes| {
            assert_eq!(offset, touched.get());
            touched.set(offset + part);
            // Others take twice as much.
            left.set(left.get() - Bytes(3 * part.0));
            Ok(())
        };
        let room = || Some((left.get(), Limit::Group));
        let refused = touch_within(&Mutex::default(), room, REGION, touch);
        assert!(matches!(refused, Err(HostError::NoRoom { size: REGION, .. })), "{refused:?}");
        assert!(
            left.get() >= LEAST - Bytes(2 * PART.0) && touched.get() < REGION,
            "{} left, {}",
            left.get(),
            touched.get()
        );
    }

    #[test]
    fn an_error_of_the_system_is_passed_on() {
        let error = HostError::NoMemory { size: REGION, errno: 12 };
        assert_eq!(touch_within(&Mutex::default(), || None, REGION, |_, _| Err(error)), Err(error));
    }
}
