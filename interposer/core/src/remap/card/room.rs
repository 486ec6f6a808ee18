//! Room for pages of the host in the control groups of the process.
//!
//! The kernel kills a program whose control group exceeds its limit, so the room is looked at before pages are
//! touched. Several threads touch regions at once. Where the room is wide, what they all touch together fits. Where
//! it is narrow, they touch one after the other, so that each sees what the others have taken.

use std::sync::Mutex;

use gpushare_proto::Bytes;
use gpushare_sys::memory_limit;

use crate::process::lock;
use crate::remap::host::HostError;

/// Room from which on threads touch regions at once: twice what eight of them touch.
const WIDE: Bytes = Bytes::gib(2);
/// Room that is left for the program.
const SPARE: Bytes = Bytes::mib(256);

/// Turn of the threads that touch memory in narrow control groups.
#[derive(Debug, Default)]
pub(super) struct Room(Mutex<()>);

impl Room {
    /// Touches memory of this size, if the control groups have room for it.
    ///
    /// # Errors
    /// They have none; or the error of `touch`.
    pub(super) fn touch(
        &self,
        size: Bytes,
        touch: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        self.touch_within(memory_limit::room, size, touch)
    }

    fn touch_within(
        &self,
        room: impl Fn() -> Option<Bytes>,
        size: Bytes,
        touch: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        if room().is_none_or(|room| room >= WIDE) {
            return touch();
        }
        let _turn = lock(&self.0);
        match room().filter(|room| *room < size + SPARE) {
            Some(room) => Err(HostError::Group { size, room }),
            None => touch(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;
    use crate::remap::host::REGION;

    #[test]
    fn nothing_is_touched_without_room_for_it_and_a_spare() {
        for (room, touches) in [
            (None, true),
            (Some(WIDE), true),
            (Some(REGION + SPARE), true),
            (Some(REGION + SPARE - Bytes(1)), false),
            (Some(Bytes::ZERO), false),
        ] {
            let touched = Cell::new(false);
            let touch = || {
                touched.set(true);
                Ok(())
            };
            let expected = match room.filter(|_| !touches) {
                Some(room) => Err(HostError::Group { size: REGION, room }),
                None => Ok(()),
            };
            assert_eq!(Room::default().touch_within(|| room, REGION, touch), expected, "{room:?}");
            assert_eq!(touched.get(), touches, "{room:?}");
        }
    }

    #[test]
    fn threads_together_touch_no_more_than_a_narrow_group_has_room_for() {
        let (room, left) = (Room::default(), Mutex::new(SPARE + Bytes(REGION.0 * 3)));
        let touch = || {
            thread::yield_now();
            *lock(&left) -= REGION;
            Ok(())
        };
        let touched = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| room.touch_within(|| Some(*lock(&left)), REGION, touch)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .filter(Result::is_ok)
                .count()
        });
        assert_eq!((touched, *lock(&left)), (3, SPARE));
    }

    #[test]
    fn an_error_of_the_system_is_passed_on() {
        let error = HostError::NoMemory { size: REGION, errno: 12 };
        assert_eq!(Room::default().touch_within(|| None, REGION, || Err(error)), Err(error));
    }
}
