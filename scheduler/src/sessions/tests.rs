use gpushare_proto::GpuUuid;
use gpushare_proto::session::{SessionPhase, Terms};

use super::*;
use crate::registry::CardLead;

const TOKEN: Token = Token([9; 32]);
const REGISTRAR: ProcessId = ProcessId { pid: 5, start: 50 };

const CLOCKS: Clocks = Clocks { monotonic: Nanos(1000), unix: 5000 };

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
    let of = |uid, path: &str| sessions.by_binding([uid, uid], || vec![path.to_owned()]);
    assert_eq!(of(7, "/pods/a/b"), Some(inner));
    assert_eq!(of(7, "/pods/ab"), Some(outer));
    assert_eq!(of(8, "/pods"), Some(outer));
    assert_eq!(of(7, "/podsters"), Some(user));
    assert_eq!(of(8, "/"), None);
    let docker = ["/system.slice/containerd.service", "/pods/a"].map(str::to_owned);
    assert_eq!(sessions.by_binding([7, 7], || docker.to_vec()), Some(inner));
    assert_eq!(sessions.by_binding([100_005, 7], Vec::new), Some(user));
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
    let origin = Origin::Registered { token: TokenHash::of(&TOKEN), uid: 7, by: REGISTRAR };
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
    if let Some(session) = sessions.get_mut(id) {
        session.expires = Some(Nanos(3000));
    }
    assert_eq!(sessions.entries(CLOCKS)[0].expires_unix, Some(7000));
    let later = Clocks { monotonic: Nanos(50), unix: 6500 };
    let mut next = Sessions::new(2);
    next.restore(sessions.entries(CLOCKS).remove(0), false, later);
    assert_eq!(next.get(id).unwrap().expires, Some(Nanos(550)));
    let standing = |now| next.get(id).unwrap().phase(Nanos(now));
    assert_eq!((standing(549), standing(550)), (SessionPhase::Good, SessionPhase::Expired));
}

fn with_one() -> (Sessions, SessionId) {
    let mut sessions = Sessions::new(4);
    let session = sessions.add(
        |id| format!("session-{}", id.0),
        |name| Session {
            bound: true,
            ..created(&name, Origin::Registered { token: TokenHash::of(&TOKEN), uid: 7, by: REGISTRAR })
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
    assert_eq!((sessions.registered_by(7), sessions.registered_by(8)), (1, 0));
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
    for entry in old.entries(CLOCKS) {
        new.restore(entry, false, CLOCKS);
    }
    assert_eq!(new.by_token(&TOKEN, false), Some(session));
    assert_eq!(new.entries(CLOCKS), old.entries(CLOCKS));
    assert_eq!(new.get(session).unwrap().leads[0].lead_ns, 7);
    assert_eq!(new.next, 5);
    assert!(new.take_if_over(session).is_some());
}
