//! Handles: what the caller holds for a context, a stream, an event.
//!
//! A handle is a number with its kind in the upper part, never a pointer into this library, so that a stale
//! or a wrong one is an error and not a crash.

/// `CUcontext`, `CUstream`, `CUevent` ... as C passes them.
pub(crate) type Handle = usize;

/// The kinds of things that have handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Tag {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    Pool,
    Physical,
    Array,
    Mipmap,
}

const TAG_SHIFT: u32 = 44;
const STEP: usize = 16;

impl Tag {
    pub(crate) fn handle(self, id: u32) -> Handle {
        ((self as usize) << TAG_SHIFT) + (id as usize + 1) * STEP
    }

    pub(crate) fn id(self, handle: Handle) -> Option<u32> {
        let number = handle.checked_sub((self as usize) << TAG_SHIFT)?;
        let fits = number >> TAG_SHIFT == 0 && number.is_multiple_of(STEP);
        u32::try_from((number / STEP).checked_sub(1)?).ok().filter(|_| fits)
    }
}
