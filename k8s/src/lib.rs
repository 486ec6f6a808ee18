//! Shares of a node's cards for Kubernetes: the device plugin or the driver of DRA, and limits of pods by their
//! annotations and claims.
//!
//! ```text
//!   kubelet.sock ◀── Register ── registration ◀── kubelet.sock is new, or our socket is gone
//!                                     │ serves
//!   kubelet ───────────────────▶ gpushare.sock ──▶ service
//!     ListAndWatch               ids × health  ◀── health  ◀── watch  ◀── NVML: lost cards, Xids
//!     GetPreferredAllocation     choice        ◀── load    ◀────────────── the daemon's status
//!     Allocate                   answer        ◀── supply  ◀── machine, NVIDIA's spec, files on the host
//! ```
//!
//! Facts enter on the right: NVML, the daemon, the machine's files. Four modules decide, and none of them does
//! I/O: `health` (may a card take new pods), `choice` (which shares of those that are free), `answer`
//! (what a container gets) and `registration::next` (serve, register, or wait). Answers leave on the left, to the
//! kubelet, and the runtime reads the CDI spec that `supply` wrote.
//!
//! `dra` offers the same cards to claims instead; `offer` is the switch between both.
//!
//! `pods` stands beside them: it gives each pod a session of the daemon, with the limits that the pod's annotations
//! and claims ask for.
//!
//! A share is the right to use one card beside others, under the node's daemon. All shares of a card are alike;
//! the daemon divides the card's time and memory.
#![forbid(unsafe_code)]

// Program: arguments, life.
mod args;
mod program;

// Words: terms of pods, quantities of Kubernetes.
mod terms;
mod quantity;

// Decisions.
mod share;
mod health;
mod choice;
mod answer;

// Facts.
mod notes;
mod watch;
mod load;
mod supply;
mod upkeep;

// The cluster and the kubelet.
mod apiserver;
pub mod api;
mod socket;
mod pod_resources;

// The device plugin.
mod service;
mod registration;

// Claims of dynamic resource allocation, in place of the device plugin.
mod dra;
mod offer;

// Limits of pods, by their annotations and claims.
mod pods;

pub use dra::DRIVER;
pub use program::{command, main};
pub use share::RESOURCE;
