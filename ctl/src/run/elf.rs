//! What an ELF file says about itself: for which machine it is, and who loads it.
//!
//! The loader ignores a preload file of another machine with a warning, and the program then runs without
//! gpushare, so it is compared beforehand with a file that is known to run here: `gpushare-ctl` itself.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const HEADER: usize = 20;
const MAGIC: [u8; 4] = *b"\x7fELF";
const SHARED_OBJECT: u16 = 3;

/// What a file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) machine: Machine,
    kind: u16,
}

/// Architecture, word size and byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    class: u8,
    order: u8,
    number: u16,
}

impl Elf {
    /// The header of `path`; `None` if it is no ELF file.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        match File::open(path)?.read_exact(&mut header) {
            Ok(()) => Ok(Self::parse(&header)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        if !header.starts_with(&MAGIC) {
            return None;
        }
        let (class, order) = (header[4], header[5]);
        let half = |at: usize| {
            let bytes = [header[at], header[at + 1]];
            match order {
                2 => u16::from_be_bytes(bytes),
                _ => u16::from_le_bytes(bytes),
            }
        };
        let (kind, number) = (half(16), half(18));
        Some(Self { machine: Machine { class, order, number }, kind })
    }

    /// Whether the loader could preload it.
    pub(crate) fn is_library(self) -> bool {
        self.kind == SHARED_OBJECT
    }
}

/// Where the header and its table of segments keep what we look for, by word size.
struct Layout {
    table: u64,
    entry_size: u64,
    entries: u64,
    offset: u64,
    size: u64,
    word: usize,
}

const BITS_32: Layout = Layout { table: 28, entry_size: 42, entries: 44, offset: 4, size: 16, word: 4 };
const BITS_64: Layout = Layout { table: 32, entry_size: 54, entries: 56, offset: 8, size: 32, word: 8 };

/// The segment that names the loader.
const INTERPRETER: u64 = 3;
/// Longer than any path.
const PATH_LIMIT: usize = 4096;

/// The loader that an ELF program names, or none of a static one; `None` if it is no ELF file.
pub(crate) fn interpreter(file: &File) -> io::Result<Option<Option<PathBuf>>> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    let Some(elf) = Elf::parse(&header) else {
        return Ok(None);
    };
    let layout = match elf.machine.class {
        1 => BITS_32,
        _ => BITS_64,
    };
    let number = |at: u64, size: usize| -> io::Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes[..size], at)?;
        if elf.machine.order == 2 {
            bytes[..size].reverse();
        }
        Ok(u64::from_le_bytes(bytes))
    };
    let table = number(layout.table, layout.word)?;
    let entry_size = number(layout.entry_size, 2)?;
    for index in 0..number(layout.entries, 2)? {
        let entry = table.saturating_add(index * entry_size);
        if number(entry, 4)? != INTERPRETER {
            continue;
        }
        let at = number(entry.saturating_add(layout.offset), layout.word)?;
        let size = number(entry.saturating_add(layout.size), layout.word)?;
        let mut path = vec![0; usize::try_from(size).unwrap_or(PATH_LIMIT).min(PATH_LIMIT)];
        file.read_exact_at(&mut path, at)?;
        path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
        return Ok(Some(Some(OsString::from_vec(path).into())));
    }
    Ok(Some(None))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = if self.class == 1 { "32-bit" } else { "64-bit" };
        match self.number {
            3 => write!(f, "{bits} x86"),
            40 => write!(f, "{bits} arm"),
            62 => write!(f, "{bits} x86_64"),
            183 => write!(f, "{bits} aarch64"),
            243 => write!(f, "{bits} riscv"),
            21 => write!(f, "{bits} powerpc64"),
            other => write!(f, "{bits} machine {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_header_is_of_this_machine() {
        let own = Elf::of(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(own.machine.to_string().contains(std::env::consts::ARCH));
    }

    /// An ELF program of these bits and byte order, with one segment of this type: the path at the end.
    fn program(class: u8, order: u8, segment: u16) -> File {
        use std::io::Write as _;
        let (word, header, table) = match class {
            1 => (4, 52, (28, 42, 44, 4, 16)),
            _ => (8, 64, (32, 54, 56, 8, 32)),
        };
        let mut bytes = vec![0; header + 56];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order]);
        let mut put = |at: usize, value: u16, size: usize| {
            let (low, high) = match order {
                2 => (at + size - 1, at + size - 2),
                _ => (at, at + 1),
            };
            [bytes[low], bytes[high]] = value.to_le_bytes();
        };
        let end = u16::try_from(header + 56).unwrap();
        put(table.0, u16::try_from(header).unwrap(), word);
        put(table.1, 56, 2);
        put(table.2, 1, 2);
        put(header, segment, 4);
        put(header + table.3, end, word);
        put(header + table.4, 8, word);
        bytes.extend(b"/ld.so.1\0");
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    #[test]
    fn a_program_names_its_loader_in_any_class_and_byte_order() {
        for (class, order) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let found = interpreter(&program(class, order, 3)).unwrap();
            assert_eq!(found, Some(Some("/ld.so.1".into())), "{class} {order}");
            let none = interpreter(&program(class, order, 1)).unwrap();
            assert_eq!(none, Some(None), "a static program, {class} {order}");
        }
    }

    #[test]
    fn a_program_that_was_cut_off_is_an_error_and_no_panic() {
        let whole = program(2, 1, 3);
        for length in 0..128 {
            whole.set_len(127 - length).unwrap();
            let _ = interpreter(&whole);
        }
    }

    #[test]
    fn another_byte_order_is_read_in_its_own() {
        let mut header = [0; HEADER];
        header[..6].copy_from_slice(b"\x7fELF\x01\x02");
        header[16..].copy_from_slice(&[0, 3, 0, 20]);
        let elf = Elf::parse(&header).unwrap();
        assert!(elf.is_library());
        assert_eq!(elf.machine.to_string(), "32-bit machine 20");
    }

    #[test]
    fn what_is_no_elf_file_has_no_header() {
        assert_eq!(Elf::parse(b"#!/bin/sh\n# a script"), None);
        assert_eq!(Elf::of(Path::new("/dev/null")).unwrap(), None);
    }
}
