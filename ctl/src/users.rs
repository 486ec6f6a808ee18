//! Users by number, as the daemon knows them, and by name, as people do.

use std::process::Command;

use crate::exit::CtlError;

/// Returns the number of a user that is given by name. A number or a control group stays as it is.
pub(crate) fn number(which: &str) -> Result<String, CtlError> {
    if which.starts_with('/') || which.chars().all(|digit| digit.is_ascii_digit()) {
        return Ok(which.to_owned());
    }
    id(&["-u", "--", which]).ok_or_else(|| CtlError::NotFound {
        kind: "user",
        name: which.to_owned(),
        known: format!("`id -u {which}` knows none; give the number"),
    })
}

/// Returns the name of a user that is given by number; otherwise, or if the number has none, what is given.
pub(crate) fn name(which: &str) -> String {
    known_name(which).unwrap_or_else(|| which.to_owned())
}

/// Returns the name of a user that is given by number; none if it has no name.
pub(crate) fn known_name(which: &str) -> Option<String> {
    let is_number = which.chars().all(|digit| digit.is_ascii_digit());
    is_number.then(|| id(&["-un", "--", which])).flatten()
}

/// Returns the answer of the program `id`, which knows how to ask a directory service for users.
fn id(words: &[&str]) -> Option<String> {
    let asked = Command::new("id").args(words).output().ok()?;
    let said = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    asked.status.success().then_some(said)
}
