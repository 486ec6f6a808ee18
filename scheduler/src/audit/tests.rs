use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gpushare_proto::SessionId;
use rustix::fs::Mode;
use tempfile::TempDir;

use super::*;
use gpushare_proto::ranges::AUDIT_SIZE;

/// Longest time that a test waits for the disk.
const LONG: Duration = Duration::from_secs(60);

fn settings(path: Option<PathBuf>) -> AuditSettings {
    AuditSettings { path, size: AUDIT_SIZE.least(), files: 2, allocations: 0 }
}

fn opened(folder: &Path) -> io::Result<OwnedFd> {
    folder_of(&folder.join("x"))
}

fn start(folder: &TempDir) -> Audit {
    Audit::start(&settings(None), opened(folder.path()), folder.path().join("audit.log"))
}

/// Entry that is recognized by its number.
fn numbered(count: u64) -> Entry {
    Entry::Omitted { session_id: Some(SessionId(1)), session: None, uid: None, count }
}

fn numbers(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let counts = entries.map(|line| match line.entry {
        Entry::Omitted { count, .. } => count,
        other => panic!("{other:?}"),
    });
    counts.collect()
}

#[tokio::test]
async fn lines_are_in_order_and_readable_by_the_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let audit = start(&folder);
    (0..5).for_each(|n| audit.write(numbered(n)));
    audit.finish_within(LONG).await;
    let path = folder.path().join("audit.log");
    assert_eq!(numbers(&path), [0, 1, 2, 3, 4]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let audit = start(&folder);
    audit.write(numbered(5));
    audit.finish_within(LONG).await;
    assert_eq!(numbers(&path), [0, 1, 2, 3, 4, 5], "the next daemon goes on");
}

#[tokio::test]
async fn full_files_are_rotated_and_only_so_many_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let audit = start(&folder);
    (0..300).for_each(|n| audit.write(numbered(n)));
    audit.finish_within(LONG).await;
    let files = ["audit.log.2", "audit.log.1", "audit.log"].map(|name| folder.path().join(name));
    let kept: Vec<u64> = files.iter().flat_map(|path| numbers(path)).collect();
    assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{kept:?}");
    assert_eq!(kept.last(), Some(&299));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    let sizes = files.map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes.iter().all(|&size| (1..=AUDIT_SIZE.least().0).contains(&size)), "{sizes:?}");
}

#[tokio::test]
async fn a_folder_that_was_replaced_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (folder.path().join("run"), folder.path().join("gone"));
    fs::create_dir(&ours).unwrap();
    let audit = Audit::start(&settings(None), opened(&ours), ours.join("audit.log"));
    fs::rename(&ours, &theirs).unwrap();
    fs::create_dir(&ours).unwrap();
    audit.write(numbered(1));
    audit.finish_within(LONG).await;
    assert_eq!(fs::read_dir(&ours).unwrap().count(), 0);
    assert_eq!(numbers(&theirs.join("audit.log")), [1]);
}

#[tokio::test]
async fn after_an_incomplete_line_the_next_one_starts_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    fs::write(&path, "{\"at\":\"20").unwrap();
    let audit = start(&folder);
    audit.write(numbered(1));
    audit.finish_within(LONG).await;
    assert!(fs::read_to_string(&path).unwrap().starts_with("{\"at\":\"20\n{"));
    assert_eq!(numbers(&path), [1]);
}

#[tokio::test]
async fn lines_lost_on_a_full_disk_are_counted() {
    let full = PathBuf::from("/dev/full");
    let audit = Audit::start(&settings(Some(full)), opened(Path::new("/dev")), PathBuf::new());
    (0..10).for_each(|n| audit.write(numbered(n)));
    let counts = audit.counts.clone();
    audit.finish_within(LONG).await;
    let (written, lost) = (&counts.written, &counts.lost);
    assert_eq!((written.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)), (0, 10));
}

#[tokio::test]
async fn lost_lines_are_reported_once_the_log_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    // A folder cannot be opened for writing.
    fs::create_dir(&path).unwrap();
    let audit = start(&folder);
    audit.write(numbered(1));
    while audit.counts().1 == 0 {
        thread::sleep(Duration::from_millis(2));
    }
    fs::remove_dir(&path).unwrap();
    audit.write(numbered(2));
    audit.finish_within(LONG).await;
    let text = fs::read_to_string(&path).unwrap();
    let entries: Vec<Entry> = text
        .lines()
        .map(|line| serde_json::from_str::<Line>(line).unwrap().entry)
        .collect();
    assert_eq!(entries, [Entry::Lost { lines: 1 }, numbered(2)]);
}

#[tokio::test]
async fn a_pipe_that_is_never_read_costs_lines_and_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    let audit = start(&folder);
    (0..5000).for_each(|n| audit.write(numbered(n)));
    let counts = audit.counts.clone();
    audit.finish_within(LONG).await;
    let (written, lost) = (counts.written.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed));
    assert_eq!(written + lost, 5000);
    assert!(written > 0 && lost > 0, "{written} {lost}");
}

#[tokio::test]
async fn after_a_move_of_the_file_a_new_one_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let audit = start(&folder);
    audit.write(numbered(1));
    while audit.counts().0 == 0 {
        thread::sleep(Duration::from_millis(2));
    }
    fs::rename(&path, folder.path().join("taken")).unwrap();
    audit.write(numbered(2));
    audit.finish_within(LONG).await;
    assert_eq!(numbers(&path), [2]);
}

#[test]
fn one_reservation_in_so_many_is_logged() {
    let sampled = |allocations, n| {
        let mut audit = Audit { allocations, ..Audit::default() };
        (0..n).filter(|_| audit.samples_reservation().is_some()).count()
    };
    assert_eq!([sampled(0, 9), sampled(1, 9), sampled(3, 9), sampled(4, 9)], [0, 9, 3, 2]);
}
