//! Obstacles to a freeze of the process: facts for which the driver would refuse a checkpoint or lose the process, and
//! calls that gpushare could not hold back.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use gpushare_proto::page::{FLAG_MAPPED, Page};
use gpushare_proto::tenant::FreezeObstacle;

use super::facts::{NOTED, Noted};
use crate::driver::Driver;
use crate::driver::unknown::UNKNOWN;
use crate::memory::Memory;

/// First version of CUDA whose driver takes checkpoints of processes.
const CHECKPOINTS: c_int = 12_080;

/// Returns what keeps the process from being frozen now.
pub(crate) fn obstacle(driver: &Driver, memory: &Memory, page: &Page) -> Option<FreezeObstacle> {
    // The cheap facts come first: a process looks again whenever it rests.
    if let Some(obstacle) = known(memory, page) {
        Some(obstacle)
    } else if driver.version() < CHECKPOINTS {
        Some(FreezeObstacle::Driver)
    } else if is_linked() {
        NOTED.note(Noted::Unseen);
        Some(FreezeObstacle::Unseen)
    } else {
        None
    }
}

/// Returns what keeps the process from being frozen, as far as its calls of the driver have shown. Asks no driver.
pub(crate) fn known(memory: &Memory, page: &Page) -> Option<FreezeObstacle> {
    let is_mapped = page.flags.load(Ordering::Relaxed) & FLAG_MAPPED != 0;
    if is_mapped || NOTED.has(Noted::HostHandles) {
        Some(FreezeObstacle::HostHandles)
    } else if NOTED.has(Noted::Shared) || memory.shares() {
        Some(FreezeObstacle::Shared)
    } else if NOTED.has(Noted::Peers) {
        Some(FreezeObstacle::Peers)
    } else if NOTED.has(Noted::Unseen) || !UNKNOWN.is_empty() {
        Some(FreezeObstacle::Unseen)
    } else if memory.blocks.has_managed() {
        Some(FreezeObstacle::Managed)
    } else {
        None
    }
}

/// Returns whether a loaded program or library was linked with the driver. Its calls of functions that are not hooked
/// do not pass gpushare.
fn is_linked() -> bool {
    let mut search = Search { found: false, loaded: 0 };
    // SAFETY: the callback takes this type of data, and is called before this returns.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut search).cast()) };
    if !search.found {
        SEARCHED.store(search.loaded, Ordering::Relaxed);
    }
    search.found
}

/// Number of objects that had ever been loaded at the last search, which found none.
static SEARCHED: AtomicU64 = AtomicU64::new(0);

struct Search {
    found: bool,
    /// Number of objects that were ever loaded.
    loaded: u64,
}

unsafe extern "C" fn look_at(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a description that is valid for this call, and our own data.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    search.loaded = info.dlpi_adds;
    if search.loaded == SEARCHED.load(Ordering::Relaxed) {
        return 1;
    }
    // SAFETY: the loader describes a loaded object.
    search.found = unsafe { needs_driver(info) };
    c_int::from(search.found)
}

/// # Safety
/// `info` describes a loaded object.
unsafe fn needs_driver(info: &libc::dl_phdr_info) -> bool {
    const DT_NEEDED: i64 = 1;
    const DT_STRTAB: i64 = 5;
    // SAFETY: the loader's description of the object, whose headers are mapped.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return false;
    };
    let base = info.dlpi_addr as usize;
    let first = std::ptr::with_exposed_provenance::<[i64; 2]>(base + dynamic.p_vaddr as usize);
    // SAFETY: the dynamic section is mapped, and ends with a null tag.
    let tags = || (0..).map(|at| unsafe { first.add(at).read() }).take_while(|[tag, _]| *tag != 0);
    let Some(strings) = tags().find(|[tag, _]| *tag == DT_STRTAB).map(|[_, at]| at as usize) else {
        return false;
    };
    // The loader makes the address absolute, except in an object that it must not write.
    let strings = if strings < base { base + strings } else { strings };
    tags().filter(|[tag, _]| *tag == DT_NEEDED).any(|[_, at]| {
        let name = std::ptr::with_exposed_provenance::<c_char>(strings + at as usize);
        // SAFETY: a name in the object's table of strings.
        unsafe { CStr::from_ptr(name) }.to_bytes().starts_with(b"libcuda.so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_finds_the_driver_at_run_time_is_not_linked_with_it() {
        assert!(!is_linked());
    }
}
