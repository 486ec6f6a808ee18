//! Devices of the bus that may reach memory of a card past the driver's interface.
//!
//! Modules of the kernel can ask the driver's module for the pages behind an address (`nvidia_p2p_get_pages`): RDMA by
//! `nvidia-peermem`, GPUDirect Storage, GDRCopy. No function of `libcuda` is called then, so gpushare does not see it. A
//! module that can do so uses the driver's module, and the kernel lists who uses that.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Modules of the driver itself.
const OF_DRIVER: [&str; 3] = ["nvidia_uvm", "nvidia_modeset", "nvidia_drm"];
/// Modules that find the driver's module by name, so that they are not listed as its users.
const UNLISTED: [&str; 1] = ["nvidia_fs"];

/// Returns whether memory that was created for RDMA may be reached so on this machine.
pub(crate) fn may_happen() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| may_happen_by(Path::new("/sys/module")))
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
}
