//! The gpushare daemon, which serves all cards of a machine or user. It runs the decision machine of
//! `gpushare-core` in a tokio task.
#![forbid(unsafe_code)]

// Settings: command line, configuration file.
mod args;
mod config;

// Life of the daemon: start, main loop, end.
mod alarm;
mod daemon;
mod errors;
mod exit;
mod program;
mod ready;

// Resources that one daemon owns alone: runtime folder with its sockets, state folder, cards.
mod lock;
mod nvml;
mod sockets;
mod state;

// Peers: who they are, their connections, what they send.
mod budget;
mod connections;
mod fair;
mod fair_thread;
mod identity;
mod input;
mod peers;

// State: cards, sessions, and what outlives the daemon.
mod cards;
mod knob;
mod registry;
mod secret;
mod sessions;

// The task that owns the core, and what it does by capability.
mod clients;
mod copies;
mod engine;
mod freeze;
mod memory;
mod persist;
mod report;
mod requests;
mod utilization;

// Reports: log, audit log, metrics, page for browsers, operations, recordings.
mod audit;
mod dashboard;
mod http;
mod log;
pub mod metrics;
mod operation;
mod record;
mod rotated;

pub use daemon::THAWING;
pub use program::{command, main};
