//! Sessions of the node's pods, with the limits that their annotations ask for.
//!
//! ```text
//!   API server ── pods of this node: UID, annotations ──▶ cluster ─┐
//!   kubelet    ── cards of each pod (PodResources), ────▶ given ───┤
//!   or DRA        or claims that are prepared                      │
//!   file       ── most for each namespace ──────────────▶ maxima ──┼─▶ plan ─▶ acts ─▶ daemon
//!   daemon     ── sessions of pods, with their limits ──▶ daemon ──┘     │
//!   API server ◀── events on pods whose annotations do not count ◀───────┘
//! ```
//!
//! The session of a pod is bound to the pod's UID, which the daemon reads from the control group of each
//! process. So a pod can neither leave its session nor enter another one. A source that does not answer
//! changes nothing: its last answer counts, and the sessions keep the limits that they have.

// Decisions.
mod problem;
mod reading;
mod annotations;
mod maxima;
mod plan;

// Facts and acts.
mod cluster;
mod daemon;
mod given;
mod reports;

// Life.
mod agent;

pub(crate) use agent::{Agent, Sources};
pub(crate) use given::Source;
