//! Bug 4: the free of a pointer that the tool does not know must be the driver's to judge.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World};

use crate::tenants::world;

/// Answers of the driver to frees of pointers without an allocation, and whether the live allocation remains.
fn answers(world: &World, sharing: &Sharing, name: &str) -> anyhow::Result<(Vec<Option<String>>, bool)> {
    let mut program = Program::hold(world, sharing, name)?;
    let live = program.must("alloc x 4MiB")?.number("address");
    let gone = program.must("alloc y 4MiB")?.number("address");
    program.must("fill x 6; free y")?;
    let mut answers = Vec::new();
    for address in [0, 4660, gone, live + 4096, live - 1, u64::MAX] {
        let answer = program.ask(&format!("free-address {address}"))?;
        answers.push(answer.error().map(str::to_owned));
    }
    let intact = program.ask("check x 6")?.flag("matches");
    Ok((answers, intact))
}

#[test]
fn a_free_of_an_unknown_pointer_reaches_the_driver() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let native = answers(&world, &Sharing::Native, "native")?;
    let shared = answers(&world, &Sharing::limited("shared", Bytes::mib(16)), "shared")?;
    assert_eq!(shared, native);
    let (errors, intact) = native;
    assert!(intact);
    assert_eq!(errors[0], None, "a null pointer is freed without complaint");
    assert_eq!(errors[2].as_deref(), Some("CUDA_ERROR_INVALID_VALUE"));
    daemon.until("the session is over", |status| status.sessions.is_empty())?;
    Ok(())
}

/// A tool that gives the quota back before it asks the driver gives it back twice.
#[test]
fn a_free_that_the_driver_refuses_gives_no_quota_back() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(16)), "a")?;
    program.must("alloc x 8MiB")?;
    let gone = program.must("alloc y 8MiB")?.number("address");
    program.must("free y")?;
    for _ in 0..4 {
        assert!(program.ask(&format!("free-address {gone}"))?.error().is_some());
    }
    let refused = program.ask("alloc z 9MiB")?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    program.must("alloc z 8MiB")?;
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(16));
    Ok(())
}
