//! The gate, which every call passes that gives work to a card: entry, waiting, draining and exceptions.
//!
//! ```text
//!   a thread ──▶ entry ── closed? ──▶ wait    sleeps on the page's bell; exceptions: captures, collectives,
//!                  │                          communication (marked streams)
//!                  ▼ open
//!              the driver
//!
//!   interrupt   ends the waits when the program asks for it, as at Ctrl-C
//!   drain   a thread that answers a closed gate once nothing is in flight, and opens a granted one
//!   moves   managed memory comes in before the gate opens (drain), and leaves under a closed one (move_out)
//!   noted   words under which drops were answered, or the program gives the card back
//!   idle    how long a process must be quiet before the drainer gives its grant back
//! ```

pub(crate) mod captures;
pub(crate) mod collectives;
pub(crate) mod communication;
pub(crate) mod drain;
mod entry;
mod in_flight;
pub mod interrupt;
mod move_out;
mod moves;
mod noted;
pub mod idle;
mod page;
pub(crate) mod wait;
pub(crate) mod waiters;

pub use entry::{Gate, Pass, is_inside, thread_number};
pub use page::{GATE, page};
pub(crate) use page::{listen, replace_page, reset, set_page, wake_sleepers};
