//! Ids of clients, contexts, streams and events, each with a type of its own.
//!
//! A client (one process) numbers its own contexts, streams and events, so that creating one needs no answer.
//! The card only ever reads such a number together with the client it came from.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant: the time since the card was switched on.
pub type Time = Duration;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);
    };
}

id!(/// One connection to the card: a process that uses it.
    ClientId(u32));
id!(/// The index of a simulated GPU of this card process, from 0.
    GpuIndex(u32));
id!(/// A context, numbered by its client.
    ContextId(u32));
id!(/// A stream, numbered by its client.
    StreamId(u32));
id!(/// An event, numbered by its client.
    EventId(u32));
id!(/// An instantiated graph, numbered by its client.
    GraphId(u32));
id!(/// A piece of physical memory, numbered by its client.
    HandleId(u32));
id!(/// A memory pool, numbered by its client.
    PoolId(u32));
id!(/// A host function that waits to be called, numbered by its client.
    HostCallId(u64));

/// A stream of a client, named from outside that client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    /// Whose stream it is.
    pub client: ClientId,
    /// Which of its streams.
    pub stream: StreamId,
}
