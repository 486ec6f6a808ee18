//! Injection into containers: the library, the daemon's socket and the card, which a container needs to share
//! the card.
//!
//! ```text
//!   NVML ─────────────────▶ cards ──────┐
//!   /dev, ld.so.cache ────▶ driver ─────┤
//!   /etc/cdi, /run/cdi ───▶ NVIDIA's ───┤
//!                           spec        ▼
//!                                  CardEdits ──┐
//!   files of gpushare ────▶ Share ─────────────┴▶ Injection ─┬▶ spec(): a CDI spec, for a runtime
//!   folder tenant/                                           └▶ of_cards(): edits, for a device plugin
//! ```
//!
//! `machine`, `cards` and `files` read and write; all other modules compute. The container's loader preloads the
//! library by `/etc/ld.so.preload`. So `LD_PRELOAD` stays the program's own, and musl, which does not read
//! that file, is left alone.
//!
//! The card comes from NVIDIA's own CDI spec if there is one: a spec cannot refer to another, so its edits
//! are taken over. Otherwise the card's device nodes and the driver's libraries are mounted.
#![forbid(unsafe_code)]

mod edits;
mod share;
mod card;
mod cards;
mod machine;
mod spec;
mod nvidia;
mod access;
mod files;
mod injection;

pub use access::{AccessError, CardEdits, Source};
pub use card::Card;
pub use cards::{CardsError, load};
pub use edits::{Edits, Mount, Node};
pub use files::{FilesError, Found, Written, find, remove, write, write_file};
pub use injection::Injection;
pub use machine::{Driver, Machine, MachineError};
pub use share::{Share, container};
pub use spec::{ALL, Device, KIND, Spec};
