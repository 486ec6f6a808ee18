//! Processes that share host copies of equal bytes: one of a user fills the file, and the others get it
//! sealed.

use std::os::fd::OwnedFd;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec;
use gpushare_proto::copies::{CopiesView, CopyAnswer, CopyName};
use gpushare_proto::page::FEATURE_COPIES;
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, RequestId};
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fstat, ftruncate};
use rustix::io::{Errno, ioctl_fionread, pread, pwrite};

use crate::harness::{Daemon, Folders, Peer, eventually};
use crate::processes::Process;

pub(crate) const NAME: CopyName = CopyName([7; 16]);
const SIZE: Bytes = Bytes::mib(2);
const DONE: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

type Tool = Peer<TenantRequest, TenantReply>;

/// Asks for a copy of the bytes of a name. Returns the answer with the file that came with it.
fn ask_for(tool: &mut Tool, name: CopyName, chunks: u32) -> (CopyAnswer, Option<OwnedFd>) {
    let request = RequestId(9);
    tool.say(&TenantRequest::Copy { request, name, bytes: SIZE, chunks });
    match tool.hear() {
        TenantReply::CopyAnswered { request: of, answer } if of == request => {
            (answer, tool.take_descriptor())
        }
        other => panic!("no answer to {request:?}: {other:?}"),
    }
}

/// Asks for a copy for one chunk, and returns the answer.
pub(crate) fn ask(tool: &mut Tool) -> CopyAnswer {
    ask_for(tool, NAME, 1).0
}

/// Asks for a copy whose file comes with the answer.
fn get(tool: &mut Tool, expected: CopyAnswer) -> OwnedFd {
    let (answer, file) = ask_for(tool, NAME, 1);
    assert_eq!(answer, expected);
    file.expect("a file comes with the answer")
}

fn view(daemon: &Daemon) -> CopiesView {
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Copies);
    match administrator.hear() {
        AdminReply::Copies(view) => view,
        other => panic!("no copies: {other:?}"),
    }
}

#[test]
fn one_process_fills_and_the_others_get_a_sealed_file() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    assert_eq!(ask(&mut first), CopyAnswer::Alone);
    assert_eq!(view(&daemon), CopiesView::default());
    let empty = get(&mut second, CopyAnswer::Fill);
    assert_eq!(fstat(&empty).unwrap().st_size as u64, SIZE.0);
    assert_eq!(ftruncate(&empty, 2 * SIZE.0), Err(Errno::PERM), "a process cannot make it larger");
    assert_eq!(ask(&mut first), CopyAnswer::Busy);
    assert_eq!(pwrite(&empty, b"weights", 4096).unwrap(), 7);
    fcntl_add_seals(&empty, DONE).unwrap();
    let made = get(&mut first, CopyAnswer::Made);
    let mut bytes = [0; 7];
    assert_eq!((pread(&made, &mut bytes, 4096).unwrap(), &bytes), (7, b"weights"));
    assert_eq!(fcntl_getfl(&made).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
    assert_eq!(pwrite(&empty, b"x", 0), Err(Errno::PERM), "nor can the one that filled it change it");
    get(&mut second, CopyAnswer::Made);
    assert_eq!(view(&daemon), CopiesView { copies: 1, bytes: SIZE, users: 1 });
}

#[test]
fn a_file_that_is_not_sealed_is_handed_to_nobody_else() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    ask(&mut first);
    let file = get(&mut second, CopyAnswer::Fill);
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::WRITE] {
        fcntl_add_seals(&file, seals).unwrap();
        assert!(matches!(ask_for(&mut first, NAME, 1), (CopyAnswer::Busy, None)), "{seals:?}");
    }
    fcntl_add_seals(&file, DONE).unwrap();
    get(&mut first, CopyAnswer::Made);
}

#[test]
fn a_file_that_can_never_be_sealed_gives_way_to_another() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    ask(&mut first);
    let spoilt = get(&mut second, CopyAnswer::Fill);
    fcntl_add_seals(&spoilt, SealFlags::SEAL).unwrap();
    let other = get(&mut first, CopyAnswer::Fill);
    assert_ne!(fstat(&other).unwrap().st_ino, fstat(&spoilt).unwrap().st_ino);
}

#[test]
fn a_process_with_two_equal_chunks_fills_a_copy() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    assert_eq!([ask(&mut tool), ask(&mut tool)], [CopyAnswer::Alone; 2]);
    assert!(matches!(ask_for(&mut tool, NAME, 2), (CopyAnswer::Fill, Some(_))));
}

#[test]
fn copies_end_with_the_connections_that_have_asked() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    ask(&mut first);
    let unfinished = get(&mut second, CopyAnswer::Fill);
    drop(second);
    eventually("the file of the dead filler to be gone", || (view(&daemon).copies == 0).then_some(()));
    let mut third = daemon.tool();
    let file = get(&mut third, CopyAnswer::Fill);
    assert_ne!(fstat(&file).unwrap().st_ino, fstat(&unfinished).unwrap().st_ino);
    fcntl_add_seals(&file, DONE).unwrap();
    get(&mut first, CopyAnswer::Made);
    third.say(&TenantRequest::EndCopy { name: NAME, bytes: SIZE });
    assert_eq!(ask_for(&mut third, CopyName([8; 16]), 1).0, CopyAnswer::Alone);
    assert_eq!(view(&daemon).copies, 1, "the first one has it yet");
    drop(first);
    eventually("the copy to be gone", || (view(&daemon) == CopiesView::default()).then_some(()));
    assert_eq!(ask(&mut third), CopyAnswer::Alone);
}

#[test]
fn users_share_no_copy() {
    let folders = Folders::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's processes");
        return;
    }
    let daemon = folders.start_system(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    ask(&mut first);
    fcntl_add_seals(get(&mut second, CopyAnswer::Fill), DONE).unwrap();
    get(&mut first, CopyAnswer::Made);
    assert_eq!(Process::copying_as(&folders, 12345), CopyAnswer::Alone);
    get(&mut first, CopyAnswer::Made);
}

#[test]
fn a_new_daemon_has_no_copies_and_makes_others() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    ask(&mut first);
    let kept = get(&mut second, CopyAnswer::Fill);
    assert_eq!(pwrite(&kept, b"weights", 0).unwrap(), 7);
    fcntl_add_seals(&kept, DONE).unwrap();
    daemon.kill();
    assert!(first.listen().is_none());
    let mut bytes = [0; 7];
    assert_eq!((pread(&kept, &mut bytes, 0).unwrap(), &bytes), (7, b"weights"), "the file lasts");
    let daemon = folders.start(&[]);
    let (mut first, mut second) = (daemon.tool(), daemon.tool());
    assert_eq!(ask(&mut first), CopyAnswer::Alone);
    get(&mut second, CopyAnswer::Fill);
}

#[test]
fn a_peer_that_does_not_read_gets_no_files_and_keeps_its_connection() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    let request = TenantRequest::Copy { request: RequestId(9), name: NAME, bytes: SIZE, chunks: 2 };
    (0..50).for_each(|_| tool.say(&request));
    let busy = |reply| matches!(reply, TenantReply::CopyAnswered { answer: CopyAnswer::Busy, .. });
    let frame = codec::encode(&TenantReply::CopyAnswered { request: RequestId(9), answer: CopyAnswer::Busy });
    let all = 50 * frame.unwrap().len() as u64;
    eventually("all answers", || (ioctl_fionread(&tool.stream).unwrap() == all).then_some(()));
    let answers: Vec<bool> = (0..50).map(|_| busy(tool.hear())).collect();
    assert!(!answers[0], "the first answer brings the file");
    assert!(answers[49], "the last one comes while many are unread");
    let _ = tool.take_descriptor();
    assert!(matches!(ask_for(&mut tool, NAME, 2), (CopyAnswer::Fill, Some(_))), "it has read");
}

#[test]
fn sizes_and_numbers_that_no_chunk_has_are_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    let mut refused = |bytes, chunks| {
        tool.say(&TenantRequest::Copy { request: RequestId(1), name: NAME, bytes, chunks });
        let refusal = TenantReply::CopyAnswered { request: RequestId(1), answer: CopyAnswer::Refused };
        tool.hear() == refusal
    };
    assert!(refused(Bytes::mib(3), 2) && refused(Bytes::mib(130), 2) && refused(SIZE, 0));
}

#[test]
fn the_page_says_that_the_daemon_keeps_copies() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let features = daemon.join(None).page.features.load(std::sync::atomic::Ordering::Relaxed);
    assert_ne!(features & FEATURE_COPIES, 0);
}
