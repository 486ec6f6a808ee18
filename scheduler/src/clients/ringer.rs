//! Thread that wakes the sleepers of pages with very many of them.
//!
//! A process may have thousands of threads asleep on its page. The engine wakes a bounded number of them, and
//! this thread the rest, a bounded number of each page in turn.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;

use gpushare_sys::bell;
use gpushare_sys::page::SharedPage;

/// Largest number of rounds for one ring, since woken threads may sleep again at once.
const ROUNDS: u32 = 1024;

/// Sender to the thread; `None` if it could not be started.
static THREAD: LazyLock<Option<Sender<Arc<SharedPage>>>> = LazyLock::new(|| {
    let (sender, pages) = channel();
    let started = thread::Builder::new()
        .name("ringer".to_owned())
        .spawn(move || wake_in_turn(&pages));
    started.ok().map(|_| sender)
});

/// Rings the bell of a page. All its sleepers wake soon.
pub(super) fn ring(page: &Arc<SharedPage>) {
    if bell::ring_some(page) {
        let sent = THREAD.as_ref().map(|thread| thread.send(page.clone()));
        if !matches!(sent, Some(Ok(()))) {
            bell::ring(page);
        }
    }
}

fn wake_in_turn(pages: &Receiver<Arc<SharedPage>>) {
    let mut waiting: VecDeque<(Arc<SharedPage>, u32)> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Ok(page) = pages.recv() else { return };
            waiting.push_back((page, ROUNDS));
        }
        for page in pages.try_iter() {
            match waiting.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &page)) {
                Some((_, rounds)) => *rounds = ROUNDS,
                None => waiting.push_back((page, ROUNDS)),
            }
        }
        if let Some((page, rounds)) = waiting.pop_front()
            && bell::wake_more(&page)
            && rounds > 0
        {
            waiting.push_back((page, rounds - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpushare_sys::page;

    use super::*;

    #[test]
    fn all_sleepers_of_a_page_wake() {
        let (_file, page) = page::create().unwrap();
        let page = Arc::new(page);
        let heard = bell::heard(&page);
        let sleep = || bell::sleep(&page, heard, None);
        thread::scope(|scope| {
            let _sleepers: Vec<_> = (0..bell::SOME * 4).map(|_| scope.spawn(sleep)).collect();
            ring(&page);
        });
    }
}
