//! Hook of calls by which a process gets memory, frames or events of a graphics interface.

use crate::driver::types::CUresult;
use crate::freeze::facts::{NOTED, Noted};

/// `cuGraphicsGLRegisterBuffer`, `cuEGLStreamConsumerConnect` and others: a process for which one has succeeded is not
/// frozen.
pub fn take(real: impl FnOnce() -> CUresult) -> CUresult {
    NOTED.note_if_done(Noted::Shared, real)
}
