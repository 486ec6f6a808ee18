//! With `/etc/ld.so.preload` every process of a machine loads us, so a start must stay cheap: callgrind
//! counts what `true` costs more with the library, and how much of that is our own code (the rest is the
//! loader binding our symbols).

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};

use crate::promise::{Bound, Check, Effort};
use crate::shipped;
use crate::tools;

pub(super) const CHECK: Check = Check {
    name: "startup",
    effort: Effort::Counted,
    bounds: &[
        // The loader's part grows a little with each function that the library calls.
        Bound::at_most("instructions that the library adds to the start of a program", 400_000.0, ""),
        // Nothing of the library's own runs before CUDA is looked for.
        Bound::at_most("instructions of the library's own code at the start of a program", 200.0, ""),
    ],
    measure,
};

fn measure() -> anyhow::Result<Vec<f64>> {
    tools::need("valgrind", "valgrind")?;
    let built = shipped::build_counted()?;
    let world = World::on_this_machine(&Artifacts::from_targets(built)?)?;
    let count = |sharing: &Sharing| -> anyhow::Result<(u64, u64)> {
        let counts = world.folder().join("counts");
        let mut valgrind = world.sharing(sharing, Path::new("valgrind"));
        valgrind
            .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
            .arg(format!("--callgrind-out-file={}", counts.display()))
            .arg("true");
        output_of(valgrind)?;
        let counts = fs::read_to_string(counts)?;
        Ok((inside(&counts, "")?, inside(&counts, Part::Library.file())?))
    };
    let ((without, _), (with, ours)) = (count(&Sharing::Native)?, count(&Sharing::Preload)?);
    let added = with.saturating_sub(without);
    ensure!(added > 0, "the library was not loaded");
    Ok(vec![added as f64, ours as f64])
}

/// The instructions that callgrind counted inside of an object whose path ends so.
fn inside(counts: &str, object: &str) -> anyhow::Result<u64> {
    let (mut counted, mut total) = (false, 0);
    let mut lines = counts.lines();
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("ob=") {
            counted = path.ends_with(object);
        } else if line.starts_with("calls=") {
            // The line after it is what the callee took.
            lines.next();
        } else if counted && line.starts_with(|first: char| first.is_ascii_digit()) {
            let cost = line.split(' ').nth(1).context("callgrind printed no cost")?;
            total += cost.parse::<u64>().context("callgrind's cost is no number")?;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_callee_takes_is_counted_where_it_is() {
        let counts = "events: Ir\n\nob=/lib/ld.so\nfl=x.c\nfn=start\n10 5\ncob=/l/libours.so\ncfn=init\n\
                      calls=1 3\n11 700\n12 6\n\nob=/l/libours.so\nfn=init\n3 7\n\ntotals: 18\n";
        assert_eq!(inside(counts, "libours.so").unwrap(), 7);
        assert_eq!(inside(counts, "").unwrap(), 18);
    }
}
