//! Bug 2: `dlsym(RTLD_NEXT, name)` means something else for every library that asks. A tool that forwards
//! the call asks as itself, and sends the caller back to its own beginning, for ever.

use gpushare_tests::{Sharing, foreign};

use crate::tenants::world;

#[test]
fn what_comes_next_is_next_after_the_library_that_asks_also_when_asked_twice() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    for (layer, flag) in [("upper", "-DNO_MALLOC"), ("lower", "-DWITH_MALLOC")] {
        let library = format!("lib/lib{layer}.so");
        let layer = format!("-DLAYER={layer}");
        foreign::compile(&world, "layer.c", &library, &["-shared", "-fPIC", &layer, flag, "-ldl"])?;
    }
    let lib = format!("-L{}", world.folder().join("lib").display());
    let libraries =
        ["-Wl,--no-as-needed,--allow-shlib-undefined", &lib, "-lupper", "-llower", "-l:libcuda.so.1", "-ldl"];
    let program = foreign::compile(&world, "layered.c", "layered", &libraries)?;

    let native = foreign::run(&world, &Sharing::Native, &program, &[])?;
    let shared = foreign::run(&world, &Sharing::Preload, &program, &[])?;
    let ours = "program cuMemAlloc_v2: libgpushare.so";
    assert!(shared.lines().any(|said| said == ours), "no `{ours}` in {shared}");
    // For the program itself we are next, with the driver's names.
    assert_eq!(shared.replace("libgpushare.so", "libcuda.so.1"), native);
    for line in [
        "layers: 2 2",
        "upper layers: liblower.so",
        "lower layers: nothing",
        "lower cuMemAlloc_v2: libcuda.so.1",
        "word: 5",
    ] {
        assert!(native.lines().any(|said| said == line), "no `{line}` in {native}");
    }
    Ok(())
}
