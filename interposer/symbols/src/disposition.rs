//! What is done about a symbol.

use std::fmt;

/// What gpushare does when an application calls a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A hook of this family stands in front of the driver.
    Wrapped(Family),
    /// A hook of this family answers from our own tables, instead of the driver or over its answer.
    Answered(Family),
    /// The driver is called as if we were not there, for this reason.
    Passed(&'static str),
    /// A hook refuses the call with `CUDA_ERROR_NOT_SUPPORTED`, for this reason.
    Refused(&'static str),
    /// The driver is called although we cannot follow what it does; what that means.
    Unsupported(&'static str),
}

impl Disposition {
    /// Whether one of the lines of `interposer/src/` is a hook for it.
    #[must_use]
    pub const fn is_hooked(self) -> bool {
        matches!(self, Self::Wrapped(_) | Self::Answered(_) | Self::Refused(_))
    }

    /// The word for it in tables and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wrapped(_) => "wrapped",
            Self::Answered(_) => "answered",
            Self::Passed(_) => "passed",
            Self::Refused(_) | Self::Unsupported(_) => "unsupported",
        }
    }

    /// The family or the reason, for people.
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
    Graph = "launches and uploads of graphs pass the gate, and their kernels are counted";
    /// Copies.
    Copy = "copies pass the gate";
    /// Fills.
    Set = "fills pass the gate";
    /// Managed memory that is moved.
    Prefetch = "moves of managed memory pass the gate";
    /// Writes and waits that a stream does.
    StreamOperation = "a stream's own writes, waits and signals pass the gate";
    /// Recordings of streams.
    Capture = "a stream that is recorded holds the lock, so that nothing of ours breaks the recording";
    /// Contexts.
    Context = "contexts are counted and measured, and tell that a card is used";
    /// Plain memory.
    Allocation = "memory is reserved first, made so that it can move, and booked";
    /// Pools.
    Pool = "memory of pools is reserved first and booked by what the pool keeps";
    /// An application's own mappings.
    Mapping = "memory behind an application's own mappings is booked by handle";
    /// Arrays.
    Array = "arrays are reserved first and booked at their true size";
    /// Memory of other processes.
    Ipc = "memory is handed to other processes only where it stays in place";
    /// Memory of graphs.
    GraphMemory = "memory that graphs keep is booked by the growth of their reserve";
    /// Code that takes memory.
    Module = "loading code asks for room first";
    /// What memory a card has.
    Totals = "a session is shown its own limit and usage";
    /// What a piece of memory is.
    Identity = "memory that we made differently is described as the application asked for it";
    /// Ways to find functions.
    Lookup = "our function is answered for each function that is hooked";
}
