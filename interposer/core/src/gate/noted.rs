//! Gate words that the process notes: which drops were answered, and what was asked for or failed under a word.
//!
//! The page of a new daemon counts from zero, so a word is noted with its page.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use gpushare_proto::page::Page;
use gpushare_proto::{GateState, GateWord};

use crate::process::lock;

/// Gate word that was noted last, with the address of its shared page. The page of a new daemon counts from
/// zero, so the same word there stands for another grant.
#[derive(Debug, Default)]
pub(super) struct NotedWord(Mutex<Option<(usize, GateWord)>>);

impl NotedWord {
    pub(super) fn is(&self, page: &Page, word: GateWord) -> bool {
        *lock(&self.0) == Some((std::ptr::from_ref(page).addr(), word))
    }

    pub(super) fn note(&self, page: &Page, word: GateWord) {
        *lock(&self.0) = Some((std::ptr::from_ref(page).addr(), word));
    }

    /// Forgets the word, and returns whether it was noted.
    fn take(&self, page: &Page, word: GateWord) -> bool {
        let this = (std::ptr::from_ref(page).addr(), word);
        lock(&self.0).take_if(|noted| *noted == this).is_some()
    }
}

/// Gate word (closed) of the last drop that was answered.
#[derive(Debug, Default)]
pub(super) struct AnsweredDrop(NotedWord);

impl AnsweredDrop {
    /// Returns whether a drop needs no answer, because it was answered or the lock was never granted.
    pub(super) fn covers(&self, page: &Page, word: GateWord) -> bool {
        word.change() == 0 || self.0.is(page, word)
    }

    pub(super) fn note(&self, page: &Page, word: GateWord) {
        self.0.note(page, word);
    }
}

/// Request of the program to give the lock back without the idle grace. It holds for one grant, whose gate word
/// (open) it notes.
#[derive(Debug, Default)]
pub(super) struct GiveBack(NotedWord);

impl GiveBack {
    /// Notes a request for the present grant of `page`. Without a grant there is nothing to give back.
    pub(super) fn ask(&self, page: &Page) {
        let word = load(page);
        if word.state() != GateState::Closed {
            self.0.note(page, word.with(GateState::Open));
        }
    }

    /// Returns whether the program asked to give the grant of an open gate back.
    pub(super) fn is_asked(&self, page: &Page, word: GateWord) -> bool {
        self.0.is(page, word)
    }

    /// Forgets the request for the grant of an open gate, and returns whether there was one.
    pub(super) fn take(&self, page: &Page, word: GateWord) -> bool {
        self.0.take(page, word)
    }
}

/// Returns the present gate word, without the mark of memory that is away.
pub(super) fn load(page: &Page) -> GateWord {
    GateWord(page.gate.load(Ordering::Acquire)).plain()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn a_closed_word_is_answered_once_and_its_successor_again() {
        let (page, answered) = (Page::new(GateState::Closed), AnsweredDrop::default());
        assert!(!answered.covers(&page, CLOSED));
        answered.note(&page, CLOSED);
        assert!(answered.covers(&page, CLOSED));
        assert!(!answered.covers(&page, CLOSED.next(GateState::Closed)));
    }

    #[test]
    fn an_equal_word_in_a_returned_daemons_page_is_answered_again() {
        let pages = [Page::new(GateState::Closed), Page::new(GateState::Closed)];
        let answered = AnsweredDrop::default();
        answered.note(&pages[0], CLOSED);
        assert!(!answered.covers(&pages[1], CLOSED));
    }

    #[test]
    fn a_request_to_give_back_holds_for_the_present_grant_only() {
        let (page, gives_back) = (Page::new(GateState::Closed), GiveBack::default());
        let grant = CLOSED.next(GateState::Open);
        gives_back.ask(&page);
        page.gate.store(grant.0, Ordering::SeqCst);
        assert!(!gives_back.is_asked(&page, grant), "it was asked without a grant");
        gives_back.ask(&page);
        assert!(gives_back.is_asked(&page, grant));
        let later = grant.next(GateState::Open);
        assert!(!gives_back.is_asked(&page, later) && !gives_back.take(&page, later));
        assert!(gives_back.take(&page, grant) && !gives_back.take(&page, grant));
    }

    #[test]
    fn a_process_without_a_grant_has_nothing_to_give_back() {
        let first = GateWord::new(0, GateState::Closed);
        assert!(AnsweredDrop::default().covers(&Page::new(GateState::Closed), first));
    }
}
