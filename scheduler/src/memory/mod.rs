//! Memory requests that wait or are refused, and the measurement of the driver's own memory.

// Facts, each with one owner.
pub(crate) mod metering;
pub(crate) mod overhead;
pub(crate) mod postponed;
pub(crate) mod refusals;
pub(crate) mod unreported;

// Events, which concern several facts.
pub(crate) mod host;
pub(crate) mod measure;
pub(crate) mod reserve;
pub(crate) mod room;
pub(crate) mod rooms;
