//! How people call a session: by its number or by its name. One rule for every command, so that none means another session.
//!
//! ```text
//!   3, s3          the number, always      no session is given a name that reads as one
//!   train, ns/pod  the name                the administrator's session before those that programs gave the same name
//! ```
//!
//! Names are few characters: what is typed in a shell, stands in a file's name (`/` apart) and cannot look like something else.

use crate::SessionId;

/// The longest name that somebody may give a session.
pub const MAX_SESSION_NAME: usize = 64;

/// What a text calls a session by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRef<'a> {
    /// Its number.
    Number(SessionId),
    /// Its name.
    Name(&'a str),
}

impl<'a> SessionRef<'a> {
    /// What it is called by: digits, with or without an `s` in front, are a number.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        let digits = text.strip_prefix('s').unwrap_or(text);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(id) if number => Self::Number(SessionId(id)),
            _ => Self::Name(text),
        }
    }

    /// Whether a session of this number and name is called so.
    #[must_use]
    pub fn matches(self, session: Option<SessionId>, name: Option<&str>) -> bool {
        match self {
            Self::Number(number) => session == Some(number),
            Self::Name(own) => name == Some(own),
        }
    }
}

/// Why a text calls no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// There is none.
    NotFound,
    /// There are several of that name.
    Ambiguous(Vec<SessionId>),
}

/// The session that is called `which` among those of a number, a name, and whether an administrator made it.
///
/// # Errors
/// If it is none or several.
pub fn find<'a>(
    which: &str,
    sessions: impl IntoIterator<Item = (SessionId, &'a str, bool)>,
) -> Result<SessionId, LookupError> {
    let called = SessionRef::parse(which);
    let mut found: Vec<(SessionId, bool)> = sessions
        .into_iter()
        .filter(|&(id, name, _)| called.matches(Some(id), Some(name)))
        .map(|(id, _, made)| (id, made))
        .collect();
    if found.iter().any(|&(_, made)| made) {
        found.retain(|&(_, made)| made);
    }
    match found[..] {
        [(id, _)] => Ok(id),
        [] => Err(LookupError::NotFound),
        [..] => Err(LookupError::Ambiguous(found.into_iter().map(|(id, _)| id).collect())),
    }
}

/// A text that is no name for a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has characters, or a length, that names have not.
    #[error(
        "`{0}` is no name for a session: use 1 to {MAX_SESSION_NAME} letters, digits and `-`, `_`, `.` or `/` of ASCII, a letter or a digit first"
    )]
    Spelling(String),
    /// It would be read as a number.
    #[error(
        "`{0}` is no name for a session, since it reads as the number of one; add a letter, like job-{0}"
    )]
    Number(String),
}

/// Whether somebody may name a session so.
///
/// # Errors
/// [`NameError`], which shows no more of the text than is seen.
pub fn check_name(text: &str) -> Result<(), NameError> {
    let shown = || {
        text.chars()
            .filter(|c| crate::text::is_printable(*c))
            .take(MAX_SESSION_NAME)
            .collect()
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || text.len() > MAX_SESSION_NAME || !text.bytes().all(fits) {
        return Err(NameError::Spelling(shown()));
    }
    let digits = text.strip_prefix('s').unwrap_or(text);
    match !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Err(NameError::Number(shown())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_as_a_number_is_one_and_never_a_name() {
        let sessions = || [(SessionId(3), "7", false), (SessionId(7), "train", false)];
        for which in ["7", "s7", "train", "007"] {
            assert_eq!(find(which, sessions()), Ok(SessionId(7)), "{which}");
        }
        for which in ["+7", "s", "", "s+7", "8", "99999999999999999999999"] {
            assert_eq!(find(which, sessions()), Err(LookupError::NotFound), "{which}");
        }
    }

    #[test]
    fn the_administrators_session_comes_before_others_of_its_name() {
        let both = [(SessionId(1), "b", false), (SessionId(2), "b", true)];
        assert_eq!(find("b", both), Ok(SessionId(2)));
        assert_eq!(find("s1", both), Ok(SessionId(1)));
        let tenants = [(SessionId(1), "b", false), (SessionId(2), "b", false)];
        assert_eq!(find("b", tenants), Err(LookupError::Ambiguous(vec![SessionId(1), SessionId(2)])));
    }

    #[test]
    fn a_name_is_typed_in_a_shell_and_reads_as_no_number() {
        for name in ["train", "7b", "session-7", "gpu_a.2", "kube-system/pod-0", "sa"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        assert_eq!(check_name(&"x".repeat(MAX_SESSION_NAME)), Ok(()));
        for name in ["", "-x", ".x", "/x", "a b", "a%2Fb", "学習", "a\nb", "train\u{200b}"] {
            assert!(matches!(check_name(name), Err(NameError::Spelling(_))), "{name:?}");
        }
        assert!(check_name(&"x".repeat(MAX_SESSION_NAME + 1)).is_err());
        for name in ["3", "s3", "99999999999999999999999"] {
            let sentence = check_name(name).unwrap_err().to_string();
            assert!(sentence.contains(&format!("like job-{name}")), "{sentence}");
        }
        assert!(!check_name("a\x1b[2J").unwrap_err().to_string().contains('\x1b'));
    }
}
