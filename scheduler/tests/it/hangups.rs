//! Clients that hang up and live: they keep what they were given.

use std::fs;
use std::net::Shutdown;

use gpushare_proto::admin::{LockView, SessionView};
use gpushare_proto::tenant::{Returning, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, GpuId, RequestId, SessionId, Token};

use crate::deaths::{holds, lock_of};
use crate::harness::{CARD, Client, Daemon, Folders, eventually, join};
use crate::processes::{Process, SHORT_TURNS, wanting};
use crate::restart::{returning, usage, written};

const QUOTA: Bytes = Bytes::mib(128);

/// Closes a client's connection and waits until the daemon has noticed.
fn hang_up(folders: &Folders, client: &Client) {
    let before = folders.log().matches("hung up and lives").count();
    client.peer.stream.shutdown(Shutdown::Both).unwrap();
    eventually("the hang-up to be noticed", || {
        (folders.log().matches("hung up and lives").count() > before).then_some(())
    });
}

fn view(daemon: &Daemon, session: SessionId) -> SessionView {
    let sessions = daemon.status().sessions;
    sessions.into_iter().find(|view| view.session == session).unwrap()
}

fn allocated(daemon: &Daemon, session: SessionId) -> Bytes {
    view(daemon, session).gpus.iter().map(|gpu| gpu.allocated_bytes).sum()
}

/// Returns the one client of a session, on the card.
fn member(daemon: &Daemon) -> (SessionId, Token, Client, GpuId) {
    let (session, token) = daemon.register("one", Some(QUOTA));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    (session, token, client, gpu)
}

fn is_refused(answer: &TenantReply) -> bool {
    matches!(answer, TenantReply::Refused { .. })
}

#[test]
fn what_it_has_is_not_given_to_its_sibling() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("two", Some(QUOTA));
    let (mut quiet, mut sibling) = (daemon.join(Some(&token)), daemon.join(Some(&token)));
    let gpu = quiet.attach();
    sibling.attach();
    quiet.reserve(gpu, Bytes::mib(100));
    hang_up(&folders, &quiet);
    assert!(is_refused(&sibling.reserve(gpu, Bytes::mib(29))));
    // Free bytes in its page are recalled before another process is refused.
    assert!(!is_refused(&sibling.reserve(gpu, Bytes::mib(28))));
    // A new join of the same process is a second client beside it.
    let mut other = daemon.join(Some(&token));
    assert_ne!(other.welcome.client, quiet.welcome.client);
    other.attach();
    assert!(is_refused(&other.reserve(gpu, Bytes::mib(1))));
    assert_eq!(view(&daemon, session).clients.len(), 3);
}

#[test]
fn it_is_back_with_what_was_known_of_it_whatever_it_says() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token, mut client, gpu) = member(&daemon);
    client.reserve(gpu, Bytes::mib(80));
    for (says, booked) in [(0, 80), (100, 100), (1000, 128)] {
        hang_up(&folders, &client);
        let mut had = returning(&client, None);
        had.gpus[0].used = Bytes::mib(says);
        client = join(&folders.runtime(), Some(&token), Some(had)).unwrap();
        assert_eq!(client.welcome.gpus, [gpu]);
        assert_eq!(allocated(&daemon, session), Bytes::mib(booked), "it says {says}");
    }
    // It does not mention the card.
    hang_up(&folders, &client);
    let gpus = vec![];
    let had = Returning { gpus, ..returning(&client, None) };
    let back = join(&folders.runtime(), Some(&token), Some(had)).unwrap();
    assert_eq!(back.welcome.client, client.welcome.client);
    assert_eq!(allocated(&daemon, session), QUOTA);
}

#[test]
fn a_lost_answer_is_repeated_and_booked_once() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token, mut client, gpu) = member(&daemon);
    let (request, bytes) = (RequestId(7777), QUOTA);
    let asks = TenantRequest::Reserve { request, gpu, bytes };
    client.peer.say(&asks);
    eventually("it to be booked", || (allocated(&daemon, session) == QUOTA).then_some(()));
    hang_up(&folders, &client);
    let mut had = returning(&client, None);
    had.gpus[0].used = Bytes::ZERO;
    let mut back = join(&folders.runtime(), Some(&token), Some(had)).unwrap();
    for given in [true, false] {
        back.peer.say(&asks);
        let answer = back.hear_until(|reply| match reply {
            TenantReply::Reserved { .. } | TenantReply::Refused { .. } => Some(reply),
            _ => None,
        });
        assert_eq!(!is_refused(&answer), given, "{answer:?}");
    }
    assert_eq!(allocated(&daemon, session), QUOTA);
}

#[test]
fn bytes_returned_in_a_lost_message_are_freed_after_reconciling() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token, mut client, gpu) = member(&daemon);
    client.reserve(gpu, Bytes::mib(80));
    let (request, bytes) = (RequestId(7777), Bytes::mib(8));
    let asks = TenantRequest::Reserve { request, gpu, bytes };
    client.peer.say(&asks);
    eventually("it to be booked", || (allocated(&daemon, session) == Bytes::mib(88)).then_some(()));
    hang_up(&folders, &client);
    // It returned 30 MiB on the closed connection, and the answer for the other bytes was lost.
    let mut had = returning(&client, None);
    had.gpus[0].used = Bytes::mib(50);
    let mut back = join(&folders.runtime(), Some(&token), Some(had)).unwrap();
    back.peer.say(&asks);
    let answer = TenantReply::Reserved { request, bytes };
    back.hear_until(|reply| (reply == answer).then_some(()));
    assert_eq!(allocated(&daemon, session), Bytes::mib(88));
    back.peer.say(&TenantRequest::Reconciled);
    eventually("what nobody has to be free", || {
        (allocated(&daemon, session) == Bytes::mib(58)).then_some(())
    });
    // A second message of that kind frees nothing more.
    back.peer.say(&TenantRequest::Reconciled);
    back.reserve(gpu, Bytes::mib(70));
    assert_eq!(allocated(&daemon, session), QUOTA);
}

#[test]
fn a_client_that_is_away_keeps_its_lock_and_is_named() {
    let folders = Folders::new();
    let daemon = folders.start(&SHORT_TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = daemon.join(Some(&first_token));
    wanting(&mut holder);
    holder.enter();
    holds(&daemon, first);
    hang_up(&folders, &holder);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    let reason = eventually("the first to be asked to let go", || match lock_of(&daemon, first) {
        Some(LockView::Dropping { reason, .. }) => Some(reason),
        _ => None,
    });
    let named = format!("; pid {} hung up and lives", std::process::id());
    assert!(reason.ends_with(&named), "{reason}");
    assert_eq!(holder.gate().state(), GateState::Closed, "its page closes its gate");
    assert!(matches!(lock_of(&daemon, second), Some(LockView::Waiting { .. })));

    // After its return it is asked again, by the first word of a new page.
    let mut back = join(&folders.runtime(), Some(&first_token), Some(returning(&holder, None))).unwrap();
    let word =
        eventually("its gate to be closed anew", || Some(back.gate()).filter(|word| word.change() > 0));
    assert_eq!(word.state(), GateState::Closed);
    assert!(matches!(lock_of(&daemon, second), Some(LockView::Waiting { .. })));
    back.peer
        .say(&TenantRequest::Released { word, drain: gpushare_proto::Nanos::ZERO });
    waiter.enter();
}

#[test]
fn its_lock_goes_on_by_the_stuck_policy() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[scheduling]\nstuck_policy = 'kill'\nstuck_after = '50ms'").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let daemon = folders.start(&[&SHORT_TURNS[..], &config].concat());
    let (_, first_token) = daemon.register("first", None);
    let (_, second_token) = daemon.register("second", None);
    let _holder = Process::hanging_up(&folders, &first_token);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    waiter.enter();
    folders.logged("it did not let go of the GPU");
}

#[test]
fn with_its_death_all_is_free() {
    let folders = Folders::new();
    let daemon = folders.start(&SHORT_TURNS);
    let (first, first_token) = daemon.register("first", Some(QUOTA));
    let (_, second_token) = daemon.register("second", None);
    let mut holder = Process::hanging_up(&folders, &first_token);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    eventually("the second to wait for it", || match lock_of(&daemon, first) {
        Some(LockView::Dropping { .. }) => Some(()),
        _ => None,
    });
    assert_eq!(allocated(&daemon, first), Bytes::mib(100));
    holder.kill();
    waiter.enter();
    eventually("what it had to be free", || allocated(&daemon, first).is_zero().then_some(()));
    assert!(view(&daemon, first).clients.is_empty());
}

#[test]
fn a_silent_return_after_a_restart_keeps_the_memory_booked() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("two", Some(QUOTA));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(100));
    written(&folders, 1);
    // The answer comes when what it uses is written.
    usage(&daemon);
    daemon.kill();
    let daemon = folders.start(&[]);
    let mut other = daemon.join(Some(&token));
    let gpu = other.attach();
    assert!(is_refused(&other.reserve(gpu, Bytes::mib(29))));
    assert!(!is_refused(&other.reserve(gpu, Bytes::mib(28))));
    assert_eq!(view(&daemon, session).clients.len(), 2);
    // It may still say who it was.
    let back = join(&folders.runtime(), Some(&token), Some(returning(&client, None))).unwrap();
    assert_eq!(back.welcome.client, client.welcome.client);
    assert_eq!(allocated(&daemon, session), QUOTA);
}

#[test]
fn a_user_is_away_as_often_at_most_as_it_may_connect() {
    let folders = Folders::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's processes");
        return;
    }
    let config = folders.path("config.toml");
    let card = format!("[gpus.{CARD}]\nepsilon = '5%'");
    let text = format!("implicit_sessions = true\nconnections_per_user = 9\n{card}");
    fs::write(&config, text).unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let (first, hung_up) = Process::hanging_up_as(&folders, 12345);
    let (second, refused) = Process::hanging_up_as(&folders, 12345);
    assert_eq!((hung_up, refused), (9, 0));
    folders.logged("processes of user 12345 hung up 9 times");
    let (_other, other) = Process::hanging_up_as(&folders, 12346);
    assert_eq!(other, 9, "another user is not concerned");
    drop((first, second));
    eventually("all of the first user's to be gone", || {
        let clients = daemon.status().sessions.iter().map(|view| view.clients.len()).sum::<usize>();
        (clients == 9).then_some(())
    });
    assert_eq!(Process::hanging_up_as(&folders, 12345).1, 9);
}
