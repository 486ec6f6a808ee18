//! Bug 10: fork before and after CUDA, exec, and a child that keeps what its dead parent had open.

use std::path::PathBuf;

use gpushare_proto::Bytes;
use gpushare_tests::{Dialogue, Sharing, World, foreign};

use crate::tenants::{LONG_TURNS, SHORT_TURNS, tenant, world};

fn family(world: &World) -> anyhow::Result<PathBuf> {
    foreign::program(world, "family")
}

/// Runs it both ways: the same output, and nothing left of it.
fn same_as_natively(way: &str) -> anyhow::Result<String> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let family = family(&world)?;
    let native = foreign::run(&world, &Sharing::Native, &family, &[way])?;
    for sharing in [Sharing::Preload, Sharing::session("family")] {
        assert_eq!(foreign::run(&world, &sharing, &family, &[way])?, native, "{sharing:?}");
        daemon.until("nothing is left of it", |status| {
            status.sessions.iter().all(|session| session.clients.is_empty())
                && status.gpus.iter().all(|gpu| gpu.allocated_bytes.is_zero())
        })?;
    }
    Ok(native)
}

#[test]
fn parent_and_child_both_use_the_card_after_a_fork_before_cuda() -> anyhow::Result<()> {
    assert_eq!(same_as_natively("before")?, "child 7\nparent 9\nthe child ended with 0\n");
    Ok(())
}

#[test]
fn a_fork_after_cuda_gets_cudas_answer_and_costs_its_parent_nothing() -> anyhow::Result<()> {
    let said = same_as_natively("after")?;
    assert!(said.ends_with("the child ended with 3\nparent 11\nparent again 12\n"), "{said}");
    Ok(())
}

#[test]
fn a_child_that_executes_another_program_uses_the_card_beside_its_parent() -> anyhow::Result<()> {
    assert_eq!(same_as_natively("spawn")?, "alone 16\nthe child ended with 0\nparent 13\n");
    Ok(())
}

#[test]
fn a_process_that_becomes_another_program_starts_anew_under_its_old_pid() -> anyhow::Result<()> {
    assert_eq!(same_as_natively("exec")?, "before 14\nalone 16\n");
    Ok(())
}

/// The fork of a holder neither answers for it nor closes the holder's descriptors.
#[test]
fn a_fork_after_cuda_does_not_disturb_the_parents_turn() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let family = family(&world)?;
    let mut rival = tenant(&world, "rival")?;
    rival.must("fill x 0")?;
    for _ in 0..5 {
        let add = rival.tell("add x 1")?;
        let said = foreign::run(&world, &Sharing::session("family"), &family, &["after"])?;
        assert!(said.ends_with("parent 11\nparent again 12\n"), "{said}");
        rival.done(add)?;
    }
    rival.must("check x 5")?;
    daemon.until("only the rival is there", |status| status.sessions.len() == 1)?;
    Ok(())
}

#[test]
fn a_child_with_all_descriptors_keeps_memory_of_its_parent_but_no_lock() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let family = family(&world)?;
    let mut command = world.sharing(&Sharing::session("family"), &family);
    command.arg("orphan");
    let mut parent = Dialogue::start(&world, command, "family")?;
    assert_eq!(parent.answer()?, "parent 15");
    assert_eq!(daemon.session("family")?.gpus[0].allocated_bytes, Bytes::mib(8));

    parent.process.kill()?;
    daemon.until("its session to have no process", |status| {
        status.sessions.iter().all(|session| session.clients.is_empty())
    })?;
    let mut next = tenant(&world, "next")?;
    next.must("fill x 2; check x 2")?;

    // All the while the child was there, with everything open that its parent had.
    assert_eq!(parent.ask("still here")?, "still here");
    // The card keeps the parent's memory, and the daemon goes on charging it.
    assert_eq!(daemon.session("family")?.gpus[0].allocated_bytes, Bytes::mib(8));
    drop(parent);
    daemon.until("its session is over", |status| {
        status.sessions.iter().all(|session| session.name != "family")
    })?;
    Ok(())
}
