//! One client's page, from the daemon's side, and what was leased through it.
//!
//! The page is hostile: its owner can write anything into it. So what lies in a row counts at most up to
//! what was leased there, and nothing else is read but the gate, which decides nothing here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use gpushare_proto::page::{LeaseRow, MAX_GPUS};
use gpushare_proto::{Bytes, GateState, GateWord, GpuId, Nanos};
use gpushare_sys::page::SharedPage;
use gpushare_sys::{futex, lease, page};

/// A page and the books that go with it.
#[derive(Debug)]
pub(crate) struct ClientPage {
    page: SharedPage,
    /// Bytes given to the process and not taken back, used or not; none for a card it is not on.
    leased: [Option<Bytes>; MAX_GPUS],
    /// What the core last heard of each row, if nothing was given or taken since.
    told: [Option<Bytes>; MAX_GPUS],
}

impl ClientPage {
    /// A fresh page with a closed gate, and its file for the client.
    pub(crate) fn create() -> io::Result<(OwnedFd, Self)> {
        let (file, page) = page::create()?;
        Ok((file, Self { page, leased: [None; MAX_GPUS], told: [None; MAX_GPUS] }))
    }

    /// The process is on this card, and uses so much of it already. Said once; a repetition changes nothing.
    pub(crate) fn attach(&mut self, gpu: GpuId, used: Bytes) {
        if let Some(leased) = self.leased.get_mut(usize::from(gpu.0)) {
            leased.get_or_insert(used);
        }
    }

    /// The cards the process is on.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = GpuId> + use<> {
        let leased = self.leased;
        (0..).map(GpuId).zip(leased).filter_map(|(gpu, leased)| leased.map(|_| gpu))
    }

    pub(crate) fn is_on(&self, gpu: GpuId) -> bool {
        self.leased(gpu).is_some()
    }

    /// What lies free in the row, at most what was leased.
    pub(crate) fn free(&self, gpu: GpuId) -> Bytes {
        match (self.row(gpu), self.leased(gpu)) {
            (Some(row), Some(leased)) => Bytes(row.free.load(Ordering::Relaxed)).min(leased),
            _ => Bytes::ZERO,
        }
    }

    /// What lies free in the row, if that is new to the core: every event makes it look at everybody, and most
    /// processes change nothing most of the time.
    pub(crate) fn news(&mut self, gpu: GpuId) -> Option<Bytes> {
        let free = self.free(gpu);
        let told = self.told.get_mut(usize::from(gpu.0))?;
        (told.replace(free) != Some(free)).then_some(free)
    }

    /// The core's figure is about to change with the row.
    fn forget_told(&mut self, gpu: GpuId) {
        if let Some(told) = self.told.get_mut(usize::from(gpu.0)) {
            *told = None;
        }
    }

    /// Leases `bytes` to a thread that waits for them and puts `extra` into the row.
    pub(crate) fn lease(&mut self, gpu: GpuId, bytes: Bytes, extra: Bytes) {
        self.forget_told(gpu);
        if let Some(Some(leased)) = self.leased.get_mut(usize::from(gpu.0)) {
            *leased += bytes + extra;
        }
        if let Some(row) = self.row(gpu) {
            lease::put(row, extra);
        }
    }

    /// Takes free bytes out of the row, never more than were leased; how much it was.
    pub(crate) fn recall(&mut self, gpu: GpuId, bytes: Bytes) -> Bytes {
        self.forget_told(gpu);
        let (Some(row), Some(leased)) = (self.row(gpu), self.leased(gpu)) else {
            return Bytes::ZERO;
        };
        let taken = lease::take_up_to(row, bytes.min(leased));
        if let Some(books) = self.leased.get_mut(usize::from(gpu.0)) {
            *books = Some(leased - taken);
        }
        taken
    }

    /// The process says that `bytes` of its lease are used no more and lie nowhere; how much of that can be true.
    pub(crate) fn give_up(&mut self, gpu: GpuId, bytes: Bytes) -> Bytes {
        let free = self.free(gpu);
        self.forget_told(gpu);
        let Some(Some(leased)) = self.leased.get_mut(usize::from(gpu.0)) else {
            return Bytes::ZERO;
        };
        let given = bytes.min(*leased - free);
        *leased -= given;
        given
    }

    /// Changes the gate and wakes whoever sleeps at it: each looks at the new word itself.
    pub(crate) fn set_gate(&self, word: GateWord) {
        self.page.gate.store(word.0, Ordering::SeqCst);
        futex::wake_all(&self.page.gate);
    }

    /// The word that is in the page now.
    pub(crate) fn gate(&self) -> GateWord {
        GateWord(self.page.gate.load(Ordering::SeqCst))
    }

    /// Closes the gate of a process that is no longer ours to tell.
    pub(crate) fn close(&self) {
        self.set_gate(self.gate().next(GateState::Closed));
    }

    /// Changes the flags and wakes the process's mover, which sleeps on the gate.
    pub(crate) fn set_flags(&self, flags: u32) {
        self.page.flags.store(flags, Ordering::Release);
        futex::wake_all(&self.page.gate);
    }

    /// How long its work in flight may take, to the microsecond; never zero, which would be none.
    pub(crate) fn set_drain_target(&self, target: Nanos) {
        let micros = u32::try_from(target.0 / 1000).unwrap_or(u32::MAX).max(1);
        self.page.drain_target.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn set_figures(&self, gpu: GpuId, limit: Bytes, siblings: Bytes, ceiling: Bytes) {
        if let Some(row) = self.row(gpu) {
            row.limit.store(limit.0, Ordering::Relaxed);
            row.siblings.store(siblings.0, Ordering::Relaxed);
            row.ceiling.store(ceiling.0, Ordering::Relaxed);
        }
    }

    fn row(&self, gpu: GpuId) -> Option<&LeaseRow> {
        self.page.gpus.get(usize::from(gpu.0))
    }

    /// What was leased on a card and not taken back; none for a card the process is not on.
    pub(crate) fn leased(&self, gpu: GpuId) -> Option<Bytes> {
        self.leased.get(usize::from(gpu.0)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuId = GpuId(3);

    #[test]
    fn a_forged_row_counts_up_to_what_was_leased() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        ours.attach(GPU, Bytes(100));
        ours.attach(GPU, Bytes(9999));
        ours.lease(GPU, Bytes(10), Bytes(5));
        assert_eq!(ours.free(GPU), Bytes(5));

        theirs.gpus[3].free.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(ours.free(GPU), Bytes(115));
        assert_eq!(ours.recall(GPU, Bytes(1000)), Bytes(115));
        assert_eq!(ours.recall(GPU, Bytes(1000)), Bytes::ZERO);
        assert_eq!(ours.free(GPU), Bytes::ZERO);
    }

    #[test]
    fn a_card_that_the_process_is_not_on_has_nothing() {
        let (file, mut ours) = ClientPage::create().unwrap();
        page::map(&file).unwrap().gpus[3].free.store(9, Ordering::Relaxed);
        assert_eq!(ours.recall(GPU, Bytes(9)), Bytes::ZERO);
        assert_eq!(ours.recall(GpuId(200), Bytes(9)), Bytes::ZERO);
        ours.lease(GpuId(200), Bytes(1), Bytes(1));
        assert!(!ours.is_on(GpuId(200)) && ours.gpus().next().is_none());
        ours.attach(GPU, Bytes::ZERO);
        assert_eq!(ours.gpus().collect::<Vec<_>>(), [GPU]);
    }

    #[test]
    fn what_the_core_knows_is_no_news() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        ours.attach(GPU, Bytes(100));
        assert_eq!(ours.news(GPU), Some(Bytes::ZERO));
        assert_eq!(ours.news(GPU), None);
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        // The row is as it was, but the core counts with what it gave and took.
        ours.lease(GPU, Bytes::ZERO, Bytes(5));
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        ours.recall(GPU, Bytes(2));
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        assert_eq!(ours.news(GpuId(200)), None);
    }

    #[test]
    fn a_closed_gate_is_a_new_change() {
        let (_file, ours) = ClientPage::create().unwrap();
        ours.set_gate(GateWord::new(4, GateState::Open));
        ours.close();
        assert_eq!(ours.gate(), GateWord::new(5, GateState::Closed));
    }
}
