//! Processes that open memory of another process: the daemon introduces them if both are of one user.

use gpushare_proto::sharing::{ExportName, Meeting, Secret};
use gpushare_proto::tenant::{FailureCode, TenantReply, TenantRequest};
use gpushare_proto::{ClientId, RequestId};

use crate::harness::{Client, Folders};
use crate::processes::Process;
use crate::restart::{returning, written};

pub(crate) const MEETING: Meeting =
    Meeting { socket: [1; 16], exporter: Secret([2; 16]), importer: Secret([3; 16]) };

pub(crate) fn export_of(exporter: ClientId) -> ExportName {
    ExportName { exporter, number: 7, secret: Secret([4; 16]) }
}

/// Asks for memory of a client, and returns whether that client was told.
pub(crate) fn is_told(importer: &mut Client, exporter: ClientId) -> bool {
    let (request, export) = (RequestId(9), export_of(exporter));
    importer.peer.say(&TenantRequest::Import { request, export, meeting: MEETING });
    importer.hear_until(|reply| match reply {
        TenantReply::ImportAnswered { request: of, is_told } => (of == request).then_some(is_told),
        _ => None,
    })
}

/// Returns a client of a daemon that was killed.
fn client_of_last_daemon(folders: &Folders) -> Client {
    let daemon = folders.start(&[]);
    let client = daemon.join(None);
    written(folders, 1);
    daemon.kill();
    client
}

#[test]
fn the_exporter_hears_where_the_importer_waits() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("a", None);
    let (mut exporter, mut importer) = (daemon.join(Some(&token)), daemon.join(None));
    let id = exporter.welcome.client;
    assert!(is_told(&mut importer, id));
    let told = exporter.hear_until(|reply| match reply {
        TenantReply::ImportWanted { export, meeting } => Some((export, meeting)),
        _ => None,
    });
    assert_eq!(told, (export_of(id), MEETING));
}

#[test]
fn an_exporter_that_is_gone_is_not_told() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (exporter, mut importer) = (daemon.join(None), daemon.join(None));
    let id = exporter.welcome.client;
    drop(exporter);
    crate::harness::eventually("the exporter to be gone", || (!is_told(&mut importer, id)).then_some(()));
    assert!(!is_told(&mut importer, ClientId(u64::MAX)));
}

#[test]
fn an_importer_waits_for_an_exporter_that_has_not_returned_to_a_new_daemon() {
    let folders = Folders::new();
    let exporter = client_of_last_daemon(&folders);
    let id = exporter.welcome.client;
    let daemon = folders.start(&[]);
    let mut importer = Process::importing_late(&folders, id);
    let mut exporter = daemon.return_as(returning(&exporter, None));
    assert!(importer.is_told());
    assert!(exporter.hear_until(|reply| match reply {
        TenantReply::ImportWanted { export, .. } => Some(export == export_of(id)),
        _ => None,
    }));
}

/// The bound is `clients::introductions::MOST`.
#[test]
fn of_one_users_questions_no_more_than_256_wait() {
    let folders = Folders::new();
    let exporter = client_of_last_daemon(&folders);
    let id = exporter.welcome.client;
    let _daemon = folders.start(&[]);
    let (_importer, first) = Process::importing_times(&folders, id, 257);
    assert_eq!(first, 257, "the others wait");
}

#[test]
fn memory_of_another_user_is_not_asked_for() {
    let folders = Folders::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's processes");
        return;
    }
    let config = folders.path("config.toml");
    std::fs::write(&config, "implicit_sessions = true").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let exporter = daemon.join(None);
    let id = exporter.welcome.client;
    assert!(is_told(&mut daemon.join(None), id), "its own user");
    assert!(!Process::importing_as(&folders, id, 12345));
    folders.logged("a process of another user");
}

#[test]
fn an_exporter_that_does_not_read_keeps_its_connection() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut exporter, mut importer) = (daemon.join(None), daemon.join(None));
    let id = exporter.welcome.client;
    // Until its queue is half full. Then it is told no more.
    while is_told(&mut importer, id) {}
    let gpu = exporter.attach();
    assert!(matches!(exporter.reserve(gpu, gpushare_proto::Bytes::mib(1)), TenantReply::Reserved { .. }));
    assert!(is_told(&mut importer, id), "it has read");
}

#[test]
fn a_tool_opens_no_memory() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let exporter = daemon.join(None);
    let export = export_of(exporter.welcome.client);
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Import { request: RequestId(1), export, meeting: MEETING });
    let TenantReply::Error(failure) = tool.hear() else { panic!("no failure") };
    assert_eq!(failure.code, FailureCode::BadRequest);
}
