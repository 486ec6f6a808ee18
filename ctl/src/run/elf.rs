//! Facts about an ELF file that decide whether a library can be preloaded: machine, kind and loader.
//!
//! The loader ignores a library for another machine with a warning, and the program then runs without
//! gpushare. So the library is compared beforehand with a file that runs here: `gpushare-ctl` itself.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::elf::{ET_DYN, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{Endian as _, Endianness, FileKind, ReadCache};

/// Machine, kind and loader of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    pub(crate) machine: Machine,
    /// Whether the ELF file is a library that a loader could preload.
    pub(crate) is_library: bool,
    /// Path of the loader that the ELF file names; none for a static program.
    pub(crate) interpreter: Option<PathBuf>,
}

/// Architecture, word size and byte order of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    is_64: bool,
    is_big_endian: bool,
    number: u16,
}

impl Elf {
    /// Reads the headers of the file at `path`; `None` unless the file is a complete ELF file.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let data = ReadCache::new(File::open(path)?);
        Ok(match FileKind::parse(&data) {
            Ok(FileKind::Elf32) => parse::<FileHeader32<Endianness>>(&data).ok(),
            Ok(FileKind::Elf64) => parse::<FileHeader64<Endianness>>(&data).ok(),
            _ => None,
        })
    }
}

fn parse<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> object::Result<Elf> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            interpreter = Some(OsStr::from_bytes(path).into());
        }
    }
    let machine = Machine {
        is_64: header.is_type_64(),
        is_big_endian: endian.is_big_endian(),
        number: header.e_machine(endian),
    };
    Ok(Elf { machine, is_library: header.e_type(endian) == ET_DYN, interpreter })
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = if self.is_64 { "64-bit" } else { "32-bit" };
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
    use std::fs;

    use super::*;

    #[test]
    fn our_own_header_is_of_this_machine() {
        let own = Elf::of(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(own.machine.to_string().contains(std::env::consts::ARCH));
        assert!(own.interpreter.unwrap().to_string_lossy().contains("ld-"));
    }

    #[test]
    fn a_library_of_another_machine_and_byte_order_is_understood() {
        let mut header = [0; 52];
        header[..7].copy_from_slice(b"\x7fELF\x01\x02\x01");
        header[16..24].copy_from_slice(&[0, 3, 0, 20, 0, 0, 0, 1]);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), header).unwrap();
        let elf = Elf::of(file.path()).unwrap().unwrap();
        assert!(elf.is_library && elf.interpreter.is_none());
        assert_eq!(elf.machine.to_string(), "32-bit machine 20");
    }

    /// Returns an ELF program of this class and byte order. Its one segment has type `segment` and contains the
    /// path at the end.
    fn program(class: u8, order: u8, segment: u16) -> Vec<u8> {
        let (word, header, entry, fields) = match class {
            1 => (4, 52, 32, [28, 42, 44, 4, 16]),
            _ => (8, 64, 56, [32, 54, 56, 8, 32]),
        };
        let mut bytes = vec![0; usize::from(header + entry)];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order, 1]);
        let mut put = |at: u16, value: u16, size: u16| {
            let (low, high) = if order == 2 { (at + size - 1, at + size - 2) } else { (at, at + 1) };
            [bytes[usize::from(low)], bytes[usize::from(high)]] = value.to_le_bytes();
        };
        let [table, entry_size, entries, offset, length] = fields;
        put(table, header, word);
        put(entry_size, entry, 2);
        put(entries, 1, 2);
        put(header, segment, 4);
        put(header + offset, header + entry, word);
        put(header + length, 9, word);
        bytes.extend(b"/ld.so.1\0");
        bytes
    }

    #[test]
    fn a_program_names_its_loader_in_any_class_and_byte_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let interpreter = |bytes: Vec<u8>| {
            fs::write(file.path(), bytes).unwrap();
            Elf::of(file.path()).unwrap().unwrap().interpreter
        };
        for (class, order) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let loader = interpreter(program(class, order, 3));
            assert_eq!(loader, Some("/ld.so.1".into()), "{class} {order}");
            assert_eq!(interpreter(program(class, order, 1)), None, "a static program, {class} {order}");
        }
    }

    #[test]
    fn a_cut_or_foreign_file_is_not_understood() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let whole = program(2, 1, 3);
        assert_eq!(whole.len(), 129);
        for length in 0..whole.len() {
            fs::write(file.path(), &whole[..length]).unwrap();
            assert_eq!(Elf::of(file.path()).unwrap(), None, "{length}");
        }
        fs::write(file.path(), "#!/bin/sh\n# a script").unwrap();
        assert_eq!(Elf::of(file.path()).unwrap(), None);
        assert_eq!(Elf::of(Path::new("/dev/null")).unwrap(), None);
    }
}
