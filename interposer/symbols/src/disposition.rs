//! Disposition of a symbol: what gpushare does when an application calls it.

use std::fmt;

/// Treatment of a symbol by gpushare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A hook of this family runs around the driver's function.
    Wrapped(Family),
    /// A hook of this family answers from gpushare's own tables, or changes the driver's answer.
    Answered(Family),
    /// The driver is called directly, for this reason.
    Passed(&'static str),
    /// A hook refuses the call with `CUDA_ERROR_NOT_SUPPORTED`, for this reason.
    Refused(&'static str),
    /// The driver is called although gpushare cannot account for the call, with these consequences.
    Unsupported(&'static str),
}

impl Disposition {
    /// Whether a line of `interposer/src/` hooks the symbol.
    #[must_use]
    pub const fn is_hooked(self) -> bool {
        matches!(self, Self::Wrapped(_) | Self::Answered(_) | Self::Refused(_))
    }

    /// Word for the disposition in tables and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wrapped(_) => "wrapped",
            Self::Answered(_) => "answered",
            Self::Passed(_) => "passed",
            Self::Refused(_) | Self::Unsupported(_) => "unsupported",
        }
    }

    /// Family or reason, as text for people.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Wrapped(family) | Self::Answered(family) => family.does(),
            Self::Passed(reason) | Self::Refused(reason) | Self::Unsupported(reason) => reason,
        }
    }
}

impl fmt::Display for Disposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.word(), self.why())
    }
}

macro_rules! families {
    ($($(#[$doc:meta])* $name:ident = $does:literal;)*) => {
        /// A family of hooks: what one kind of call has in common.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $( $(#[$doc])* $name, )*
        }

        impl Family {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What its hooks do, in one sentence.
            #[must_use]
            pub const fn does(self) -> &'static str {
                match self {
                    $( Self::$name => $does, )*
                }
            }
        }
    };
}

families! {
    /// Kernels and host functions.
    Launch = "launches pass the gate";
    /// Graphs that are launched.
    Graph = "launches and uploads of graphs pass the gate; their kernels are counted";
    /// Copies.
    Copy = "copies pass the gate";
    /// Fills.
    Set = "fills pass the gate";
    /// Managed memory that is moved.
    Prefetch = "moves of managed memory pass the gate";
    /// Writes and waits that a stream does.
    StreamOperation = "writes, waits and signals of a stream pass the gate";
    /// Recordings of streams.
    Capture = "gpushare makes no calls that would invalidate a running capture";
    /// Contexts.
    Context = "contexts are counted and reported to the daemon";
    /// Plain memory.
    Allocation = "memory is charged to the quota and, under the managed backend, allocated so that it can move";
    /// Pools.
    Pool = "memory of pools is charged by what the pool takes from the card";
    /// An application's own mappings.
    Mapping = "memory that an application maps itself is charged by handle";
    /// Arrays.
    Array = "arrays are charged at the size that they take on the card";
    /// Memory of other processes.
    Ipc = "memory is handed to other processes only if it cannot move";
    /// Memory of graphs.
    GraphMemory = "memory of graphs is charged when their reserve grows";
    /// Code that takes memory.
    Module = "the daemon makes headroom for code before it is loaded";
    /// What memory a card has.
    Totals = "a session sees its quota and its own usage as the card's memory";
    /// What a piece of memory is.
    Identity = "managed memory that stands for device memory is described as device memory";
    /// Ways to find functions.
    Lookup = "a hooked function is answered with gpushare's";
}
