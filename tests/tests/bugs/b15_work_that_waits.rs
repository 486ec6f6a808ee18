//! Bug 15: work in flight that waits for something which the same program does later. A drop that waits for
//! such work at a closed gate waits for itself; it must be undone and tried again.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::{Artifacts, Program, Sharing, World};

use crate::tenants::{SHORT_TURNS, holds, lock, tenant, waits, world};

/// A tenant with a flag, two streams, and something in flight that nothing but its own thread `@later` ends.
fn waiting_for(world: &World, in_flight: &str) -> anyhow::Result<Program> {
    let mut program = tenant(world, "a")?;
    program.must("alloc flag 4KiB; set flag 0; stream s; stream t; fill x 0 --on s; sync")?;
    program.must(in_flight)?;
    Ok(program)
}

/// The card is asked back from `a` for `b`; then `a` does what its work in flight waits for. Both end well.
fn a_drop_is_undone(in_flight: &str, later: &[&str]) -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut b = tenant(&world, "b")?;
    let mut a = waiting_for(&world, in_flight)?;
    let fill = b.tell("fill x 2")?;
    daemon.until("a is told to let go", |status| waits(status, "b") && !holds(status, "a"))?;
    let lines: Vec<_> = later
        .iter()
        .map(|line| a.tell(&format!("@later {line}")))
        .collect::<anyhow::Result<_>>()?;
    for line in lines {
        assert_eq!(a.answer(line)?.error(), None, "{in_flight}");
    }
    a.must("sync")?;
    b.done(fill)?;
    assert!(b.ask("check x 2")?.flag("matches"), "{in_flight}");
    assert!(a.ask("check x 3")?.flag("matches"), "{in_flight}");
    assert!(daemon.status()?.gpus[0].aborted_drops >= 1, "{in_flight}");
    Ok(())
}

#[test]
fn a_host_function_that_waits_for_a_later_launch() -> anyhow::Result<()> {
    a_drop_is_undone("latch l --on s", &["fill x 3 --on t", "open l"])
}

#[test]
fn a_wait_value_that_another_stream_satisfies() -> anyhow::Result<()> {
    a_drop_is_undone("wait-value flag 1 --on s", &["fill x 3 --on t", "fill flag 1 --on t"])
}

#[test]
fn a_copy_by_a_proxy_thread_that_a_kernel_waits_for() -> anyhow::Result<()> {
    a_drop_is_undone(
        "spin 3600s --until flag --on s",
        &["put x 3 --async --on t", "put flag 1 --async --on t"],
    )
}

#[test]
fn a_persistent_kernel_that_later_kernels_feed() -> anyhow::Result<()> {
    let feed = ["add x 1 --on t", "add x 1 --on t", "add x 1 --on t", "fill flag 1 --on t"];
    a_drop_is_undone("spin 3600s --until flag --on s", &feed)
}

/// Nobody of the session waits at its gate: there is nothing to undo, only somebody to name.
#[test]
fn a_persistent_kernel_that_nobody_ends_is_named_as_the_reason_and_ends_well() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut b = tenant(&world, "b")?;
    let mut a = waiting_for(&world, "spin 3600s --until flag --on s")?;
    let fill = b.tell("fill x 2")?;
    let is_stuck =
        |status: &Status| matches!(lock(status, "a"), Some(LockView::Dropping { stuck: true, .. }));
    let status = daemon.until("a is reported as stuck", is_stuck)?;
    assert!(waits(&status, "b"));
    assert_eq!(b.peek(fill), None);
    // Now somebody does: what ends the kernel is work too, and for it the drop is undone.
    a.must("@host write-value flag 1 --on t")?;
    b.done(fill)?;
    b.must("check x 2")?;
    a.must("check x 0")?;
    Ok(())
}

/// Two ranks of one session on two cards. The first has its half of a collective in flight; it ends when
/// the second has launched its own half. A rival wants one of the cards in between.
fn half_a_collective(wanted: &str) -> anyhow::Result<()> {
    let flags = ["--gpus", "2", "--memory", "64MiB"];
    let (world, daemon) =
        World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&SHORT_TURNS)?;
    let on = |device: &str, sharing: &Sharing, name: &str| -> anyhow::Result<Program> {
        let mut command = world.workload(sharing);
        command.args(["--device", device]);
        let mut program = Program::begin(command, &world, name)?;
        program.ready()?;
        program.must("alloc x 40MiB; stream s")?;
        Ok(program)
    };
    // `run --gpu` makes the wanted card the rival's only one, and so its number 0.
    let rival = ["--name", "rival", "--gpu", wanted].map(str::to_owned).to_vec();
    // Without a token both are in the session of this terminal.
    let mut first = on("0", &Sharing::Preload, "first")?;
    let mut second = on("1", &Sharing::Preload, "second")?;
    let mut rival = on("0", &Sharing::Run(rival), "rival")?;
    for rank in [&mut first, &mut second] {
        rank.must("fill x 1 --on s; sync")?;
    }

    first.must("latch half --on s")?;
    let fill = rival.tell("fill x 2")?;
    let dropping = |status: &Status| {
        status
            .sessions
            .iter()
            .any(|session| session.implicit && matches!(session.lock, LockView::Dropping { .. }))
    };
    daemon.until("both ranks are told to let go", dropping)?;
    let other_half = second.tell("fill x 3 --on s")?;
    second.done(other_half)?;
    second.must("sync")?;
    first.must("open half; sync")?;

    rival.done(fill)?;
    assert!(rival.ask("check x 2")?.flag("matches"), "card {wanted}");
    assert!(first.ask("check x 1")?.flag("matches"), "card {wanted}");
    assert!(second.ask("check x 3")?.flag("matches"), "card {wanted}");
    let aborted: u64 = daemon.status()?.gpus.iter().map(|gpu| gpu.aborted_drops).sum();
    assert!(aborted >= 1, "card {wanted}");
    daemon.until("nothing is held back", |status| {
        status
            .sessions
            .iter()
            .map(|session| session.gpus.iter().map(|gpu| gpu.allocated_bytes).sum::<Bytes>())
            .sum::<Bytes>()
            == Bytes::mib(120)
    })?;
    Ok(())
}

#[test]
fn half_a_collective_ends_when_either_of_its_cards_is_wanted() -> anyhow::Result<()> {
    ["0", "1"].into_iter().try_for_each(half_a_collective)
}
