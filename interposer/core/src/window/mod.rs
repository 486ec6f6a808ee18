//! The kernel window: how much of a process's work may be in flight, because that is what a drop has to wait for.

pub mod aimd;
