//! Linux interfaces that need `unsafe`, or that daemon and clients share.
//!
//! In reading order: the shared page and the bytes leased in it; sleeping on a word of it; sockets, their
//! peers, and what `/proc` says about a process; descriptors; clocks; folders of one user; unwinding through
//! hooks.

pub mod page;
pub mod lease;
pub mod futex;
pub mod socket;
pub mod peer;
pub mod process;
pub mod user_namespace;
pub mod fd;
pub mod clock;
pub mod folder;
pub mod unwind;
