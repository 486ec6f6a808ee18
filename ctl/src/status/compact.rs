//! Status in one screen: a line for each card, and its sessions beneath.
//!
//! ```text
//!   gpu0 NVIDIA H100  serialized  6GiB of 4GiB  1 waiting
//!     remapped memory: 4GiB on the card, 2GiB in host memory; last handoff: 2GiB out at 40GiB/s, …
//!     train  s3  holding           3GiB of 8GiB  pid 5000
//!     infer  s4  waiting, 1 ahead  3GiB          pid 5001  train holds gpu0
//! ```

use gpushare_proto::GpuId;
use gpushare_proto::admin::{CopiesView, GpuView, LockView, ResidenceView, SessionView, Status};
use gpushare_proto::handoff::CardHandoffs;

use super::{daemon, lock, unevictable, words};
use crate::output::Paint;
use crate::table::{count, harmless, list};

/// Largest number of sessions that are shown beneath a card.
const MOST: usize = 20;

/// Places of remapped memory, its handoffs, and the host copies that processes share.
#[derive(Default)]
pub(super) struct Remapped {
    pub(super) residences: Vec<ResidenceView>,
    pub(super) handoffs: Vec<CardHandoffs>,
    pub(super) copies: CopiesView,
}

/// Returns the page.
pub(super) fn page(status: &Status, remapped: &Remapped, paint: Paint) -> String {
    let Remapped { residences, handoffs, copies } = remapped;
    let mut page = daemon(status);
    let heads = aligned(status.gpus.iter().map(|gpu| head(gpu).to_vec()).collect());
    for (gpu, head) in status.gpus.iter().zip(heads) {
        page += &paint.bold(head.join("  ").trim_end());
        page += "\n";
        if let Some(line) = words::line(gpu.gpu, residences, handoffs) {
            page += &format!("  {line}\n");
        }
        page += &sessions(&on(status, gpu), Some(gpu.gpu), paint);
    }
    if status.gpus.is_empty() {
        page += "no cards yet; without NVML a card appears with its first process\n";
    }
    let without: Vec<&SessionView> =
        status.sessions.iter().filter(|session| session.gpus.is_empty()).collect();
    if !without.is_empty() {
        page += "on no card\n";
        page += &sessions(&without, None, paint);
    }
    page += &words::copies(copies).unwrap_or_default();
    if status.sessions.is_empty() {
        page += "no sessions; start one with `gpushare-ctl run -- CMD`\n";
    }
    page + &unevictable(&status.sessions)
}

/// Returns the cells of a card's line.
fn head(gpu: &GpuView) -> [String; 4] {
    let waiting = match gpu.queue.len() {
        0 => String::new(),
        waiting => format!("{waiting} waiting"),
    };
    [
        format!("{} {}", gpu.gpu, harmless(&gpu.name)),
        gpu.mode.name().to_owned(),
        format!("{} of {}", gpu.allocated_bytes, gpu.capacity_bytes),
        waiting,
    ]
}

/// Returns the sessions on a card: holders, then those that wait, in the order of their turns, then the rest.
fn on<'a>(status: &'a Status, gpu: &GpuView) -> Vec<&'a SessionView> {
    let place = |session: &SessionView| {
        let is_holder = gpu.holders.contains(&session.session);
        let waits = gpu.queue.iter().position(|&waiting| waiting == session.session);
        (!is_holder, waits.unwrap_or(usize::MAX), session.session)
    };
    let uses = |session: &&SessionView| session.gpus.iter().any(|on| on.gpu == gpu.gpu);
    let mut all: Vec<&SessionView> = status.sessions.iter().filter(uses).collect();
    all.sort_by_cached_key(|session| place(session));
    all
}

fn sessions(all: &[&SessionView], gpu: Option<GpuId>, paint: Paint) -> String {
    let more = all.len().saturating_sub(MOST);
    let shown = &all[..all.len() - more];
    let lines = aligned(shown.iter().map(|session| cells(session, gpu).to_vec()).collect());
    let mut text = String::new();
    for (session, mut line) in shown.iter().zip(lines) {
        line[STATE] = match session.lock {
            LockView::Idle | LockView::Frozen => paint.dim(&line[STATE]),
            LockView::Waiting { .. } => paint.yellow(&line[STATE]),
            LockView::Holding { .. } => paint.green(&line[STATE]),
            LockView::Dropping { .. } => paint.red(&line[STATE]),
        };
        text += &format!("  {}\n", line.join("  ").trim_end());
    }
    if more > 0 {
        text +=
            &format!("  and {}; `gpushare-ctl status --verbose` lists them\n", count(more, "more session"));
    }
    text
}

/// Index of the state among the cells of a session.
const STATE: usize = 2;

/// Returns the cells of a session's line.
fn cells(session: &SessionView, gpu: Option<GpuId>) -> [String; 6] {
    let (state, why) = lock(session);
    let on_card = session.gpus.iter().find(|on| Some(on.gpu) == gpu);
    let memory = match on_card {
        Some(on) => match on.limit_bytes {
            Some(limit) => format!("{} of {limit}", on.allocated_bytes),
            None => on.allocated_bytes.to_string(),
        },
        None => String::new(),
    };
    let pids = session.clients.iter().map(|client| client.pid);
    let pids = match session.clients.len() {
        0 => String::new(),
        1..=3 => format!("pid {}", list(pids)),
        number => format!("{number} processes"),
    };
    [harmless(&session.name), session.session.to_string(), state, memory, pids, harmless(&why)]
}

/// Pads the cells of each column to the width of its widest cell. The last column is not padded, and a column
/// of empty cells has no width.
fn aligned(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let columns = rows.first().map_or(0, Vec::len);
    for column in (0..columns).rev() {
        let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for row in &mut rows {
            match width {
                0 => drop(row.remove(column)),
                _ if column + 1 < row.len() => row[column] = format!("{:width$}", row[column]),
                _ => {}
            }
        }
    }
    rows
}
