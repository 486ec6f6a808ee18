//! The daemon's access to a client's shared page, and the bytes leased through the page.
//!
//! The page is memory shared with the process, which can write anything into it. So the free bytes in a
//! card's row count at most up to the bytes leased there. The daemon otherwise reads only the gate, and
//! decides nothing by it. It also counts the process's refusals as the page says.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpushare_proto::page::{
    FEATURE_COPIES, FEATURE_FREEZE, FEATURE_GOALS, FEATURE_IMPORTS, FEATURE_PIECES, FEATURE_REFUSALS,
    FEATURE_RESTORES, FLAG_FROZEN, FLAGS_OF_PROCESS, Goal, LeaseRow, MAX_GPUS, card_bit,
};
use gpushare_proto::{Bytes, GateState, GateWord, GpuId, Nanos, UtilizationPart};
use gpushare_sys::page::SharedPage;
use gpushare_sys::{growth, lease, page};

use super::ringer;

/// Largest number of refusals that one report may stand for. A forged number would otherwise spoil the card's
/// metrics, which are not the process's own.
const MOST_REFUSALS: u64 = 1 << 16;
/// Most attempts to write the gate word while the process changes its bit in it.
const ATTEMPTS: u32 = 64;

#[derive(Debug)]
pub(crate) struct ClientPage {
    page: Arc<SharedPage>,
    /// Leased bytes by card, used and free ones; none for a card that the process does not use.
    leased: [Option<Bytes>; MAX_GPUS],
    /// Free bytes by card that the decision machine was told; none if they must be sent again.
    known: [Option<Bytes>; MAX_GPUS],
    /// Flags that were written last.
    flags: u32,
    /// Number of times that [`FLAG_FROZEN`] was set.
    freezes: u32,
}

impl ClientPage {
    /// Creates a shared page with a closed gate. Also returns the page's file, for the client.
    pub(crate) fn create() -> io::Result<(OwnedFd, Self)> {
        let (file, page) = page::create()?;
        // Freezes are there whatever the driver is: the last daemon may have frozen the process.
        let moves = FEATURE_GOALS | FEATURE_IMPORTS | FEATURE_COPIES | FEATURE_PIECES;
        page.features
            .store(FEATURE_REFUSALS | FEATURE_FREEZE | FEATURE_RESTORES | moves, Ordering::Relaxed);
        let (leased, known) = ([None; MAX_GPUS], [None; MAX_GPUS]);
        Ok((file, Self { page: Arc::new(page), leased, known, flags: 0, freezes: 0 }))
    }

    /// Adds a card to the page, with the bytes that the process already uses there.
    pub(crate) fn attach(&mut self, gpu: GpuId, used: Bytes) {
        if let Some(leased) = self.leased.get_mut(usize::from(gpu.0)) {
            leased.get_or_insert(used);
        }
    }

    pub(crate) fn gpus(&self) -> impl Iterator<Item = GpuId> + use<> {
        let leased = self.leased;
        (0..).map(GpuId).zip(leased).filter_map(|(gpu, leased)| leased.map(|_| gpu))
    }

    /// Returns the cards to which the process has attached, as bits.
    pub(crate) fn cards(&self) -> u32 {
        self.gpus().fold(0, |cards, gpu| cards | card_bit(gpu))
    }

    pub(crate) fn is_on(&self, gpu: GpuId) -> bool {
        self.leased(gpu).is_some()
    }

    /// Returns the free leased bytes of a card, as the process reports them: at most the leased bytes.
    pub(crate) fn free(&self, gpu: GpuId) -> Bytes {
        match (self.row(gpu), self.leased(gpu)) {
            (Some(row), Some(leased)) => Bytes(row.free.load(Ordering::Relaxed)).min(leased),
            _ => Bytes::ZERO,
        }
    }

    /// Returns the free bytes of a card if the decision machine was told another number.
    pub(crate) fn news(&mut self, gpu: GpuId) -> Option<Bytes> {
        let free = self.free(gpu);
        let known = self.known.get_mut(usize::from(gpu.0))?;
        (known.replace(free) != Some(free)).then_some(free)
    }

    /// Marks a card's free bytes as unknown to the decision machine, because they are about to change.
    fn forget_known(&mut self, gpu: GpuId) {
        if let Some(known) = self.known.get_mut(usize::from(gpu.0)) {
            *known = None;
        }
    }

    /// Leases `bytes` to a waiting thread, and `extra` bytes as free bytes of the process on that card.
    pub(crate) fn lease(&mut self, gpu: GpuId, bytes: Bytes, extra: Bytes) {
        self.forget_known(gpu);
        if let Some(Some(leased)) = self.leased.get_mut(usize::from(gpu.0)) {
            *leased += bytes + extra;
        }
        if let Some(row) = self.row(gpu) {
            lease::put(row, extra);
        }
    }

    /// Takes free leased bytes of a card back. Returns the number of bytes taken.
    pub(crate) fn recall(&mut self, gpu: GpuId, bytes: Bytes) -> Bytes {
        self.forget_known(gpu);
        let (Some(row), Some(leased)) = (self.row(gpu), self.leased(gpu)) else {
            return Bytes::ZERO;
        };
        let taken = lease::take_up_to(row, bytes.min(leased));
        if let Some(rest) = self.leased.get_mut(usize::from(gpu.0)) {
            *rest = Some(leased - taken);
        }
        taken
    }

    /// Ends the lease of bytes that the process gives up. Returns for how many bytes that is possible.
    pub(crate) fn give_up(&mut self, gpu: GpuId, bytes: Bytes) -> Bytes {
        let free = self.free(gpu);
        self.forget_known(gpu);
        let Some(Some(leased)) = self.leased.get_mut(usize::from(gpu.0)) else {
            return Bytes::ZERO;
        };
        let given = bytes.min(*leased - free);
        *leased -= given;
        given
    }

    /// Takes the number of allocations that the process refused on a card since the last report: at least the
    /// one that is reported.
    pub(crate) fn take_refusals(&self, gpu: GpuId) -> u64 {
        let refused = self.row(gpu).map_or(0, |row| row.refused.swap(0, Ordering::AcqRel));
        refused.clamp(1, MOST_REFUSALS)
    }

    /// Writes the gate word and wakes all threads that sleep on the page. Keeps the bit by which the process
    /// says that memory is away.
    pub(crate) fn set_gate(&self, word: GateWord) {
        let gate = &self.page.gate;
        // Bounded, since the process could change the word for ever. Then it harms only itself.
        let is_written = (0..ATTEMPTS).any(|_| {
            let before = gate.load(Ordering::SeqCst);
            let after = word.0 | (before & GateWord::EVICTING);
            gate.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
        if !is_written {
            gate.store(word.0, Ordering::SeqCst);
        }
        ringer::ring(&self.page);
    }

    /// Returns the gate word, without the bit of the process.
    pub(crate) fn gate(&self) -> GateWord {
        GateWord(self.page.gate.load(Ordering::SeqCst)).plain()
    }

    pub(crate) fn close(&self) {
        self.set_gate(self.gate().next(GateState::Closed));
    }

    /// Writes the page's flags, except those that the process sets, and wakes the process's drainer.
    pub(crate) fn set_flags(&mut self, flags: u32) {
        if flags & !self.flags & FLAG_FROZEN != 0 {
            self.freezes = self.freezes.wrapping_add(1);
            self.page.freezes.store(self.freezes, Ordering::Release);
        }
        self.flags = flags;
        // Two bounded steps instead of a loop, which a process could keep from ending.
        self.page.flags.fetch_or(flags, Ordering::AcqRel);
        self.page.flags.fetch_and(flags | FLAGS_OF_PROCESS, Ordering::AcqRel);
        ringer::ring(&self.page);
    }

    /// Wakes the process, so that it looks at the page and at itself.
    pub(crate) fn ring(&self) {
        ringer::ring(&self.page);
    }

    /// Whether a number that the process has read is that of the last time at which [`FLAG_FROZEN`] was set.
    pub(crate) const fn is_last_freeze(&self, number: u32) -> bool {
        self.freezes == number
    }

    /// Writes the target duration of the process's work in flight: in microseconds, at least one.
    pub(crate) fn set_drain_target(&self, target: Nanos) {
        let micros = u32::try_from(target.0 / 1000).unwrap_or(u32::MAX).max(1);
        self.page.drain_target.store(micros, Ordering::Relaxed);
    }

    /// Writes the goal for the process's remapped memory on a card, and wakes all threads that sleep on the
    /// page.
    pub(crate) fn set_goal(&self, gpu: GpuId, goal: Goal) {
        if let Some(word) = self.page.goals.get(usize::from(gpu.0)) {
            word.store(goal.to_bits(), Ordering::Release);
            ringer::ring(&self.page);
        }
    }

    /// Writes the most movable memory that can be on a card at once. Zero would bound nothing.
    pub(crate) fn set_capacity(&self, gpu: GpuId, bytes: Bytes) {
        if let Some(word) = self.page.capacities.get(usize::from(gpu.0)) {
            word.store(bytes.0.max(1), Ordering::Release);
        }
    }

    /// Writes how much host memory the process should have ready for what leaves a card, and wakes all
    /// threads that sleep on the page.
    pub(crate) fn set_host_target(&self, gpu: GpuId, bytes: Bytes) {
        if let Some(word) = self.page.host_targets.get(usize::from(gpu.0)) {
            word.store(bytes.0, Ordering::Release);
            ringer::ring(&self.page);
        }
    }

    /// Writes the set of cards on which no context may be created. Wakes the process if it is on one of the cards that are
    /// `freed`.
    pub(crate) fn hold_back(&self, cards: u32, freed: u32) {
        growth::hold_back(&self.page, cards);
        if freed & self.cards() != 0 {
            ringer::ring(&self.page);
        }
    }

    /// Takes over the contexts that the process announced in its last page. It writes them itself once it has this one.
    pub(crate) fn carry_creations(&self, last: &Self) {
        for (word, last) in self.page.creations.iter().zip(&last.page.creations) {
            word.store(last.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// Returns whether the process is creating a context on one of these cards, as it says. It has attached to a card
    /// before it creates one there.
    pub(crate) fn creates_on(&self, cards: u32) -> bool {
        growth::creating(&self.page, cards & self.cards()) != 0
    }

    /// Writes a card's figures: the session's limit, bytes of its other processes, and most free bytes
    /// allowed.
    pub(crate) fn set_figures(&self, gpu: GpuId, limit: Bytes, siblings: Bytes, ceiling: Bytes) {
        if let Some(row) = self.row(gpu) {
            row.limit.store(limit.0, Ordering::Relaxed);
            row.siblings.store(siblings.0, Ordering::Relaxed);
            row.ceiling.store(ceiling.0, Ordering::Relaxed);
        }
    }

    /// Writes the session's part in the utilization of a card.
    pub(crate) fn set_part(&self, gpu: GpuId, part: UtilizationPart) {
        if let Some(row) = self.row(gpu) {
            row.part.store(part.to_bits(), Ordering::Relaxed);
        }
    }

    fn row(&self, gpu: GpuId) -> Option<&LeaseRow> {
        self.page.gpus.get(usize::from(gpu.0))
    }

    /// Returns the bytes of a card leased to the process; none for a card that the process is not on.
    pub(crate) fn leased(&self, gpu: GpuId) -> Option<Bytes> {
        self.leased.get(usize::from(gpu.0)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::page::{FLAG_CONTENDED, FLAG_WANTED};
    use gpushare_sys::bell;
    use gpushare_sys::futex::Woken;

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
    fn known_free_bytes_are_no_news() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        ours.attach(GPU, Bytes(100));
        assert_eq!(ours.news(GPU), Some(Bytes::ZERO));
        assert_eq!(ours.news(GPU), None);
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        // The row is unchanged, but the core counts with what it leased and recalled.
        ours.lease(GPU, Bytes::ZERO, Bytes(5));
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        ours.recall(GPU, Bytes(2));
        theirs.gpus[3].free.store(7, Ordering::Relaxed);
        assert_eq!(ours.news(GPU), Some(Bytes(7)));
        assert_eq!(ours.news(GpuId(200)), None);
    }

    #[test]
    fn refusals_are_taken_once_and_a_report_is_one_at_least() {
        let (file, ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        theirs.gpus[3].refused.store(7, Ordering::Relaxed);
        assert_eq!([ours.take_refusals(GPU), ours.take_refusals(GPU)], [7, 1]);
        assert_eq!(ours.take_refusals(GpuId(200)), 1);
        theirs.gpus[3].refused.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(ours.take_refusals(GPU), MOST_REFUSALS, "forged");
    }

    #[test]
    fn a_wish_for_the_lock_wakes_a_process_that_looked_before_and_sleeps_after() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        let change_flags = |ours: &mut ClientPage| ours.set_flags(FLAG_WANTED);
        let change_gate = |ours: &mut ClientPage| ours.set_gate(GateWord::new(4, GateState::Open));
        for change in [&change_flags as &dyn Fn(&mut ClientPage), &change_gate] {
            let heard = bell::heard(&theirs);
            change(&mut ours);
            assert_eq!(bell::sleep(&theirs, heard, None).unwrap(), Woken::Changed);
        }
    }

    #[test]
    fn the_processs_own_flags_stay() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        theirs.flags.store(FLAGS_OF_PROCESS, Ordering::Relaxed);
        ours.set_flags(FLAG_WANTED | FLAG_CONTENDED);
        assert_eq!(theirs.flags.load(Ordering::Relaxed), FLAGS_OF_PROCESS | FLAG_WANTED | FLAG_CONTENDED);
        ours.set_flags(FLAG_CONTENDED);
        assert_eq!(theirs.flags.load(Ordering::Relaxed), FLAGS_OF_PROCESS | FLAG_CONTENDED);
    }

    #[test]
    fn each_request_to_park_has_a_number_of_its_own() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        let numbers = [FLAG_FROZEN, FLAG_FROZEN | FLAG_WANTED, 0, FLAG_FROZEN].map(|flags| {
            ours.set_flags(flags);
            theirs.freezes.load(Ordering::Relaxed)
        });
        assert_eq!(numbers, [1, 1, 1, 2]);
        assert!(ours.is_last_freeze(2) && !ours.is_last_freeze(1));
    }

    #[test]
    fn a_capacity_of_nothing_is_told_from_none() {
        let (file, ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        for bytes in [Bytes::ZERO, Bytes::gib(80)] {
            ours.set_capacity(GPU, bytes);
            assert_eq!(theirs.capacities[3].load(Ordering::Relaxed), bytes.0.max(1));
        }
    }

    #[test]
    fn a_process_wakes_when_its_own_card_is_free_for_contexts_again() {
        let (file, mut ours) = ClientPage::create().unwrap();
        let theirs = page::map(&file).unwrap();
        ours.attach(GPU, Bytes::ZERO);
        ours.hold_back(card_bit(GPU), 0);
        assert!(growth::announce(&theirs, GPU, 1));
        assert!(ours.creates_on(card_bit(GPU)) && !ours.creates_on(card_bit(GpuId(4))));
        let heard = bell::heard(&theirs);
        ours.hold_back(0, card_bit(GpuId(4)));
        assert_eq!(bell::heard(&theirs), heard);
        ours.hold_back(0, card_bit(GPU));
        assert_eq!(bell::sleep(&theirs, heard, None).unwrap(), Woken::Changed);
        let (_file, mut next) = ClientPage::create().unwrap();
        next.attach(GPU, Bytes::ZERO);
        next.carry_creations(&ours);
        assert!(next.creates_on(card_bit(GPU)) && !next.creates_on(card_bit(GpuId(4))));
        assert!(!growth::announce(&theirs, GPU, 0));
    }

    #[test]
    fn a_closed_gate_is_a_new_change() {
        let (_file, ours) = ClientPage::create().unwrap();
        ours.set_gate(GateWord::new(4, GateState::Open));
        ours.close();
        assert_eq!(ours.gate(), GateWord::new(5, GateState::Closed));
    }
}
