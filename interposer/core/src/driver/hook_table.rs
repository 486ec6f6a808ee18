//! Hook table: one row per hooked driver symbol, and the choice among the variants of one base name.
//!
//! An application finds a function as an export (`cuMemcpyHtoD_v2_ptds`) or through `cuGetProcAddress` (base
//! name `cuMemcpyHtoD`, a version, flags). Each variant has its own ABI, so the choice must be exact:
//!
//! 1. The driver answers first. If it lacks the function, gpushare claims nothing.
//! 2. The answered pointer is looked for among the driver's exports. A match names the variant.
//! 3. Without a match (a driver that answers trampolines), the newest variant counts that is not newer than
//!    the version asked for and than the driver, for the flags asked for.
//! 4. If both versions are newer than the symbol list, the driver is asked again with the list's newest
//!    version. Equal pointers mean a known variant; different ones mean an unknown variant.
//!
//! `gpushare-symbols` lists all variants, hooked or not. The rows are joined with that list once, by place,
//! so that a lookup is a binary search.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use gpushare_symbols::{
    COUNT, NEWEST, Variant, is_driver_name, is_per_thread, place_of, places_of, variants,
};

use super::dynlink::{LIBCUDA, name};
use super::types::{DefaultStream, PROC_PER_THREAD_DEFAULT_STREAM};

/// Row of the hook table: one hooked driver symbol, gpushare's function for it, and the driver's.
#[derive(Debug)]
pub struct Row {
    /// Name that the driver exports.
    pub export: &'static CStr,
    /// Whether the symbol is the variant for the per-thread default stream.
    per_thread: bool,
    /// Address of gpushare's function that replaces the symbol.
    pub wrapper: Wrapper,
    real: AtomicPtr<c_void>,
}

/// Address of gpushare's function that replaces a driver symbol.
#[derive(Clone, Copy, Debug)]
pub struct Wrapper(pub *const c_void);

// SAFETY: the address of a function, which is never read through and never changes.
unsafe impl Sync for Wrapper {}
// SAFETY: the address of a function, which is never read through and never changes.
unsafe impl Send for Wrapper {}

impl Row {
    /// Creates the row of an exported symbol, given as a name with a NUL at its end.
    pub const fn new(export: &'static str, wrapper: *const c_void) -> Self {
        let export = name(export);
        Self {
            export,
            per_thread: is_per_thread(export.to_bytes()),
            wrapper: Wrapper(wrapper),
            real: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the address of the driver's own function, or null if the driver lacks it.
    #[inline]
    pub fn real(&self) -> *mut c_void {
        let real = self.real.load(Ordering::Acquire);
        if real.is_null() { self.resolve() } else { real }
    }

    /// Returns the default stream that this variant of the function uses.
    pub fn default_stream(&self) -> DefaultStream {
        if self.per_thread { DefaultStream::PerThread } else { DefaultStream::Legacy }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let real = LIBCUDA.symbol(self.export);
        // The first thread's answer stays, because it may have been returned already.
        let known = self
            .real
            .compare_exchange(null_mut(), real, Ordering::AcqRel, Ordering::Acquire);
        known.map_or_else(|known| known, |_| real)
    }
}

/// Hook table: all rows, found by exported name or by the driver's answer to a lookup.
pub struct Table {
    files: &'static [&'static [&'static Row]],
    /// Rows in the order of the symbol list; null for a symbol that is not hooked.
    hooks: [AtomicPtr<Row>; COUNT],
    joined: AtomicBool,
}

/// Arguments of a call of `cuGetProcAddress`.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Base name of the function that the caller looks up.
    pub base: &'a CStr,
    /// CUDA version that the caller was built for (11040 is 11.4).
    pub version: c_int,
    /// Flags that select the kind of default stream.
    pub flags: u64,
}

/// Classification of the function that the driver's `cuGetProcAddress` returned.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// gpushare hooks the function, by this row of the hook table.
    Hooked(&'static Row),
    /// The symbol list contains the function, and gpushare does not hook it.
    Driver,
    /// The function is unknown: gpushare's symbol list lacks it.
    Unknown,
}

/// Questions to the driver that tell the variants of one function apart.
pub trait Lookup {
    /// Returns the driver's CUDA version.
    fn version(&self) -> c_int;
    /// Returns the address of an exported driver function by name, or null.
    fn export(&self, name: &CStr) -> *mut c_void;
    /// Returns the address that the driver's `cuGetProcAddress` answers, or null.
    fn ask(&self, asked: Asked<'_>) -> *mut c_void;
}

impl Table {
    /// Creates the table from the rows of several source files.
    pub const fn new(files: &'static [&'static [&'static Row]]) -> Self {
        Self {
            files,
            hooks: [const { AtomicPtr::new(null_mut()) }; COUNT],
            joined: AtomicBool::new(false),
        }
    }

    /// Finds the row of an exported name.
    pub fn by_export(&self, name: &CStr) -> Option<&'static Row> {
        self.hook(place_of(name.to_bytes())?)
    }

    /// Classifies the driver's `answer` to `asked` by the rules of this module.
    pub fn by_answer(&self, asked: Asked<'_>, answer: *mut c_void, driver: &impl Lookup) -> Answer {
        let places = places(asked.base);
        if places.is_empty() {
            return if is_driver_name(asked.base.to_bytes()) {
                Answer::Unknown
            } else {
                Answer::Driver
            };
        }
        if let Some(row) = self.hooks_among(&places).find(|row| row.real() == answer) {
            return Answer::Hooked(row);
        }
        let newest = c_int::try_from(NEWEST.0).unwrap_or(c_int::MAX);
        let reach = asked.version.min(driver.version());
        let is_an_export = || {
            variants()[places.clone()]
                .iter()
                .any(|known| driver.export(known.export_for_dlsym()) == answer)
        };
        if reach > newest && !is_an_export() && driver.ask(Asked { version: newest, ..asked }) != answer {
            return Answer::Unknown;
        }
        if self.hooks_among(&places).next().is_none() {
            return Answer::Driver;
        }
        match by_rule(&places, reach.min(newest), asked.flags).and_then(|place| self.hook(place)) {
            Some(row) if !is_an_export() => Answer::Hooked(row),
            _ => Answer::Driver,
        }
    }

    fn hooks_among(&self, places: &Range<usize>) -> impl Iterator<Item = &'static Row> {
        places.clone().filter_map(|place| self.hook(place))
    }

    fn hook(&self, place: usize) -> Option<&'static Row> {
        if !self.joined.load(Ordering::Acquire) {
            self.join();
        }
        // SAFETY: null, or a row that is never freed.
        unsafe { self.hooks.get(place)?.load(Ordering::Relaxed).as_ref() }
    }

    /// Stores each row at its place in the symbol list. Two threads may do this at once, with the same
    /// result.
    #[cold]
    fn join(&self) {
        for &row in self.files.iter().copied().flatten() {
            if let Some(place) = place_of(row.export.to_bytes()) {
                self.hooks[place].store(std::ptr::from_ref(row).cast_mut(), Ordering::Relaxed);
            }
        }
        self.joined.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.files.iter().copied().flatten()).finish()
    }
}

/// Returns the places in the symbol list of a base name's variants. An exported name counts as the base name
/// of its own variant.
fn places(base: &CStr) -> Range<usize> {
    let name = base.to_bytes();
    let places = places_of(name);
    match place_of(name) {
        Some(place) if places.is_empty() => place..place + 1,
        _ => places,
    }
}

fn by_rule(places: &Range<usize>, reach: c_int, flags: u64) -> Option<usize> {
    let known = variants();
    // A function without a twin has one variant for both kinds of default stream. Otherwise the flag selects
    // the twins.
    let has_twin = known[places.clone()].iter().any(Variant::per_thread);
    let wanted = has_twin && flags & PROC_PER_THREAD_DEFAULT_STREAM != 0;
    let reach = u32::try_from(reach).unwrap_or(0);
    places
        .clone()
        .filter(|&place| known[place].per_thread() == wanted && known[place].version.0 <= reach)
        .max_by_key(|&place| known[place].version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(export: &'static str) -> Row {
        Row::new(export, std::ptr::null())
    }

    static LAUNCH: Row = row("cuLaunchKernel\0");
    static LAUNCH_PTSZ: Row = row("cuLaunchKernel_ptsz\0");
    static CREATE_2: Row = row("cuCtxCreate_v2\0");
    static CREATE_3: Row = row("cuCtxCreate_v3\0");
    static CREATE_4: Row = row("cuCtxCreate_v4\0");
    static HOST: Row = row("cuLaunchHostFunc\0");
    static ROWS: [&Row; 6] = [&LAUNCH, &LAUNCH_PTSZ, &CREATE_2, &CREATE_3, &CREATE_4, &HOST];
    static TABLE: Table = Table::new(&[&ROWS]);

    fn address(export: &str) -> *mut c_void {
        std::ptr::without_provenance_mut(place_of(export).map_or(0, |place| 0x1000 + place))
    }

    const TRAMPOLINE: *mut c_void = std::ptr::without_provenance_mut(0x10);
    const NEW: *mut c_void = std::ptr::without_provenance_mut(0x20);

    /// Fake driver of some version. It answers trampolines up to 13.5 and `newer` beyond.
    struct Fake {
        version: c_int,
        newer: *mut c_void,
    }

    impl Lookup for Fake {
        fn version(&self) -> c_int {
            self.version
        }

        fn export(&self, name: &CStr) -> *mut c_void {
            address(name.to_str().unwrap())
        }

        fn ask(&self, asked: Asked<'_>) -> *mut c_void {
            if asked.version > 13_050 { self.newer } else { TRAMPOLINE }
        }
    }

    fn told(base: &CStr, version: c_int, flags: u64, answer: *mut c_void, driver: &Fake) -> String {
        match TABLE.by_answer(Asked { base, version, flags }, answer, driver) {
            Answer::Hooked(row) => row.export.to_string_lossy().into_owned(),
            Answer::Driver => "the driver's".to_owned(),
            Answer::Unknown => "unknown".to_owned(),
        }
    }

    fn asked(base: &CStr, version: c_int, flags: u64, driver: c_int) -> String {
        told(base, version, flags, TRAMPOLINE, &Fake { version: driver, newer: TRAMPOLINE })
    }

    #[test]
    fn flags_choose_the_twin() {
        assert_eq!(asked(c"cuLaunchKernel", 13_000, 0, 13_000), "cuLaunchKernel");
        assert_eq!(asked(c"cuLaunchKernel", 13_000, 1, 13_000), "cuLaunchKernel");
        assert_eq!(asked(c"cuLaunchKernel", 13_000, 2, 13_000), "cuLaunchKernel_ptsz");
    }

    #[test]
    fn the_newest_variant_not_newer_than_asked_and_driver_is_chosen() {
        assert_eq!(asked(c"cuCtxCreate", 12_000, 0, 13_000), "cuCtxCreate_v3");
        assert_eq!(asked(c"cuCtxCreate", 13_000, 0, 12_000), "cuCtxCreate_v3");
        assert_eq!(asked(c"cuCtxCreate", 13_000, 0, 13_000), "cuCtxCreate_v4");
    }

    #[test]
    fn a_twin_is_there_from_its_own_version_on() {
        assert_eq!(asked(c"cuLaunchKernel", 6050, 2, 13_000), "the driver's");
        assert_eq!(asked(c"cuLaunchKernel", 7000, 2, 13_000), "cuLaunchKernel_ptsz");
    }

    #[test]
    fn a_variant_that_is_not_hooked_is_never_taken_for_an_older_one_that_is() {
        assert_eq!(asked(c"cuCtxCreate", 3000, 0, 13_000), "the driver's");
        assert_eq!(asked(c"cuLaunchHostFunc", 13_000, 0, 13_050), "cuLaunchHostFunc");
        assert_eq!(asked(c"cuLaunchHostFunc", 13_010, 0, 13_050), "the driver's");
    }

    #[test]
    fn a_function_without_a_twin_serves_both_kinds_of_stream() {
        assert_eq!(asked(c"cuCtxCreate", 13_000, 2, 13_000), "cuCtxCreate_v4");
    }

    #[test]
    fn a_newer_driver_serves_old_variants_as_ever() {
        assert_eq!(asked(c"cuCtxCreate", 12_000, 0, 14_000), "cuCtxCreate_v3");
        assert_eq!(asked(c"cuCtxCreate", 14_000, 0, 14_000), "cuCtxCreate_v4", "it answers 13.5 alike");
    }

    #[test]
    fn a_variant_that_only_a_newer_driver_has_is_unknown() {
        let driver = Fake { version: 14_000, newer: NEW };
        assert_eq!(told(c"cuLaunchKernel", 14_000, 0, NEW, &driver), "unknown");
        assert_eq!(
            told(c"cuDeviceGetName", 13_060, 0, NEW, &driver),
            "unknown",
            "minor versions bring variants too"
        );
        let known = address("cuCtxCreate");
        assert_eq!(
            told(c"cuCtxCreate", 14_000, 0, known, &driver),
            "the driver's",
            "an export that is known"
        );
        assert_eq!(told(c"cuLaunchKernel", 13_050, 0, TRAMPOLINE, &driver), "cuLaunchKernel");
    }

    #[test]
    fn an_unlisted_name_is_unknown_on_every_driver() {
        assert_eq!(asked(c"cuConjure", 12_000, 0, 12_000), "unknown");
        for other in [c"", c"cudbgMain", c"sin"] {
            assert_eq!(asked(other, 12_000, 0, 12_000), "the driver's");
        }
    }

    #[test]
    fn names_that_are_not_hooked_pass_through() {
        assert_eq!(asked(c"cuDeviceGetName", 13_000, 0, 13_000), "the driver's");
        assert!(
            TABLE
                .by_export(c"cuLaunchKernel_ptsz")
                .is_some_and(|row| row.export == c"cuLaunchKernel_ptsz")
        );
        assert!(TABLE.by_export(c"cuDeviceGetName").is_none());
        assert!(TABLE.by_export(c"").is_none());
    }

    #[test]
    fn the_pointer_that_the_driver_answers_decides_first() {
        let driver = Fake { version: 14_000, newer: NEW };
        CREATE_2.real.store(address("cuCtxCreate_v2"), Ordering::Relaxed);
        for version in [13_000, 14_000] {
            assert_eq!(
                told(c"cuCtxCreate", version, 0, address("cuCtxCreate_v2"), &driver),
                "cuCtxCreate_v2"
            );
        }
        // The first variant is not hooked here, although the rule would select a hooked one.
        assert_eq!(told(c"cuCtxCreate", 13_000, 0, address("cuCtxCreate"), &driver), "the driver's");
        assert_eq!(told(c"cuCtxCreate_v2", 13_000, 0, address("cuCtxCreate_v2"), &driver), "cuCtxCreate_v2");
    }
}
