//! Control groups that count as one user each: those of a notebook server or of a job of a cluster's queue,
//! whose processes all have the user id of that service.
//!
//! ```text
//!   user_groups = ["/system.slice/jupyter-*.service"]
//!
//!   /system.slice/jupyter-ana.service             user /system.slice/jupyter-ana.service
//!   /system.slice/jupyter-ana.service/kernel      the same user
//!   /system.slice/cron.service                    no such user; the user id decides
//! ```
//!
//! A pattern has a fixed number of names, so groups that a process makes below its own change nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Beginning of the control groups that users name themselves.
const OF_USERS: &str = "/user.slice/";

/// Patterns of control groups. `*` stands for any characters of one name.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct UserGroups(Arc<[Pattern]>);

/// Pattern of a control group's path.
#[derive(Clone, PartialEq, Eq)]
struct Pattern(String);

/// Reason why a text is no pattern.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error(
        "`{0}` is no control group; write its path as /proc/PID/cgroup has it, like \
         /system.slice/jupyter-*.service"
    )]
    NoPath(String),
    #[error("`{0}` is in {OF_USERS}, where users name the groups; name groups that only root makes")]
    OfUsers(String),
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let names = text.strip_prefix('/').map(|rest| rest.split('/'));
        let is_name = |name: &str| !matches!(name, "" | "." | ".." | "*");
        match names.is_some_and(|mut names| names.all(is_name)) {
            false => Err(PatternError::NoPath(text.to_owned())),
            true if text.starts_with(OF_USERS) => Err(PatternError::OfUsers(text.to_owned())),
            true => Ok(Self(text.to_owned())),
        }
    }
}

impl Pattern {
    /// Returns the part of a control group's path that the pattern describes.
    fn beginning<'a>(&self, group: &'a str) -> Option<&'a str> {
        let mut names = group.split('/');
        let mut end = 0;
        for pattern in self.0.split('/') {
            let name = names.next().filter(|name| is_like(name, pattern))?;
            end += name.len() + 1;
        }
        group.get(..end - 1)
    }
}

/// Returns whether a name is like a pattern, in which each `*` stands for any characters.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let between = name.strip_prefix(first).and_then(|name| name.strip_suffix(last));
    between.is_some_and(|mut between| {
        middle.split('*').all(|part| {
            let found = between.find(part);
            between = found.map_or("", |at| &between[at + part.len()..]);
            found.is_some()
        })
    })
}

impl UserGroups {
    /// Reads the patterns of the configuration.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, PatternError> {
        patterns.iter().map(|text| text.parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the control group that counts as the user of a process in these groups.
    pub(super) fn of(&self, groups: &[String]) -> Option<String> {
        let found = groups
            .iter()
            .find_map(|group| self.0.iter().find_map(|pattern| pattern.beginning(group)));
        found.map(str::to_owned)
    }
}

impl fmt::Debug for UserGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|pattern| &pattern.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(patterns: &[&str], groups: &[&str]) -> Option<String> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        UserGroups::new(&owned(patterns)).unwrap().of(&owned(groups))
    }

    #[test]
    fn a_group_and_those_below_it_are_one_user() {
        let hub = "/system.slice/jupyter-*.service";
        let ana = "/system.slice/jupyter-ana.service";
        for group in [ana, "/system.slice/jupyter-ana.service/a/jupyter-b.service"] {
            assert_eq!(user(&[hub], &["/", group]).as_deref(), Some(ana));
        }
        for group in [
            "/",
            "",
            "/system.slice",
            "/system.slice/cron.service",
            "/system.slice/jupyter-.servic",
            "/x/system.slice/jupyter-ana.service",
            "/system.slice/x/jupyter-ana.service",
        ] {
            assert_eq!(user(&[hub], &[group]), None, "{group}");
        }
        assert_eq!(user(&[], &[ana]), None);
        let job = "/slurm/uid_7/job_12";
        assert_eq!(user(&[hub, "/slurm/uid_*/job_*"], &[&format!("{job}/step_0")]).as_deref(), Some(job));
    }

    #[test]
    fn a_star_stands_for_any_characters_of_a_name() {
        for (name, pattern, expected) in [
            ("abc", "abc", true),
            ("abc", "ab", false),
            ("abc", "a*", true),
            ("abc", "*c", true),
            ("abc", "a*c", true),
            ("aa", "aa*a", false),
            ("axbxc", "a*b*c", true),
            ("axc", "a*b*c", false),
            ("a-b-b-c", "a*b*b*c", true),
            ("a-b-c", "a*b*b*c", false),
        ] {
            assert_eq!(is_like(name, pattern), expected, "{name} {pattern}");
        }
    }

    #[test]
    fn groups_that_users_name_are_refused() {
        for text in ["", "/", "a", "/a/", "/a//b", "/a/../b", "/a/*"] {
            let error = UserGroups::new(&[text.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no control group; ")), "{error}");
        }
        let error = UserGroups::new(&["/user.slice/user-7.slice/x".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("where users name the groups"), "{error}");
    }
}
