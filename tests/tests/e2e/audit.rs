//! A refusal is in all four places with the same figures, an act says by whom, and the file that holds both
//! may be full, rotated or gone without anybody waiting for it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use gpushare_proto::audit::{Action, Allocation, Entry, Line, Outcome, Refusal};
use gpushare_proto::explain::{Explanation, WaitReason};
use gpushare_proto::page::LimitKind;
use gpushare_proto::{Bytes, GpuId};
use gpushare_tests::{Daemon, Program, Sharing, World, patience};
use serde_json::Value;

const OUT_OF_MEMORY: &str = "CUDA_ERROR_OUT_OF_MEMORY";

/// Configuration of this world's daemons: its path, and the usual text without the audit log.
struct Configuration {
    path: PathBuf,
    usual: String,
}

impl Configuration {
    fn of(world: &World) -> anyhow::Result<Self> {
        let path = world.scheduler_config().context("the card has a configuration")?;
        let usual = fs::read_to_string(&path)?;
        Ok(Self { path, usual })
    }

    fn set(&self, audit: &str) -> anyhow::Result<()> {
        Ok(fs::write(&self.path, format!("{}\n[audit]\n{audit}\n", self.usual))?)
    }
}

/// The audit log as it is, once it has what `has` looks for.
fn audited(daemon: &Daemon, has: impl Fn(&Entry) -> bool) -> anyhow::Result<Vec<Entry>> {
    patience::until("the line in the audit log", || {
        let Ok(text) = daemon.ctl(&["audit", "tail", "-n", "100000", "--json"]) else {
            return Ok(None);
        };
        let lines: Result<Vec<Line>, _> = text.lines().map(serde_json::from_str).collect();
        let entries: Vec<Entry> = lines?.into_iter().map(|line| line.entry).collect();
        Ok(entries.iter().any(&has).then_some(entries))
    })
}

fn acts(entries: &[Entry]) -> Vec<&Action> {
    fn act(entry: &Entry) -> Option<&Action> {
        match entry {
            Entry::Action(act) => Some(act),
            _ => None,
        }
    }
    entries.iter().filter_map(act).collect()
}

fn refusals(entries: &[Entry]) -> Vec<&Refusal> {
    fn refusal(entry: &Entry) -> Option<&Refusal> {
        match entry {
            Entry::Refusal(refusal) => Some(refusal),
            _ => None,
        }
    }
    entries.iter().filter_map(refusal).collect()
}

fn explanation(daemon: &Daemon, name: &str) -> anyhow::Result<Explanation> {
    Ok(serde_json::from_str(&daemon.ctl(&["explain", name, "--json"])?)?)
}

/// The records of the daemon's log.
fn records(daemon: &Daemon) -> anyhow::Result<Vec<Value>> {
    let log = daemon.process().stderr();
    Ok(log.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Metrics of the daemon, at the address that its log names last.
pub(crate) fn metrics(daemon: &Daemon) -> anyhow::Result<String> {
    let address = patience::until("the address of the metrics in the log", || {
        let log = daemon.process().stderr();
        let address = log
            .rsplit_once("metrics are at http://")
            .and_then(|(_, rest)| rest.split_once('/'));
        Ok(address.map(|(address, _)| address.to_owned()))
    })?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

#[test]
fn a_refusal_is_in_the_log_the_audit_log_the_metrics_and_the_explanation() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[
        "--log-format",
        "json",
        "--metrics",
        "127.0.0.1:0",
        "--metrics-names",
    ])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 24MiB")?;
    assert_eq!(program.ask("alloc y 10MiB")?.error(), Some(OUT_OF_MEMORY));
    let pid = daemon.session("a")?.clients[0].pid;
    let (requested, limit, used) = (Bytes::mib(10), Bytes::mib(32), Bytes::mib(24));

    let is_refusal = |record: &&Value| record["operation"] == "memory.reserve";
    let records = patience::until("the refusal in the log", || {
        Ok(Some(records(&daemon)?).filter(|records| records.iter().any(|record| is_refusal(&record))))
    })?;
    let refused = records.iter().find(is_refusal).context("patience saw it")?;
    let id = refused["session_id"].as_u64();
    for (key, value) in [
        ("pid", Value::from(pid)),
        ("bytes", requested.0.into()),
        ("requested", requested.0.into()),
        ("limit", limit.0.into()),
        ("used", used.0.into()),
        ("gpu", 0.into()),
        ("session", "a".into()),
        ("result", "refused".into()),
        ("error_code", OUT_OF_MEMORY.into()),
    ] {
        assert_eq!(refused[key], value, "{key} of {refused}");
    }
    for record in records.iter().filter(|record| !record["operation"].is_null()) {
        for key in ["session_id", "pid", "bytes", "result", "error_code"] {
            assert!(!record[key].is_null(), "{key} of {record}");
        }
    }

    let entries = audited(&daemon, |entry| matches!(entry, Entry::Refusal(_)))?;
    let [audit] = refusals(&entries)[..] else { panic!("{entries:?}") };
    assert_eq!((Some(audit.session_id.0), audit.session.as_str(), audit.pid), (id, "a", pid));
    assert_eq!((audit.requested, audit.limit, audit.used), (requested, limit, used));
    assert_eq!((audit.by, audit.gpu), (LimitKind::Session, GpuId(0)));
    assert_eq!(audit.error_code, OUT_OF_MEMORY);

    let facts = explanation(&daemon, "a")?;
    let [kept] = facts.refusals[..] else { panic!("{facts:?}") };
    let figures = kept.refusal;
    assert_eq!((figures.requested, figures.limit, figures.used), (requested, limit, used));
    assert_eq!((kept.pid, kept.gpu, facts.wait), (pid, GpuId(0), None));
    assert_eq!((facts.cards[0].limit_bytes, facts.cards[0].used_bytes), (Some(limit), used));
    let said = daemon.ctl(&["explain", "a"])?;
    assert!(said.contains("asked for 10MiB; 24MiB of its quota of 32MiB are in use"), "{said}");

    let page = metrics(&daemon)?;
    for line in [
        format!("gpushare_session_refusals_total{{session=\"{}\",name=\"a\"}} 1", audit.session_id.0),
        format!("uuid=\"{}\",limit=\"quota\"}} 1", audit.uuid.unwrap_or_else(|| panic!("no card"))),
        "gpushare_audit_lost_lines_total 0".to_owned(),
    ] {
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
    Ok(())
}

#[test]
fn an_act_says_by_whom_and_what_was_and_is_also_when_it_fails() -> anyhow::Result<()> {
    let (_world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.ctl(&["session", "create", "team", "--memory", "64MiB"])?;
    daemon.ctl(&["session", "pause", "team"])?;
    daemon.ctl(&["set", "memory", "32MiB", "--session", "team"])?;
    daemon.ctl(&["set", "quantum", "100ms"])?;
    assert!(daemon.ctl(&["session", "revoke", "nobody"]).is_err());
    daemon.ctl(&["session", "delete", "team"])?;
    let entries =
        audited(&daemon, |entry| matches!(entry, Entry::Action(act) if act.operation == "session.delete"))?;
    let acts = acts(&entries);
    let told: Vec<_> = acts
        .iter()
        .map(|act| {
            let (old, new) = (act.old.as_deref(), act.new.as_deref());
            (act.operation.as_str(), act.session.as_deref(), old, new, act.result)
        })
        .collect();
    let (team, nobody) = (Some("team"), Some("nobody"));
    assert_eq!(
        told,
        [
            ("session.create", team, None, Some("memory 64MiB, for its token"), Outcome::Ok),
            ("session.pause", team, Some("running"), Some("paused"), Outcome::Ok),
            ("session.set_memory", team, Some("64MiB"), Some("32MiB"), Outcome::Ok),
            ("gpu.set_quantum", None, told[3].2, told[3].3, Outcome::Ok),
            ("session.revoke", nobody, None, None, Outcome::Failed),
            ("session.delete", team, Some("team"), Some("deleted"), Outcome::Ok),
        ]
    );
    let uid = rustix::process::geteuid().as_raw();
    assert!(acts.iter().all(|act| act.uid == uid && act.pid > 0), "{acts:?}");
    let ids: Vec<_> = acts.iter().map(|act| act.session_id.is_some()).collect();
    assert_eq!(ids, [true, true, true, false, false, true]);
    assert_eq!(acts[4].error_code.as_deref(), Some("not_found"));

    let said = daemon.ctl(&["audit", "grep", "session.pause", "--session", "team", "--since", "1h"])?;
    assert!(said.contains("session.pause team (s") && said.contains("running → paused"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(daemon.ctl(&["audit", "grep", "", "--since", "9999-01-01"])?, "");
    Ok(())
}

#[test]
fn a_waiting_session_is_told_for_whom_and_about_how_long() -> anyhow::Result<()> {
    // Too small for both at once.
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--quantum", "10min", "--mode", "serialized"])?;
    let mut first = Program::hold(&world, &Sharing::session("first"), "first")?;
    for line in
        ["alloc x 40MiB", "alloc stop 4KiB", "set stop 0", "stream s", "spin 3600s --until stop --on s"]
    {
        first.must(line)?;
    }
    let mut second = Program::hold(&world, &Sharing::session("second"), "second")?;
    second.must("alloc x 40MiB")?;
    let filled = second.tell("fill x 1")?;
    let facts = patience::until("the second waits", || {
        let facts = explanation(&daemon, "second")?;
        Ok(Some(facts).filter(|facts| facts.wait.is_some()))
    })?;
    let wait = facts.wait.unwrap_or_else(|| panic!("no wait"));
    assert_eq!((wait.reason, wait.ahead.len()), (WaitReason::Holders, 0));
    assert_eq!(wait.holders[0].name, "first");
    assert_eq!(wait.about_ns, Some(wait.holders[0].rest_ns + wait.handoff_ns));
    let said = daemon.ctl(&["explain", "second"])?;
    assert!(said.contains("second waits for its turn") && said.contains("now    first"), "{said}");
    daemon.ctl(&["session", "pause", "second"])?;
    let facts = explanation(&daemon, "second")?;
    assert_eq!(facts.wait.map(|wait| (wait.reason, wait.about_ns)), Some((WaitReason::Standing, None)));
    let said = daemon.ctl(&["explain", "second"])?;
    assert!(said.contains("`gpushare-ctl session resume second` resumes it"), "{said}");
    assert_eq!(second.peek(filled), None);
    first.must("write-value stop 1")?;
    Ok(())
}

#[test]
fn a_log_that_is_full_is_rotated_and_read_over_all_its_files() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    Configuration::of(&world)?.set("size = \"4KiB\"\nfiles = 5\nallocations = \"full\"")?;
    let daemon = Daemon::start(&world, &[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(64)), "a")?;
    program.must("alloc x 48MiB")?;
    // Less than the whole quota, so that the daemon refuses each.
    for _ in 0..30 {
        assert_eq!(program.ask("alloc y 32MiB")?.error(), Some(OUT_OF_MEMORY));
    }
    daemon.ctl(&["session", "create", "last"])?;
    let entries = audited(
        &daemon,
        |entry| matches!(entry, Entry::Action(act) if act.session.as_deref() == Some("last")),
    )?;
    let reserved = entries.iter().any(|entry| match entry {
        Entry::Allocation(Allocation { bytes, leased, one_in, .. }) => {
            *bytes == Bytes::mib(48) && *leased >= *bytes && *one_in == 1
        }
        _ => false,
    });
    assert!(reserved, "{entries:?}");
    assert_eq!(refusals(&entries).len(), 30);
    let log = world.runtime_dir().audit();
    let size = |path: &Path| fs::metadata(path).map(|found| found.len()).unwrap_or(0);
    let rotated = log.with_extension("log.1");
    assert!(rotated.exists() && (1..=4096).contains(&size(&log)) && (1..=4096).contains(&size(&rotated)));
    Ok(())
}

#[test]
fn a_disk_that_is_full_or_a_log_that_cannot_be_written_holds_nobody_up() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let folder = world.folder().join("not-a-file");
    fs::create_dir(&folder)?;
    let missing = world.folder().join("nowhere/audit.log");
    let configuration = Configuration::of(&world)?;
    for (number, path) in (1..).zip([Path::new("/dev/full"), &folder, &missing]) {
        configuration.set(&format!("path = \"{}\"", path.display()))?;
        let mut daemon = Daemon::start(&world, &["--metrics", "127.0.0.1:0"])?;
        let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
        assert_eq!(program.ask("alloc x 33MiB")?.error(), Some(OUT_OF_MEMORY));
        program.must("alloc x 32MiB; fill x 3")?;
        daemon.ctl(&["session", "create", "b"])?;
        daemon.ctl(&["session", "delete", "b"])?;
        assert_eq!(explanation(&daemon, "a")?.refusals.len(), 1);
        patience::until("its lines are counted as lost", || {
            let page = metrics(&daemon)?;
            let lost = page
                .lines()
                .find_map(|line| line.strip_prefix("gpushare_audit_lost_lines_total "));
            Ok(Some(()).filter(|()| lost.is_some_and(|lost| lost != "0")))
        })?;
        let said = || daemon.process().stderr().matches("cannot write the audit log").count();
        patience::until("the reason in the log", || Ok((said() >= number).then_some(())))?;
        assert_eq!(said(), number, "once a daemon");
        program.quit()?;
        assert!(daemon.stop()?.success());
    }
    Ok(())
}
