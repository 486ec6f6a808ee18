//! Files of gpushare in a container, and the variables that make programs use them.

use std::path::PathBuf;

use gpushare_proto::names::{REQUIRED, RUNTIME_DIR};

use crate::edits::{Edits, Mount};

/// Places in a container. `gpushare-ctl` finds the library from its own place.
pub mod container {
    /// List of the libraries that glibc's loader preloads into every program; musl does not read it.
    pub const PRELOAD: &str = "/etc/ld.so.preload";
    /// Library that is preloaded.
    pub const LIBRARY: &str = "/usr/lib/gpushare/libgpushare.so";
    /// Command line, for `gpushare-ctl own`, `top` and `doctor` in the container.
    pub const CTL: &str = "/usr/bin/gpushare-ctl";
    /// Runtime folder of the daemon. Only its folder `tenant/` exists in the container.
    pub const RUNTIME: &str = "/run/gpushare";
    /// Folder of the tenant socket.
    pub const TENANT: &str = "/run/gpushare/tenant";
}

/// Files and folders of the host that a container gets from gpushare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// `libgpushare.so`.
    pub library: PathBuf,
    /// `gpushare-ctl`.
    pub ctl: PathBuf,
    /// File with the content [`Share::PRELOAD`].
    pub preload: PathBuf,
    /// Folder of the daemon's tenant socket. It is a folder since a new daemon makes a new socket file.
    pub tenant: PathBuf,
}

impl Share {
    /// Content of the container's `/etc/ld.so.preload`.
    pub const PRELOAD: &str = "/usr/lib/gpushare/libgpushare.so\n";

    /// Returns the edits without those of a card. A program that finds no daemon is refused the card, since it
    /// would not share it.
    pub fn edits(&self) -> Edits {
        Edits {
            env: vec![format!("{RUNTIME_DIR}={}", container::RUNTIME), format!("{REQUIRED}=1")],
            mounts: vec![
                Mount::read_only(&self.preload, container::PRELOAD),
                Mount::read_only(&self.library, container::LIBRARY),
                Mount::read_only(&self.ctl, container::CTL),
                Mount::read_only(&self.tenant, container::TENANT).and("noexec"),
            ],
            ..Edits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preload_list_names_the_library_in_the_container() {
        assert_eq!(Share::PRELOAD.trim_end(), container::LIBRARY);
    }

    #[test]
    fn every_mount_is_read_only_and_none_is_the_runtime_folder() {
        let share = Share {
            library: "/opt/l.so".into(),
            ctl: "/opt/ctl".into(),
            preload: "/opt/preload".into(),
            tenant: "/run/gpushare/tenant".into(),
        };
        let edits = share.edits();
        assert!(edits.mounts.iter().all(Mount::is_read_only));
        let hosts: Vec<_> = edits.mounts.iter().map(|mount| mount.host_path.to_str().unwrap()).collect();
        assert_eq!(hosts, ["/opt/preload", "/opt/l.so", "/opt/ctl", "/run/gpushare/tenant"]);
    }
}
