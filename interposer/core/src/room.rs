//! Physical room for what is not ours to place: contexts, code, arrays, memory by handle. The daemon is asked before such a thing
//! is made, and again where the driver has none; what it answers is what the card could free. A driver moves managed memory out of
//! the way by itself, so here asking tells the daemon what comes, and a call that found no room is tried once more.

use gpushare_proto::Bytes;

use crate::driver::types::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUresult};
use crate::process::State;

/// What a context takes until it is measured.
pub const CONTEXT: Bytes = Bytes::mib(700);
/// What a part of a card takes beside its primary context.
pub const PART: Bytes = Bytes::mib(16);
/// What a piece of code may take with what its kernels need.
pub const MODULE: Bytes = Bytes::mib(64);

impl State {
    /// Asks for room, then calls; where the driver is out of memory, once more of both. For calls that may be repeated.
    pub fn ask_and_try(&self, device: CUdevice, bytes: Bytes, call: impl FnMut() -> CUresult) -> CUresult {
        self.ask_room(device, bytes);
        self.with_room(device, bytes, call)
    }

    /// Calls; where the driver is out of memory, asks for room and calls once more.
    pub fn with_room(&self, device: CUdevice, bytes: Bytes, mut call: impl FnMut() -> CUresult) -> CUresult {
        match call() {
            CUDA_ERROR_OUT_OF_MEMORY if self.ask_room(device, bytes) => call(),
            result => result,
        }
    }

    /// Whether the daemon was asked and has answered.
    fn ask_room(&self, device: CUdevice, bytes: Bytes) -> bool {
        let (Some(link), Some(gpu)) = (self.link(), self.gpu(device)) else { return false };
        link.ask_room(device, gpu, bytes).is_ok()
    }
}
