//! Lookup of a driver function by base name or exported name. Both orders of the rows are computed at compile
//! time. A lookup is a binary search without allocation or lock.

use std::cmp::Ordering;
use std::ops::Range;

use crate::table::GROUPS;
use crate::{Disposition, Variant};

/// Number of variants of driver functions in the symbol table.
pub const COUNT: usize = count();

/// All variants by base name; for each name the legacy variants from old to new, then those per thread.
static TABLE: [Variant; COUNT] = sorted(collected());

/// Positions in [`TABLE`], sorted by exported name.
static BY_EXPORT: [u16; COUNT] = exports(&TABLE);

/// Returns all variants by base name. Of each name the legacy variants come first, from old to new, then
/// those for the per-thread default stream.
pub fn variants() -> &'static [Variant] {
    &TABLE
}

/// Returns the variants that `cuGetProcAddress` knows under a base name; empty if the name is unknown.
pub fn by_base(base: impl AsRef<[u8]>) -> &'static [Variant] {
    &TABLE[places_of(base)]
}

/// Returns the positions of a base name's variants in [`variants`].
pub fn places_of(base: impl AsRef<[u8]>) -> Range<usize> {
    let base = base.as_ref();
    let from = TABLE.partition_point(|variant| variant.base.as_bytes() < base);
    let is_other = |variant: &Variant| variant.base.as_bytes() != base;
    let count = TABLE[from..].iter().position(is_other);
    from..count.map_or(COUNT, |count| from + count)
}

/// Returns the variant with this exported name.
pub fn by_export(export: impl AsRef<[u8]>) -> Option<&'static Variant> {
    place_of(export).map(|place| &TABLE[place])
}

/// Returns the position in [`variants`] of an exported name.
pub fn place_of(export: impl AsRef<[u8]>) -> Option<usize> {
    let export = export.as_ref();
    let order = |&place: &u16| TABLE[usize::from(place)].export.as_bytes().cmp(export);
    let found = BY_EXPORT.binary_search_by(order).ok()?;
    Some(usize::from(BY_EXPORT[found]))
}

/// Returns gpushare's treatment of an exported function; `None` for a name that the table lacks.
pub fn disposition(export: impl AsRef<[u8]>) -> Option<Disposition> {
    by_export(export).map(|variant| variant.disposition)
}

const fn count() -> usize {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        let (mut line, lines) = (0, GROUPS[group]);
        while line < lines.len() {
            count += lines[line].1.len();
            line += 1;
        }
        group += 1;
    }
    count
}

const fn collected() -> [Variant; COUNT] {
    let mut all = [Variant::new("", 0, "\0"); COUNT];
    let (mut filled, mut group) = (0, 0);
    while group < GROUPS.len() {
        let (mut line, lines) = (0, GROUPS[group]);
        while line < lines.len() {
            let (disposition, variants) = lines[line];
            let mut variant = 0;
            while variant < variants.len() {
                all[filled] = variants[variant].with(disposition);
                filled += 1;
                variant += 1;
            }
            line += 1;
        }
        group += 1;
    }
    all
}

/// Sorts by the shell sort, which is short and fast enough at compile time.
const fn sorted(mut all: [Variant; COUNT]) -> [Variant; COUNT] {
    let mut gap = COUNT / 2;
    while gap > 0 {
        let mut next = gap;
        while next < COUNT {
            let moving = all[next];
            let mut hole = next;
            while hole >= gap && precedes(&moving, &all[hole - gap]) {
                all[hole] = all[hole - gap];
                hole -= gap;
            }
            all[hole] = moving;
            next += 1;
        }
        gap /= 2;
    }
    all
}

const fn exports(table: &[Variant; COUNT]) -> [u16; COUNT] {
    let mut places = [0; COUNT];
    let mut next = 0;
    while next < COUNT {
        let export = table[next].export;
        let mut hole = next;
        while hole > 0 && compare(export, table[places[hole - 1] as usize].export).is_lt() {
            places[hole] = places[hole - 1];
            hole -= 1;
        }
        places[hole] = next as u16;
        next += 1;
    }
    places
}

const fn precedes(one: &Variant, other: &Variant) -> bool {
    match compare(one.base, other.base) {
        Ordering::Less => true,
        Ordering::Greater => false,
        Ordering::Equal if one.per_thread() != other.per_thread() => other.per_thread(),
        Ordering::Equal => one.version.0 < other.version.0,
    }
}

const fn compare(one: &str, other: &str) -> Ordering {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() {
        if one[at] != other[at] {
            return if one[at] < other[at] { Ordering::Less } else { Ordering::Greater };
        }
        at += 1;
    }
    match one.len().checked_sub(other.len()) {
        None => Ordering::Less,
        Some(0) => Ordering::Equal,
        Some(_) => Ordering::Greater,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_export_and_under_its_base_name() {
        for variant in variants() {
            assert_eq!(by_export(variant.export), Some(variant));
            assert!(by_base(variant.base).contains(variant), "{}", variant.export);
        }
        assert_eq!(by_export("cuNothing"), None);
        assert_eq!(by_base("cuNothing"), []);
        assert_eq!(by_base(""), []);
    }

    #[test]
    fn no_export_has_two_rows() {
        let twice: Vec<_> = variants()
            .iter()
            .filter(|variant| variants().iter().filter(|other| other.export == variant.export).count() > 1)
            .map(|variant| variant.export)
            .collect();
        assert_eq!(twice, [""; 0]);
    }

    #[test]
    fn the_variants_of_a_base_name_come_from_old_to_new_and_twins_last() {
        let exports: Vec<_> = by_base("cuStreamWaitValue32")
            .iter()
            .map(|variant| (variant.version.0, variant.export))
            .collect();
        assert_eq!(
            exports,
            [
                (8000, "cuStreamWaitValue32"),
                (11_070, "cuStreamWaitValue32_v2"),
                (8000, "cuStreamWaitValue32_ptsz"),
                (11_070, "cuStreamWaitValue32_v2_ptsz"),
            ]
        );
    }

    #[test]
    fn a_twin_has_the_name_of_a_legacy_variant_that_is_not_newer() {
        for twin in variants().iter().filter(|variant| variant.per_thread()) {
            let legacy = by_export(&twin.export[..twin.export.len() - "_ptsz".len()]);
            assert!(
                legacy.is_some_and(|legacy| legacy.version <= twin.version && legacy.base == twin.base),
                "{}",
                twin.export
            );
        }
    }

    #[test]
    fn nothing_is_newer_than_the_newest_release() {
        let newest = variants().iter().map(|variant| variant.version).max();
        assert_eq!(newest, Some(crate::NEWEST));
    }
}
