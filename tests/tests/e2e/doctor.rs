//! `gpushare-ctl doctor` on a simulated card, with the real library and the real daemon.

use gpushare_proto::Bytes;
use gpushare_tests::patience::until;
use gpushare_tests::{Part, Program, Sharing, World};
use serde_json::Value;

/// The findings of the doctor in this world. It ends with 2 where the machine has no NVIDIA devices.
pub(crate) fn findings(world: &World) -> anyhow::Result<Vec<Value>> {
    let mut doctor = world.part(Part::Ctl);
    doctor.args(["doctor", "--json", "--timeout", "10min", "--program"]);
    doctor.arg(world.path(Part::Workload));
    let output = doctor.output()?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(document["exit"].as_i64(), output.status.code().map(i64::from));
    Ok(document["findings"].as_array().cloned().unwrap_or_default())
}

/// Findings of a check, each as severity and text.
pub(crate) fn of<'a>(findings: &'a [Value], check: &str) -> Vec<(&'a str, &'a str)> {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    findings
        .iter()
        .filter(|finding| finding["check"] == check)
        .map(|finding| (text(&finding["severity"]), text(&finding["finding"])))
        .collect()
}

#[test]
fn a_simulated_machine_with_everything_is_well() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::session("alice"), "alice")?;
    let found = findings(&world)?;
    let pid = daemon.process().pid();
    for (check, finding) in [
        ("driver.init", "cuInit succeeds, and the driver shows 1 card"),
        ("driver.nvml", "NVML answers and knows 1 card"),
        ("preload.loads", "the loader loads it"),
        ("daemon.tenant", &format!("a daemon answers (pid {pid}) in this build's protocol")),
        ("daemon.recovering", "turns are granted"),
    ] {
        assert_eq!(of(&found, check), [("ok", finding)], "{check}");
    }
    for check in
        ["driver.library", "cards.backend", "caller.user", "libc.version", "preload.build", "preload.program"]
    {
        assert!(of(&found, check).iter().all(|(severity, _)| *severity == "ok"), "{:?}", of(&found, check));
    }
    let locks = of(&found, "daemon.locks");
    assert_eq!(locks[1..], [("ok", "the daemon holds it")], "{locks:?}");
    assert!(program.quit()?.success());
    Ok(())
}

#[test]
fn every_function_of_the_simulated_driver_is_known() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let found = findings(&world)?;
    let symbols = of(&found, "driver.symbols");
    let [("ok", finding)] = symbols[..] else {
        panic!("{symbols:?}");
    };
    assert!(
        finding.starts_with("all ") && finding.ends_with(" functions of the driver are known"),
        "{finding}"
    );
    Ok(())
}

#[test]
fn a_daemon_that_was_killed_leaves_a_stale_socket_that_is_named() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    daemon.kill()?;
    let found = findings(&world)?;
    let tenant = of(&found, "daemon.tenant");
    assert!(tenant[0].0 == "warning" && tenant[0].1.contains("is stale"), "{tenant:?}");
    assert_eq!(of(&found, "daemon.program")[0].0, "ok");
    let locks = of(&found, "daemon.locks");
    assert!(locks[1].1.starts_with("left by a daemon that died"), "{locks:?}");
    Ok(())
}

#[test]
fn a_card_that_fell_off_the_bus_is_an_error() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    world.card().expect("a simulated one").fall_off()?;
    let found = findings(&world)?;
    let nvml = of(&found, "driver.nvml");
    assert!(
        nvml.iter()
            .any(|(severity, finding)| *severity == "error" && finding.contains("fell off the bus")),
        "{nvml:?}"
    );
    Ok(())
}

/// The program's first examination may come after the first question.
#[test]
fn a_session_with_managed_memory_is_named_as_no_fault() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let hold = |name: &str, backend| {
        let mut program = Program::hold(&world, &Sharing::session(name).and(&["--backend", backend]), name)?;
        program.must("alloc x 8MiB; fill x 7; sync")?;
        anyhow::Ok(program)
    };
    let (mut managed, mut remap) = (hold("managed", "managed")?, hold("remap", "remap")?);
    let finding = until("the doctor names the session", || {
        let found = findings(&world)?;
        let sessions: Vec<&Value> = found
            .iter()
            .filter(|finding| finding["check"] == "daemon.freeze-sessions")
            .collect();
        let is_named = sessions.len() == 1 && sessions[0]["subject"] == "session managed";
        Ok(is_named.then(|| sessions[0].clone()))
    })?;
    let pid = managed.process().pid();
    let said =
        format!("cannot be frozen: process {pid}: it has managed memory, which the driver cannot freeze");
    assert_eq!((&finding["severity"], &finding["finding"]), (&"ok".into(), &said.into()), "{finding}");
    assert!(managed.quit()?.success() && remap.quit()?.success());
    Ok(())
}
