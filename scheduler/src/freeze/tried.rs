//! Drivers with which processes may be frozen: those with which it was tried, or any if the daemon's environment says
//! so.

use std::sync::LazyLock;
use std::{env, fs};

use gpushare_proto::names::FREEZE_UNTRIED;

/// NVIDIA's kernel driver tells its version here.
const KERNEL_DRIVER: &str = "/proc/driver/nvidia/version";
/// Versions of NVIDIA's driver with which this code froze and thawed processes on a real card, by their first number.
const TRIED: [&str; 1] = ["580"];

/// Returns the version of this machine's driver, or `unknown`, if processes may not be frozen with it.
pub(crate) fn untried_driver() -> Option<&'static str> {
    static UNTRIED: LazyLock<Option<String>> = LazyLock::new(|| {
        let is_allowed = env::var_os(FREEZE_UNTRIED).is_some_and(|value| value == "1");
        untried(&fs::read_to_string(KERNEL_DRIVER).unwrap_or_default(), is_allowed)
    });
    UNTRIED.as_deref()
}

fn untried(text: &str, is_allowed: bool) -> Option<String> {
    let version = version_in(text);
    let is_tried = TRIED.iter().any(|tried| version.split('.').next() == Some(tried));
    (!is_tried && !is_allowed).then(|| version.to_owned())
}

/// Returns the version in the kernel driver's text: the first word that begins with a digit and has a point.
fn version_in(text: &str) -> &str {
    let is_version =
        |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(is_version).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of the kernel driver in a version.
    fn text(version: &str) -> String {
        format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs)\n")
    }

    #[test]
    fn a_driver_that_was_not_tried_and_one_that_tells_no_version_need_the_daemons_permission() {
        let untried_one = text("590.12.01");
        assert_eq!(untried(&untried_one, false).as_deref(), Some("590.12.01"));
        assert_eq!(untried("", false).as_deref(), Some("unknown"));
        assert_eq!((untried(&untried_one, true), untried("", true)), (None, None));
    }

    #[test]
    fn a_driver_that_was_tried_needs_none() {
        assert_eq!(untried(&text("580.159.04"), false), None);
        assert_eq!(untried(&text("5800.1"), false).as_deref(), Some("5800.1"));
    }
}
