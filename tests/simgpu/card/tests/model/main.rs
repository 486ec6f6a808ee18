//! The model in virtual time: what things cost, who runs when, what orders what, what a death leaves.

mod bench;
// Faults, slices, streams, endings.
mod engine;
// The way between host and card.
mod bus;
// Memory beyond plain allocations.
mod anything;
mod calls;
mod physical;
mod pools;
// Several GPUs, and GPUs that fail.
mod cards;
