//! Memory requests that wait or are refused, and what NVML says of processes and cards.

// Facts, each with one owner.
pub(crate) mod metering;
pub(crate) mod overhead;
pub(crate) mod postponed;
pub(crate) mod refusals;
pub(crate) mod unreported;

// Events, which concern several facts.
pub(crate) mod contradictions;
pub(crate) mod creations;
pub(crate) mod host;
pub(crate) mod measure;
pub(crate) mod reserve;
pub(crate) mod room;
pub(crate) mod rooms;
