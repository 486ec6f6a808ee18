//! Lookup of a session by the number or name that a person typed. All commands share this rule.
//!
//! ```text
//!   3, s3          a number      names that read as a number are refused
//!   train, ns/pod  a name        a session that an administrator made wins over others of the same name
//! ```
//!
//! Names consist of ASCII letters, digits and `-_./`: easy to type in a shell, and no two look alike.

use crate::SessionId;
use crate::text::is_printable;

/// Maximum length of a session's name, in bytes.
pub const MAX_SESSION_NAME: usize = 64;

/// Reference to a session as a person typed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRef<'a> {
    /// Number of the session, typed as `3` or `s3`.
    Number(SessionId),
    /// Name of the session as the person typed it.
    Name(&'a str),
}

impl<'a> SessionRef<'a> {
    /// Parses a session's number (digits with or without a leading `s`) or name (any other text).
    pub fn parse(text: &'a str) -> Self {
        let digits = text.strip_prefix('s').unwrap_or(text);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(id) if number => Self::Number(SessionId(id)),
            _ => Self::Name(text),
        }
    }

    /// Returns whether a session with this number and name is the one that the person typed.
    pub fn matches(self, session: Option<SessionId>, name: Option<&str>) -> bool {
        match self {
            Self::Number(number) => session == Some(number),
            Self::Name(own) => name == Some(own),
        }
    }
}

/// Reason why a number or name does not select exactly one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// No session has the number or name.
    NotFound,
    /// Several sessions have the name; the field lists their numbers.
    Ambiguous(Vec<SessionId>),
}

/// Returns the one session that `which` refers to. Each session is given as its number, its name, and whether
/// an administrator made it.
///
/// # Errors
/// [`LookupError`] if no session or more than one matches.
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

/// Reason why a text cannot be a session's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has a length or a character that a session's name must not have.
    #[error(
        "`{0}` cannot be a session's name: use 1 to {MAX_SESSION_NAME} ASCII letters, digits, `-`, `_`, `.` or `/`, and begin with a letter or digit"
    )]
    Spelling(String),
    /// The text reads as a session's number, like `3` or `s3`.
    #[error(
        "`{0}` cannot be a session's name because it reads as a session's number; add a letter, like job-{0}"
    )]
    Number(String),
}

/// Checks whether `text` may be a session's name.
///
/// # Errors
/// [`NameError`]; its message repeats only the printable characters of the text.
pub fn check_name(text: &str) -> Result<(), NameError> {
    let shown = || text.chars().filter(|c| is_printable(*c)).take(MAX_SESSION_NAME).collect();
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
    fn a_text_that_reads_as_a_number_is_never_a_name() {
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
