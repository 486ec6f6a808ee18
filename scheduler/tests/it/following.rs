//! Followers: they get the whole state once, and then only what changed.

use gpushare_proto::admin::{AdminReply, AdminRequest, Change, SessionRequest, SessionView};
use gpushare_proto::follow::{Increment, Increments, LockState, SessionFacts};
use gpushare_proto::session::{SessionPhase, Terms};
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, SessionId};

use crate::harness::{CARD, Folders, Peer, eventually};
use crate::names::made;
use crate::processes::Process;

/// Returns the next message to a follower.
fn next(follower: &mut Peer<AdminRequest, AdminReply>) -> Increments {
    match follower.hear() {
        AdminReply::Increments(increments) => *increments,
        other => panic!("no increments: {other:?}"),
    }
}

/// Returns the changes from the next messages up to the one for which `found` is true.
fn until(
    follower: &mut Peer<AdminRequest, AdminReply>,
    found: impl Fn(&Increment) -> bool,
) -> Vec<Increment> {
    let mut all = Vec::new();
    while !all.iter().any(&found) {
        let increments = next(follower);
        assert!(!increments.whole, "the whole state comes once");
        all.extend(increments.changes);
    }
    all
}

fn names(changes: &[Increment]) -> Vec<&str> {
    changes
        .iter()
        .filter_map(|change| match change {
            Increment::Session(facts) => Some(facts.name.as_str()),
            _ => None,
        })
        .collect()
}

fn facts_of(changes: &[Increment], id: SessionId) -> &SessionFacts {
    let mut all = changes.iter().filter_map(|change| match change {
        Increment::Session(facts) if facts.session == id => Some(facts),
        _ => None,
    });
    all.next_back().expect("the session is among the changes")
}

#[test]
fn a_follower_gets_the_whole_state_and_then_what_changed() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let (quiet, _) = daemon.register("quiet", None);
    let (busy, token) = daemon.register("busy", Some(Bytes::mib(64)));
    let mut follower = daemon.administrator();
    follower.say(&AdminRequest::Follow);
    let first = next(&mut follower);
    assert!(first.whole);
    assert!(matches!(&first.changes[0], Increment::Daemon(facts) if facts.pid == daemon.pid()));
    assert_eq!(names(&first.changes), ["quiet", "busy"]);

    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(8));
    let holds = |change: &Increment| {
        matches!(change, Increment::SessionFigures(figures) if figures.session == busy
            && figures.lock == LockState::Holding
            && figures.memory.iter().any(|on| on.limit_bytes == Some(Bytes::mib(64))))
    };
    let told = until(&mut follower, holds);
    assert!(
        told.iter()
            .any(|change| matches!(change, Increment::Card(card) if card.uuid == CARD))
    );
    assert_eq!(facts_of(&told, busy).pids, [std::process::id()]);
    assert!(!names(&told).contains(&"quiet"), "{told:?}");

    let change = SessionRequest::Change { which: quiet.to_string(), change: Change::Weight(300) };
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(change));
    assert!(matches!(administrator.hear(), AdminReply::Changed { .. }));
    let told = until(&mut follower, |change| matches!(change, Increment::Session(_)));
    assert_eq!(facts_of(&told, quiet).weight, 300);
    assert_eq!(names(&told), ["quiet"]);
}

#[test]
fn a_second_follower_gets_the_whole_state_and_the_first_one_no_more_than_before() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let (session, _) = daemon.register("quiet", None);
    let mut first = daemon.administrator();
    first.say(&AdminRequest::Follow);
    assert!(next(&mut first).whole);
    let mut second = daemon.administrator();
    second.say(&AdminRequest::Follow);
    let whole = next(&mut second);
    assert!(whole.whole);
    assert_eq!(names(&whole.changes), ["quiet"]);
    let increments = next(&mut first);
    assert_eq!((increments.whole, names(&increments.changes)), (false, Vec::new()));
    let request = SessionRequest::Revoke { which: session.to_string() };
    second.say(&AdminRequest::Session(request));
    let told = until(&mut first, |change| matches!(change, Increment::Session(_)));
    assert_eq!(facts_of(&told, session).phase, SessionPhase::Revoked);
}

#[test]
fn a_follower_is_told_of_the_end_of_a_session() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    made(&daemon, "short", Terms::default());
    let session = daemon.status().sessions[0].session;
    let mut follower = daemon.administrator();
    follower.say(&AdminRequest::Follow);
    assert_eq!(names(&next(&mut follower).changes), ["short"]);
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(SessionRequest::Delete { which: "short".into() }));
    assert!(matches!(administrator.hear(), AdminReply::Changed { .. }));
    let ended = Increment::SessionEnded { session };
    assert!(until(&mut follower, |change| *change == ended).contains(&ended));
}

#[test]
fn a_user_sees_its_own_sessions_and_others_only_as_numbers() {
    let folders = Folders::new();
    let daemon = folders.start(&["--user"]);
    let (own, _) = daemon.register("own", None);
    let token = made(&daemon, "secret", Terms::default());
    let _process = Process::asking(&folders, Some(&token), Bytes::mib(8), 1);
    let named = |session: &SessionView| session.name == "secret";
    let other = daemon.status().sessions.into_iter().find(named).unwrap().session;
    let mut tool = daemon.tool();
    let seen = eventually("the other session holds the card", || {
        tool.say(&TenantRequest::OwnSessions);
        let TenantReply::OwnSessions(increments) = tool.hear() else { panic!("no sessions") };
        let holds =
            |change: &Increment| matches!(change, Increment::CardFigures(card) if card.holders == [other]);
        increments.changes.iter().any(holds).then_some(increments)
    });
    assert!(seen.whole);
    assert_eq!(names(&seen.changes), ["own"]);
    assert_eq!(facts_of(&seen.changes, own).memory, Terms::default().memory);
    assert!(!format!("{seen:?}").contains("secret"));
}
