//! The little unsafe that gpushare needs from Linux.
//!
//! In reading order: the page that a client shares with the daemon and the bytes leased in it, sleeping
//! on a word of it, passing it over a socket, who is at the other end of that socket, what the kernel
//! says about that process and who made its user namespace, descriptors (also those that a process is started with) and clocks, folders that are one user's, and what unwinds through us.

pub mod page;
pub mod lease;
pub mod futex;
pub mod socket;
pub mod peer;
pub mod process;
pub mod user_namespace;
pub mod fd;
pub mod passed;
pub mod clock;
pub mod folder;
pub mod unwind;
