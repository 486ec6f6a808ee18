//! Restart of the daemon: it waits for its clients and believes no other process.

use std::fs;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpushare_proto::admin::{AdminReply, AdminRequest, LockView, SessionRequest, UsageView, UserUsageView};
use gpushare_proto::session::{Binding, SessionPhase, Terms};
use gpushare_proto::tenant::{
    FailureCode, GpuChoice, NewSession, Returning, ReturningGpu, TenantReply, TenantRequest,
};
use gpushare_proto::{Bytes, ClientId, Epoch, Nanos, RequestId, SessionId};

use crate::deaths::{holds, lock_of};
use crate::harness::{Client, Daemon, Folders, card, eventually, join};
use crate::processes::{Process, TURNS, wanting};

pub(crate) fn returning(client: &Client, holding: Option<Epoch>) -> Returning {
    Returning {
        client: client.welcome.client,
        session: client.welcome.session,
        holding,
        gpus: vec![ReturningGpu { info: card(), used: Bytes::mib(100), contexts: 1 }],
        waiting: false,
    }
}

/// Waits until the registry has a number of clients, by the last record of the daemon's log.
pub(crate) fn written(folders: &Folders, clients: usize) {
    eventually("the registry to be written", || {
        let log = folders.log();
        let last = log.lines().rfind(|line| line.contains("the registry has "))?;
        last.ends_with(&format!(" {clients} clients")).then_some(())
    });
}

#[test]
fn sessions_and_holders_survive_a_kill() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (session, token) = daemon.register("durable", Some(Bytes::mib(256)));
    let mut client = daemon.join(Some(&token));
    client.attach();
    client.wait();
    let epoch = client.enter();
    written(&folders, 1);
    daemon.kill();

    let daemon = folders.start(&TURNS);
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 1);
    assert_eq!((status.sessions[0].session, status.sessions[0].name.as_str()), (session, "durable"));
    assert_eq!(status.sessions[0].memory_limit_bytes, Some(Bytes::mib(256)));

    let back = daemon.return_as(returning(&client, Some(epoch)));
    assert_eq!(back.welcome.client, client.welcome.client);
    assert_eq!(back.welcome.session, session);
    assert_eq!(back.welcome.gpus.len(), 1);
    holds(&daemon, session);
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 0);
    assert_eq!(status.sessions[0].gpus[0].allocated_bytes, Bytes::mib(100));

    // Numbers go on, so no new client has an old one's number.
    let (next, _) = daemon.register("next", None);
    assert_eq!(next, SessionId(session.0 + 1));
    assert!(daemon.join(Some(&token)).welcome.client > client.welcome.client);
}

#[test]
fn nothing_is_granted_until_all_are_back_or_dead() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    written(&folders, 2);
    daemon.kill();

    let daemon = folders.start(&TURNS);
    let mut back = daemon.return_as(Returning { waiting: true, ..returning(&waiter, None) });
    // The holder does not come back. While it lives its work may run.
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 1);
    assert!(!matches!(lock_of(&daemon, second), Some(LockView::Holding { .. })));
    holder.kill();
    back.enter();
    assert_eq!(daemon.status().daemon.recovering, 0);
}

#[test]
fn an_awaited_process_keeps_its_part_of_the_quota() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("two", Some(Bytes::mib(256)));
    let (mut early, mut late) = (daemon.join(Some(&token)), daemon.join(Some(&token)));
    for client in [&mut early, &mut late] {
        let gpu = client.attach();
        client.reserve(gpu, Bytes::mib(100));
    }
    written(&folders, 2);
    daemon.kill();

    let daemon = folders.start(&[]);
    let mut early = daemon.return_as(returning(&early, None));
    let asked =
        TenantRequest::Reserve { request: RequestId(7), gpu: early.welcome.gpus[0], bytes: Bytes::mib(100) };
    early.peer.say(&asked);
    // Later requests are answered before it.
    early.peer.say(&TenantRequest::OwnSession);
    let own = early.hear_until(|reply| match reply {
        TenantReply::OwnSession(own) => own,
        TenantReply::Reserved { .. } => panic!("these bytes may be the other's"),
        _ => None,
    });
    assert_eq!(own.gpus[0].leased_bytes, Bytes::mib(100));
    let _late = daemon.return_as(returning(&late, None));
    let refusal = early.hear_until(|reply| match reply {
        TenantReply::Refused { refusal, .. } => Some(refusal),
        TenantReply::Reserved { .. } => panic!("200 MiB of 256 MiB are used"),
        _ => None,
    });
    assert_eq!(refusal.used, Bytes::mib(200));
}

#[test]
fn only_the_same_process_comes_back() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let client = daemon.join(None);
    written(&folders, 1);
    daemon.kill();

    let daemon = folders.start(&[]);
    let given = Process::claiming(&folders, client.welcome.client);
    assert_eq!(given, ClientId(client.welcome.client.0 + 1));
    assert_eq!(daemon.status().daemon.recovering, 1);
}

#[test]
fn a_process_that_connects_again_is_counted_once() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("again", Some(Bytes::mib(128)));
    let mut before = daemon.join(Some(&token));
    let gpu = before.attach();
    before.reserve(gpu, Bytes::mib(100));
    // The old connection is still open.
    let again = join(&folders.runtime(), Some(&token), Some(returning(&before, None))).unwrap();
    let status = daemon.status();
    assert_eq!(status.sessions[0].clients.len(), 1);
    assert_eq!(status.sessions[0].clients[0].client, again.welcome.client);
    assert_eq!(status.gpus[0].allocated_bytes, Bytes::mib(100));
}

#[test]
fn a_registry_that_does_not_read_is_set_aside() {
    let folders = Folders::new();
    fs::create_dir(folders.runtime().root()).unwrap();
    fs::write(folders.runtime().registry(), "{ half").unwrap();
    let daemon = folders.start(&[]);
    assert!(folders.runtime().root().join("registry.redb.corrupt-0").exists());
    folders.logged("is damaged");
    // The memory that a process claims is booked under a new number all the same.
    let mut old = daemon.join(None);
    old.attach();
    let claimed = Returning { client: ClientId(77), ..returning(&old, None) };
    let back = daemon.return_as(claimed);
    assert_ne!(back.welcome.client, ClientId(77));
    assert_eq!(daemon.status().gpus[0].allocated_bytes, Bytes::mib(100));
}

fn create(name: &str) -> AdminRequest {
    let new = NewSession {
        name: Some(name.to_owned()),
        terms: Terms::default(),
        oversubscribe: false,
        gpu: GpuChoice::Auto,
    };
    let binding = Binding::Token;
    AdminRequest::Session(SessionRequest::Create { new, binding })
}

fn pause(which: String) -> AdminRequest {
    AdminRequest::Session(SessionRequest::Pause { which })
}

/// Returns the state of each session, by its name.
fn standings(daemon: &Daemon) -> BTreeMap<String, SessionPhase> {
    let sessions = daemon.status().sessions.into_iter();
    sessions.map(|session| (session.name, session.state.standing)).collect()
}

#[test]
fn acknowledged_acts_survive_a_kill_at_any_time() {
    let folders = Folders::new();
    let mut acknowledged: BTreeMap<String, SessionPhase> = BTreeMap::new();
    let mut seed = 11_u64;
    // On a slow disk a daemon may die before its first act, so the number of rounds is open.
    for round in 0..200 {
        if round >= 12 && acknowledged.len() > 12 {
            break;
        }
        let daemon = folders.start(&[]);
        let found = standings(&daemon);
        for (name, standing) in &acknowledged {
            // The act at the time of the kill may be on the disk too.
            let kept = found.get(name);
            assert!(
                kept == Some(standing) || (kept == Some(&SessionPhase::Paused)),
                "round {round}: {name} is {kept:?}, {standing:?} was acknowledged"
            );
        }
        let mut administrator = daemon.administrator();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let life = Duration::from_micros((seed >> 33) % 60_000);
        let killer = thread::spawn(move || {
            thread::sleep(life);
            daemon.kill();
        });
        for act in 0.. {
            let name = format!("r{round}-{act}");
            if !administrator.try_say(&create(&name)) || administrator.listen().is_none() {
                break;
            }
            acknowledged.insert(name.clone(), SessionPhase::Good);
            if !administrator.try_say(&pause(name.clone())) || administrator.listen().is_none() {
                break;
            }
            acknowledged.insert(name, SessionPhase::Paused);
        }
        killer.join().unwrap();
    }
    assert!(acknowledged.len() > 12, "{} acts in all", acknowledged.len());
    assert!(!folders.log().contains("is damaged"), "{}", folders.log());
}

#[test]
fn with_a_full_disk_acts_stay_in_force_and_no_session_is_made() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut administrator = daemon.administrator();
    let mut ask = |request: &AdminRequest| {
        administrator.say(request);
        administrator.hear()
    };
    assert!(matches!(ask(&create("before")), AdminReply::Created { .. }));
    let in_the_way = folders.runtime().root().join("registry.redb.new");
    fs::remove_file(folders.runtime().registry()).unwrap();
    fs::create_dir(&in_the_way).unwrap();

    let mut refused = |request: &AdminRequest| match ask(request) {
        AdminReply::Error(failure) if failure.code == FailureCode::Unavailable => failure.message,
        other => panic!("{other:?}"),
    };
    let message = refused(&create("lost"));
    assert!(message.contains("cannot write its registry"), "{message}");
    assert!(message.contains("no session was made"), "{message}");
    let message = refused(&pause("before".to_owned()));
    assert!(message.contains("it is in force"), "{message}");
    assert_eq!(standings(&daemon), BTreeMap::from([("before".to_owned(), SessionPhase::Paused)]));
    // All of it is written once the disk has room.
    fs::remove_dir(&in_the_way).unwrap();
    assert!(matches!(ask(&create("after")), AdminReply::Created { .. }));
    daemon.kill();
    let daemon = folders.start(&[]);
    let both = [("after", SessionPhase::Good), ("before", SessionPhase::Paused)];
    assert_eq!(standings(&daemon), BTreeMap::from(both.map(|(name, standing)| (name.to_owned(), standing))));
}

pub(crate) fn usage(daemon: &Daemon) -> Vec<UsageView> {
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Usage { since: Nanos::from_secs(7200) });
    match administrator.hear() {
        AdminReply::Usage(usages) => usages,
        other => panic!("no usage: {other:?}"),
    }
}

#[test]
fn usage_of_a_period_names_the_user_of_a_session_also_after_its_end() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let program = Process::asking(&folders, None, Bytes::mib(3), 1);
    let between = |from_unix_s, until_unix_s| {
        let mut administrator = daemon.administrator();
        administrator.say(&AdminRequest::UsageBetween { from_unix_s, until_unix_s });
        match administrator.hear() {
            AdminReply::UserUsage(usages) => usages,
            other => panic!("no usage: {other:?}"),
        }
    };
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let lately = |is_it: fn(&UserUsageView) -> bool| between(now() - 60, now() + 1).into_iter().find(is_it);
    let alive = eventually("memory to be used", || lately(|found| !found.usage.peak_bytes.is_zero()));
    let user = Some(rustix::process::getuid().as_raw().to_string());
    assert_eq!((&alive.user, alive.usage.alive), (&user, true));
    drop(program);
    let ended = eventually("the session to end", || lately(|found| !found.usage.alive));
    assert_eq!((&ended.user, ended.usage.peak_bytes), (&user, alive.usage.peak_bytes));
    daemon.register("idle", None);
    assert_eq!(between(now() - 48 * 3600, now() - 24 * 3600), [], "nothing was used on the day before");
}

#[test]
fn usage_adds_up_over_restarts_and_outlives_its_session() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (session, token) = daemon.register("worker", None);
    let mut client = daemon.join(Some(&token));
    wanting(&mut client);
    client.enter();
    let held = |daemon: &Daemon, least: Nanos| {
        eventually("time to be held", || {
            let view = daemon.status().sessions.into_iter().find(|view| view.session == session)?;
            (view.held_ns > least).then_some(view.held_ns)
        })
    };
    held(&daemon, Nanos::from_millis(30));
    let first = usage(&daemon).remove(0);
    assert_eq!((first.session, first.name.as_str(), first.alive), (session, "worker", true));
    assert!(first.held_ns > Nanos::from_millis(30), "{first:?}");
    assert!(first.peak_bytes > Bytes::ZERO && first.gpu_time_ns >= first.held_ns, "{first:?}");
    daemon.kill();

    let daemon = folders.start(&TURNS);
    let again = usage(&daemon).remove(0);
    assert!(again.held_ns >= first.held_ns, "{again:?} after {first:?}");
    assert!(held(&daemon, Nanos::ZERO) >= first.held_ns, "its total goes on");
    let returned = daemon.return_as(returning(&client, None));
    drop((client, returned));
    let (_, other) = daemon.register("idle", None);
    assert_eq!(other.0.len(), 32);
    daemon.terminate();

    // The session lives, since its registrar, this test, lives.
    let daemon = folders.start(&TURNS);
    let names: Vec<_> = usage(&daemon)
        .into_iter()
        .map(|usage| (usage.name, usage.alive, usage.held_ns >= first.held_ns))
        .collect();
    assert_eq!(names, [("worker".to_owned(), true, true), ("idle".to_owned(), true, false)]);
}
