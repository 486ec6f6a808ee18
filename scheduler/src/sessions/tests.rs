use gpushare_proto::GpuUuid;
use gpushare_proto::session::{SessionPhase, Terms};

use super::*;
use crate::identity::User;
use crate::registry::{CardLead, Origin};

const TOKEN: Token = Token([9; 32]);
const REGISTRAR: ProcessId = ProcessId { pid: 5, start: 50 };

const CLOCKS: Clocks = Clocks { boot: Nanos(1000), unix: 5000 };

fn created(name: &str, origin: Origin) -> Session {
    Session::new(name.to_owned(), Terms::default(), origin, false, None)
}

fn bound_to(sessions: &mut Sessions, binding: Binding) -> SessionId {
    let origin = Origin::Created { token: None, binding, uid: 0 };
    sessions.add(|id| id.to_string(), |name| created(&name, origin))
}

#[test]
fn a_control_group_comes_before_a_user_and_the_closest_first() {
    let mut sessions = Sessions::new(1);
    let user = bound_to(&mut sessions, Binding::Uid(7));
    let outer = bound_to(&mut sessions, Binding::Cgroup("/pods".into()));
    let inner = bound_to(&mut sessions, Binding::Cgroup("/pods/a".into()));
    let of = |uid, path: &str| sessions.by_binding(&[uid, uid], None, &[path.to_owned()]);
    assert_eq!(of(7, "/pods/a/b"), Some(inner));
    assert_eq!(of(7, "/pods/ab"), Some(outer));
    assert_eq!(of(8, "/pods"), Some(outer));
    assert_eq!(of(7, "/podsters"), Some(user));
    assert_eq!(of(8, "/"), None);
    let docker = ["/system.slice/containerd.service", "/pods/a"].map(str::to_owned);
    assert_eq!(sessions.by_binding(&[7, 7], None, &docker), Some(inner));
    assert_eq!(sessions.by_binding(&[100_005, 7], None, &[]), Some(user));
}

#[test]
fn a_binding_to_a_user_counts_only_beside_the_daemon() {
    let mut sessions = Sessions::new(1);
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let peer = PeerProcess::of(&stream).unwrap();
    let user = bound_to(&mut sessions, Binding::Uid(peer.uid));
    assert_eq!(sessions.bound(&peer, true), Some(user));
    assert_eq!(sessions.bound(&peer, false), None, "it may be root in a container that became this user");
    let mut inside = peer;
    inside.groups = ["/docker/1f2e".to_owned()].into();
    let group = bound_to(&mut sessions, Binding::Cgroup("/docker".into()));
    assert_eq!(sessions.bound(&inside, false), Some(group), "a container cannot choose its control group");
    let theirs = bound_to(&mut sessions, Binding::Uid(70_001));
    let own_container = "/user.slice/user-70001.slice/user@70001.service/app.slice/docker-x.scope";
    (inside.user, inside.groups) = (70_001, [own_container.to_owned()].into());
    assert_eq!(sessions.bound(&inside, true), Some(theirs), "its root can become any user");
}

#[test]
fn root_in_a_container_is_not_the_machines_root() {
    let [one, other] = ["/docker/1", "/docker/2"].map(|group| User::named(group).unwrap());
    let by_root = created("a", Origin::Created { token: None, binding: Binding::Token, uid: 0 });
    assert_eq!([&User::Uid(0), &one].map(|user| by_root.is_of(user)), [true, false]);
    let (token, user) = (TokenHash::of(&TOKEN), Some(one.clone()));
    let inside = created("b", Origin::Registered { token, uid: 0, by: REGISTRAR, user });
    assert_eq!([&one, &other, &User::Uid(0)].map(|user| inside.is_of(user)), [true, false, false]);
}

#[test]
fn a_session_is_found_by_its_number_or_unique_name() {
    let mut sessions = Sessions::new(1);
    for _ in 0..2 {
        sessions.add(
            |_| "twin".to_owned(),
            |name| created(&name, Origin::Created { token: None, binding: Binding::Token, uid: 0 }),
        );
    }
    assert_eq!(sessions.named("s2"), Ok(SessionId(2)));
    assert_eq!(sessions.named("1"), Ok(SessionId(1)));
    assert!(sessions.named("twin").unwrap_err().contains("s1, s2"));
    assert!(sessions.named("nobody").unwrap_err().contains("session list"));
}

fn by_program(sessions: &mut Sessions, name: &str) -> SessionId {
    let origin = Origin::Registered { token: TokenHash::of(&TOKEN), uid: 7, by: REGISTRAR, user: None };
    sessions.add(|_| name.to_owned(), |name| created(&name, origin))
}

fn by_administrator(sessions: &mut Sessions, name: &str) -> SessionId {
    let origin = Origin::Created { token: None, binding: Binding::Token, uid: 0 };
    sessions.add(|_| name.to_owned(), |name| created(&name, origin))
}

#[test]
fn an_administrators_session_gets_the_name() {
    let mut sessions = Sessions::new(1);
    let squatters = [by_program(&mut sessions, "b"), by_program(&mut sessions, "b")];
    assert_eq!(sessions.displace("a"), []);
    assert_eq!(sessions.displace("b"), [(squatters[0], "b-1".to_owned()), (squatters[1], "b-2".to_owned())]);
    let own = by_administrator(&mut sessions, "b");
    assert_eq!(sessions.named("b"), Ok(own));
    assert_eq!(sessions.named("b-2"), Ok(squatters[1]));
    assert_eq!(sessions.displace("b"), [], "an administrator's stays");

    let late = by_program(&mut sessions, "b");
    assert_eq!((sessions.name(late).as_str(), sessions.named("b")), ("b-4", Ok(own)));
    let taken = by_administrator(&mut sessions, "c-7");
    by_administrator(&mut sessions, "c");
    let beside = by_program(&mut sessions, "c");
    assert_eq!(sessions.name(beside), "c-7-7");
    assert_eq!(sessions.named("c-7"), Ok(taken));
}

#[test]
fn a_name_that_is_made_up_is_no_longer_than_others() {
    let mut sessions = Sessions::new(1000);
    let long = "x".repeat(MAX_SESSION_NAME);
    by_administrator(&mut sessions, &long);
    let beside = by_program(&mut sessions, &long);
    assert_eq!(sessions.name(beside), format!("{}-1001", "x".repeat(MAX_SESSION_NAME - 5)));
}

#[test]
fn an_end_is_the_same_time_after_a_restart() {
    let mut sessions = Sessions::new(1);
    let id = bound_to(&mut sessions, Binding::Token);
    sessions.change(id, |session| session.expires = Some(CLOCKS.end_after(Nanos(2000))));
    assert_eq!(sessions.entry(id).unwrap().expires_unix, Some(7000));
    let later = Clocks { boot: Nanos(50), unix: 6500 };
    let mut next = Sessions::new(2);
    next.restore(sessions.entry(id).unwrap(), false, later);
    assert_eq!(next.get(id).unwrap().expires, Some(End { boot: Nanos(550), unix: 7000 }));
    assert_eq!(next.entry(id), sessions.entry(id), "it is written once, whatever the clocks say");
    let standing = |now| next.get(id).unwrap().phase(Nanos(now));
    assert_eq!((standing(549), standing(550)), (SessionPhase::Good, SessionPhase::Expired));
}

#[test]
fn an_end_is_reported_once_and_again_after_a_renewal() {
    let mut sessions = Sessions::new(1);
    let id = bound_to(&mut sessions, Binding::Token);
    let end = |ttl| Some(CLOCKS.end_after(Nanos(ttl)));
    sessions.change(id, |session| session.expires = end(10));
    assert_eq!(sessions.next_end(), Some(Nanos(1010)));
    assert_eq!((sessions.expired(Nanos(1009)), sessions.expired(Nanos(1010))), (vec![], vec![id]));
    sessions.told_standing(id, Standing::Over);
    sessions.change(id, |session| session.paused = true);
    assert_eq!((sessions.next_end(), sessions.expired(Nanos::MAX)), (None, vec![]));
    sessions.change(id, |session| session.expires = end(20));
    sessions.told_standing(id, Standing::Good);
    assert_eq!(sessions.next_end(), Some(Nanos(1020)));
    sessions.remove(id);
    assert_eq!(sessions.next_end(), None);
}

#[test]
fn what_is_searched_for_is_found_after_changes_too() {
    let mut sessions = Sessions::new(1);
    let id = by_program(&mut sessions, "b");
    let other = Token([8; 32]);
    sessions.change(id, |session| {
        session.origin =
            Origin::Registered { token: TokenHash::of(&other), uid: 8, by: REGISTRAR, user: None };
    });
    assert_eq!((sessions.by_token(&TOKEN, true), sessions.by_token(&other, true)), (None, Some(id)));
    assert_eq!([7, 8].map(|uid| sessions.registered_by(&User::Uid(uid)).count()), [0, 1]);
    sessions.remove(id);
    assert_eq!((sessions.by_token(&other, true), sessions.by_registrar(REGISTRAR)), (None, None));
    assert_eq!(sessions.registered_by(&User::Uid(8)).count(), 0);
}

fn with_one() -> (Sessions, SessionId) {
    let mut sessions = Sessions::new(4);
    let session = sessions.add(
        |id| format!("session-{}", id.0),
        |name| Session {
            bound: true,
            ..created(
                &name,
                Origin::Registered { token: TokenHash::of(&TOKEN), uid: 7, by: REGISTRAR, user: None },
            )
        },
    );
    (sessions, session)
}

#[test]
fn a_registered_session_is_found_by_token_and_registrar() {
    let (sessions, session) = with_one();
    assert_eq!(session, SessionId(4));
    assert_eq!(sessions.name(session), "session-4");
    assert_eq!(sessions.by_token(&TOKEN, false), Some(session));
    assert_eq!(sessions.by_token(&Token([8; 32]), false), None);
    assert_eq!(sessions.by_registrar(REGISTRAR), Some(session));
    assert_eq!([7, 8].map(|uid| sessions.registered_by(&User::Uid(uid)).count()), [1, 0]);
}

#[test]
fn a_session_lives_as_long_as_its_registrar_or_a_client() {
    let (mut sessions, session) = with_one();
    assert!(sessions.take_if_over(session).is_none());
    sessions.join(session);
    sessions.get_mut(session).unwrap().bound = false;
    assert!(sessions.take_if_over(session).is_none());
    sessions.get_mut(session).unwrap().clients -= 1;
    assert!(sessions.take_if_over(session).is_some());
    assert!(sessions.is_empty());
}

#[test]
fn a_session_keeps_its_number_and_virtual_time_over_a_restart() {
    let (mut old, session) = with_one();
    old.join(session);
    old.get_mut(session).unwrap().leads = vec![CardLead { card: GpuUuid::gpu([3; 16]), lead_ns: 7 }];
    let mut new = Sessions::new(old.next);
    new.restore(old.entry(session).unwrap(), false, CLOCKS);
    assert_eq!(new.by_token(&TOKEN, false), Some(session));
    assert_eq!(new.entry(session), old.entry(session));
    assert_eq!(new.get(session).unwrap().leads[0].lead_ns, 7);
    assert_eq!(new.next, 5);
    assert!(new.take_if_over(session).is_some());
}
