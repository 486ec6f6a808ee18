//! The administrator's maxima: the most that pods of each namespace may ask for.
//!
//! ```toml
//! [default]                 # for namespaces that have no table, and for keys that a table leaves out
//! weight = 100
//! priority = "normal"
//!
//! [namespaces.research]
//! memory = "40GiB"
//! compute = "50%"
//! weight = 400
//! priority = "high"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use gpushare_proto::Percent;
use gpushare_proto::ranges;
use gpushare_proto::session::{Amount, DEFAULT_WEIGHT, Priority};
use serde::{Deserialize, Deserializer, de};

/// Reason why the maxima cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MaximaError {
    #[error("{path} cannot be read: {cause}; name the file of the maxima with --maxima")]
    Unread { path: PathBuf, cause: io::Error },
    #[error("{path} is wrong: {cause}; docs/kubernetes.md shows the form")]
    Wrong { path: PathBuf, cause: String },
}

/// Most that a pod of one namespace may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    /// Memory on each card; none for no limit.
    pub(crate) memory: Option<Amount>,
    /// Share of each card's time; none for no limit.
    pub(crate) compute: Option<Percent>,
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
}

impl Default for Most {
    fn default() -> Self {
        Self { memory: None, compute: None, weight: DEFAULT_WEIGHT, priority: Priority::Normal }
    }
}

/// Maxima of all namespaces, as the file has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Maxima {
    default: Table,
    namespaces: BTreeMap<String, Table>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    #[serde(deserialize_with = "memory")]
    memory: Option<Amount>,
    #[serde(deserialize_with = "compute")]
    compute: Option<Percent>,
    #[serde(deserialize_with = "weight")]
    weight: Option<u32>,
    priority: Option<Priority>,
}

fn memory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Amount>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
}

fn compute<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Percent>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
}

fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    ranges::WEIGHT
        .check(u32::deserialize(from)?)
        .map(Some)
        .map_err(de::Error::custom)
}

impl Maxima {
    /// Parses the text of the file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', " "))
    }

    /// Returns the maxima of a namespace.
    pub(crate) fn of(&self, namespace: &str) -> Most {
        let (usual, default) = (Most::default(), self.default);
        let own = self.namespaces.get(namespace).copied().unwrap_or_default();
        Most {
            memory: own.memory.or(default.memory),
            compute: own.compute.or(default.compute),
            weight: own.weight.or(default.weight).unwrap_or(usual.weight),
            priority: own.priority.or(default.priority).unwrap_or(usual.priority),
        }
    }
}

/// File of the maxima, which is read again at each use. A file that never was there has no maxima.
#[derive(Debug)]
pub(crate) struct MaximaFile {
    path: PathBuf,
    /// Maxima of the last file that could be read.
    known: Option<Maxima>,
    /// Whether the file was there once, so that its absence is an error.
    was_there: bool,
}

impl MaximaFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), known: None, was_there: false }
    }

    /// Reads the file. After an error, [`Self::known`] stays as it was.
    pub(crate) fn read(&mut self) -> Result<(), MaximaError> {
        let path = self.path.clone();
        let read = match fs::read_to_string(&path) {
            Ok(text) => {
                self.was_there = true;
                Maxima::parse(&text).map_err(|cause| MaximaError::Wrong { path, cause })?
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && !self.was_there => Maxima::default(),
            Err(cause) => return Err(MaximaError::Unread { path, cause }),
        };
        self.known = Some(read);
        Ok(())
    }

    /// Returns the maxima of the last file that could be read; `None` before the first. Then no limit may change.
    pub(crate) fn known(&self) -> Option<&Maxima> {
        self.known.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;

    use super::*;

    #[test]
    fn a_namespace_has_its_own_maxima_then_the_default_then_the_usual_ones() {
        let text = "[default]\nmemory = '8GiB'\nweight = 200\n[namespaces.research]\nmemory = '50%'\npriority = 'high'";
        let maxima = Maxima::parse(text).unwrap();
        let (memory, usual) = (Some(Amount::Bytes(Bytes::gib(8))), Most::default());
        assert_eq!(maxima.of("else"), Most { memory, weight: 200, ..usual });
        let half = Some(Amount::Share(Percent(5000)));
        assert_eq!(
            maxima.of("research"),
            Most { memory: half, weight: 200, priority: Priority::High, ..usual }
        );
        assert_eq!(Maxima::default().of("x"), usual);
        assert_eq!((usual.weight, usual.priority), (100, Priority::Normal));
    }

    #[test]
    fn a_wrong_file_says_where_and_keeps_what_was_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pods.toml");
        let mut file = MaximaFile::new(&path);
        file.read().unwrap();
        fs::write(&path, "[default]\nweight = 300").unwrap();
        file.read().unwrap();
        for (text, wanted) in [
            ("[default]\nwait = 3", "unknown field `wait`"),
            ("[default]\nmemory = 'lots'", "write it like 8GiB"),
            ("[default]\nweight = 0", "1"),
            ("[namespaces.a]\ncompute = '150%'", "write it like 5%"),
        ] {
            fs::write(&path, text).unwrap();
            let error = file.read().unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("pods.toml is wrong"), "{error}");
            assert_eq!(file.known().unwrap().of("a").weight, 300);
        }
        fs::remove_file(&path).unwrap();
        assert!(file.read().is_err(), "it is not there any more");
        assert_eq!(file.known().unwrap().of("a").weight, 300);
    }

    /// Otherwise a mistake in the file and a restart would lift the limits of all pods.
    #[test]
    fn nothing_is_known_while_the_first_file_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pods.toml");
        let mut file = MaximaFile::new(&path);
        assert!(file.known().is_none());
        fs::write(&path, "[default]\nmemory = 'lots'").unwrap();
        assert!(file.read().is_err() && file.known().is_none());
        fs::remove_file(&path).unwrap();
        assert!(file.read().is_err() && file.known().is_none());
        fs::write(&path, "[default]\nweight = 300").unwrap();
        file.read().unwrap();
        assert_eq!(file.known().unwrap().of("a").weight, 300);
    }

    #[test]
    fn a_file_that_never_was_there_has_no_maxima() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = MaximaFile::new(&folder.path().join("pods.toml"));
        file.read().unwrap();
        assert_eq!(file.known().unwrap().of("a"), Most::default());
    }
}
