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
    if result != NVML_SUCCESS || rates.is_null() {
        return result;
    }
    // SAFETY: not null, and the library just wrote it.
    let card = unsafe { rates.read() };
    if card != (Utilization { gpu: 0, memory: 0 }) {
        let part = part_in_page(device).or_else(|| told_part(device));
        let (gpu, memory) = part.unwrap_or(UtilizationPart::WHOLE).of(card.gpu, card.memory);
        // SAFETY: not null, so writable.
        unsafe { rates.write(Utilization { gpu, memory }) };
    }
    result
}

/// Returns the session's part in the utilization of a card that the process uses. Reads little, since a
/// program asks so seldom that everything has left the processor's caches.
fn part_in_page(device: Device) -> Option<UtilizationPart> {
    let state = State::existing()?;
    state.memory.lease.part(state.device_of(uuid(device)?)?)
}

/// Returns the session's part in the utilization of a card, as the daemon tells it; `None` outside a session.
#[cold]
fn told_part(device: Device) -> Option<UtilizationPart> {
    if !inquiry::is_in_session() {
        return None;
    }
    inquiry::utilization_part(uuid(device)?)
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
