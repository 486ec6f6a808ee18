//! Devices of the bus that may reach memory of a card past the driver's interface.
//!
//! Modules of the kernel can ask the driver's module for the pages behind an address
//! (`nvidia_p2p_get_pages`): RDMA by `nvidia-peermem`, GPUDirect Storage, GDRCopy. No function of `libcuda`
//! is called then, so gpushare does not see it. A module that can do so uses the driver's module, and the
//! kernel lists who uses that.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Modules of the driver itself.
const OF_DRIVER: [&str; 3] = ["nvidia_uvm", "nvidia_modeset", "nvidia_drm"];
/// Modules that find the driver's module by name, so that they are not listed as its users.
const UNLISTED: [&str; 1] = ["nvidia_fs"];

/// Returns whether memory that was created for RDMA may be reached so on this machine. A module may be loaded
/// at any time, so this looks each time. Once it was so it stays so, as a device may know the pages.
pub(crate) fn may_happen() -> bool {
    static HAS_HAPPENED: AtomicBool = AtomicBool::new(false);
    may_happen_since(&HAS_HAPPENED, Path::new("/sys/module"))
}

fn may_happen_since(has_happened: &AtomicBool, modules: &Path) -> bool {
    if !has_happened.load(Ordering::Relaxed) && may_happen_by(modules) {
        has_happened.store(true, Ordering::Relaxed);
    }
    has_happened.load(Ordering::Relaxed)
}

fn may_happen_by(modules: &Path) -> bool {
    if !modules.is_dir() || UNLISTED.iter().any(|module| modules.join(module).exists()) {
        return true;
    }
    let driver = modules.join("nvidia");
    let is_foreign = |module: &OsStr| !OF_DRIVER.iter().any(|own| module == *own);
    match fs::read_dir(driver.join("holders")) {
        Ok(mut holders) => holders.any(|holder| holder.is_ok_and(|holder| is_foreign(&holder.file_name()))),
        // Without the module nobody can ask it.
        Err(_) => driver.exists(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reached_where_a_foreign_module_uses_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path();
        assert!(!may_happen_by(modules), "there is no driver's module");
        assert!(may_happen_by(&modules.join("absent")), "nothing is known");
        fs::create_dir_all(modules.join("nvidia/holders/nvidia_uvm")).unwrap();
        assert!(!may_happen_by(modules));
        fs::create_dir(modules.join("nvidia/holders/nvidia_peermem")).unwrap();
        assert!(may_happen_by(modules));
        fs::remove_dir(modules.join("nvidia/holders/nvidia_peermem")).unwrap();
        fs::create_dir(modules.join("nvidia_fs")).unwrap();
        assert!(may_happen_by(modules));
    }

    #[test]
    fn a_module_that_is_loaded_later_counts_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let (modules, foreign) = (folder.path(), folder.path().join("nvidia_fs"));
        let has_happened = AtomicBool::new(false);
        assert!(!may_happen_since(&has_happened, modules));
        fs::create_dir(&foreign).unwrap();
        assert!(may_happen_since(&has_happened, modules));
        fs::remove_dir(&foreign).unwrap();
        assert!(may_happen_since(&has_happened, modules), "it may have told a device of pages");
    }
}
