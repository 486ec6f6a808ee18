//! Sets of events, in which the Xids of devices arrive.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ffi::{Answer, Code};
use crate::session::{Device, session};

/// `nvmlEventTypeXidCriticalError`.
pub(crate) const XID: u64 = 8;
/// Interval between two questions to the card.
const EVERY: Duration = Duration::from_millis(5);

/// Event set as the caller holds it. No set is 0.
pub(crate) type Handle = usize;

/// Number of Xids that were handed over, by device and GPU of the card.
type Set = BTreeMap<(Device, usize), usize>;

#[derive(Debug)]
struct Sets {
    all: BTreeMap<Handle, Set>,
    next: Handle,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { all: BTreeMap::new(), next: 1 });

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an empty set.
pub(crate) fn create() -> Answer<Handle> {
    session()?;
    let mut sets = sets();
    let handle = sets.next;
    sets.next += 1;
    sets.all.insert(handle, Set::new());
    Ok(handle)
}

/// Adds a device to a set. Its former Xids are no events.
pub(crate) fn register(device: Device, types: u64, set: Handle) -> Answer {
    let session = session()?;
    let place = session.place(device)?;
    if types != XID || place.instance.is_some() {
        return Err(Code::NOT_SUPPORTED);
    }
    session.gpu_stats(device)?;
    let stats = session.stats()?;
    let mut sets = sets();
    let set = sets.all.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
    for gpu in place.gpus {
        set.insert((device, gpu), stats.gpus.get(gpu).map_or(0, |gpu| gpu.xids.len()));
    }
    Ok(())
}

/// Waits for the next Xid of a set. Returns it with its device.
pub(crate) fn wait(set: Handle, limit: Duration) -> Answer<(Device, u64)> {
    let end = Instant::now() + limit;
    loop {
        let stats = session()?.stats()?;
        let mut sets = sets();
        let watched = sets.all.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
        for ((device, gpu), seen) in watched.iter_mut() {
            if let Some(xid) = stats.gpus.get(*gpu).and_then(|gpu| gpu.xids.get(*seen)) {
                *seen += 1;
                return Ok((*device, *xid));
            }
        }
        let is_lost = |gpu: usize| stats.gpus.get(gpu).is_some_and(|gpu| gpu.lost);
        if watched.keys().any(|(_, gpu)| is_lost(*gpu)) {
            return Err(Code::GPU_IS_LOST);
        }
        drop(sets);
        if Instant::now() >= end {
            return Err(Code::TIMEOUT);
        }
        thread::sleep(EVERY);
    }
}

/// Ends a set.
pub(crate) fn free(set: Handle) -> Answer {
    sets().all.remove(&set).map(drop).ok_or(Code::INVALID_ARGUMENT)
}
