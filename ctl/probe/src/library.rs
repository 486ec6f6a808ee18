//! Shared libraries that are loaded by name and never closed, and the files that the loader has mapped.

use std::error::Error as _;
use std::fs;

use libloading::Library;

use crate::Loaded;

/// A shared library that was loaded by name and is never closed.
pub(crate) struct Opened(&'static Library);

impl Opened {
    /// Loads the library `name`. Also returns the file with its function `anchor`, or the loader's error.
    pub(crate) fn open(name: &str, anchor: &str) -> (Option<Self>, Loaded) {
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions; if they crash, they crash a process that
        // exists only to ask them.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                // SAFETY: only the address is taken.
                let address = unsafe { library.get::<*const ()>(anchor) }.map(|symbol| symbol.addr());
                let file = address.ok().and_then(file_of).unwrap_or_else(|| name.to_owned());
                (Some(Self(Box::leak(Box::new(library)))), Loaded::From(file))
            }
            Err(error) => {
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                (None, Loaded::Not(reason))
            }
        }
    }

    /// Returns the first of the named functions that the library has.
    ///
    /// # Safety
    /// `F` must be the signature that the library's headers give all named functions.
    pub(crate) unsafe fn function<F: Copy>(&self, names: &[&str]) -> Option<F> {
        names.iter().find_map(|name| {
            // SAFETY: the caller promises the signature; the library is never closed.
            unsafe { self.0.get::<F>(*name) }.ok().map(|symbol| *symbol)
        })
    }
}

/// Returns the file that is mapped at an address of this process.
fn file_of(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |digits| usize::from_str_radix(digits, 16).ok();
        let within = (number(from)?..number(to)?).contains(&address);
        within.then(|| rest.find('/').map(|start| rest[start..].to_owned()))?
    })
}

/// Returns the files that are mapped into this process.
pub(crate) fn mapped() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<String> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| line[start..].to_owned()))
        .collect();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_has_the_loaders_reason() {
        let (None, Loaded::Not(reason)) = Opened::open("libno-such-thing.so.1", "f") else {
            panic!("there is such a thing");
        };
        assert!(reason.contains("libno-such-thing.so.1"), "{reason}");
    }

    #[test]
    fn the_c_library_is_found_by_its_file() {
        let (Some(library), Loaded::From(file)) = Opened::open("libc.so.6", "getpid") else {
            panic!()
        };
        assert!(file.ends_with("libc.so.6") || file.contains("libc-"), "{file}");
        // SAFETY: getpid has no arguments and returns a number.
        let getpid: extern "C" fn() -> i32 = unsafe { library.function(&["no_such", "getpid"]) }.unwrap();
        assert_eq!(u32::try_from(getpid()).unwrap(), std::process::id());
    }
}
