//! A daemon that dies and comes back: it knows whom to wait for, and believes nobody else.

use std::fs;

use gpushare_proto::admin::LockView;
use gpushare_proto::tenant::{Returning, ReturningGpu};
use gpushare_proto::{Bytes, ClientId, Epoch, SessionId};

use crate::deaths::{holds, lock_of};
use crate::harness::{Client, Place, card, eventually, join};
use crate::processes::{Process, TURNS, wanting};

pub(crate) fn returning(client: &Client, holding: Option<Epoch>) -> Returning {
    Returning {
        client: client.welcome.client,
        session: client.welcome.session,
        holding,
        gpus: vec![ReturningGpu {
            info: card(),
            used: Bytes::mib(100),
            contexts: 1,
        }],
        waiting: false,
    }
}

/// Waits until the registry's file knows so many clients.
pub(crate) fn written(place: &Place, clients: usize) {
    eventually("the registry to be written", || {
        let text = fs::read_to_string(place.runtime().registry()).ok()?;
        let book: serde_json::Value = serde_json::from_str(&text).ok()?;
        (book["clients"].as_array()?.len() == clients).then_some(())
    });
}

#[test]
fn sessions_and_holders_survive_a_kill() {
    let place = Place::new();
    let daemon = place.start(&TURNS);
    let (session, token) = daemon.register("durable", Some(Bytes::mib(256)));
    let mut client = daemon.join(Some(&token));
    client.attach();
    client.wait();
    let epoch = client.enter();
    written(&place, 1);
    daemon.kill();

    let daemon = place.start(&TURNS);
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 1);
    assert_eq!(
        (status.sessions[0].session, status.sessions[0].name.as_str()),
        (session, "durable")
    );
    assert_eq!(status.sessions[0].memory_limit_bytes, Some(Bytes::mib(256)));

    let back = daemon.return_as(returning(&client, Some(epoch)));
    assert_eq!(back.welcome.client, client.welcome.client);
    assert_eq!(back.welcome.session, session);
    assert_eq!(back.welcome.gpus.len(), 1);
    holds(&daemon, session);
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 0);
    assert_eq!(status.sessions[0].gpus[0].allocated_bytes, Bytes::mib(100));

    // Numbers go on: nobody is taken for somebody of before.
    let (next, _) = daemon.register("next", None);
    assert_eq!(next, SessionId(session.0 + 1));
    assert!(daemon.join(Some(&token)).welcome.client > client.welcome.client);
}

#[test]
fn nothing_is_granted_until_all_are_back_or_dead() {
    let place = Place::new();
    let daemon = place.start(&TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = Process::wanting_the_lock(&place, &first_token);
    holds(&daemon, first);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    written(&place, 2);
    daemon.kill();

    let daemon = place.start(&TURNS);
    let mut back = daemon.return_as(Returning {
        waiting: true,
        ..returning(&waiter, None)
    });
    // The holder does not come back, and as long as it lives it may be running.
    let status = daemon.status();
    assert_eq!(status.daemon.recovering, 1);
    assert!(!matches!(
        lock_of(&daemon, second),
        Some(LockView::Holding { .. })
    ));
    holder.kill();
    back.enter();
    assert_eq!(daemon.status().daemon.recovering, 0);
}

#[test]
fn only_the_same_process_comes_back() {
    let place = Place::new();
    let daemon = place.start(&[]);
    let client = daemon.join(None);
    written(&place, 1);
    daemon.kill();

    let daemon = place.start(&[]);
    let given = Process::claiming(&place, client.welcome.client);
    assert_eq!(given, ClientId(client.welcome.client.0 + 1));
    assert_eq!(daemon.status().daemon.recovering, 1);
}

#[test]
fn a_process_that_connects_again_is_counted_once() {
    let place = Place::new();
    let daemon = place.start(&[]);
    let (_, token) = daemon.register("again", Some(Bytes::mib(128)));
    let mut before = daemon.join(Some(&token));
    let gpu = before.attach();
    before.reserve(gpu, Bytes::mib(100));
    // The old connection is still open.
    let again = join(&place.runtime(), Some(&token), Some(returning(&before, None))).unwrap();
    let status = daemon.status();
    assert_eq!(status.sessions[0].clients.len(), 1);
    assert_eq!(status.sessions[0].clients[0].client, again.welcome.client);
    assert_eq!(status.gpus[0].allocated_bytes, Bytes::mib(100));
}

#[test]
fn a_registry_that_does_not_read_is_set_aside() {
    let place = Place::new();
    fs::create_dir(place.runtime().root()).unwrap();
    fs::write(place.runtime().registry(), "{ half").unwrap();
    let daemon = place.start(&[]);
    assert!(place.runtime().root().join("registry.json.corrupt-0").exists());
    assert!(place.log().contains("does not read"), "{}", place.log());
    // What a process says it uses is booked all the same, under a new number.
    let mut old = daemon.join(None);
    old.attach();
    let claimed = Returning {
        client: ClientId(77),
        ..returning(&old, None)
    };
    let back = daemon.return_as(claimed);
    assert_ne!(back.welcome.client, ClientId(77));
    assert_eq!(daemon.status().gpus[0].allocated_bytes, Bytes::mib(100));
}
