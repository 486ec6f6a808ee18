//! Lines of the audit log: limits for each tenant, trespasses, and acts that are not on the disk.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest, Knob, Mode, SessionRequest, Setting};
use gpushare_proto::audit::{Action, Entry, Line, Outcome};
use gpushare_proto::codec::{self, Message};
use gpushare_proto::page::LimitKind;
use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::{GpuChoice, Hello, NewSession, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Nanos};

use crate::harness::{Daemon, Folders, administrator, eventually};
use crate::processes::Process;
use crate::sessions::as_nobody;

#[test]
fn refusals_in_a_loop_get_few_audit_lines_and_a_count() {
    const REFUSALS: u64 = 500;
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let client = Process::asking(&folders, None, Bytes::gib(2), REFUSALS);
    let pid = client.pid();
    assert_eq!(daemon.status().sessions[0].refusals, REFUSALS);
    drop(client);
    let (lines, more) = eventually("every refusal is in the audit log", || {
        let text = fs::read_to_string(folders.runtime().audit()).unwrap_or_default();
        let (mut lines, mut more) = (0, 0);
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            match line.entry {
                Entry::Refusal(refusal) => {
                    assert_eq!((refusal.pid, refusal.by), (pid, LimitKind::Capacity));
                    assert_eq!(refusal.requested, Bytes::gib(2));
                    lines += 1;
                }
                Entry::Omitted { session_id, uid, count, .. } => {
                    assert!(session_id.is_none() && uid.is_some());
                    more += count;
                }
                other => panic!("{other:?}"),
            }
        }
        (lines + more == REFUSALS).then_some((lines, more))
    });
    assert!(lines >= 32 && more > 0, "{lines} {more}");
    let log = folders.log();
    assert!(log.matches("refused 2GiB").count() < 32, "the log is no more patient");
}

#[test]
fn refusals_of_many_sessions_of_a_user_get_as_few_audit_lines_as_one() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let began = Instant::now();
    let _sessions: Vec<_> = (0..8)
        .map(|session| {
            let (_, token) = daemon.register(&format!("job-{session}"), None);
            let mut client = daemon.join(Some(&token));
            let gpu = client.attach();
            for _ in 0..40 {
                assert!(matches!(client.reserve(gpu, Bytes::gib(2)), TenantReply::Refused { .. }));
            }
            client
        })
        .collect();
    let seconds = began.elapsed().as_secs();
    assert!(matches!(ask(&daemon, &create("last", None)), AdminReply::Created { .. }));
    the_act(&folders, "session.create");
    let text = fs::read_to_string(folders.runtime().audit()).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let refusals = lines.filter(|line| matches!(line.entry, Entry::Refusal(_))).count() as u64;
    assert!((1..=32 * (seconds + 2)).contains(&refusals), "{refusals} lines in {seconds} s");
}

/// Returns the acts of an operation in the audit log.
fn acts(folders: &Folders, operation: &str) -> Vec<Action> {
    let text = fs::read_to_string(folders.runtime().audit()).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let acts = lines.filter_map(|line| match line.entry {
        Entry::Action(act) if act.operation == operation => Some(act),
        _ => None,
    });
    acts.collect()
}

pub(crate) fn the_act(folders: &Folders, operation: &str) -> Action {
    eventually(operation, || acts(folders, operation).pop())
}

fn ask(daemon: &Daemon, request: &AdminRequest) -> AdminReply {
    let mut administrator = daemon.administrator();
    administrator.say(request);
    administrator.hear()
}

fn create(name: &str, ttl: Option<Nanos>) -> AdminRequest {
    let terms = Terms { ttl, ..Terms::default() };
    AdminRequest::Session(SessionRequest::Create {
        new: NewSession { name: Some(name.to_owned()), terms, oversubscribe: false, gpu: GpuChoice::Auto },
        binding: Binding::Token,
    })
}

fn pause(name: &str) -> AdminRequest {
    let which = name.to_owned();
    AdminRequest::Session(SessionRequest::Pause { which })
}

#[test]
fn an_administrative_request_of_another_user_is_audited() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folders = Folders::new();
    let _daemon = folders.start_system(&[]);
    fs::set_permissions(folders.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folders.runtime().admin_socket(), Permissions::from_mode(0o666)).unwrap();
    as_nobody(|| assert!(administrator(&folders.runtime()).is_err()));
    let act = the_act(&folders, "daemon.administrate");
    assert_eq!(
        (act.uid, act.result, act.error_code.as_deref()),
        (65534, Outcome::Refused, Some("permission"))
    );
    assert!(act.why.unwrap().contains("user 65534 may not administrate"));
}

fn sent_to_the_tenants<M: Message>(daemon: &Daemon, message: &M) {
    let mut tool = daemon.tool();
    tool.stream.write_all(&codec::encode(message).unwrap()).unwrap();
    // The connection ends, with or without a last message.
    while tool.listen().is_some() {}
}

#[test]
fn a_tenant_who_would_administrate_is_in_the_audit_log() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let knob = Knob::Mode(Some(Mode::Serialized));
    let messages = [
        AdminRequest::Status,
        AdminRequest::Set(Setting { gpu: None, knob }),
        pause("everybody"),
        create("mine", None),
    ];
    for (before, message) in messages.iter().enumerate() {
        sent_to_the_tenants(&daemon, message);
        let all = eventually("its line", || {
            let acts = acts(&folders, "daemon.administrate");
            (acts.len() > before).then_some(acts)
        });
        let act = all.last().unwrap();
        assert_eq!(
            (act.pid, act.result, act.error_code.as_deref()),
            (std::process::id(), Outcome::Refused, Some("permission")),
            "{message:?}"
        );
        assert!(act.why.as_ref().unwrap().contains("on the tenants' socket"));
    }
    assert_eq!(daemon.status().sessions, []);
}

#[test]
fn trespasses_in_a_loop_get_few_audit_lines_and_a_count() {
    const KNOCKS: u64 = 200;
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut knock = codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool))).unwrap();
    knock.extend(codec::encode(&AdminRequest::Status).unwrap());
    let knock = || {
        let mut stream = daemon.connect();
        stream.write_all(&knock).unwrap();
        stream
    };
    let began = Instant::now();
    let open: Vec<_> = (0..KNOCKS).map(|_| knock()).collect();
    for mut stream in open {
        // The daemon hangs up after it has noted the knock, with bytes unread or without.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    eventually("a line", || (acts(&folders, "daemon.administrate").len() >= 32).then_some(()));
    let seconds = began.elapsed().as_secs() + 1;
    // Lines left out are summed up before the next line.
    thread::sleep(Duration::from_millis(1100));
    let _one_more = knock();
    let lines = eventually("every knock to be counted", || {
        let text = fs::read_to_string(folders.runtime().audit()).ok()?;
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let counts: Vec<u64> = entries
            .map(|line| match line.entry {
                Entry::Action(_) => 1,
                Entry::Omitted { count, .. } => count,
                other => panic!("{other:?}"),
            })
            .collect();
        (counts.iter().sum::<u64>() == KNOCKS + 1).then_some(counts.len() as u64)
    });
    // 32 lines a second and a sum of the others; and the last one.
    assert!(lines <= 33 * (seconds + 1), "{lines} lines in {seconds} s");
}

#[test]
fn expiry_is_audited_also_for_a_paused_session() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    assert!(matches!(ask(&daemon, &create("runs", None)), AdminReply::Created { .. }));
    assert!(matches!(ask(&daemon, &create("rests", None)), AdminReply::Created { .. }));
    assert!(matches!(ask(&daemon, &pause("rests")), AdminReply::Changed { .. }));
    for name in ["runs", "rests"] {
        let renew = SessionRequest::Renew { which: name.to_owned(), ttl: Some(Nanos::from_secs(1)) };
        assert!(matches!(ask(&daemon, &AdminRequest::Session(renew)), AdminReply::Changed { .. }));
    }
    let all = eventually("both ends", || {
        let acts = acts(&folders, "session.expire");
        (acts.len() == 2).then_some(acts)
    });
    let told: Vec<_> = all
        .iter()
        .map(|act| {
            (
                act.session.as_deref().unwrap(),
                act.old.as_deref().unwrap(),
                act.new.as_deref().unwrap(),
                act.pid,
            )
        })
        .collect();
    let pid = daemon.pid();
    assert_eq!(told, [("runs", "running", "expired", pid), ("rests", "paused", "expired", pid)]);
}

#[test]
fn an_act_not_on_the_disk_has_one_line_that_says_so() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    assert!(matches!(ask(&daemon, &create("kept", None)), AdminReply::Created { .. }));
    let in_the_way = folders.runtime().root().join("registry.redb.new");
    fs::remove_file(folders.runtime().registry()).unwrap();
    fs::create_dir(&in_the_way).unwrap();
    assert!(matches!(ask(&daemon, &create("lost", None)), AdminReply::Error(_)));
    assert!(matches!(ask(&daemon, &pause("kept")), AdminReply::Error(_)));
    fs::remove_dir(&in_the_way).unwrap();
    // A daemon that ends waits for its log only so long.
    eventually("the last line", || (acts(&folders, "session.pause").len() == 1).then_some(()));
    daemon.terminate();

    let outcomes = |operation| -> Vec<_> {
        let acts = acts(&folders, operation).into_iter();
        acts.map(|act| (act.session.unwrap(), act.result, act.error_code)).collect()
    };
    let not_kept = Some("not_kept".to_owned());
    assert_eq!(
        outcomes("session.create"),
        [("kept".to_owned(), Outcome::Ok, None), ("lost".to_owned(), Outcome::Failed, not_kept.clone())]
    );
    assert_eq!(outcomes("session.pause"), [("kept".to_owned(), Outcome::Failed, not_kept)]);
    let pause = the_act(&folders, "session.pause");
    assert_eq!(pause.new.as_deref(), Some("paused"));
    assert!(pause.why.unwrap().contains("it is in force"));
}
