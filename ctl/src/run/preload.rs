//! Edits lists of preloaded libraries (`LD_PRELOAD`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Returns the list `present`, separated by spaces or colons, with `library` in front, or last if `append`.
/// Other entries with the library's file name are removed: two copies in one process would block each other.
pub(crate) fn with(library: &Path, present: Option<OsString>, append: bool) -> OsString {
    let (ours, others) = (library.as_os_str(), without(library, present));
    match (others.is_empty(), append) {
        (true, _) => ours.to_owned(),
        (false, true) => [&others, ours].join(OsStr::new(":")),
        (false, false) => [ours, &others].join(OsStr::new(":")),
    }
}

/// Returns the list `present` without the entries that have the library's file name.
pub(crate) fn without(library: &Path, present: Option<OsString>) -> OsString {
    let mut others = entries(&present.unwrap_or_default());
    others.retain(|entry| entry.file_name() != library.file_name());
    others
        .iter()
        .map(|entry| entry.as_os_str())
        .collect::<Vec<_>>()
        .join(OsStr::new(":"))
}

pub(crate) fn entries(list: &OsStr) -> Vec<PathBuf> {
    let entries = list.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    let entries = entries.filter(|entry| !entry.is_empty());
    entries.map(|entry| PathBuf::from(OsStr::from_bytes(entry))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepended(present: &str) -> OsString {
        with(Path::new("/new/libgpushare.so"), Some(present.into()), false)
    }

    #[test]
    fn what_is_there_stays_behind_ours_in_its_order() {
        assert_eq!(with(Path::new("/l.so"), None, false), "/l.so");
        assert_eq!(prepended(""), "/new/libgpushare.so");
        assert_eq!(prepended("/b.so /a.so:c.so"), "/new/libgpushare.so:/b.so:/a.so:c.so");
    }

    #[test]
    fn no_second_copy_of_ours_stays() {
        assert_eq!(prepended("/new/libgpushare.so:/a.so:/old/libgpushare.so"), "/new/libgpushare.so:/a.so");
    }
}
