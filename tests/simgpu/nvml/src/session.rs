//! Between `nvmlInit` and `nvmlShutdown`: a connection to the card that only looks.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use simgpu_card::connection::Observer;
use simgpu_card::stats::{GpuStats, Stats};
use simgpu_card::wire::Description;

use crate::ffi::{Answer, Code};

/// A device as the caller holds it: its index and one, so that null is none; instances come from a number
/// of their own.
pub(crate) type Device = usize;

const INSTANCES: Device = 0x1000;
/// How many instances a GPU can have.
pub(crate) const MOST_INSTANCES: usize = 7;

#[derive(Debug)]
pub(crate) struct Session {
    observer: Observer,
    pub(crate) description: Description,
    /// Card time and busy time of each GPU when its utilization was last asked for.
    samples: Mutex<Vec<(u64, u64)>>,
}

#[derive(Debug, Default)]
struct Open {
    session: Option<Arc<Session>>,
    users: u32,
}

static OPEN: Mutex<Option<Open>> = Mutex::new(None);

/// One more user; the first one connects.
pub(crate) fn open() -> Answer {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if open.session.is_none() {
        let socket = std::env::var_os("SIMGPU_SOCKET").ok_or(Code::DRIVER_NOT_LOADED)?;
        let observer = Observer::connect(Path::new(&socket)).map_err(|_| Code::DRIVER_NOT_LOADED)?;
        let description = observer.describe().map_err(|_| Code::DRIVER_NOT_LOADED)?;
        let samples = Mutex::new(vec![(0, 0); description.gpus.len()]);
        open.session = Some(Arc::new(Session { observer, description, samples }));
    }
    open.users += 1;
    Ok(())
}

/// One user less; the last one hangs up.
pub(crate) fn close() -> Answer {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.as_mut().filter(|open| open.users > 0).ok_or(Code::UNINITIALIZED)?;
    open.users -= 1;
    if open.users == 0 {
        open.session = None;
    }
    Ok(())
}

pub(crate) fn session() -> Answer<Arc<Session>> {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.as_ref().and_then(|open| open.session.clone()).ok_or(Code::UNINITIALIZED)
}

/// GPUs of the card that a handle stands for: one, or all instances of a divided GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of NVML's devices it is or is part of.
    pub(crate) number: usize,
    /// The card's GPUs.
    pub(crate) gpus: Range<usize>,
    /// The number of the instance, if it is one.
    pub(crate) instance: Option<usize>,
}

impl Session {
    /// Devices in NVML's sense, as ranges of the card's GPUs: a divided GPU is one device.
    pub(crate) fn wholes(&self) -> Vec<Range<usize>> {
        let gpus = &self.description.gpus;
        let mut wholes: Vec<Range<usize>> = Vec::new();
        for (index, gpu) in gpus.iter().enumerate() {
            match wholes.last_mut() {
                Some(last) if gpu.part_of.is_some() && gpus[last.start].part_of == gpu.part_of => {
                    last.end = index + 1;
                }
                _ => wholes.push(index..index + 1),
            }
        }
        wholes
    }

    pub(crate) fn place(&self, device: Device) -> Answer<Place> {
        let (handle, instance) = match device.checked_sub(INSTANCES) {
            Some(instance) => (instance / MOST_INSTANCES + 1, Some(instance % MOST_INSTANCES)),
            None => (device, None),
        };
        let number = handle.checked_sub(1).ok_or(Code::INVALID_ARGUMENT)?;
        let whole = self.wholes().get(number).cloned().ok_or(Code::INVALID_ARGUMENT)?;
        let gpus = match instance {
            None => whole,
            Some(instance) if self.is_divided(&whole) && whole.start + instance < whole.end => {
                whole.start + instance..whole.start + instance + 1
            }
            Some(_) => return Err(Code::INVALID_ARGUMENT),
        };
        Ok(Place { number, gpus, instance })
    }

    /// The handle of an instance, if there is one of this number.
    pub(crate) fn instance(&self, device: Device, number: usize) -> Answer<Device> {
        let place = self.place(device)?;
        if number >= MOST_INSTANCES {
            return Err(Code::INVALID_ARGUMENT);
        }
        if !self.is_divided(&place.gpus) || place.instance.is_some() {
            return Err(Code::NOT_FOUND);
        }
        let handle = INSTANCES + place.number * MOST_INSTANCES + number;
        self.place(handle).map(|_| handle).map_err(|_| Code::NOT_FOUND)
    }

    /// Every handle: of GPUs, then of instances.
    pub(crate) fn handles(&self) -> Vec<Device> {
        let wholes = 1..=self.wholes().len();
        let instances = wholes.clone().flat_map(|whole| {
            (0..MOST_INSTANCES).filter_map(move |number| self.instance(whole, number).ok())
        });
        wholes.clone().chain(instances).collect()
    }

    pub(crate) fn is_divided(&self, gpus: &Range<usize>) -> bool {
        self.description.gpus[gpus.start].part_of.is_some()
    }

    /// Name and UUID of a device.
    pub(crate) fn identity(&self, device: Device) -> Answer<(String, String)> {
        let place = self.place(device)?;
        let gpu = &self.description.gpus[place.gpus.start];
        Ok(match (&gpu.part_of, place.instance) {
            (Some(whole), None) => (whole.name.clone(), whole.uuid_text()),
            _ => (gpu.name.clone(), gpu.uuid_text()),
        })
    }

    pub(crate) fn bus(&self, device: Device) -> Answer<u32> {
        Ok(self.description.gpus[self.place(device)?.gpus.start].bus)
    }

    pub(crate) fn stats(&self) -> Answer<Stats> {
        self.observer.stats().map_err(|_| Code::GPU_IS_LOST)
    }

    /// The figures of a device; of a divided one those of all its instances.
    pub(crate) fn gpu_stats(&self, device: Device) -> Answer<GpuStats> {
        self.gpu_of(device, self.stats()?)
    }

    fn gpu_of(&self, device: Device, stats: Stats) -> Answer<GpuStats> {
        let here = self.place(device)?.gpus;
        let own = stats.gpus.into_iter().skip(here.start).take(here.len());
        let sum = own.reduce(|sum, gpu| GpuStats {
            total: sum.total + gpu.total,
            free: sum.free + gpu.free,
            busy_nanos: sum.busy_nanos.max(gpu.busy_nanos),
            lost: sum.lost || gpu.lost,
            ..sum
        });
        let gpu = sum.ok_or(Code::INVALID_ARGUMENT)?;
        if gpu.lost { Err(Code::GPU_IS_LOST) } else { Ok(gpu) }
    }

    /// The share of the time since the last question in which the GPU computed, in percent. Nobody knows it
    /// of instances.
    pub(crate) fn utilization(&self, device: Device) -> Answer<u32> {
        let place = self.place(device)?;
        if self.is_divided(&place.gpus) {
            return Err(Code::NOT_SUPPORTED);
        }
        let stats = self.stats()?;
        let now = stats.now_nanos;
        let busy = self.gpu_of(device, stats)?.busy_nanos;
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, busy_then) = std::mem::replace(&mut samples[place.gpus.start], (now, busy));
        let percent = busy.saturating_sub(busy_then) * 100 / now.saturating_sub(then).max(1);
        Ok(u32::try_from(percent.min(100)).unwrap_or(100))
    }
}
