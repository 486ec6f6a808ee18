//! Utilization of a card: the card's own figure times the session's part in the work of all processes.
//!
//! ```text
//!   daemon, every second: NVML's figures by process ─▶ part ─▶ shared page
//!   question of the program: NVML's own figure of the card × part
//! ```
//!
//! NVML's figures by process cost more than a millisecond, so only the daemon asks for them. A process that
//! does not use the card has no part in a page. It asks the daemon, which answers for some seconds.

use gpushare_proto::{GpuUuid, UtilizationPart};

use super::library;
use super::types::{Device, NVML_SUCCESS, NvmlReturn, Utilization};
use crate::process::fork::ForkCell;
use crate::state::State;
use crate::state::inquiry;

/// Number of handles whose cards are remembered.
const HANDLES: usize = 32;

/// Cards of the handles that were asked about. A handle always means the same card.
static CARDS: [ForkCell<(usize, GpuUuid)>; HANDLES] = [const { ForkCell::new() }; HANDLES];

/// `nvmlDeviceGetUtilizationRates`: returns the session's part of the card's own figure.
pub unsafe fn rates(
    real: unsafe extern "C-unwind" fn(Device, *mut Utilization) -> NvmlReturn,
    device: Device,
    rates: *mut Utilization,
) -> NvmlReturn {
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(device, rates) };
    if result != NVML_SUCCESS || rates.is_null() || !inquiry::is_in_session() {
        return result;
    }
    // SAFETY: not null, and the library just wrote it.
    let card = unsafe { rates.read() };
    if card != (Utilization { gpu: 0, memory: 0 }) {
        let (gpu, memory) = part(device).of(card.gpu, card.memory);
        // SAFETY: not null, so writable.
        unsafe { rates.write(Utilization { gpu, memory }) };
    }
    result
}

/// Returns the session's part in the utilization of a card; the whole if nobody says.
fn part(device: Device) -> UtilizationPart {
    let Some(uuid) = uuid(device) else { return UtilizationPart::WHOLE };
    let own = State::existing().and_then(|state| state.memory.lease.part(state.device_of(uuid)?));
    own.or_else(|| inquiry::utilization_part(uuid))
        .unwrap_or(UtilizationPart::WHOLE)
}

/// Returns the UUID of a device. NVML's own answer takes microseconds, so it is asked once for each handle.
fn uuid(device: Device) -> Option<GpuUuid> {
    for card in &CARDS {
        let &(handle, uuid) = match card.get() {
            Some(known) => known,
            None => card.set((device.addr(), library::uuid(device)?)),
        };
        if handle == device.addr() {
            return Some(uuid);
        }
    }
    library::uuid(device)
}
