//! Edits lists of preloaded libraries (`LD_PRELOAD`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// Returns `library` followed by the entries of `present`, which are separated by spaces or colons as in ld.so(8).
/// Entries with the library's file name are dropped: two copies in one process would gate each other.
pub(crate) fn prepend(library: &Path, present: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let others = without(library, present);
    if !others.is_empty() {
        value.push(":");
        value.push(others);
    }
    value
}

/// Returns the entries of `present` without those that have the library's file name.
pub(crate) fn without(library: &Path, present: Option<OsString>) -> OsString {
    let present = present.map(OsString::into_vec).unwrap_or_default();
    let others = present.split(|byte| matches!(byte, b' ' | b':')).filter(|entry| {
        !entry.is_empty() && Path::new(OsStr::from_bytes(entry)).file_name() != library.file_name()
    });
    OsString::from_vec(others.collect::<Vec<_>>().join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepended(present: &str) -> OsString {
        prepend(Path::new("/new/libgpushare.so"), Some(present.into()))
    }

    #[test]
    fn what_is_there_stays_behind_ours_in_its_order() {
        assert_eq!(prepend(Path::new("/l.so"), None), "/l.so");
        assert_eq!(prepended(""), "/new/libgpushare.so");
        assert_eq!(prepended("/b.so /a.so:c.so"), "/new/libgpushare.so:/b.so:/a.so:c.so");
    }

    #[test]
    fn no_second_copy_of_ours_stays() {
        assert_eq!(prepended("/new/libgpushare.so:/a.so:/old/libgpushare.so"), "/new/libgpushare.so:/a.so");
    }
}
