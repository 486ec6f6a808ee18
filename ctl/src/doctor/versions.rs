//! Versions in an ELF file: the glibc that the file needs and provides, and the gpushare version.

use std::fs::File;
use std::io;
use std::path::Path;

use gpushare_symbols::is_driver_name;
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, ReadCache, SymbolKind};

/// Version of glibc, like 2.34 of `GLIBC_2.34`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Glibc(pub(super) u32, pub(super) u32);

impl std::fmt::Display for Glibc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Glibc {
    fn parse(name: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
        let mut parts = text.split('.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self(major, minor))
    }
}

/// Versions of glibc that one ELF file needs and provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Linked {
    /// Newest glibc version that the ELF file needs.
    pub(super) needs: Option<Glibc>,
    /// Newest glibc version that the ELF file provides.
    pub(super) offers: Option<Glibc>,
}

/// Reads the glibc versions of a 64-bit ELF file.
pub(super) fn read(path: &Path) -> io::Result<Linked> {
    with(path, |elf, data| {
        let (endian, sections) = (elf.endian(), elf.elf_section_table());
        let mut needs = None;
        if let Some((libraries, link)) = sections.gnu_verneed(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            for library in libraries {
                for version in library?.1 {
                    needs = needs.max(Glibc::parse(version?.name(endian, strings)?));
                }
            }
        }
        let mut offers = None;
        if let Some((versions, link)) = sections.gnu_verdef(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            for version in versions {
                for name in version?.1 {
                    offers = offers.max(Glibc::parse(name?.name(endian, strings)?));
                }
            }
        }
        Ok(Linked { needs, offers })
    })
}

/// Returns the text of a library's symbol `gpushare_version`; none without that symbol.
pub(super) fn own_version(path: &Path) -> io::Result<Option<String>> {
    with(path, |elf, _| {
        let mut symbols = elf.dynamic_symbols();
        let symbol = symbols.find(|symbol| symbol.name() == Ok("gpushare_version"));
        let Some((symbol, section)) = symbol.and_then(|symbol| Some((symbol, symbol.section_index()?)))
        else {
            return Ok(None);
        };
        let section = elf.section_by_index(section)?;
        let text = section.data_range(symbol.address(), symbol.size())?.unwrap_or_default();
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    })
}

/// Returns the names of the CUDA driver's functions that a library defines.
pub(super) fn driver_exports(path: &Path) -> io::Result<Vec<String>> {
    with(path, |elf, _| {
        let functions = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
        let names = functions.filter_map(|symbol| symbol.name().ok());
        Ok(names
            .filter(|name| is_driver_name(name.as_bytes()))
            .map(str::to_owned)
            .collect())
    })
}

type Elf<'data> = ElfFile64<'data, Endianness, &'data ReadCache<File>>;

fn with<T>(path: &Path, look: impl FnOnce(&Elf<'_>, &ReadCache<File>) -> object::Result<T>) -> io::Result<T> {
    let cache = ReadCache::new(File::open(path)?);
    let elf = Elf::parse(&cache).map_err(io::Error::other)?;
    look(&elf, &cache).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_number_and_not_a_text() {
        assert!(Glibc::parse(b"GLIBC_2.34") > Glibc::parse(b"GLIBC_2.4"));
        assert_eq!(Glibc::parse(b"GLIBC_2.2.5"), Some(Glibc(2, 2)));
        assert_eq!(Glibc::parse(b"GLIBC_PRIVATE"), None);
        assert_eq!(Glibc::parse(b"GCC_3.0"), None);
    }

    #[test]
    fn this_program_needs_no_newer_c_library_than_it_runs_on() {
        let own = read(Path::new("/proc/self/exe")).unwrap();
        assert!(own.needs.is_some(), "{own:?}");
        assert_eq!(own.offers, None);
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        assert!(read(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_cut_or_foreign_library_has_no_exports() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let exports = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            driver_exports(file.path())
        };
        assert!(exports(b"").is_err());
        assert!(exports(b"#!/bin/sh\n").is_err());
        // A header that promises sections beyond the end, and one of a 32-bit library.
        let mut header = [0xff; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        assert!(exports(&header).is_err());
        header[4] = 1;
        assert!(exports(&header).is_err());
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(exports(&program).unwrap(), [""; 0]);
        for end in (0..program.len().min(1 << 20)).step_by(4099) {
            assert!(exports(&program[..end]).is_err(), "{end}");
        }
    }
}
