//! The gpushare daemon: one per GPU, a tokio shell around the decision machine of `gpushare-core`.
#![forbid(unsafe_code)]

// What it is told.
pub mod args;
pub mod config;

// Its life, and how it ends.
pub mod daemon;
pub mod exit;
pub mod ready;

// What is its own alone: the folder with the sockets, that for what must last, the cards.
pub mod lock;
mod meter;
pub mod nvml;
pub mod sockets;
pub mod state;

// Who comes.
mod connection;
mod door;
mod entrants;
mod household;
mod identity;
mod input;

// What it keeps.
mod cards;
mod knob;
mod pages;
mod registry;
mod secret;
mod sessions;

// What it tells of itself.
mod audit;
pub mod metrics;
pub mod operation;

// What it does, the recording of it, and the log that nobody may fill.
pub mod record;
mod shell;
mod throttle;
