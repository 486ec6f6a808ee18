//! Takes out of a text what is nobody else's business, and leaves lines that still belong together.
//!
//! | what | becomes |
//! |---|---|
//! | a token, key or other long run of hex digits | `[secret-1]` |
//! | the value of a key named like a secret | `[secret]` |
//! | a UUID, with or without dashes; `GPU-` and `MIG-` stay | `[uuid-1]` |
//! | a name of a user, also as part of a path | `[user-1]` |
//! | a home folder | `[home-1]` |
//! | a name of a host, with its domain | `[host-1]` |
//! | an IP address (those of the machine to itself stay), a MAC address | `[ip-1]`, `[mac-1]` |
//! | an e-mail address | `[mail-1]` |
//! | a serial number in `nvidia-smi -q` | `[serial]` |
//!
//! The same thing has the same number in the whole archive; what number it gets depends on the order in which things
//! are met and tells nothing.
//!
//! Texts are cut into *words*, the longest runs of characters that names, addresses and paths are made of, and each
//! word is looked at whole, then by its parts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::Value;

use super::super::facts::Facts;

/// Parts of a key's name that make its value a secret.
const SECRET_KEYS: [&str; 8] =
    ["token", "secret", "password", "passwd", "credential", "apikey", "api_key", "private"];
/// Names of users that say nothing about anybody.
const NOBODYS: [&str; 8] = ["root", "nobody", "daemon", "bin", "sys", "user", "nvidia", "gpushare"];
/// Names of hosts that say nothing.
const NOWHERE: [&str; 3] = ["localhost", "localdomain", "ip6-localhost"];
/// The number of the first user of a person.
const FIRST_PERSON: u32 = 1000;
/// Hex digits from which on a run is a secret: a UUID has 32, a token 64, a git commit 40.
const LONG_HEX: usize = 24;

/// The kinds of what is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Secret,
    Uuid,
    User,
    Home,
    Host,
    Ip,
    Mac,
    Mail,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Uuid => "uuid",
            Self::User => "user",
            Self::Home => "home",
            Self::Host => "host",
            Self::Ip => "ip",
            Self::Mac => "mac",
            Self::Mail => "mail",
        }
    }
}

/// Knows what was met so far.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    users: Vec<String>,
    homes: Vec<String>,
    hosts: Vec<String>,
    met: BTreeMap<(Kind, String), usize>,
    values: usize,
}

impl Redactor {
    /// Knows the users and names of this machine.
    pub(super) fn of_this_machine(facts: &Facts) -> Self {
        let mut redactor = Self::default();
        let read = |path: &str| facts.root.read(path).unwrap_or_default();
        for line in read("/etc/passwd").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, _, _, home, ..] = fields[..] else {
                continue;
            };
            if uid.parse().is_ok_and(|uid: u32| uid >= FIRST_PERSON || uid == facts.uid) {
                redactor.user(name);
                redactor.home(home);
            }
        }
        for name in ["USER", "LOGNAME", "SUDO_USER"] {
            redactor.user(&facts.var(name).unwrap_or_default().to_string_lossy());
        }
        redactor.home(&facts.var("HOME").unwrap_or_default().to_string_lossy());
        redactor.host(&rustix::system::uname().nodename().to_string_lossy());
        redactor.host(&facts.var("HOSTNAME").unwrap_or_default().to_string_lossy());
        redactor.host(read("/etc/hostname").trim());
        for line in read("/etc/hosts").lines() {
            let line = line.split('#').next().unwrap_or("");
            line.split_whitespace().skip(1).for_each(|name| redactor.host(name));
        }
        for line in read("/etc/resolv.conf").lines() {
            let mut words = line.split_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                words.for_each(|name| redactor.host(name));
            }
        }
        redactor
    }

    pub(super) fn user(&mut self, name: &str) {
        if name.len() > 1 && !NOBODYS.contains(&name) {
            self.users.push(name.to_ascii_lowercase());
        }
    }

    pub(super) fn home(&mut self, path: &str) {
        let path = path.trim_end_matches('/');
        // A home like `/` or `/nonexistent` is nobody's.
        if path.matches('/').count() >= 2 && !path.starts_with("/usr/") && !path.starts_with("/var/") {
            self.homes.push(path.to_owned());
            // The longest first, so that a home inside a home is found.
            self.homes.sort_by_key(|home| std::cmp::Reverse(home.len()));
        }
    }

    pub(super) fn host(&mut self, name: &str) {
        let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
        if name.len() > 1
            && !NOWHERE.contains(&name.as_str())
            && !name.starts_with("ip6-")
            && name != "(none)"
        {
            if let Some((first, domain)) = name.split_once('.') {
                self.hosts.push(first.to_owned());
                // `example.com` of `node7.example.com`; a top-level domain is no secret.
                if domain.contains('.') {
                    self.hosts.push(domain.to_owned());
                }
            }
            self.hosts.push(name);
            self.hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
        }
    }

    /// What was taken out so far, in words.
    pub(super) fn summary(&self) -> String {
        let mut counts = BTreeMap::<&str, usize>::new();
        for (kind, _) in self.met.keys() {
            *counts.entry(kind.name()).or_default() += 1;
        }
        if self.values > 0 {
            *counts.entry("value").or_default() += self.values;
        }
        match counts.is_empty() {
            true => "nothing was met that had to go".to_owned(),
            false => {
                let counts: Vec<String> =
                    counts.iter().map(|(kind, count)| format!("{count} × {kind}")).collect();
                counts.join(", ")
            }
        }
    }

    /// A text without what is nobody's business.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut redacted = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            redacted += &self.line(line);
        }
        redacted
    }

    /// A document: its texts are redacted, its keys stay.
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

    fn line(&mut self, line: &str) -> String {
        if let Some(end) = secret_value(line) {
            self.values += 1;
            let ending = if line.ends_with('\n') { "\n" } else { "" };
            return format!("{} [secret]{ending}", line[..end].trim_end());
        }
        if let Some((key, _)) = line.split_once(':')
            && key.trim() == "Serial Number"
        {
            self.values += 1;
            return format!("{key}: [serial]\n");
        }
        let mut redacted = String::with_capacity(line.len());
        let mut rest = line;
        while let Some((start, end)) = inline_secret(rest) {
            self.values += 1;
            redacted += &self.words(&rest[..start]);
            redacted += "[secret]";
            rest = &rest[end..];
        }
        redacted + &self.words(rest)
    }

    /// A piece of a line, word by word.
    fn words(&mut self, mut rest: &str) -> String {
        let mut redacted = String::with_capacity(rest.len());
        while let Some(start) = rest.find(is_word) {
            let (before, word) = rest.split_at(start);
            let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
            redacted += before;
            redacted += &self.word(&word[..end]);
            rest = &word[end..];
        }
        redacted + rest
    }

    /// A word as it may be shown.
    fn word(&mut self, word: &str) -> String {
        // Paths by their folders, with homes found first.
        if word.contains('/') {
            for home in self.homes.clone() {
                if let Some(at) = word.find(&home)
                    && matches!(word.as_bytes().get(at + home.len()), None | Some(b'/' | b':' | b',' | b'='))
                {
                    let (before, after) = (word[..at].to_owned(), word[at + home.len()..].to_owned());
                    return self.word(&before) + &self.pseudonym(Kind::Home, &home) + &self.word(&after);
                }
            }
            let mut shown = String::new();
            let mut in_home = false;
            for (index, folder) in word.split('/').enumerate() {
                if index > 0 {
                    shown.push('/');
                }
                // A list of paths goes on behind the name: `/home/bob:/usr/lib`.
                let end = folder.find([':', ',', '=']).unwrap_or(folder.len());
                let (name, rest) = if in_home { folder.split_at(end) } else { ("", folder) };
                if !name.is_empty() {
                    shown += &self.pseudonym(Kind::User, &name.to_ascii_lowercase());
                }
                shown += &self.word(rest);
                in_home = index > 0 && matches!(folder, "home" | "Users");
            }
            return shown;
        }
        if word.is_empty() {
            return String::new();
        }
        // Punctuation around a word is not part of it.
        let trimmed = word.trim_matches(|c: char| matches!(c, '.' | ':' | '-' | '@' | '=' | ','));
        if trimmed.is_empty() {
            return word.to_owned();
        }
        if trimmed.len() < word.len() {
            let at = word.find(trimmed).unwrap_or(0);
            let after = &word[at + trimmed.len()..];
            // `::1` and `fe80::` need their colons.
            if let Some(shown) = self.address(word) {
                return shown;
            }
            return format!("{}{}{}", &word[..at], self.word(trimmed), after);
        }
        if let Some(shown) = self.address(word) {
            return shown;
        }
        if let Some((name, host)) = word.split_once('@')
            && !name.is_empty()
            && host.contains('.')
        {
            return self.pseudonym(Kind::Mail, &word.to_lowercase());
        }
        for separator in ['@', '=', ',', ':'] {
            if let Some((before, after)) = word.split_once(separator) {
                return self.word(before) + &separator.to_string() + &self.word(after);
            }
        }
        if let Some(shown) = self.uuid(word) {
            return shown;
        }
        if let Some(shown) = self.hex(word) {
            return shown;
        }
        self.names(word)
    }

    /// An address of the network, with or without a port.
    fn address(&mut self, word: &str) -> Option<String> {
        if let Ok(address) = word.parse::<IpAddr>() {
            return Some(self.ip(address));
        }
        if let Ok(address) = word.parse::<SocketAddr>() {
            return Some(format!("{}:{}", self.ip(address.ip()), address.port()));
        }
        let pairs: Vec<&str> = word.split([':', '-']).collect();
        let is_pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        (pairs.len() == 6 && pairs.iter().all(is_pair))
            .then(|| self.pseudonym(Kind::Mac, &word.to_lowercase()))
    }

    fn ip(&mut self, address: IpAddr) -> String {
        match address.is_loopback() || address.is_unspecified() {
            true => address.to_string(),
            false => self.pseudonym(Kind::Ip, &address.to_string()),
        }
    }

    /// Every UUID in a word, whatever stands around it.
    fn uuid(&mut self, word: &str) -> Option<String> {
        let (at, digits) = find_uuid(word)?;
        let before = self.names(&word[..at]);
        let after = self.word(&word[at + UUID..]);
        Some(before + &self.pseudonym(Kind::Uuid, &digits) + &after)
    }

    /// A word that is a long run of hex digits, or has one between dots, dashes and underscores.
    fn hex(&mut self, word: &str) -> Option<String> {
        let is_long =
            |part: &str| part.len() >= LONG_HEX && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        word.split(['.', '-', '_']).any(is_long).then(|| {
            let mut shown = String::new();
            for piece in word.split_inclusive(['.', '-', '_']) {
                let part = piece.trim_end_matches(['.', '-', '_']);
                shown += &match (is_long(part), part.len()) {
                    // A UUID without its dashes is the same UUID.
                    (true, 32) => self.pseudonym(Kind::Uuid, &part.to_lowercase()),
                    (true, _) => self.pseudonym(Kind::Secret, &part.to_lowercase()),
                    (false, _) => self.names(part),
                };
                shown += &piece[part.len()..];
            }
            shown
        })
    }

    /// Names of users and hosts in a word, at borders of what names are made of.
    fn names(&mut self, word: &str) -> String {
        if let Some((at, length, address)) = find_ipv4(word) {
            let before = self.names(&word[..at]);
            let shown = self.ip(address.into());
            return before + &shown + &self.names(&word[at + length..]);
        }
        // Of the same length, so that places in it are places in the word.
        let lower = word.to_ascii_lowercase();
        let hosts = self.hosts.iter().map(|name| (Kind::Host, name));
        let users = self.users.iter().map(|name| (Kind::User, name));
        let found = hosts.chain(users).find_map(|(kind, name)| {
            let at = find_name(&lower, name)?;
            Some((kind, name.clone(), at))
        });
        let Some((kind, name, at)) = found else {
            return word.to_owned();
        };
        let (mut start, mut end) = (at, at + name.len());
        let mut thing = name.as_str();
        if kind == Kind::Host {
            // The rest of its domain goes with it, and other hosts of our domain have names of their own.
            let is_other = |c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '-');
            end += word[end..].find(is_other).unwrap_or(word.len() - end);
            if word[..start].ends_with('.') {
                let label = word[..start].trim_end_matches(|c| !is_other(c));
                start = label.len();
            }
            thing = lower[start..end].split('.').find(|label| !label.is_empty()).unwrap_or(thing);
        }
        let (before, after) = (word[..start].to_owned(), word[end..].to_owned());
        let thing = thing.to_owned();
        self.names(&before) + &self.pseudonym(kind, &thing) + &self.names(&after)
    }

    /// The number of a thing among those of its kind.
    fn pseudonym(&mut self, kind: Kind, thing: &str) -> String {
        let next = 1 + self.met.keys().filter(|(other, _)| *other == kind).count();
        let number = *self.met.entry((kind, thing.to_owned())).or_insert(next);
        format!("[{}-{number}]", kind.name())
    }
}

/// What names, addresses, paths and UUIDs are made of.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '=' | ',' | '~' | '+')
}

fn is_secret_key(key: &str) -> bool {
    let key = key.to_lowercase();
    SECRET_KEYS.iter().any(|secret| key.contains(secret))
        // The path of a token's file is no secret, and says where it is.
        && !key.ends_with("_file")
        && !key.ends_with(".token")
}

/// Where the value begins, in a line that gives a secret a value (`key = value`, `KEY=value`, `key: value`).
fn secret_value(line: &str) -> Option<usize> {
    let end = line.find(['=', ':'])?;
    let key = line[..end].trim().trim_matches(['"', '\'']);
    let is_key =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    (is_key && is_secret_key(key) && !line[end + 1..].trim().is_empty()).then_some(end + 1)
}

/// The value of a secret in the middle of a line (`token=value`, `"token": "value"`): where it begins and ends.
fn inline_secret(line: &str) -> Option<(usize, usize)> {
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut from = 0;
    while let Some(start) = line[from..].find(is_key).map(|at| from + at) {
        let end = line[start..].find(|c| !is_key(c)).map_or(line.len(), |at| start + at);
        from = end;
        let behind = line[end..].trim_start_matches(['"', '\'', '\\']).trim_start();
        let Some(value) = behind.strip_prefix(['=', ':']).filter(|_| is_secret_key(&line[start..end])) else {
            continue;
        };
        let value = value.trim_start().trim_start_matches('\\');
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let value = quote.map_or(value, |_| &value[1..]);
        let length = match quote {
            Some(quote) => value.find(quote),
            None => value.find(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '}' | ']' | ')' | '&')),
        };
        let begin = line.len() - value.len();
        let length = length.unwrap_or(value.trim_end().len());
        if length > 0 {
            return Some((begin, begin + length));
        }
    }
    None
}

/// Characters of a UUID.
const UUID: usize = 36;

/// The first UUID of a word: where it begins, and its digits.
fn find_uuid(word: &str) -> Option<(usize, String)> {
    let bytes = word.as_bytes();
    let is_at = |at: usize| {
        bytes[at..at + UUID].iter().enumerate().all(|(i, byte)| match i {
            // Control groups of pods have underscores.
            8 | 13 | 18 | 23 => matches!(*byte, b'-' | b'_'),
            _ => byte.is_ascii_hexdigit(),
        })
    };
    let at = (0..=bytes.len().checked_sub(UUID)?).find(|&at| is_at(at))?;
    let digits = word[at..at + UUID].replace(['-', '_'], "").to_lowercase();
    Some((at, digits))
}

/// The first IPv4 address within a word: where it begins, its length, and itself. Four numbers at the end of
/// `libx.so.12.1.3.1` are none.
fn find_ipv4(word: &str) -> Option<(usize, usize, Ipv4Addr)> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut from = 0;
    while let Some(start) = word[from..].find(is_part).map(|at| from + at) {
        let end = word[start..].find(|c| !is_part(c)).map_or(word.len(), |at| start + at);
        from = end;
        let text = word[start..end].trim_end_matches('.');
        let is_apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        let apart = is_apart(word[..start].chars().next_back()) && is_apart(word[end..].chars().next());
        if let (true, Ok(address)) = (apart, text.parse()) {
            return Some((start, text.len(), address));
        }
    }
    None
}

/// Where a name is in a word, with no letter or digit beside it.
fn find_name(word: &str, name: &str) -> Option<usize> {
    let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    word.match_indices(name).map(|(at, _)| at).find(|&at| {
        is_border(word[..at].chars().next_back()) && is_border(word[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let mut redactor = Redactor::default();
        redactor.user("alice");
        redactor.user("root");
        redactor.home("/data/people/alice");
        redactor.host("node7.cluster.example.com");
        redactor
    }

    fn shown(text: &str) -> String {
        redactor().text(text)
    }

    #[test]
    fn names_of_users_and_hosts_go_wherever_they_stand() {
        assert_eq!(shown("Nov 21 node7 sshd: alice logged in"), "Nov 21 [host-1] sshd: [user-1] logged in");
        assert_eq!(
            shown("alice's, (ALICE) alice-train malice alice2"),
            "[user-1]'s, ([user-1]) [user-1]-train malice alice2"
        );
        assert_eq!(shown("root of NODE7.cluster.example.com:22"), "root of [host-1]:22");
        assert_eq!(
            shown("ip-10-1-2-4.cluster.example.com node7 node7.cluster.example.com"),
            "[host-1] [host-2] [host-2]"
        );
    }

    #[test]
    fn paths_lose_the_names_in_them() {
        assert_eq!(shown("/data/people/alice/x.so:/usr/lib/y.so"), "[home-1]/x.so:/usr/lib/y.so");
        assert_eq!(shown("LD_LIBRARY_PATH=/home/bob/lib"), "LD_LIBRARY_PATH=/home/[user-1]/lib");
        assert_eq!(shown("\"/home/bob\""), "\"/home/[user-1]\"");
        assert_eq!(shown("/lib:/home/Bob:/home/bob/x"), "/lib:/home/[user-1]:/home/[user-1]/x");
        assert_eq!(shown("fe80::7/64 http://10.1.2.3:80/x"), "[ip-1]/64 http://[ip-2]:80/x");
        assert_eq!(shown("/tmp/gpushare-1000/tenant"), "/tmp/gpushare-1000/tenant");
    }

    #[test]
    fn one_card_has_one_pseudonym_however_it_is_written() {
        let uuid = "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let plain = uuid.replace('-', "");
        let upper = uuid.to_uppercase();
        assert_eq!(
            shown(&format!(
                "GPU-{uuid} {plain} MIG-{upper} gpushare-GPU-{uuid}.lock, 2222{} pod{}.slice",
                &uuid[4..],
                uuid.replace('-', "_")
            )),
            "GPU-[uuid-1] [uuid-1] MIG-[uuid-1] gpushare-GPU-[uuid-1].lock, [uuid-2] pod[uuid-1].slice"
        );
    }

    #[test]
    fn secrets_go_by_their_looks_and_by_their_keys() {
        let token = "a5".repeat(32);
        assert_eq!(shown(&format!("token file holds {token}!")), "token file holds [secret-1]!");
        assert_eq!(shown(&format!("docker-{token}.scope")), "docker-[secret-1].scope");
        assert_eq!(
            shown("api_token = \"hunter2\"\nquantum = \"1s\"\n"),
            "api_token = [secret]\nquantum = \"1s\"\n"
        );
        assert_eq!(shown("DB_PASSWORD=hunter2"), "DB_PASSWORD= [secret]");
        assert_eq!(
            shown(r#"{"level":"INFO","fields":{"token":"hun!ter 2","n":1}}"#),
            r#"{"level":"INFO","fields":{"token":"[secret]","n":1}}"#
        );
        assert_eq!(
            shown("GET /x?a=1&api_key=hunter2&b=2, password: hunter3; token=\n"),
            "GET /x?a=1&api_key=[secret]&b=2, password: [secret]; token=\n"
        );
        assert_eq!(shown("GPUSHARE_TOKEN_FILE=/run/x"), "GPUSHARE_TOKEN_FILE=/run/x");
        assert_eq!(shown("    Serial Number   : 1650123\n"), "    Serial Number   : [serial]\n");
    }

    #[test]
    fn addresses_go_and_those_of_the_machine_to_itself_stay() {
        assert_eq!(shown("10.1.2.3:9402, 10.1.2.3 and 10.1.2.4."), "[ip-1]:9402, [ip-1] and [ip-2].");
        assert_eq!(shown("fe80::1 2001:db8::7, ::1"), "[ip-1] [ip-2], ::1");
        assert_eq!(shown("127.0.0.1:9402 0.0.0.0"), "127.0.0.1:9402 0.0.0.0");
        assert_eq!(shown("02:42:ac:11:00:02"), "[mac-1]");
        assert_eq!(shown("alice@example.com"), "[mail-1]");
    }

    #[test]
    fn what_is_nobodys_secret_stays() {
        for text in [
            "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
            "driver 580.65.06 speaks CUDA 13.0 at 12:34:56 on 2026-11-21T06:00:00.123456Z",
            "libcuda.so.1 is /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
            "00000000:01:00.0 0xdeadbeef 8GiB 12%",
            "GLIBC_2.17 ==> [gpu0] a=b, c: d",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_documents_keys_stay_and_its_secrets_go() {
        let mut document = serde_json::json!({"alice": ["alice", 7], "token": "x", "why": "node7 is down"});
        redactor().json(&mut document);
        let expected =
            serde_json::json!({"alice": ["[user-1]", 7], "token": "[secret]", "why": "[host-1] is down"});
        assert_eq!(document, expected);
    }

    #[test]
    fn what_was_met_is_counted() {
        let mut redactor = redactor();
        assert_eq!(redactor.summary(), "nothing was met that had to go");
        redactor.text("alice alice node7 10.1.1.1 10.1.1.2\npassword = x\n");
        assert_eq!(redactor.summary(), "1 × host, 2 × ip, 1 × user, 1 × value");
    }

    #[test]
    fn whatever_stands_around_them_they_go() {
        let token = "a5".repeat(32);
        let planted = [
            "alice",
            "node7",
            "10.1.2.3",
            "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
            "/data/people/alice",
            "2001:db8::7",
            &token,
        ];
        let around = [
            "", " ", "\"", "'", "(", "[", "{", "<", "|", ";", ",", "=", "@", "/", "-", "_", "#", "%", "\t",
            "→", "\\",
        ];
        // An address of IPv6 is made of what stands around others.
        let borders_v6 = " \"'([{<|;#%\t→\\";
        let pairs = around.iter().flat_map(|before| around.iter().map(move |after| (before, after)));
        for (before, after) in pairs {
            for one in planted {
                if one.contains("::") && !(borders_v6.contains(before) && borders_v6.contains(after)) {
                    continue;
                }
                let alone = shown(&format!("{before}{one}{after}"));
                assert!(!alone.contains(one), "{alone}");
                // Glued to a letter it is another word.
                if !before.is_empty() && !after.is_empty() {
                    let within = shown(&format!("x{before}{one}{after}x"));
                    assert!(!within.contains(one), "{within}");
                }
            }
        }
    }

    #[test]
    fn any_mixture_is_survived() {
        let pieces = [
            "a",
            "=",
            ":",
            "/",
            "@",
            ".",
            "-",
            ",",
            "_",
            " ",
            "home",
            "é",
            "GPU-",
            "token",
            "\"",
            "node7",
            "alice",
            "10.1.2.3",
            "::",
            "1f0e2d3c-4b5a-6978",
            "\n",
            "\\",
        ];
        let mut redactor = redactor();
        for (one, two) in pieces.iter().flat_map(|one| pieces.iter().map(move |two| (one, two))) {
            for three in pieces {
                redactor.text(&format!("{one}{two}{three}{one}"));
            }
        }
    }

    #[test]
    fn any_text_is_survived() {
        for text in [
            "",
            "\n\n",
            "=:=,@/./..//~",
            "é/ü@ß=İİİ",
            "é.cluster.example.com",
            "..cluster.example.com",
            "token=",
            "token:\"",
            "token=\"é",
            "password : ü",
            "//home//",
            "::::",
            "-",
            "GPU-",
            "@@",
            "a=/home/",
        ] {
            shown(text);
        }
    }
}
