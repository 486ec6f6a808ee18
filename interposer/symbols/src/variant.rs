//! One exported function of the driver.

use std::ffi::CStr;
use std::fmt;

use crate::Disposition;

/// A CUDA version as `cuGetProcAddress` counts: 11040 is 11.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// One exported function of the driver: an ABI of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name that `cuGetProcAddress` takes.
    pub base: &'static str,
    /// The CUDA version that introduced this variant; 0 for one that no header lists.
    pub version: Version,
    /// The name that the driver exports.
    pub export: &'static str,
    /// What is done about it.
    pub disposition: Disposition,
    terminated: &'static CStr,
}

impl Variant {
    /// A variant without a disposition yet, from its export with a NUL behind.
    pub(crate) const fn new(base: &'static str, version: u32, export: &'static str) -> Self {
        let Ok(terminated) = CStr::from_bytes_with_nul(export.as_bytes()) else {
            panic!("an export is a name and a NUL")
        };
        let (export, _) = export.split_at(export.len() - 1);
        Self {
            base,
            version: Version(version),
            export,
            disposition: Disposition::Unsupported(""),
            terminated,
        }
    }

    /// The same with its disposition.
    pub(crate) const fn with(self, disposition: Disposition) -> Self {
        Self { disposition, ..self }
    }

    /// Whether it is the twin for the per-thread default stream.
    #[must_use]
    pub const fn per_thread(&self) -> bool {
        is_per_thread(self.export.as_bytes())
    }

    /// Whether a header of CUDA lists it; `cuGetProcAddress` hands out nothing else.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        self.version.0 != 0
    }

    /// The export as `dlsym` takes it.
    #[must_use]
    pub const fn export_for_dlsym(&self) -> &'static CStr {
        self.terminated
    }
}

/// Whether an export is a twin for the per-thread default stream. The suffix is `_ptsz` for a function with a stream
/// argument and `_ptds` for one without.
#[must_use]
pub const fn is_per_thread(export: &[u8]) -> bool {
    matches!(export, [.., b'_', b'p', b't', b's', b'z'] | [.., b'_', b'p', b't', b'd', b's'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_said_as_people_say_it() {
        assert_eq!(Version(11_040).to_string(), "11.4");
        assert_eq!(Version(3020).to_string(), "3.2");
        assert_eq!(Version(13_000).to_string(), "13.0");
    }

    #[test]
    fn both_suffixes_are_twins() {
        assert!(Variant::new("cuMemcpy", 7000, "cuMemcpy_ptds\0").per_thread());
        assert!(Variant::new("cuLaunchKernel", 7000, "cuLaunchKernel_ptsz\0").per_thread());
        assert!(!Variant::new("cuLaunchKernel", 4000, "cuLaunchKernel\0").per_thread());
        assert!(!Variant::new("cuX", 4000, "cuX_ptss\0").per_thread());
    }

    #[test]
    fn an_export_has_its_name_with_and_without_an_end() {
        let variant = Variant::new("cuMemAlloc", 3020, "cuMemAlloc_v2\0");
        assert_eq!(variant.export, "cuMemAlloc_v2");
        assert_eq!(variant.export_for_dlsym(), c"cuMemAlloc_v2");
    }
}
