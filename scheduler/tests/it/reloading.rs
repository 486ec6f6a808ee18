//! Reading the configuration again: all of it takes effect at once, or nothing.

use std::fs;
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest, ConfigChange, Knob, Mode, Setting};
use gpushare_proto::audit::{Action, Entry, Line, Outcome};
use gpushare_proto::dry_run::{DryRunSession, Forecast};
use gpushare_proto::session::{Amount, Quota, Terms};
use gpushare_proto::tenant::{FailureCode, GpuChoice, NewSession, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Nanos};

use crate::harness::{Daemon, Folders, eventually};

/// Starts a daemon with a configuration file, and a process on its card.
pub(crate) fn start(folders: &Folders, text: &str) -> Daemon {
    write(folders, text);
    let path = folders.path("config.toml");
    folders.start(&["--config", path.to_str().unwrap()])
}

pub(crate) fn write(folders: &Folders, text: &str) {
    fs::write(folders.path("config.toml"), text).unwrap();
}

fn hang_up(daemon: &Daemon) {
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

pub(crate) fn reload(daemon: &Daemon) -> AdminReply {
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Reload);
    administrator.hear()
}

fn changes(daemon: &Daemon) -> Vec<String> {
    let AdminReply::Reloaded(changes) = reload(daemon) else { panic!("it was refused") };
    let words = |ConfigChange { key, old, new, live }: ConfigChange| format!("{key}: {old} → {new}, {live}");
    changes.into_iter().map(words).collect()
}

/// Returns the audit lines about reloads, once there are `count`.
fn acts(folders: &Folders, count: usize) -> Vec<Action> {
    eventually("all acts are in the audit log", || {
        let text = fs::read_to_string(folders.runtime().audit()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let acts = lines.filter_map(|line| match line.entry {
            Entry::Action(act) if act.operation == "daemon.reload" => Some(act),
            _ => None,
        });
        let acts: Vec<Action> = acts.collect();
        (acts.len() >= count).then_some(acts)
    })
}

#[test]
fn a_signal_puts_a_good_file_into_force_within_a_second() {
    let folders = Folders::new();
    let daemon = start(&folders, "");
    let mut client = daemon.join(None);
    client.attach();
    write(&folders, "[gpus.0]\nmode = 'serialized'\nquantum = '2s'\n[scheduling]\nquantum_min = '40ms'");
    hang_up(&daemon);
    let card = eventually("the mode is the file's", || {
        daemon.status().gpus.pop().filter(|card| card.mode == Mode::Serialized)
    });
    assert_eq!(card.quantum_ns, Nanos::from_secs(2));
    let said: Vec<(Option<String>, Option<String>)> =
        acts(&folders, 3).into_iter().map(|act| (act.old, act.new)).collect();
    let words = |old: &str, new: &str| (Some(old.to_owned()), Some(new.to_owned()));
    assert_eq!(
        said,
        [
            words("quantum of gpu0 computed", "quantum of gpu0 2s"),
            words("mode of gpu0 as memory fits", "mode of gpu0 serialized"),
            words("scheduling.quantum_min 20ms", "scheduling.quantum_min 40ms"),
        ]
    );
    folders.logged("quantum of gpu0: computed → 2s");
    // The machine may be busy for a second, but not each time.
    let mut took = Vec::new();
    for quantum in 3..8 {
        write(&folders, &format!("[gpus.0]\nquantum = '{quantum}s'"));
        let asked = Instant::now();
        hang_up(&daemon);
        eventually("the quantum is the file's", || {
            (daemon.status().gpus[0].quantum_ns == Nanos::from_secs(quantum)).then_some(())
        });
        took.push(asked.elapsed());
    }
    assert!(took.iter().min().unwrap() < &Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_wrong_file_changes_nothing_and_the_error_names_the_line() {
    let folders = Folders::new();
    let daemon = start(&folders, "");
    let mut client = daemon.join(None);
    client.attach();
    let before = daemon.status().gpus;
    write(&folders, "[gpus.0]\nmode = 'serialized'\n[scheduling]\nquantum_max = '10ms'\ntrickle = '200%'");
    let AdminReply::Error(failure) = reload(&daemon) else { panic!("it was taken") };
    assert_eq!(failure.code, FailureCode::BadRequest);
    assert!(failure.message.starts_with("nothing was changed: "), "{}", failure.message);
    let wrong = "is wrong in line 5: trickle: `200%` is not a share";
    assert!(failure.message.contains(wrong), "{}", failure.message);
    hang_up(&daemon);
    let refused = acts(&folders, 2).pop().unwrap();
    assert_eq!((refused.result, refused.pid), (Outcome::Failed, daemon.pid()));
    assert!(refused.why.unwrap().contains(wrong));
    assert_eq!(daemon.status().gpus, before);
    write(&folders, "");
    assert_eq!(changes(&daemon), [""; 0]);
}

#[test]
fn what_was_set_is_gone_and_what_needs_a_start_is_said() {
    let folders = Folders::new();
    let daemon = start(&folders, "");
    let mut client = daemon.join(None);
    client.attach();
    let mut administrator = daemon.administrator();
    let knob = Knob::Quantum(Some(Nanos::from_secs(9)));
    administrator.say(&AdminRequest::Set(Setting { gpu: None, knob }));
    administrator.hear();
    write(&folders, "metrics = '127.0.0.1:1'\nidle_exit = '1h'");
    assert_eq!(
        changes(&daemon),
        [
            "quantum of gpu0: 9s → computed, true",
            "idle_exit: off → 3600s, true",
            "metrics: none → 127.0.0.1:1, false",
        ]
    );
    assert_eq!(changes(&daemon), ["metrics: none → 127.0.0.1:1, false"]);
    folders.logged("takes effect at the next start");
}

#[test]
fn a_dry_run_says_whether_a_program_fits_and_what_a_turn_costs() {
    let folders = Folders::new();
    let daemon = folders.start(&["--capacity", "0=900MiB", "--quantum", "1s"]);
    let (_, token) = daemon.register("there", Some(Bytes::mib(700)));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(600));
    let foresee = |memory| -> Forecast {
        let terms = Terms {
            memory: Quota { every: Some(Amount::Bytes(memory)), cards: Vec::new() },
            ..Terms::default()
        };
        let new = NewSession { name: None, terms, oversubscribe: false, gpu: GpuChoice::Auto };
        let mut tool = daemon.tool();
        tool.say(&TenantRequest::DryRun(DryRunSession::New(new)));
        match tool.hear() {
            TenantReply::DryRun(forecast) => *forecast,
            other => panic!("{other:?}"),
        }
    };
    let small = &foresee(Bytes::mib(100)).cards[0];
    assert_eq!((small.fits, small.mode_then, small.bound_ns), (true, Mode::Parallel, Some(Nanos::ZERO)));
    assert_eq!((small.capacity_bytes, small.promised_bytes), (Bytes::mib(900), Bytes::mib(700)));
    let large = &foresee(Bytes::mib(800)).cards[0];
    assert_eq!((large.fits, large.mode, large.mode_then), (false, Mode::Parallel, Mode::Serialized));
    assert_eq!(large.ahead[0].name, "there");
    // It catches up for a turn and its change, and comes back within a turn of at most half as long again.
    let bound = large.bound_ns.unwrap();
    assert!(bound > Nanos::from_millis(2500) && bound < Nanos::from_secs(3), "{bound}");
    let status = daemon.status();
    assert_eq!((status.sessions.len(), status.gpus[0].mode), (1, Mode::Parallel), "nothing was made");
}
