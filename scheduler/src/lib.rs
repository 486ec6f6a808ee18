//! The gpushare daemon: one for all cards of a machine or user. A tokio shell around the decision machine of
//! `gpushare-core`.
#![forbid(unsafe_code)]

// Settings: command line, configuration file.
pub mod args;
pub mod config;

// Life of the daemon: start, main loop, end.
pub mod daemon;
pub mod exit;
pub mod ready;

// Resources that one daemon owns alone: runtime folder with its sockets, state folder, cards.
pub mod lock;
pub mod nvml;
pub mod sockets;
pub mod state;

// Peers: who they are, their connections, what they send.
mod connections;
mod entrants;
mod identity;
mod input;

// State: cards, sessions, shared pages, and what outlives the daemon.
mod cards;
mod knob;
mod pages;
mod registry;
mod secret;
mod sessions;

// The task that owns the core and answers all inputs.
mod shell;

// Reports: audit log, metrics, operations, recordings, the limit on log lines.
mod audit;
mod log_limiter;
pub mod metrics;
pub mod operation;
pub mod record;
