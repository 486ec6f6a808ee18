//! Which functions of the driver a library exports, read from its file, without loading it.
//!
//! ```text
//! ELF header ──▶ section headers ──▶ .dynsym: 24 bytes per symbol ──▶ name in .dynstr
//! ```
//!
//! Only libraries of 64 bits and little-endian are understood: there is no other CUDA driver.

use std::fmt;

/// `SHT_DYNSYM`.
const DYNAMIC_SYMBOLS: u64 = 11;
/// Bytes of an entry of `.dynsym`.
const SYMBOL: usize = 24;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;

/// The file is no library that could be a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLibrary;

impl fmt::Display for NoLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a shared library of 64 bits with a table of dynamic symbols")
    }
}

impl std::error::Error for NoLibrary {}

/// Whether a name is one of the driver's: `cu` and a capital letter. Neither `cudart`'s (`cudaMalloc`) nor
/// the debugger's (`cudbgMain`) are, nor those of `cublas` and its like.
#[must_use]
pub const fn is_driver_name(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', b'A'..=b'Z', ..])
}

/// The driver's functions that a library defines, in its own order; `file` is the whole file.
///
/// # Errors
/// It is not a library that could be a driver.
pub fn driver_exports(file: &[u8]) -> Result<Vec<&str>, NoLibrary> {
    let mut exports = Vec::new();
    let (symbols, names) = dynamic_symbols(file).ok_or(NoLibrary)?;
    for symbol in symbols.chunks_exact(SYMBOL) {
        let (name, kind, section) = (number(symbol, 0, 4), symbol[4] & 0xf, number(symbol, 6, 2));
        let name = name.and_then(|name| text(names, usize::try_from(name).ok()?));
        if let (FUNCTION, Some(1..), Some(name)) = (kind, section, name)
            && is_driver_name(name.as_bytes())
        {
            exports.push(name);
        }
    }
    Ok(exports)
}

/// The bytes of `.dynsym` and of the strings that it names.
fn dynamic_symbols(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let [0x7f, b'E', b'L', b'F', 2, 1, ..] = file else {
        return None;
    };
    let place = |at, bytes| usize::try_from(number(file, at, bytes)?).ok();
    let (table, size, count) = (place(0x28, 8)?, place(0x3a, 2)?, place(0x3c, 2)?);
    let header = |index: usize| {
        let start = table.checked_add(index.checked_mul(size)?)?;
        file.get(start..start.checked_add(size)?)
    };
    let content = |header: &[u8]| {
        let start = usize::try_from(number(header, 0x18, 8)?).ok()?;
        let length = usize::try_from(number(header, 0x20, 8)?).ok()?;
        file.get(start..start.checked_add(length)?)
    };
    let symbols = (0..count)
        .filter_map(header)
        .find(|header| number(header, 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let names = header(usize::try_from(number(symbols, 0x28, 4)?).ok()?)?;
    Some((content(symbols)?, content(names)?))
}

/// A little-endian number of up to eight bytes.
fn number(from: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let bytes = from.get(at..at.checked_add(bytes)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn text(names: &[u8], at: usize) -> Option<&str> {
    let rest = names.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_names_count() {
        assert!(is_driver_name(b"cuInit"));
        for other in [&b"cudaMalloc"[..], b"cudbgMain", b"cublasCreate", b"cu", b"", b"acuInit"] {
            assert!(!is_driver_name(other));
        }
    }

    #[test]
    fn what_is_no_library_is_refused() {
        assert_eq!(driver_exports(b""), Err(NoLibrary));
        assert_eq!(driver_exports(b"#!/bin/sh\n"), Err(NoLibrary));
        // A header that promises sections beyond the end.
        let mut header = [0xff; 64];
        header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        assert_eq!(driver_exports(&header), Err(NoLibrary));
        let program = std::fs::read("/proc/self/exe").unwrap();
        for end in (0..program.len().min(1 << 20)).step_by(4099) {
            let _ = driver_exports(&program[..end]);
        }
    }
}
