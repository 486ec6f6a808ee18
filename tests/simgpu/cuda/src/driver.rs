//! The process' one driver: its connection to the card, made by `cuInit`, and its state.
//!
//! A forked child has no driver and answers NOT_INITIALIZED. It has the parent's sockets open all the same:
//! as with the real driver's files the card keeps the memory of a killed parent until its children are gone
//! too, or run other programs. At exit the driver says goodbye, so that its memory is back before the
//! process is gone; after that it answers DEINITIALIZED.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use simgpu_card::connection::{CallError, Connection, Reply};
use simgpu_card::driver_version::{self, Version};
use simgpu_card::ids::GpuIndex;
use simgpu_card::wire::{Description, GpuDescription, Request, Role, Sticky};

use crate::codes::{Answer, Code};
use crate::mapping::Board;
use crate::state::State;
use crate::{faults, hold};

/// The version this driver says it is.
pub(crate) fn version() -> i32 {
    static VERSION: OnceLock<Version> = OnceLock::new();
    VERSION
        .get_or_init(|| Version::from_environment().unwrap_or(driver_version::NORMAL))
        .0
}

#[derive(Debug)]
pub(crate) struct Driver {
    link: Connection,
    path: PathBuf,
    /// The GPUs this process may see, in its order.
    pub(crate) gpus: Vec<Visible>,
    pub(crate) board: Board,
    state: Mutex<State>,
}

/// A GPU as this process sees it.
#[derive(Debug)]
pub(crate) struct Visible {
    pub(crate) index: GpuIndex,
    pub(crate) description: GpuDescription,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static INIT: Mutex<()> = Mutex::new(());
static PHASE: AtomicU8 = AtomicU8::new(RUNNING);

const RUNNING: u8 = 0;
const FORKED: u8 = 1;
const ENDED: u8 = 2;

/// `cuInit`: connects to the card that `SIMGPU_SOCKET` names.
pub(crate) fn init() -> Answer {
    let _one_at_a_time = INIT.lock().unwrap_or_else(PoisonError::into_inner);
    if DRIVER.get().is_some() {
        return driver().map(|_| ());
    }
    faults::check()?;
    if let Err(sentence) = Version::from_environment() {
        eprintln!("simgpu: {sentence}");
        return Err(Code::SYSTEM_DRIVER_MISMATCH);
    }
    let path = PathBuf::from(std::env::var_os("SIMGPU_SOCKET").ok_or(Code::NO_DEVICE)?);
    let link = Connection::open(&path, Role::Driver).map_err(|_| Code::NO_DEVICE)?;
    let reply = link.call(Request::Describe, &[])?;
    let simgpu_card::wire::Answer::Description(description) = reply.answer else {
        return Err(Code::NO_DEVICE);
    };
    let Description { gpus, .. } = *description;
    let variable = |name| std::env::var(name).ok();
    let (order, chosen) = (variable("CUDA_DEVICE_ORDER"), variable("CUDA_VISIBLE_DEVICES"));
    let gpus = visible(gpus, order.as_deref(), chosen.as_deref());
    if gpus.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    let state = Mutex::new(State::new(gpus.len()));
    let board = Board::map(link.board().ok_or(Code::NO_DEVICE)?)?;
    let _ = DRIVER.set(Driver { board, link, path, gpus, state });
    // SAFETY: both functions are ours, take nothing, and only touch an atomic and the socket.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(ended);
    }
    Ok(())
}

/// The driver, if this process has one.
pub(crate) fn driver() -> Answer<&'static Driver> {
    match PHASE.load(Ordering::Relaxed) {
        RUNNING => DRIVER.get().ok_or(Code::NOT_INITIALIZED),
        FORKED => Err(Code::NOT_INITIALIZED),
        _ => Err(Code::DEINITIALIZED),
    }
}

impl Driver {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn gpu(&self, device: i32) -> Answer<&Visible> {
        usize::try_from(device)
            .ok()
            .and_then(|device| self.gpus.get(device))
            .ok_or(Code::INVALID_DEVICE)
    }

    /// The error of earlier work from which this process does not recover: every call that needs the card
    /// answers it.
    pub(crate) fn healthy(&self) -> Answer {
        Sticky::from_word(self.board.error()).map_or(Ok(()), |error| Err(error.into()))
    }

    pub(crate) fn tell(&self, request: Request) -> Answer {
        self.healthy()?;
        Ok(self.link.tell(request, &[])?)
    }

    pub(crate) fn tell_with(&self, request: Request, payload: &[u8]) -> Answer {
        self.healthy()?;
        Ok(self.link.tell(request, payload)?)
    }

    pub(crate) fn call(&self, request: Request) -> Answer<Reply> {
        self.healthy()?;
        Ok(self.link.call(request, &[])?)
    }

    /// Asks the card, and leaves the meaning of a refusal to the caller.
    pub(crate) fn ask(&self, request: Request) -> Result<Reply, CallError> {
        self.link.call(request, &[])
    }

    /// The second connection, on which the card calls host functions.
    pub(crate) fn open_callbacks(&self) -> Answer<Connection> {
        Ok(Connection::open(self.socket(), Role::Callbacks(self.link.id()))?)
    }

    fn socket(&self) -> &Path {
        &self.path
    }
}

extern "C" fn forked() {
    PHASE.store(FORKED, Ordering::Relaxed);
}

extern "C" fn ended() {
    hold::wait();
    if let Ok(driver) = driver() {
        let _ = driver.link.call(Request::Goodbye, &[]);
        PHASE.store(ENDED, Ordering::Relaxed);
    }
}

/// The devices of a process, by `CUDA_VISIBLE_DEVICES` and in the order of `CUDA_DEVICE_ORDER`.
///
/// The list is of indices or UUIDs (or their beginnings) and ends at the first one that is wrong or there
/// twice. MIG instances have no index: one is a device only if it is named first, and then it is the only
/// one; or if there is nothing else and no list.
fn visible(gpus: Vec<GpuDescription>, order: Option<&str>, chosen: Option<&str>) -> Vec<Visible> {
    let all = gpus
        .into_iter()
        .zip(0..)
        .map(|(description, index)| Visible { index: GpuIndex(index), description });
    let (instances, mut wholes): (Vec<_>, Vec<_>) = all.partition(|gpu| gpu.description.part_of.is_some());
    // What has more memory counts as faster: all of them compute alike.
    if order != Some("PCI_BUS_ID") {
        wholes.sort_by_key(|gpu| std::cmp::Reverse(gpu.description.memory));
    }
    let Some(chosen) = chosen else {
        let none = wholes.is_empty();
        return wholes
            .into_iter()
            .chain(instances.into_iter().take(usize::from(none)))
            .collect();
    };
    let names: Vec<&str> = chosen.split(',').map(str::trim).collect();
    let begins = |gpu: &Visible, name: &str| {
        let (own, name) = (gpu.description.uuid_text().to_lowercase(), name.to_lowercase());
        own.starts_with(&name)
    };
    if let Some(name) = names.first().filter(|name| name.starts_with("MIG-")) {
        return instances.into_iter().filter(|gpu| begins(gpu, name)).take(1).collect();
    }
    let mut picked: Vec<usize> = Vec::new();
    for name in names {
        let found = match name.parse::<usize>() {
            Ok(index) => Some(index).filter(|index| *index < wholes.len()),
            Err(_) if name.starts_with("GPU-") => wholes.iter().position(|gpu| begins(gpu, name)),
            Err(_) => None,
        };
        match found {
            Some(index) if !picked.contains(&index) => picked.push(index),
            _ => break,
        }
    }
    let mut all: Vec<Option<Visible>> = wholes.into_iter().map(Some).collect();
    picked.into_iter().filter_map(|index| all[index].take()).collect()
}
