//! Administration: who may do it, and its effects.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use gpushare_proto::admin::{AdminReply, AdminRequest, Knob, Mode, Setting};
use gpushare_proto::tenant::FailureCode;
use gpushare_proto::{Bytes, GpuId, Nanos};

use crate::harness::{CARD, Folders, administrator};
use crate::sessions::as_nobody;

#[test]
fn another_user_may_not_administrate() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folders = Folders::new();
    let _daemon = folders.start_system(&[]);
    fs::set_permissions(folders.path(""), Permissions::from_mode(0o755)).unwrap();
    as_nobody(|| {
        let failure = administrator(&folders.runtime()).err().unwrap();
        assert!(failure.message.contains("Permission denied"), "{}", failure.message);
    });
    // The daemon checks the peer's user itself, in case the socket is ever open to all.
    fs::set_permissions(folders.runtime().admin_socket(), Permissions::from_mode(0o666)).unwrap();
    as_nobody(|| {
        let failure = administrator(&folders.runtime()).err().unwrap();
        assert_eq!(failure.code, FailureCode::Permission);
        assert!(failure.message.contains("user 65534 may not administrate"), "{}", failure.message);
    });
}

#[test]
fn the_status_knows_cards_sessions_and_processes() {
    let folders = Folders::new();
    let daemon = folders.start(&["--capacity", "0=512MiB", "--managed-limit", "2GiB"]);
    daemon.join(None).attach();
    let mut client = daemon.join(None);
    let gpu = client.attach();
    let status = daemon.status();
    assert_eq!((status.daemon.pid, status.daemon.recovering), (daemon.pid(), 0));
    let card = &status.gpus[0];
    assert_eq!((card.gpu, card.uuid, card.name.as_str()), (gpu, CARD, "test card"));
    assert_eq!(card.total_bytes, Bytes::gib(1));
    assert_eq!(card.capacity_bytes, Bytes::mib(512));
    assert_eq!(card.managed_limit_bytes, Bytes::gib(2));
    let session = &status.sessions[0];
    assert_eq!(session.session, client.welcome.session);
    assert_eq!(session.clients[0].pid, std::process::id());
}

#[test]
fn a_setting_takes_effect_and_says_what_it_was() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let _client = {
        let mut client = daemon.join(None);
        client.attach();
        client
    };
    let mut administrator = daemon.administrator();
    let mut set = |gpu, knob| {
        administrator.say(&AdminRequest::Set(Setting { gpu, knob }));
        administrator.hear()
    };
    let changed = |old: &str, new: &str| AdminReply::Changed { old: old.into(), new: new.into() };
    assert_eq!(set(None, Knob::Mode(Some(Mode::Serialized))), changed("as memory fits", "serialized"));
    assert_eq!(set(Some(GpuId(0)), Knob::Quantum(Some(Nanos::from_secs(2)))), changed("computed", "2s"));
    let unknown = set(Some(GpuId(9)), Knob::Quantum(None));
    assert!(matches!(unknown, AdminReply::Error(failure) if failure.code == FailureCode::NotFound));
    for (senseless, least) in [
        (Knob::Capacity(Some(Bytes(1))), "capacity is 1MiB to"),
        (Knob::ManagedLimit(Bytes::ZERO), "managed_limit is 1MiB to"),
        (Knob::Quantum(Some(Nanos(1))), "quantum is 1ms to 3600s"),
    ] {
        let AdminReply::Error(failure) = set(None, senseless) else {
            panic!("{senseless:?} was taken");
        };
        assert_eq!(failure.code, FailureCode::BadRequest);
        assert!(failure.message.contains(least), "{}", failure.message);
    }

    let status = daemon.status();
    assert_eq!(status.gpus[0].mode, Mode::Serialized);
    assert_eq!(status.gpus[0].quantum_ns, Nanos::from_secs(2));
}
