//! Limits, and one story about memory.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World, patience::until};
use rustix::process::Signal;

#[test]
fn a_limit_holds_to_the_byte_for_each_function_and_frees_count() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    for door in ["mem", "pitch", "managed"] {
        let mut program = Program::hold(&world, &Sharing::limited(door, Bytes::mib(32)), door)?;
        program.must(&format!("alloc a 24MiB --door {door}"))?;
        let refused = program.ask(&format!("alloc b 10MiB --door {door}"))?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "{door}");
        program.must(&format!("alloc b 8MiB --door {door}"))?;
        let refused = program.ask(&format!("alloc c 4KiB --door {door}"))?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "{door}");
        program.must(&format!("free b; alloc c 8MiB --door {door}; fill c 9; free a; check c 9"))?;
        let session = daemon.session(door)?;
        assert_eq!(session.refusals, 2, "{door}");
        assert_eq!(session.gpus[0].peak_bytes, Bytes::mib(32), "{door}");
        program.quit()?;
    }
    Ok(())
}

#[test]
fn a_request_above_the_limit_is_refused_locally_and_reported() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 8MiB")?;
    for door in ["mem", "pitch", "managed", "async", "pool", "graph", "handle", "array", "mipmap"] {
        let refused = program.ask(&format!("alloc y 33MiB --door {door}"))?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "{door}");
    }
    let told = daemon.until("every refusal is counted", |status| status.sessions[0].refusals >= 9)?;
    assert_eq!(told.sessions[0].refusals, 9);
    assert_eq!(told.gpus[0].allocated_bytes, Bytes::mib(8));
    let words = "refused 33MiB to a on gpu0: 8MiB of 32MiB are used under its quota";
    until("the refusal in the log", || Ok(daemon.process().stderr().contains(words).then_some(())))?;
    let line = "33MiB refused: this session uses 8MiB of its memory limit of 32MiB";
    assert!(program.process().stderr().contains(line), "{}", program.process().stderr());
    // The daemon is asked as ever for what could be had.
    program.must("alloc y 24MiB")?;
    Ok(())
}

/// A daemon that hears nothing is not waited for, and counts every refusal later. A message for each would fill the
/// socket.
#[test]
fn a_refusal_in_the_process_needs_no_daemon_that_listens() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    daemon.process().signal(Signal::STOP)?;
    for _ in 0..1000 {
        assert_eq!(program.ask("alloc y 33MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    }
    daemon.process().signal(Signal::CONT)?;
    let told = daemon.until("every refusal is counted", |status| status.sessions[0].refusals >= 1000)?;
    assert_eq!(told.sessions[0].refusals, 1000);
    Ok(())
}

#[test]
fn the_card_looks_as_large_as_the_limit() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 12MiB")?;
    let info = program.must("mem-info")?;
    assert_eq!(Bytes(info.number("total_bytes")), Bytes::mib(32));
    assert_eq!(Bytes(info.number("free_bytes")), Bytes::mib(20));
    assert_eq!(Bytes(program.must("total-mem")?.number("total_bytes")), Bytes::mib(32));
    Ok(())
}

#[test]
fn rewritten_memory_says_that_it_is_device_memory_of_its_own_size() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut native = Program::hold(&world, &Sharing::Native, "native")?;
    let mut shared = Program::hold(&world, &Sharing::session("shared"), "shared")?;
    for program in [&mut native, &mut shared] {
        program.must("alloc x 5000000")?;
    }
    let story = |program: &mut Program| -> anyhow::Result<_> {
        let mut facts = program.must("attributes x 4096")?.json().clone();
        let mut range = program.must("range x 4096")?.json().clone();
        // Addresses and times differ from run to run.
        for line in [&mut facts, &mut range] {
            for name in ["address", "ns", "id", "device_pointer", "context", "range_start", "buffer_id"] {
                line.as_object_mut().map(|line| line.remove(name));
            }
        }
        Ok((facts, range))
    };
    assert_eq!(story(&mut shared)?, story(&mut native)?);
    Ok(())
}

#[test]
fn all_sessions_together_stay_below_the_managed_limit() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&["--managed-limit", "64MiB"])?;
    let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
    let mut a = Program::hold(&world, &managed("a"), "a")?;
    let mut b = Program::hold(&world, &managed("b"), "b")?;
    a.must("alloc x 40MiB")?;
    assert_eq!(b.ask("alloc x 26MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    b.must("alloc x 24MiB")?;
    assert!(
        b.process()
            .stderr()
            .contains("all sessions together use 40MiB of the card's managed limit of 64MiB")
    );
    a.kill()?;
    daemon
        .until("what the dead one had is free", |status| status.gpus[0].allocated_bytes == Bytes::mib(24))?;
    b.must("alloc y 40MiB")?;
    Ok(())
}

/// The driver moves it and knows no goal, so it must fit the card beside what others have there.
#[test]
fn managed_memory_of_a_program_whose_memory_is_remapped_counts_as_fixed() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut a = Program::hold(&world, &Sharing::session("a").and(&["--backend", "remap"]), "a")?;
    a.must("alloc x 100MiB --door managed; fill x 1")?;
    assert_eq!(a.ask("alloc y 160MiB --door managed")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    a.must("alloc y 100MiB; fill y 2; check x 1; check y 2; free x; free y")?;
    a.must("alloc z 160MiB --door managed; fill z 3; check z 3")?;
    Ok(())
}

#[test]
fn an_address_that_is_not_ours_goes_to_the_driver() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut native = Program::hold(&world, &Sharing::Native, "native")?;
    let mut shared = Program::hold(&world, &Sharing::session("shared"), "shared")?;
    let answers = [&mut native, &mut shared].map(|program| program.ask("free-address 4660"));
    let [native, shared] = answers.map(|answer| answer.map(|answer| answer.error().map(str::to_owned)));
    assert_eq!(native?, shared?);
    Ok(())
}

#[test]
fn a_context_that_is_reset_gives_back_all_it_held() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 30MiB; reset")?;
    daemon.until("nothing is allocated", |status| status.gpus[0].allocated_bytes.is_zero())?;
    assert_eq!(daemon.session("a")?.gpus[0].peak_bytes, Bytes::mib(30));
    Ok(())
}
