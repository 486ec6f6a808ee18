//! Hook of calls in which the driver looks at addresses of device memory, but which give the card no work: nodes of
//! graphs, textures, attributes of addresses.
//!
//! The driver refuses an address behind which there is no memory with `CUDA_ERROR_INVALID_VALUE`. Remapped memory may
//! be away while the gate is closed. So such a call passes the gate, like work. Other memory is never away, so
//! without remapped memory the call does not wait.

use super::work;
use crate::driver::types::CUresult;
use crate::state::State;

/// Runs a call in which the driver looks at addresses. If the process has remapped memory, the call waits until the
/// memory is on the card, and it stays there until the call returns.
pub fn look(real: impl FnOnce() -> CUresult) -> CUresult {
    if !State::existing().is_some_and(|state| state.memory.remap.is_used()) {
        return real();
    }
    match work::pass() {
        Ok(_pass) => real(),
        Err(interrupted) => interrupted,
    }
}
