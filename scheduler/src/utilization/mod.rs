//! Parts of the sessions in the utilization of the cards that they share.
//!
//! ```text
//!   every second, while sessions share a card                    thread of its own
//!   ─▶ schedule ── cards ──────────────────────────────────────▶ NVML: work of each process
//!      pages of the sessions' processes ◀── parts ◀── samples ◀──┘
//! ```
//!
//! A process multiplies the card's own figure, which NVML has at once, with the part in its shared page. So
//! it pays neither NVML's millisecond for the processes of a card nor a message.

// Facts and arithmetic.
mod parts;
pub(crate) mod schedule;

// Events, which concern several facts.
pub(crate) mod update;
