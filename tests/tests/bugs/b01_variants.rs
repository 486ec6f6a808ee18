//! Bug 1: at the start of libcudart one base name has several variants. Handing out the wrapper of another
//! one moves work to another stream, or calls a function with the wrong arguments.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use gpushare_symbols::{is_driver_name, variants};
use gpushare_tests::{Part, foreign, lookups};
use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSymbol as _};

use crate::tenants::world;

#[test]
fn every_lookup_of_libcudarts_start_gets_exactly_its_variant() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    let lookups = lookups::compare(&world, &foreign::sources().join("lookups.txt"))?;
    assert_eq!(lookups.wrong, [], "of {} lookups", lookups.compared);
    // libcudart itself makes 481 (lookups.txt says what the difference is).
    assert!(lookups.compared > 1000, "{} lookups", lookups.compared);
    assert!(lookups.passed > 0 && lookups.nothing > 0, "some are not ours, and some are nobody's");
    // The work that the program does with what it found.
    assert_eq!(lookups.word, "word 0 0 0 77 - - -");
    Ok(())
}

#[test]
fn both_kinds_of_default_stream_and_each_age_have_a_wrapper_of_their_own() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    let lookups = lookups::compare(&world, &foreign::sources().join("lookups.txt"))?;
    let expected = [
        "cuCtxCreate_v2",
        "cuCtxCreate_v4",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuGraphLaunch",
        "cuGraphLaunch_ptsz",
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuMemAlloc_v2",
        "cuMemcpyDtoH_v2",
        "cuMemcpyDtoH_v2_ptds",
        "cuMemPrefetchAsync",
        "cuMemPrefetchAsync_v2_ptsz",
        "cuStreamBeginCapture_v2",
    ];
    let missing: BTreeSet<_> = expected.iter().filter(|&&export| !lookups.ours.contains(export)).collect();
    assert!(missing.is_empty(), "{missing:?} never answered");
    Ok(())
}

#[test]
fn every_function_that_is_known_gets_exactly_its_variant() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    let names = world.folder().join("names");
    let mut lines = String::new();
    for row in variants().iter().filter(|row| row.is_listed()) {
        writeln!(lines, "{} {}", row.base, row.version.0)?;
    }
    fs::write(&names, lines)?;
    let lookups = lookups::compare(&world, &names)?;
    assert_eq!(lookups.wrong, [], "of {} lookups", lookups.compared);
    assert!(lookups.compared > 4000, "{} lookups", lookups.compared);
    Ok(())
}

#[test]
fn every_export_of_the_driver_and_of_the_library_has_a_row() -> anyhow::Result<()> {
    let world = world()?;
    let exports_of = |part| -> anyhow::Result<BTreeSet<String>> {
        let file = fs::read(world.path(part))?;
        let library = ElfFile64::<Endianness>::parse(&*file)?;
        let names = library.dynamic_symbols().filter(object::ObjectSymbol::is_definition);
        let names = names.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
        Ok(names.filter(|name| is_driver_name(name.as_bytes())).collect())
    };
    let rows: BTreeSet<_> = variants().iter().map(|row| row.export.to_owned()).collect();
    let (driver, library) = (exports_of(Part::SimulatedCuda)?, exports_of(Part::Library)?);
    assert!(driver.contains("cuLaunchKernel_ptsz") && library.contains("cuLaunchKernel_ptsz"));
    let unknown: Vec<_> = driver.union(&library).filter(|&export| !rows.contains(export)).collect();
    assert!(unknown.is_empty(), "without a row: {unknown:?}");
    Ok(())
}
