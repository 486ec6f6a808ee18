//! A job on its way over memory, piece by piece.
//!
//! ```text
//! begin: which bytes next? faults, traffic -> how long      (the engine waits that long, and may be interrupted)
//! end:   the piece's real work on the bytes                 (then begin again, until nothing is left)
//! ```
//!
//! A piece is at most 2 MiB, so the card never computes for long at a time, and a page that a later piece
//! needs may be evicted while an earlier one runs.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::bytes::SharedBytes;
use crate::constants::{PAGE, Rate};
use crate::ids::{ClientId, GpuIndex, StreamKey, Time};
use crate::kernel::Kernel;
use crate::memory::{IllegalAddress, Memory};
use crate::wire::{Kind, Plane, Shape};

/// Work of a walk.
#[derive(Debug)]
pub(crate) enum Job {
    Kernel(Kernel),
    Copy { to: Plane, from: Plane, shape: Shape },
    Set { to: Plane, shape: Shape, value: u32, element: u8 },
    Upload { to: Plane, shape: Shape, data: Vec<u8>, registered: bool },
    Download { from: Plane, shape: Shape, data: Vec<u8>, token: u64, registered: bool },
    Prefetch { address: u64, len: u64, to: Option<GpuIndex> },
}

/// Whether the other direction of the bus copies too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bus {
    Alone,
    BothWays,
}

/// Bytes that a download found, for the question with this token.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) token: u64,
    pub(crate) data: Vec<u8>,
}

/// A stream's head is done, or has failed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) key: StreamKey,
    pub(crate) outcome: Result<Option<Delivery>, IllegalAddress>,
}

#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) key: StreamKey,
    gpu: GpuIndex,
    job: Job,
    begun: bool,
    /// The piece under way: words of a kernel, bytes of anything else.
    piece: std::ops::Range<u64>,
    sum: u64,
    /// Values of the blocks so far.
    values: Vec<u64>,
}

impl Walk {
    pub(crate) fn new(key: StreamKey, gpu: GpuIndex, job: Job) -> Self {
        Self { key, gpu, job, begun: false, piece: 0..0, sum: 0, values: Vec::new() }
    }

    /// Chooses the next piece and answers how long it takes; `None` when all is done.
    pub(crate) fn begin(
        &mut self,
        memory: &mut Memory,
        bus: Bus,
    ) -> Result<Option<Duration>, IllegalAddress> {
        let first = !std::mem::replace(&mut self.begun, true);
        let start = self.piece.end;
        if start >= self.length() && !(first && matches!(self.job, Job::Kernel(_))) {
            return self.conclude(memory).map(|()| None);
        }
        let time = match &self.job {
            Job::Kernel(kernel) => {
                let kernel = kernel.clone();
                let launch = if first { memory.constants.launch } else { Duration::ZERO };
                launch + self.begin_words(memory, &kernel, start)?
            }
            Job::Prefetch { address, to, .. } => {
                let (address, to) = (*address, *to);
                let end = memory.page_end(self.key.client, address + start)? - address;
                self.piece = start..end.min(self.length());
                memory.prefetch(self.key.client, address + start, self.piece.end - start, to)?
            }
            _ => {
                self.piece = start..(start + PAGE).min(self.length());
                self.price_rows(memory, bus)?
            }
        };
        Ok(Some(time))
    }

    /// Does the piece's work.
    pub(crate) fn end(&mut self, memory: &mut Memory) -> Result<(), IllegalAddress> {
        let client = self.key.client;
        match &mut self.job {
            Job::Kernel(kernel) => {
                let count = self.piece.end - self.piece.start;
                if count > 0 {
                    let (p, _) = kernel.words();
                    let (bytes, offset) = memory.bytes(client, p + self.piece.start * 4, count * 4)?;
                    let sum = kernel.compute(bytes, offset, self.piece.start, count).ok_or(IllegalAddress)?;
                    self.sum = self.sum.wrapping_add(sum);
                    self.values
                        .extend(kernel.fingerprints(bytes, offset, count).ok_or(IllegalAddress)?);
                }
                Ok(())
            }
            Job::Prefetch { .. } => Ok(()),
            Job::Copy { to, from, shape } => {
                let counters = memory.counters.entry(client).or_default();
                counters.copied_bytes += self.piece.end - self.piece.start;
                rows(&self.piece, *shape).try_for_each(|(row, column, len)| {
                    let start = |plane: &Plane| plane.address + row * plane.pitch + column;
                    let starts = [start(from), start(to)];
                    parts(memory, client, &starts, len, |done_before, len| {
                        let [from, to] = starts.map(|start| start + done_before);
                        let (source, source_at) = memory.bytes(client, from, len)?;
                        let (target, target_at) = memory.bytes(client, to, len)?;
                        done(SharedBytes::copy(source, source_at, target, target_at, len))
                    })
                })
            }
            Job::Set { to, shape, value, element } => {
                let pattern = pattern(*value, *element);
                rows(&self.piece, *shape).try_for_each(|(row, column, len)| {
                    let start = to.address + row * to.pitch + column;
                    parts(memory, client, &[start], len, |done_before, len| {
                        let (target, at) = memory.bytes(client, start + done_before, len)?;
                        set(target, at, len, &pattern)
                    })
                })
            }
            Job::Upload { to, shape, data, .. } => {
                memory.counters.entry(client).or_default().uploaded_bytes +=
                    self.piece.end - self.piece.start;
                rows(&self.piece, *shape).try_for_each(|(row, column, len)| {
                    let start = to.address + row * to.pitch + column;
                    parts(memory, client, &[start], len, |done_before, len| {
                        let (target, at) = memory.bytes(client, start + done_before, len)?;
                        let from = usize::try_from(row * shape.width + column + done_before)
                            .map_err(|_| IllegalAddress)?;
                        let source = data.get(from..).and_then(|rest| rest.get(..len as usize));
                        done(target.write(at, source.ok_or(IllegalAddress)?))
                    })
                })
            }
            Job::Download { from, shape, data, .. } => {
                memory.counters.entry(client).or_default().downloaded_bytes +=
                    self.piece.end - self.piece.start;
                rows(&self.piece, *shape).try_for_each(|(row, column, len)| {
                    let start = from.address + row * from.pitch + column;
                    parts(memory, client, &[start], len, |done_before, len| {
                        let (source, at) = memory.bytes(client, start + done_before, len)?;
                        let end = data.len();
                        data.resize(end + usize::try_from(len).map_err(|_| IllegalAddress)?, 0);
                        done(source.read(at, &mut data[end..]))
                    })
                })
            }
        }
    }

    /// Result that is handed over at the end.
    pub(crate) fn finish(self) -> Finished {
        let delivery = match self.job {
            Job::Download { data, token, .. } => Some(Delivery { token, data }),
            _ => None,
        };
        Finished { key: self.key, outcome: Ok(delivery) }
    }

    /// Whether this is a copy between pinned or registered memory and anything else.
    pub(crate) fn copies_pinned(&self, memory: &Memory) -> bool {
        let pinned = |plane| is_pinned(memory, self.key.client, plane);
        match &self.job {
            Job::Copy { to, from, .. } => pinned(to) || pinned(from),
            Job::Upload { registered, .. } | Job::Download { registered, .. } => *registered,
            Job::Kernel(_) | Job::Set { .. } | Job::Prefetch { .. } => false,
        }
    }

    fn length(&self) -> u64 {
        match &self.job {
            Job::Kernel(kernel) => kernel.words().1,
            Job::Prefetch { len, .. } => *len,
            Job::Copy { shape, .. }
            | Job::Set { shape, .. }
            | Job::Upload { shape, .. }
            | Job::Download { shape, .. } => shape.width.saturating_mul(shape.rows),
        }
    }

    fn begin_words(
        &mut self,
        memory: &mut Memory,
        kernel: &Kernel,
        start: u64,
    ) -> Result<Duration, IllegalAddress> {
        let (p, n) = kernel.words();
        if start >= n {
            self.piece = n..n;
            return Ok(Duration::ZERO);
        }
        let mut time = Duration::ZERO;
        if let (Some((out, length)), 0) = (kernel.output(), start) {
            memory.reachable(self.key.client, self.gpu, out)?;
            time += memory.reach(self.key.client, self.gpu, out, length)?;
        }
        let from = start
            .checked_mul(4)
            .and_then(|skip| p.checked_add(skip))
            .ok_or(IllegalAddress)?;
        let words = (memory.page_end(self.key.client, from)? - from) / 4;
        if words == 0 || !from.is_multiple_of(4) {
            return Err(IllegalAddress);
        }
        self.piece = start..(start + words).min(n);
        let count = self.piece.end - start;
        let rate = memory.reachable(self.key.client, self.gpu, from)?;
        time += memory.reach(self.key.client, self.gpu, from, count * 4)?;
        Ok(time + rate.time_for(kernel.traffic(count)))
    }

    /// The time of a piece of rows: over the bus for what meets the host, else as a kernel that may fault.
    fn price_rows(&self, memory: &mut Memory, bus: Bus) -> Result<Duration, IllegalAddress> {
        let bytes = self.piece.end - self.piece.start;
        let client = self.key.client;
        let pinned = |memory: &Memory, plane: &Plane| is_pinned(memory, client, plane);
        let on_bus = |rate: Rate| match bus {
            Bus::Alone => rate,
            Bus::BothWays => rate.at_most(memory.constants.pinned_both.half()),
        };
        let over_bus: Option<Rate> = match &self.job {
            Job::Upload { registered: true, .. } => Some(on_bus(memory.constants.pinned_in)),
            Job::Download { registered: true, .. } => Some(on_bus(memory.constants.pinned_out)),
            Job::Upload { .. } => Some(memory.constants.pageable_in),
            Job::Download { .. } => Some(memory.constants.pageable_out),
            Job::Copy { to, .. } if pinned(memory, to) => Some(on_bus(memory.constants.pinned_out)),
            Job::Copy { from, .. } if pinned(memory, from) => Some(on_bus(memory.constants.pinned_in)),
            Job::Copy { to, from, .. } if memory.between_gpus(client, from.address, to.address) => {
                Some(memory.constants.peer)
            }
            _ => None,
        };
        if let Some(rate) = over_bus {
            return Ok(rate.time_for(bytes));
        }
        let (planes, shape) = match &self.job {
            Job::Copy { to, from, shape } => (vec![*from, *to], *shape),
            Job::Set { to, shape, .. } => (vec![*to], *shape),
            _ => return Ok(Duration::ZERO),
        };
        let mut time = memory.constants.kernel.time_for(bytes * planes.len() as u64);
        for (row, column, len) in rows(&self.piece, shape) {
            for plane in &planes {
                let start = plane.address + row * plane.pitch + column;
                let mut before = 0;
                while before < len {
                    let part = (len - before).min(memory.left(client, start + before)?);
                    time += memory.reach(client, self.gpu, start + before, part)?;
                    before += part;
                }
            }
        }
        Ok(time)
    }

    fn conclude(&self, memory: &mut Memory) -> Result<(), IllegalAddress> {
        if let Job::Kernel(kernel) = &self.job {
            memory.counters.entry(self.key.client).or_default().kernels += 1;
            if let Kernel::Checksum { out, .. } = kernel {
                let (bytes, offset) = memory.bytes(self.key.client, *out, 8)?;
                bytes.wide_word(offset).ok_or(IllegalAddress)?.fetch_add(self.sum, Relaxed);
            }
            if let Kernel::Fingerprint { out, .. } = kernel {
                let values: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let (bytes, offset) = memory.bytes(self.key.client, *out, values.len() as u64)?;
                bytes.write(offset, &values).then_some(()).ok_or(IllegalAddress)?;
            }
        }
        Ok(())
    }
}

/// A spin kernel: it holds one multiprocessor and needs no bandwidth, so it runs beside the walks of its
/// process.
#[derive(Debug)]
pub(crate) struct Spinner {
    pub(crate) key: StreamKey,
    flag: u64,
    limit: Duration,
    /// Known once it has run for the first time.
    pub(crate) until: Option<Time>,
}

impl Spinner {
    pub(crate) fn new(key: StreamKey, flag: u64, limit: Duration) -> Self {
        Self { key, flag, limit, until: None }
    }

    pub(crate) fn start(&mut self, now: Time) {
        self.until.get_or_insert(now.saturating_add(self.limit));
    }

    pub(crate) fn watches(&self) -> bool {
        self.flag != 0
    }

    /// Whether it ends now.
    pub(crate) fn over(&self, now: Time, memory: &Memory) -> Result<bool, IllegalAddress> {
        if self.until.is_some_and(|until| until <= now) {
            return Ok(true);
        }
        if self.flag == 0 {
            return Ok(false);
        }
        let (bytes, offset) = memory.bytes(self.key.client, self.flag, 4)?;
        let words = bytes.words(offset, 1).ok_or(IllegalAddress)?;
        Ok(words[0].load(Relaxed) != 0)
    }
}

fn is_pinned(memory: &Memory, client: ClientId, plane: &Plane) -> bool {
    memory.kind_at(client, plane.address) == Some(Kind::Pinned)
}

/// The parts of rows that a piece covers: row, first byte in the row, length.
fn rows(piece: &std::ops::Range<u64>, shape: Shape) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
    let (mut at, end, width) = (piece.start, piece.end, shape.width.max(1));
    std::iter::from_fn(move || {
        let (row, column) = (at / width, at % width);
        let len = (width - column).min(end.checked_sub(at).filter(|left| *left > 0)?);
        at += len;
        Some((row, column, len))
    })
}

/// Does a stretch of bytes in parts, so that each part lies in one allocation wherever it begins: mappings
/// next to each other are one range for a program. A part is the bytes before it and its length.
fn parts(
    memory: &Memory,
    client: ClientId,
    starts: &[u64],
    len: u64,
    mut each: impl FnMut(u64, u64) -> Result<(), IllegalAddress>,
) -> Result<(), IllegalAddress> {
    let mut before = 0;
    while before < len {
        let mut part = len - before;
        for start in starts {
            part = part.min(memory.left(client, start + before)?);
        }
        each(before, part)?;
        before += part;
    }
    Ok(())
}

/// A block of the repeated pattern, as long as a page of the host.
fn pattern(value: u32, element: u8) -> Vec<u8> {
    let bytes = value.to_le_bytes();
    let element = usize::from(element.clamp(1, 4));
    bytes[..element].iter().copied().cycle().take(4096).collect()
}

fn set(target: &SharedBytes, at: u64, len: u64, pattern: &[u8]) -> Result<(), IllegalAddress> {
    let block = pattern.len() as u64;
    (0..len).step_by(pattern.len()).try_for_each(|start| {
        let part = usize::try_from(block.min(len - start)).map_err(|_| IllegalAddress)?;
        done(target.write(at + start, &pattern[..part]))
    })
}

fn done(done: bool) -> Result<(), IllegalAddress> {
    if done { Ok(()) } else { Err(IllegalAddress) }
}
