//! Linux interfaces that need `unsafe`, or that daemon and clients share.
//!
//! Modules in reading order: memory files; the shared page, the bytes leased in it, and the exclusion of new
//! contexts and restores by it; sleeping until the page changes; sockets, passed descriptors, their peers, and facts from
//! `/proc`; descriptors and pipes; clocks; turns on the processor; folders of one user; unwinding through hooks;
//! host copies.

pub mod memory_file;
pub mod memory_limit;
pub mod page;
pub mod lease;
pub mod growth;
pub mod futex;
pub mod bell;
pub mod socket;
pub mod passed;
pub mod peer;
pub mod process;
pub mod user_namespace;
pub mod fd;
pub mod pipe;
pub mod clock;
pub mod cpu;
pub mod folder;
pub mod unwind;
pub mod copies;
