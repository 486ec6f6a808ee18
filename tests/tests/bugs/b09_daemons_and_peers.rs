//! Bug 9: a daemon that is missing, dies or returns, and peers that are no peers, cost nobody who shares
//! anything.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_proto::names;
use gpushare_tests::{Daemon, Program, Sharing, World};

use crate::tenants::{LONG_TURNS, SHORT_TURNS, tenant, tenants, waits, world};

#[test]
fn a_program_that_found_no_daemon_runs_on_natively_when_one_comes() -> anyhow::Result<()> {
    let world = world()?;
    let mut early = Program::hold(&world, &Sharing::Preload, "early")?;
    early.must("alloc x 8MiB; fill x 3")?;
    let daemon = Daemon::start(&world, &SHORT_TURNS)?;
    let mut late = tenant(&world, "late")?;
    late.must("fill x 5")?;
    early.must("add x 1; check x 4")?;
    late.must("check x 5")?;
    let sessions = daemon.status()?.sessions;
    assert_eq!(sessions.len(), 1, "the early one is in no session: {sessions:?}");
    Ok(())
}

#[test]
fn a_program_that_must_share_is_refused_until_there_is_a_daemon() -> anyhow::Result<()> {
    let world = world()?;
    let start = || {
        let mut command = world.workload(&Sharing::Preload);
        command.env(names::REQUIRED, "1");
        Program::begin(command, &world, "strict")
    };
    let error = format!("{:#}", start()?.ready().unwrap_err());
    assert!(error.contains("802"), "CUDA_ERROR_SYSTEM_NOT_READY: {error}");
    let daemon = Daemon::start(&world, &[])?;
    let mut strict = start()?;
    strict.ready()?;
    strict.must("alloc x 4MiB")?;
    assert_eq!(daemon.status()?.sessions[0].gpus[0].allocated_bytes, Bytes::mib(4));
    Ok(())
}

/// Killed at three moments: while a drop is under way, while somebody waits, and while nobody does.
#[test]
fn a_daemon_that_is_killed_again_and_again_loses_no_byte_and_no_waiter() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("fill x 0")?;
    b.must("fill x 0")?;
    for round in 0..3 {
        let lines: Vec<_> = (0..6)
            .map(|_| Ok((a.tell("add x 1")?, b.tell("add x 1")?)))
            .collect::<anyhow::Result<_>>()?;
        if round > 0 {
            daemon.until("both have been there", |status| status.gpus[0].handoffs >= 1)?;
        }
        daemon.kill()?;
        daemon.restart()?;
        for (of_a, of_b) in lines {
            a.done(of_a)?;
            b.done(of_b)?;
        }
        let status = daemon
            .until("both are back", |status| status.daemon.recovering == 0 && status.sessions.len() == 2)?;
        assert_eq!(status.gpus[0].allocated_bytes, Bytes::mib(80));
    }
    a.must("check x 18")?;
    b.must("check x 18")?;
    Ok(())
}

/// Connections to both sockets of the daemon.
fn doors(world: &World) -> anyhow::Result<[UnixStream; 2]> {
    let runtime = world.runtime_dir();
    Ok([UnixStream::connect(runtime.tenant_socket())?, UnixStream::connect(runtime.admin_socket())?])
}

#[test]
fn peers_that_connect_and_reset_hold_up_nobody() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("fill x 0")?;
    b.must("fill x 0")?;
    for round in 0..200_u32 {
        for mut door in doors(&world)? {
            // Nothing, a part of something, or rubbish whose answer nobody reads: closing then resets.
            let rubbish = [0xff; 64];
            let _ = door.write_all(&rubbish[..round as usize % 64]);
        }
        if round % 20 == 0 {
            a.must("add x 1")?;
            b.must("add x 1")?;
        }
    }
    a.must("check x 10")?;
    b.must("check x 10")?;
    assert_eq!(daemon.status()?.sessions.len(), 2);
    Ok(())
}

#[test]
fn an_idle_http_connection_holds_up_nobody() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    // A browser and a load balancer on the wrong sockets: one says half a request, one says nothing.
    let [mut browser, balancer] = doors(&world)?;
    browser.write_all(b"GET /metrics HT")?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    let fill = b.tell("fill x 2")?;
    daemon.until("b waits", |status| waits(status, "b"))?;
    a.must("write-value stop 1")?;
    b.done(fill)?;
    b.must("check x 2")?;
    // Neither was given anything that it could take for an answer.
    balancer.set_nonblocking(true)?;
    let silence = (&balancer).read(&mut [0; 16]).map_err(|error| error.kind());
    assert_eq!(silence, Err(std::io::ErrorKind::WouldBlock));
    browser.set_read_timeout(Some(Duration::from_millis(1)))?;
    let mut said = [0; 64];
    let count = browser.read(&mut said).unwrap_or(0);
    assert!(!said[..count].starts_with(b"HTTP"), "{:?}", &said[..count]);
    Ok(())
}
