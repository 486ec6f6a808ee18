//! Identity of a stream, which is also where its slot is looked for.

/// Identity of a CUDA stream in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Stream that the application created, by its handle.
    Own(usize),
    /// Legacy default stream of the context at this address.
    Legacy(usize),
    /// Default stream of one thread: the address of its context, then the thread's number.
    PerThread(usize, usize),
}

impl Stream {
    /// Returns the stream's identity as two integers. The second is zero for a stream that the application
    /// created.
    pub(super) fn key(self) -> (usize, usize) {
        match self {
            Self::Own(handle) => (handle, 0),
            Self::Legacy(context) => (1, context),
            Self::PerThread(context, thread) => (2 | thread << 2, context),
        }
    }
}
