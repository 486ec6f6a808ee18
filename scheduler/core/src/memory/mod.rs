//! Memory accounting: memory of processes on the cards, and bytes that may be leased to them.

pub(crate) mod absent;
pub(crate) mod book;
pub(crate) mod orphans;
pub(crate) mod sums;

pub(crate) mod limits;
pub(crate) mod quota;

pub(crate) mod recalls;
