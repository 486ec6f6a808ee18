//! Which symbol versions an ELF file needs: the loader refuses the file where one of them is missing.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;
use object::elf::FileHeader64;
use object::read::elf::FileHeader as _;
use object::{Endianness, read};
use serde::{Serialize, Serializer};

/// Of glibc: `2.17`, with what is after the second dot left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

/// Returns the versions as the file spells them: `GLIBC_2.17`, `GCC_3.0`.
pub(crate) fn needs(file: &Path) -> anyhow::Result<BTreeSet<String>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&bytes).with_context(|| format!("cannot understand {}", file.display()))
}

fn parse(bytes: &[u8]) -> read::Result<BTreeSet<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let order = header.endian()?;
    let sections = header.sections(order, bytes)?;
    let mut names = BTreeSet::new();
    let Some((mut libraries, strings)) = sections.gnu_verneed(order, bytes)? else {
        return Ok(names);
    };
    let strings = sections.strings(order, bytes, strings)?;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            names.insert(String::from_utf8_lossy(version.name(order, strings)?).into_owned());
        }
    }
    Ok(names)
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self(major, minor)),
            _ => anyhow::bail!("{text} is no version of glibc"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("2.2.5") < version("2.17"));
        assert!(version("2.9") < version("2.17"));
        assert_eq!(version("2.17").to_string(), "2.17");
        assert!("PRIVATE".parse::<Version>().is_err());
    }

    #[test]
    fn this_program_needs_a_c_library_and_a_text_needs_none() {
        let own = needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.iter().any(|need| need.starts_with("GLIBC_2.")), "{own:?}");
        let text = needs(Path::new(file!().rsplit_once("xtask/").unwrap().1));
        assert!(text.is_err());
    }
}
