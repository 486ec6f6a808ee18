//! Replacement of the private parts of a text by pseudonyms, which keeps lines comparable.
//!
//! | part | becomes |
//! |---|---|
//! | a token, key or other run of 24 or more hex digits | `[secret-1]` |
//! | the value of a key that is named like a secret | `[secret]` |
//! | a UUID, with or without dashes, without its `GPU-` or `MIG-` | `[uuid-1]` |
//! | a user name, also within a path | `[user-1]` |
//! | a home folder | `[home-1]` |
//! | a host name, with its domain | `[host-1]` |
//! | an IP address (except loopback and unspecified ones), a MAC address | `[ip-1]`, `[mac-1]` |
//! | an e-mail address | `[mail-1]` |
//! | a serial number in `nvidia-smi -q` | `[serial]` |
//!
//! Equal parts get equal numbers in the whole archive. The numbers follow the order of appearance and tell nothing.
//!
//! Values of secret keys go first, since they can contain any other kind. Each other kind has one regular
//! expression, whose group is the part to replace. They run one after the other, with those that
//! could contain another kind first.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

use super::super::facts::Facts;

/// User names that identify no person and are not replaced.
const SHARED_USERS: [&str; 8] = ["root", "nobody", "daemon", "bin", "sys", "user", "nvidia", "gpushare"];
/// Host names that identify no machine and are not replaced.
const SHARED_HOSTS: [&str; 4] = ["localhost", "localdomain", "ip6-localhost", "(none)"];
/// Smallest user id of a person; smaller ones belong to services.
const FIRST_PERSON: u32 = 1000;
/// Pattern of keys whose values are secrets by their name.
const SECRET_KEY: &str = r"[\w.-]*(?:token|secret|password|passwd|credential|apikey|api_key|private)[\w.-]*";

/// Pattern of an IPv4 address.
const IPV4: &str = r"\d{1,3}(?:\.\d{1,3}){3}";

/// Regular expression for a key whose whole name reads like a secret's.
static WHOLE_KEY: LazyLock<Regex> = LazyLock::new(|| expression(&format!("^{SECRET_KEY}$")));
/// Regular expression for such a key and what stands between it and its value.
static ASSIGNED_KEY: LazyLock<Regex> =
    LazyLock::new(|| expression(&format!(r#"({SECRET_KEY})["'\\]*[ \t!]*[=:][=:>~ \t]*"#)));

/// Private part of a text: the kind, and the text to be numbered if the pseudonym has a number.
type Part = (&'static str, Option<String>);

/// Regular expression whose group is private text, and a function from a match to its private part.
#[derive(Clone, Debug)]
struct Rule {
    pattern: Regex,
    part: fn(&Captures<'_>) -> Option<Part>,
}

/// Returns the rules that replace private text, in the order in which they run.
fn rules(names: Names) -> Vec<Rule> {
    let rule = |pattern: &str, part| Some(Rule { pattern: expression(pattern), part });
    let known = |mut names: Vec<String>, pattern: fn(&str) -> String, part| {
        // The longest first, so that a name that begins with another one is found whole.
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        let names: Vec<String> = names.iter().map(|name| regex::escape(name)).collect();
        if names.is_empty() { None } else { rule(&pattern(&names.join("|")), part) }
    };
    [
        rule(r"(?m)^[ \t]*Serial Number[ \t]*:[ \t]*(\S.*)$", |_| Some(("serial", None))),
        rule(r"([\w.+-]+@[\w-]+(?:\.[\w-]+)+)", |found| numbered("mail", found)),
        // Control groups of pods have underscores in place of dashes.
        rule(r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})", |found| {
            Some(("uuid", Some(found[1].to_lowercase().replace(['-', '_'], ""))))
        }),
        // A UUID without dashes is the same UUID.
        rule(r"([0-9a-f]{24,})", |found| {
            numbered(if found[1].len() == 32 { "uuid" } else { "secret" }, found)
        }),
        known(names.homes, |any| format!(r"({any})(?:[^\w.~+@-]|$)"), |found| numbered("home", found)),
        rule(r"/(?:home|Users)/([\w~+@-]+(?:\.[\w~+@-]+)*)", |found| numbered("user", found)),
        rule(&bordered("[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}"), |found| numbered("mac", found)),
        rule(&bordered(&ipv6()), |found| address(found[1].parse::<Ipv6Addr>().ok()?.into())),
        // Four numbers at the end of `libx.so.12.1.3.1` are not an address.
        rule(&format!(r"(?:(?:^|[\W_])\.|^|[\W_&&[^.]])({IPV4})\.*(?:[\W_&&[^.]]|$)"), |found| {
            address(found[1].parse::<Ipv4Addr>().ok()?.into())
        }),
        // A host goes with the whole domain around the known part of its name.
        known(
            names.hosts,
            |any| bordered(&format!(r"(?:[a-z0-9-]+\.)*(?:{any})(?:[.-][a-z0-9.-]*)?")),
            |found| Some(("host", Some(found[1].to_lowercase().split('.').next()?.to_owned()))),
        ),
        known(names.users, bordered, |found| numbered("user", found)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn numbered(kind: &'static str, found: &Captures<'_>) -> Option<Part> {
    Some((kind, Some(found[1].to_lowercase())))
}

fn address(address: IpAddr) -> Option<Part> {
    let own = address.is_loopback() || address.is_unspecified();
    (!own).then(|| ("ip", Some(address.to_string())))
}

fn expression(pattern: &str) -> Regex {
    Regex::new(&format!("(?i){pattern}")).expect("a valid expression")
}

/// Returns a regular expression for `pattern` between characters other than letters and digits.
fn bordered(pattern: &str) -> String {
    format!(r"(?:^|[\W_])({pattern})(?:[\W_]|$)")
}

/// Returns a pattern of IPv6 addresses, the longest forms first. It also matches some with too many groups.
fn ipv6() -> String {
    let groups = "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,7}";
    let mapped = format!("(?:[0-9a-f]{{1,4}}:){{0,6}}{IPV4}");
    format!("(?:{groups})?::(?:{mapped}|{groups})?|{mapped}|(?:[0-9a-f]{{1,4}}:){{7}}[0-9a-f]{{1,4}}")
}

/// User names, host names and home folders that this machine knows.
#[derive(Debug, Default)]
pub(super) struct Names {
    users: Vec<String>,
    homes: Vec<String>,
    hosts: Vec<String>,
}

impl Names {
    fn of_this_machine(facts: &Facts) -> Self {
        let mut names = Self::default();
        let read = |path: &str| facts.root.read(path).unwrap_or_default();
        let var = |name: &str| facts.var(name).unwrap_or_default().to_string_lossy().into_owned();
        for line in read("/etc/passwd").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, _, _, home, ..] = fields[..] else {
                continue;
            };
            if uid.parse().is_ok_and(|uid: u32| uid >= FIRST_PERSON || uid == facts.uid) {
                names.user(name);
                names.home(home);
            }
        }
        for name in ["USER", "LOGNAME", "SUDO_USER"] {
            names.user(&var(name));
        }
        names.home(&var("HOME"));
        names.host(&rustix::system::uname().nodename().to_string_lossy());
        names.host(&var("HOSTNAME"));
        names.host(&read("/etc/hostname"));
        for line in read("/etc/hosts").lines() {
            let line = line.split('#').next().unwrap_or("");
            line.split_whitespace().skip(1).for_each(|name| names.host(name));
        }
        for line in read("/etc/resolv.conf").lines() {
            let mut words = line.split_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                words.for_each(|name| names.host(name));
            }
        }
        names
    }

    fn user(&mut self, name: &str) {
        if name.len() > 1 && !SHARED_USERS.contains(&name) {
            self.users.push(name.to_owned());
        }
    }

    fn home(&mut self, path: &str) {
        let path = path.trim_end_matches('/');
        // A home like `/` or `/nonexistent` belongs to no person.
        if path.matches('/').count() >= 2 && !path.starts_with("/usr/") && !path.starts_with("/var/") {
            self.homes.push(path.to_owned());
        }
    }

    fn host(&mut self, name: &str) {
        let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
        if name.len() < 2 || SHARED_HOSTS.contains(&name.as_str()) || name.starts_with("ip6-") {
            return;
        }
        if let Some((first, domain)) = name.split_once('.') {
            self.hosts.push(first.to_owned());
            // A top-level domain identifies nothing.
            if domain.contains('.') {
                self.hosts.push(domain.to_owned());
            }
        }
        self.hosts.push(name);
    }
}

/// Replacer of private text, which remembers the pseudonym of each private part.
#[derive(Clone, Debug, Default)]
pub(super) struct Redactor {
    rules: Vec<Rule>,
    /// Number in the pseudonym of each private part, by kind and text.
    met: BTreeMap<(&'static str, String), usize>,
    /// Number of replaced values that have no numbered pseudonym.
    values: usize,
}

impl Redactor {
    /// Returns a replacer that knows the users and hosts of this machine.
    pub(super) fn of_this_machine(facts: &Facts) -> Self {
        Self::new(Names::of_this_machine(facts))
    }

    fn new(names: Names) -> Self {
        Self { rules: rules(names), ..Self::default() }
    }

    /// Returns the number of replaced private parts by kind, in words.
    pub(super) fn summary(&self) -> String {
        let mut counts = BTreeMap::<&str, usize>::new();
        for (kind, _) in self.met.keys() {
            *counts.entry(*kind).or_default() += 1;
        }
        if self.values > 0 {
            counts.insert("value", self.values);
        }
        match counts.is_empty() {
            true => "nothing (no private text was found)".to_owned(),
            false => {
                let counts: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
                counts.join(", ")
            }
        }
    }

    pub(super) fn text(&mut self, text: &str) -> String {
        let Self { rules, met, values } = self;
        let mut shown = |(kind, identity): Part| match identity {
            Some(identity) => {
                let next = 1 + met.keys().filter(|(other, _)| *other == kind).count();
                format!("[{kind}-{}]", met.entry((kind, identity)).or_insert(next))
            }
            None => {
                *values += 1;
                format!("[{kind}]")
            }
        };
        let mut without_values = String::with_capacity(text.len());
        let mut copied = 0;
        for value in secret_values(text) {
            without_values += &text[copied..value.start];
            without_values += &shown(("secret", None));
            copied = value.end;
        }
        without_values += &text[copied..];
        rules.iter().fold(without_values, |text, Rule { pattern, part }| {
            replace(&text, pattern, |found| part(found).map(&mut shown))
        })
    }

    /// Replaces private text in the values of a JSON document. The keys stay.
    pub(super) fn json(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            Value::Object(fields) => {
                for (key, field) in fields {
                    if is_secret_key(key) && !field.is_null() {
                        self.values += 1;
                        *field = Value::from("[secret]");
                    } else {
                        self.json(field);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Replaces the group of each match of `pattern` by the text that `shown` returns, if any.
fn replace(text: &str, pattern: &Regex, mut shown: impl FnMut(&Captures<'_>) -> Option<String>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let (mut copied, mut from) = (0, 0);
    while let Some(found) = pattern.captures_at(text, from) {
        let Some(part) = found.get(1) else { break };
        if let Some(shown) = shown(&found) {
            replaced += &text[copied..part.start()];
            replaced += &shown;
            (copied, from) = (part.end(), part.end());
        } else {
            // A private part can begin within a match that is none.
            from = part.start() + part.as_str().chars().next().map_or(1, char::len_utf8);
        }
    }
    replaced + &text[copied..]
}

/// Returns the places of the values of secret keys, in order.
fn secret_values(text: &str) -> Vec<Range<usize>> {
    let mut values: Vec<Range<usize>> = Vec::new();
    let mut from = 0;
    while let Some(found) = ASSIGNED_KEY.captures_at(text, from) {
        let (whole, key) = (found.get_match(), found.get(1).map_or(0..0, |key| key.range()));
        // The value of a key that is not secret can contain a secret one.
        from = whole.end();
        if is_secret_key(&text[key.clone()]) {
            let line = text[..key.start].rfind('\n').map_or(0, |end| end + 1);
            let first = text[line..key.start]
                .trim_matches([' ', '\t', '"', '\'', '#', '*', '-'])
                .is_empty();
            let value = value(&text[from..], first);
            values.extend((!value.is_empty()).then_some(from + value.start..from + value.end));
            from += value.end;
        }
    }
    values
}

/// Returns the place of a secret value at the beginning of `text`. It is the rest of the line if its key is
/// `first` on the line, if the value begins with a bracket, or if a quoted value has no end.
fn value(text: &str, first: bool) -> Range<usize> {
    let line = text.split('\n').next().unwrap_or("").trim_end();
    let bare = line.trim_start_matches('\\');
    let slashes = line.len() - bare.len();
    match bare.chars().next() {
        _ if first => 0..line.len(),
        Some('[' | '{' | '(' | '<') => 0..line.len(),
        Some(quote @ ('"' | '\'')) => {
            // A quote within the value has more backslashes than the first one.
            let value = &bare[1..];
            let is_end = |at: &usize| {
                let before = &value[..*at];
                before.len() - before.trim_end_matches('\\').len() <= slashes
            };
            let end = value.match_indices(quote).map(|(at, _)| at).find(is_end).unwrap_or(value.len());
            slashes + 1..slashes + 1 + value[..end].trim_end_matches('\\').len()
        }
        _ => {
            let is_end = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '}' | ']' | ')' | '&');
            0..line[..line.find(is_end).unwrap_or(line.len())]
                .trim_end_matches(['"', '\'', '\\'])
                .len()
        }
    }
}

fn is_secret_key(key: &str) -> bool {
    let key = key.to_lowercase();
    // The path of a token's file is not secret.
    WHOLE_KEY.is_match(&key) && !key.ends_with("_file") && !key.ends_with(".token")
}

#[cfg(test)]
mod tests;
