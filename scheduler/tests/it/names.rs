//! Names of sessions and who may use them; tokens, limits and bindings by an administrator.

use gpushare_proto::admin::{AdminReply, AdminRequest, Change, SessionRequest, SessionView};
use gpushare_proto::session::{Amount, Binding, CardQuota, Quota, Terms};
use gpushare_proto::tenant::{Failure, FailureCode, GpuChoice, NewSession, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Nanos, Token};

use crate::audit::the_act;
use crate::harness::{CARD, Client, Daemon, Folders, card, eventually, join};

fn new(name: &str, terms: Terms) -> NewSession {
    NewSession { name: Some(name.to_owned()), terms, oversubscribe: false, gpu: GpuChoice::Auto }
}

pub(crate) fn ask(daemon: &Daemon, request: SessionRequest) -> AdminReply {
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(request));
    administrator.hear()
}

fn create(daemon: &Daemon, name: &str, terms: Terms, binding: Binding) -> AdminReply {
    let new = new(name, terms);
    ask(daemon, SessionRequest::Create { new, binding })
}

/// Makes a session and returns its token.
pub(crate) fn made(daemon: &Daemon, name: &str, terms: Terms) -> Token {
    match create(daemon, name, terms, Binding::Token) {
        AdminReply::Created { token: Some(token), .. } => token,
        other => panic!("not made: {other:?}"),
    }
}

fn refused(reply: AdminReply) -> Failure {
    match reply {
        AdminReply::Error(failure) => failure,
        other => panic!("not refused: {other:?}"),
    }
}

/// Returns for each session's name whether an administrator made it, and its processes.
fn sessions(daemon: &Daemon) -> Vec<(String, bool, usize)> {
    let shown = |session: SessionView| (session.name, session.state.kept, session.clients.len());
    daemon.status().sessions.into_iter().map(shown).collect()
}

fn only_on(card: GpuChoice) -> Terms {
    let amount = Amount::Bytes(Bytes::mib(512));
    Terms {
        memory: Quota { every: None, cards: vec![CardQuota { card, amount }] },
        ..Terms::default()
    }
}

/// Announces the card as a process. Returns the answer.
fn announce(client: &mut Client) -> Option<Failure> {
    client.peer.say(&TenantRequest::Attach(card()));
    client.hear_until(|reply| match reply {
        TenantReply::Attached { .. } => Some(None),
        TenantReply::Error(failure) => Some(Some(failure)),
        _ => None,
    })
}

#[test]
fn an_administrator_takes_a_name_from_a_program() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (squatter, token) = daemon.register("b", None);
    let mut client = daemon.join(Some(&token));
    made(&daemon, "b", Terms::default());
    daemon.register("b", None);
    assert_eq!(
        sessions(&daemon),
        [(format!("b-{}", squatter.0), false, 1), ("b".to_owned(), true, 0), ("b-3".to_owned(), false, 0)]
    );
    let act = the_act(&folders, "session.rename");
    assert_eq!(
        (act.session_id, act.old.as_deref(), act.new.as_deref()),
        (Some(squatter), Some("b"), Some("b-1"))
    );

    let paused = ask(&daemon, SessionRequest::Pause { which: "b".into() });
    assert!(matches!(paused, AdminReply::Changed { .. }), "{paused:?}");
    client.attach();
    client.wait();
    client.enter();

    let twice = refused(create(&daemon, "b", Terms::default(), Binding::Token));
    assert!(twice.message.contains("there is a session b already"), "{}", twice.message);
}

#[test]
fn a_name_that_reads_as_a_number_is_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    for name in ["7", "s7"] {
        let by_administrator = refused(create(&daemon, name, Terms::default(), Binding::Token));
        tool.say(&TenantRequest::Register(new(name, Terms::default())));
        let TenantReply::Error(by_program) = tool.hear() else {
            panic!("{name} is taken");
        };
        assert_eq!(by_administrator, by_program);
        assert_eq!(by_program.code, FailureCode::BadRequest);
        assert!(by_program.message.contains("reads as a session's number"), "{}", by_program.message);
    }
}

#[test]
fn a_new_token_replaces_the_first() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let first = made(&daemon, "team", Terms::default());
    let _stays = daemon.join(Some(&first));
    let again = ask(&daemon, SessionRequest::Token { which: "team".into() });
    let AdminReply::Token { name, token, .. } = again else {
        panic!("no token: {again:?}");
    };
    assert_eq!(name, "team");
    let old = join(&folders.runtime(), Some(&first), None).err().unwrap();
    assert_eq!(old.code, FailureCode::NotFound);
    let _joins = daemon.join(Some(&token));
    assert_eq!(sessions(&daemon), [("team".to_owned(), true, 2)]);
    assert_eq!(the_act(&folders, "session.token").new.as_deref(), Some("another token"));
    assert!(!folders.log().contains(&token.to_hex()));

    daemon.kill();
    let daemon = folders.start(&[]);
    assert!(join(&folders.runtime(), Some(&first), None).is_err());
    daemon.join(Some(&token));

    create(&daemon, "students", Terms::default(), Binding::Uid(4242));
    let (of_a_program, _) = daemon.register("mine", None);
    for (which, why) in [
        ("students".to_owned(), "it is for user 4242"),
        (of_a_program.to_string(), "as long as its program"),
        ("nobody".to_owned(), "there is no session nobody"),
    ] {
        let failure = refused(ask(&daemon, SessionRequest::Token { which }));
        assert!(failure.message.contains(why), "{}", failure.message);
    }
}

#[test]
fn a_limit_on_an_unknown_card_is_refused_with_a_list_of_cards() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    // This session is made before any card is known.
    let early = made(&daemon, "early", only_on(GpuChoice::Index(7)));
    daemon.join(None).attach();
    let cards = format!("there is no card 7 to limit; this daemon has 0 ({CARD})");
    let created = create(&daemon, "late", only_on(GpuChoice::Index(7)), Binding::Token);
    assert_eq!(refused(created).message, cards);
    made(&daemon, "right", only_on(GpuChoice::Index(0)));
    let change = SessionRequest::Change {
        which: "right".into(),
        change: Change::Memory(only_on(GpuChoice::Index(7)).memory),
    };
    assert_eq!(refused(ask(&daemon, change)).message, cards);
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Register(new("run", only_on(GpuChoice::Index(7)))));
    assert!(matches!(tool.hear(), TenantReply::Error(failure) if failure.message == cards));

    let refused = announce(&mut daemon.join(Some(&early))).expect("its limit limits nothing");
    assert!(
        refused
            .message
            .starts_with("its session's memory limit (7=512MiB) is for no card"),
        "{}",
        refused.message
    );
}

#[test]
fn a_process_with_limits_only_for_unknown_cards_gets_no_card() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut client = daemon.join(None);
    client.peer.say(&TenantRequest::Limits {
        memory: only_on(GpuChoice::Index(7)).memory,
        compute: Quota::default(),
    });
    let failure = announce(&mut client).expect("its limit limits nothing");
    assert!(failure.message.contains(&CARD.to_string()), "{}", failure.message);
    drop(client);
    eventually("the session to end", || sessions(&daemon).is_empty().then_some(()));

    let mut client = daemon.join(None);
    client.peer.say(&TenantRequest::Limits {
        memory: only_on(GpuChoice::Index(0)).memory,
        compute: Quota::default(),
    });
    assert_eq!(announce(&mut client), None);
}

#[test]
fn a_control_group_is_one_with_and_without_a_slash_behind() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let of = |path: &str| Binding::Cgroup(path.to_owned());
    create(&daemon, "pods", Terms::default(), of("/pods/a/"));
    assert_eq!(daemon.status().sessions[0].state.binding, of("/pods/a"));
    let again = refused(create(&daemon, "again", Terms::default(), of("/pods/a")));
    assert!(again.message.contains("belongs to session pods already"), "{}", again.message);
    let root = refused(create(&daemon, "root", Terms::default(), of("//")));
    assert!(root.message.contains("is no control group"), "{}", root.message);
}

#[test]
fn a_limit_below_the_use_is_answered_with_a_remark() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let token = made(&daemon, "team", Terms::with_memory(Some(Bytes::mib(512))));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    assert!(matches!(client.reserve(gpu, Bytes::mib(256)), TenantReply::Reserved { .. }));
    let set = |memory: Bytes| {
        let change = Change::Memory(Quota::every(Amount::Bytes(memory)));
        match ask(&daemon, SessionRequest::Change { which: "team".into(), change }) {
            AdminReply::Changed { new, .. } => new,
            other => panic!("not changed: {other:?}"),
        }
    };
    assert_eq!(set(Bytes::mib(384)), "384MiB");
    assert_eq!(
        set(Bytes::mib(128)),
        "128MiB; it uses 256MiB on gpu0 already, which it keeps: it gets nothing more until it is below"
    );
}

#[test]
fn an_end_can_be_removed_and_a_later_refusal_names_it() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let ends = Terms { ttl: Some(Nanos::from_millis(1)), ..Terms::default() };
    let token = made(&daemon, "short", ends);
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    let refusal = eventually("the end", || match client.reserve(gpu, Bytes::mib(1)) {
        TenantReply::Refused { refusal, .. } => Some(refusal),
        _ => None,
    });
    assert!(refusal.is_permanent(), "{refusal:?}");
    eventually("the log to say so", || {
        folders.log().contains("its time is over or it was revoked").then_some(())
    });

    match ask(&daemon, SessionRequest::Endless { which: "short".into() }) {
        AdminReply::Changed { old, new } => assert_eq!((old.as_str(), new.as_str()), ("expired", "no end")),
        other => panic!("not changed: {other:?}"),
    }
    assert!(matches!(client.reserve(gpu, Bytes::mib(1)), TenantReply::Reserved { .. }));
    let state = &daemon.status().sessions[0].state;
    assert_eq!((state.terms.ttl, state.expires_in_ns), (None, None));
}
