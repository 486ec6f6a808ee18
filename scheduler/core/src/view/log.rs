//! Format of a recording of the decision machine: one JSON line per event, with a fingerprint of its effects.
//!
//! ```text
//!   {"line":{"header":{"format":3,"version":"0.1.0","generation":…,"expected":[],"started":…,"config":{…}}},"chain":"…"}
//!   {"line":{"handled":{"now":…,"event":{"GpuFound":{"gpu":0,"total":…}},"effects":"cbf29ce484222325"}},"chain":"…"}
//!   …                                                                                                        │
//!   {"line":{"end":{"reason":"the daemon ended"}},"chain":"…"}  ◀── of this line and of all before it ────────┘
//! ```
//!
//! A new decision machine gives the same effects for the same events, so the effects are not kept. A
//! fingerprint of eight bytes tells whether a replay still gives the same effects. Each line also has a
//! fingerprint of everything up to itself, so that an edited or missing line is found. The fingerprints do
//! not prove who wrote the file: anyone can compute them anew. A recording has no names, pids, paths or
//! tokens, since the decision machine never learns them.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher as _;
use std::io;

use gpushare_proto::{ClientId, Nanos};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::events::{Effect, Event};
use crate::machine::Core;

/// Version number of the recording's format. It rises with each change of an [`Event`] that is recorded.
pub const FORMAT: u32 = 3;

/// Line of a recording, with the fingerprint of all lines so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Content of the line: header, event or end.
    pub line: Line,
    /// Fingerprint of this line and of all lines before it.
    pub chain: Chain,
}

impl Link {
    /// First bytes of every recording file.
    pub const BEGINNING: &'static str = r#"{"line":{"header":{"format":"#;
}

/// Content of a line in a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// First line: the state with which the decision machine started.
    Header(Box<Header>),
    /// Line of an event that the decision machine handled.
    Handled(Handled),
    /// Last line; it is missing if the daemon was killed.
    End {
        /// Reason why the recording ended, in words.
        reason: String,
    },
}

/// State with which the recorded decision machine started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version number of the recording's format: [`FORMAT`].
    pub format: u32,
    /// Version of the gpushare release that made the recording.
    pub version: String,
    /// Number of the daemon's start that the decision machine was given: the boot clock in nanoseconds.
    pub generation: u64,
    /// Processes of the last daemon for which the decision machine waited.
    pub expected: BTreeSet<ClientId>,
    /// Whether processes that the last daemon had not recorded could come back too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Time on the decision machine's clock at its start.
    pub started: Nanos,
    /// Point in time of the start on the calendar, in seconds since 1970.
    pub unix_seconds: u64,
    /// Settings of the decision machine.
    pub config: Config,
}

impl Header {
    /// Creates a decision machine in the state at the start of the recording.
    #[must_use]
    pub fn machine(&self) -> Core {
        let (config, expected) = (self.config.clone(), self.expected.clone());
        let core = Core::new(config, self.generation, expected, self.started);
        match self.incomplete {
            true => core.expecting_others(),
            false => core,
        }
    }
}

/// Call of [`Core::handle`]: an event with its time and a fingerprint of its effects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handled {
    /// Point in time, on the decision machine's clock, that came with the event.
    pub now: Nanos,
    /// Event that the decision machine handled.
    pub event: Event,
    /// Fingerprint of the effects; `None` if the daemon crashed while it handled the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<Fingerprint>,
}

/// Fingerprint of a list of effects: the 64-bit FNV-1a hash of its JSON. It does not depend on the computer
/// or the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Returns the fingerprint of `effects`, which depends on their order.
    #[must_use]
    pub fn of(effects: &[Effect]) -> Self {
        let mut hash = Hash(fnv::FnvHasher::default());
        effects.iter().for_each(|effect| hash.add(effect));
        Self(hash.0.finish())
    }
}

/// Fingerprint of a recording up to a line. A changed, missing, repeated or moved line changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(Fingerprint);

impl Chain {
    /// Returns the fingerprint of a recording with one more line. The default value belongs to a recording
    /// without lines.
    #[must_use]
    pub fn with(self, line: &Line) -> Self {
        let mut hash = Hash(fnv::FnvHasher::default());
        hash.add(&self);
        hash.add(line);
        Self(Fingerprint(hash.0.finish()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        u64::from_str_radix(&text, 16)
            .map(Self)
            .map_err(|_| format!("`{text}` is no fingerprint: it has 16 hexadecimal digits"))
    }
}

struct Hash(fnv::FnvHasher);

impl Hash {
    fn add(&mut self, thing: &impl Serialize) {
        // Neither can fail: recorded values are numbers, texts and enums, and the hash accepts every byte.
        let _ = serde_json::to_writer(self, thing);
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_form() {
        let line = Line::Handled(Handled {
            now: Nanos(7),
            event: Event::ClientGone { client: ClientId(3) },
            effects: Some(Fingerprint::of(&[])),
        });
        let text =
            r#"{"handled":{"now":7,"event":{"ClientGone":{"client":3}},"effects":"cbf29ce484222325"}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);

        let header = Header {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            generation: 9,
            expected: [ClientId(4)].into(),
            incomplete: false,
            started: Nanos(5),
            unix_seconds: 1_700_000_000,
            config: Config::default(),
        };
        let line = Line::Header(Box::new(header));
        let text = serde_json::to_string(&line).unwrap();
        assert!(
            text.starts_with(
                r#"{"header":{"format":3,"version":"0.1.0","generation":9,"expected":[4],"started":5,"#
            ),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let chain = Chain::default().with(&line);
        let text = serde_json::to_string(&Link { line, chain }).unwrap();
        assert!(text.starts_with(Link::BEGINNING), "{text}");
    }

    #[test]
    fn a_chain_depends_on_every_line_and_their_order() {
        let [a, b, c] = ["a", "b", "c"].map(|reason| Line::End { reason: reason.to_owned() });
        let of = |lines: &[&Line]| lines.iter().fold(Chain::default(), |chain, line| chain.with(line));
        let whole = of(&[&a, &b, &c]);
        assert_eq!(serde_json::to_string(&whole).unwrap(), "\"fc328cbcf7773d24\"");
        for other in [&[&a, &c][..], &[&a, &b, &b, &c], &[&b, &a, &c], &[&a, &b, &c, &c], &[&c]] {
            assert_ne!(of(other), whole);
        }
    }

    #[test]
    fn a_fingerprint_depends_on_every_effect_and_their_order() {
        let [a, b] = [1, 2].map(|client| Effect::Kill { client: ClientId(client) });
        let of = |effects: &[&Effect]| Fingerprint::of(&effects.iter().copied().cloned().collect::<Vec<_>>());
        assert_eq!(of(&[&a, &b]), of(&[&a, &b]));
        assert_ne!(of(&[&a, &b]), of(&[&b, &a]));
        assert_ne!(of(&[&a]), of(&[&a, &a]));
        assert_eq!(of(&[&a]).to_string(), "1fcc55b0dd33cfdb");
    }
}
