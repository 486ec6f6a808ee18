//! Exclusion between the two that take a card's free memory past the accounts: the restore of a frozen process, and
//! the creation of a context. Each side announces itself in the shared page and then looks at the other one's word.
//!
//! ```text
//!   process                                     daemon, with the pages of all processes
//!   creations[card] = number                    restores |= card
//!   restores has the card?  no: create          creations[card] > 0 in a page?  no: restore
//!                           yes: withdraw,                                      yes: look again later
//!                                sleep
//! ```
//!
//! All these accesses are sequentially consistent, so they have one total order, in which each side's store comes
//! before its load. If the process's load misses the daemon's store, then it comes before that, and so does the
//! process's own store. Then the daemon's load sees it.

use std::sync::atomic::Ordering::SeqCst;

use gpushare_proto::GpuId;
use gpushare_proto::page::{MAX_GPUS, Page, card_bit};

/// Announces how many contexts the process is creating on a card. Returns whether none may begin there yet, since a
/// frozen process comes back.
pub fn announce(page: &Page, gpu: GpuId, contexts: u32) -> bool {
    if let Some(word) = page.creations.get(usize::from(gpu.0)) {
        word.store(contexts, SeqCst);
    }
    page.restores.load(SeqCst) & card_bit(gpu) != 0
}

/// Writes the set of cards on which no context may be created. The caller rings the bell where it takes one out.
pub fn hold_back(page: &Page, cards: u32) {
    page.restores.store(cards, SeqCst);
}

/// Returns the set of cards, among these, on which the process is creating a context.
#[must_use]
pub fn creating(page: &Page, cards: u32) -> u32 {
    let gpus = (0..MAX_GPUS as u8).map(GpuId).zip(&page.creations);
    gpus.filter(|&(gpu, word)| cards & card_bit(gpu) != 0 && word.load(SeqCst) > 0)
        .fold(0, |found, (gpu, _)| found | card_bit(gpu))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use gpushare_proto::GateState;

    use super::*;

    const GPU: GpuId = GpuId(3);
    const CARD: u32 = card_bit(GPU);

    #[test]
    fn each_card_is_held_back_by_itself() {
        let page = Page::new(GateState::Open);
        hold_back(&page, CARD);
        assert_eq!([GPU, GpuId(2), GpuId(200)].map(|gpu| announce(&page, gpu, 1)), [true, false, false]);
        assert_eq!(creating(&page, u32::MAX), CARD | card_bit(GpuId(2)));
        assert_eq!(creating(&page, CARD), CARD);
        announce(&page, GPU, 0);
        assert_eq!(creating(&page, CARD), 0);
    }

    #[test]
    fn a_restore_and_a_creation_never_begin_both() {
        const ROUNDS: usize = 50_000;
        let (page, arrived) = (Page::new(GateState::Open), AtomicUsize::new(0));
        // Both begin each round at once, and the next one once both have ended it.
        let both = |round: usize| {
            arrived.fetch_add(1, SeqCst);
            let mut looks = 0_u32;
            while arrived.load(SeqCst) < 2 * round {
                looks += 1;
                if looks.is_multiple_of(1 << 12) {
                    thread::yield_now();
                }
            }
        };
        let run = |begins: &(dyn Fn() -> bool + Sync), ends: &(dyn Fn() + Sync)| -> Vec<bool> {
            let round = |round| {
                both(3 * round + 1);
                let has_begun = begins();
                both(3 * round + 2);
                ends();
                both(3 * round + 3);
                has_begun
            };
            (0..ROUNDS).map(round).collect()
        };
        let (creates, restores) = thread::scope(|scope| {
            let process = scope.spawn(|| run(&|| !announce(&page, GPU, 1), &|| _ = announce(&page, GPU, 0)));
            let restore = || {
                hold_back(&page, CARD);
                creating(&page, CARD) == 0
            };
            let restores = run(&restore, &|| hold_back(&page, 0));
            (process.join().unwrap(), restores)
        });
        assert!(creates.iter().zip(&restores).all(|(creates, restores)| !(creates & restores)));
    }
}
