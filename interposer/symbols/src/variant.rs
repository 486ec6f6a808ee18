//! Variants of driver functions, and the meaning of their names.

use std::ffi::CStr;
use std::fmt;

use crate::Disposition;

/// CUDA version in the numbering of `cuGetProcAddress`: 11040 is 11.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Variant of a driver function: one exported function with its own ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Base name of the function, as `cuGetProcAddress` takes it.
    pub base: &'static str,
    /// CUDA version that introduced this variant; 0 if no header lists it.
    pub version: Version,
    /// Name by which the driver exports the variant.
    pub export: &'static str,
    /// gpushare's treatment of calls of this variant.
    pub disposition: Disposition,
    terminated: &'static CStr,
}

impl Variant {
    /// Creates a variant without a disposition, from its export with a NUL at the end.
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

    pub(crate) const fn with(self, disposition: Disposition) -> Self {
        Self { disposition, ..self }
    }

    /// Returns whether the variant is the twin for the per-thread default stream.
    pub const fn per_thread(&self) -> bool {
        is_per_thread(self.export.as_bytes())
    }

    /// Returns whether a header of CUDA lists the variant. `cuGetProcAddress` returns only such variants.
    pub const fn is_listed(&self) -> bool {
        self.version.0 != 0
    }

    /// Returns the exported name as a C string, for a call of `dlsym`.
    pub const fn export_for_dlsym(&self) -> &'static CStr {
        self.terminated
    }
}

/// Returns whether a name has the form of a driver function: `cu` and a capital letter. Names of cudart
/// (`cudaMalloc`), the debugger (`cudbgMain`) and cuBLAS have other forms.
pub const fn is_driver_name(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', b'A'..=b'Z', ..])
}

/// Returns whether an exported name is that of a twin for the per-thread default stream. The suffix is
/// `_ptsz` for a function with a stream argument, and `_ptds` for one without.
pub const fn is_per_thread(export: &[u8]) -> bool {
    matches!(export, [.., b'_', b'p', b't', b's', b'z'] | [.., b'_', b'p', b't', b'd', b's'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_names_count() {
        assert!(is_driver_name(b"cuInit"));
        for other in [&b"cudaMalloc"[..], b"cudbgMain", b"cublasCreate", b"cu", b"", b"acuInit"] {
            assert!(!is_driver_name(other));
        }
    }

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
