//! Policy without a scheduler: all sessions run at once, and missing memory is fetched page by page.

use std::collections::VecDeque;

use gpushare_proto::{Bytes, Nanos};

use super::{Policy, Who, Word};
use crate::sim::tenant::Tenant;

/// No scheduler.
#[derive(Debug, Default)]
pub(crate) struct Unscheduled {
    words: VecDeque<Word>,
}

impl Policy for Unscheduled {
    fn name(&self) -> &'static str {
        "none"
    }

    fn lets_go_at(&self, _: Nanos, _: Nanos, _: Nanos) -> Nanos {
        Nanos::MAX
    }

    fn arrives(&mut self, _: Nanos, who: Who, _: &Tenant) {
        self.words.push_back(Word::Pass { who, moves: false });
    }

    fn wants(&mut self, _: Nanos, _: Who) {}

    fn entered(&mut self, _: Nanos, _: Who, _: Bytes, _: Nanos) {}

    fn let_go(&mut self, _: Nanos, _: Who, _: Nanos) {}

    fn leaves(&mut self, _: Nanos, _: Who) {}

    fn deadline(&self) -> Option<Nanos> {
        None
    }

    fn wake(&mut self, _: Nanos) {}

    fn poll(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    fn handoffs(&self) -> u64 {
        0
    }
}
