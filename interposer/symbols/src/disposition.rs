//! Disposition of a driver symbol: gpushare's treatment of calls of that function.

/// Treatment of a driver symbol by gpushare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Treatment by a hook of this family, which runs around the driver's function.
    Wrapped(Family),
    /// Treatment by a hook of this family, which answers itself or changes the driver's answer.
    Answered(Family),
    /// Direct call of the driver, for the given reason.
    Passed(&'static str),
    /// Refusal by a hook with `CUDA_ERROR_NOT_SUPPORTED`, for the given reason.
    Refused(&'static str),
    /// Direct call of the driver although gpushare cannot account for it, with the given consequences.
    Unsupported(&'static str),
}

impl Disposition {
    /// Returns whether gpushare hooks a symbol with this disposition.
    pub const fn is_hooked(self) -> bool {
        matches!(self, Self::Wrapped(_) | Self::Answered(_) | Self::Refused(_))
    }

    /// Returns the name of the disposition in tables and JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Wrapped(_) => "wrapped",
            Self::Answered(_) => "answered",
            Self::Passed(_) => "passed",
            Self::Refused(_) | Self::Unsupported(_) => "unsupported",
        }
    }

    /// Returns the hooks' family or the reason, as text for people.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Wrapped(family) | Self::Answered(family) => family.does(),
            Self::Passed(reason) | Self::Refused(reason) | Self::Unsupported(reason) => reason,
        }
    }
}

macro_rules! families {
    ($($name:ident = $does:literal;)*) => {
        /// Family of hooks with common behaviour.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $( #[doc = concat!("Family whose rule is: ", $does, ".")] $name, )*
        }

        impl Family {
            /// List of all families, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns a sentence that says what the hooks of the family do.
            pub const fn does(self) -> &'static str {
                match self {
                    $( Self::$name => $does, )*
                }
            }
        }
    };
}

families! {
    Launch = "launches pass the gate";
    Graph = "launches and uploads of graphs pass the gate; their kernels are counted";
    Copy = "copies pass the gate";
    Set = "fills pass the gate";
    Prefetch = "moves of managed memory pass the gate";
    StreamOperation = "writes, waits and signals of a stream pass the gate";
    Stream = "the streams of a context are known, so that a drain can ask whether each is done";
    Capture = "gpushare makes no calls that would invalidate a running capture";
    Peer = "a process with peers is not frozen; memory that stands in for device memory is mapped for the peer";
    Context = "contexts are counted and reported to the daemon";
    Allocation = "memory is charged to the quota and, under the managed backend, allocated so that it can move";
    Pool = "memory of pools is charged by what the pool takes from the card";
    Mapping = "memory that an application maps itself is charged by handle, and moves where that is simple";
    Array = "arrays are charged at the size that they take on the card";
    Ipc = "memory that other processes share stays, and its process is not frozen; managed memory is not shared";
    Graphics = "a process that has memory, frames or events of a graphics interface is not frozen";
    GraphMemory = "memory of graphs is charged when their reserve grows";
    Addresses = "the driver looks at addresses only while remapped memory is on the card";
    Module = "a call that finds no memory for code is repeated if the card has some";
    Totals = "a session sees its quota and its own usage as the card's memory";
    Identity = "managed memory that stands for device memory is described as device memory";
    Lookup = "a hooked function is answered with gpushare's";
}
