//! Driver of dynamic resource allocation (DRA): cards as devices of claims.
//!
//! ```text
//!   cards × health ─▶ devices ─▶ slices ─▶ publisher ─▶ API server: ResourceSlices of this node
//!                                                              │ kube-scheduler allocates a claim
//!   plugins_registry ◀── registration ── dra.sock              ▼
//!   kubelet ── NodePrepareResources ─▶ service ─▶ claim ◀── resources ◀── API server: the claim
//!            ◀── CDI device of each card ──┘        │
//!                                                   ▼
//!                                 prepared: claims of this node, in a file ─▶ pods: limits of their sessions
//! ```
//!
//! Four modules decide, and none of them does I/O: `devices` (what is offered), `slices` (which objects change),
//! `config` (what parameters mean) and `claim` (what a claim gets).

// Objects of the API.
mod objects;

// Decisions.
mod devices;
mod slices;
mod config;
mod claim;

// Facts and acts.
mod resources;
mod prepared;

// Life: towards the cluster, and towards the kubelet.
mod publisher;
mod service;
mod registration;
mod driver;

pub(crate) use devices::{Offer, OfferedCard};
pub(crate) use driver::{Driver, Setup};
pub(crate) use prepared::{PodClaims, Prepared, PreparedError};

/// Name of the driver, in slices, claims and the registration.
pub const DRIVER: &str = "gpushare.dev";
