//! Loans: handles of chunks that threads give to other processes. The driver keeps a handle until it is taken back,
//! also if the application frees the memory meanwhile.

use super::{Engine, Entry};
use crate::driver::types::CUmemHandle;
use crate::remap::vmm::{Span, Tier};

/// Handle of a chunk that must not be released before [`Engine::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Addresses of the chunk.
    pub chunk: Span,
    /// Kind of its memory.
    pub tier: Tier,
    /// Handle of its memory.
    pub handle: CUmemHandle,
}

impl Engine {
    /// Lends the handles of all chunks of a range. `None` if one of them may move or moves now, and without any chunk.
    pub fn lend(&mut self, range: Span) -> Option<Vec<Loan>> {
        let loan = |chunk: Span| {
            let (tier, handle) = self.chunks.get(chunk.address)?.chunk.fixed_handle()?;
            Some(Loan { chunk, tier, handle })
        };
        let loans: Vec<Loan> = self.chunks_in(range).into_iter().map(loan).collect::<Option<_>>()?;
        for loan in &loans {
            self.chunks.change(loan.chunk.address, |entry| entry.lent += 1);
        }
        (!loans.is_empty()).then_some(loans)
    }

    /// Takes handles back.
    pub fn take_back(&mut self, loans: &[Loan]) {
        for loan in loans {
            let end = |entry: &mut Entry| entry.lent = entry.lent.saturating_sub(1);
            self.chunks.change(loan.chunk.address, end);
        }
    }
}
