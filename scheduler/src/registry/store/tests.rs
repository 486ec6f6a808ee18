use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use gpushare_proto::GpuUuid;
use gpushare_proto::session::{Amount, Binding, Quota, Terms};

use super::*;
use crate::identity::{ImplicitKey, ProcessId, Scope};
use crate::registry::{CardLead, Origin};

fn entry(number: u64) -> SessionEntry {
    SessionEntry {
        session: SessionId(number),
        name: format!("train-{number}"),
        terms: Terms::default(),
        oversubscribe: false,
        card: None,
        origin: Origin::Implicit(ImplicitKey { uid: 7, scope: Scope::PosixSession(9) }),
        paused: false,
        revoked: false,
        expires_unix: None,
        totals: Figures { held: Nanos(5), ..Figures::default() },
        leads: vec![CardLead { card: GpuUuid::gpu([3; 16]), lead_ns: -5 }],
        ceiling: Some(Quota::every(Amount::Bytes(Bytes::gib(1)))),
        joined: vec![],
    }
}

fn book(sessions: u64) -> Book {
    let mut book = Book::new(sessions + 1, 4);
    book.sessions = (1..=sessions).map(entry).collect();
    book.clients = vec![ClientEntry {
        client: gpushare_proto::ClientId(3),
        session: SessionId(1),
        process: ProcessId { pid: 5, start: 50 },
        cards: vec![],
        remaps: true,
        frozen: true,
    }];
    book
}

fn used(hour: Hour, session: u64, held: u64) -> Usage {
    let figures = Figures { held: Nanos(held), peak: Bytes(held), ..Figures::default() };
    let name = format!("train-{session}");
    let user = Some(format!("{}", 1000 + session));
    Usage::from([((hour, SessionId(session)), Spent { name, user, figures })])
}

fn usage_from(store: &Store, first: Hour) -> Vec<UsageView> {
    let found = store.usage(Hours::from(first)).unwrap().into_iter();
    found.map(|found| found.usage).collect()
}

fn open(folder: &Path) -> (Store, Book) {
    Store::open(at(folder), None).unwrap()
}

fn at(folder: &Path) -> At {
    (File::open(folder).unwrap().into(), folder.join("registry.redb"))
}

/// Creates a folder in memory, where an fsync costs nothing.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_next_daemon_reads_the_latest_book() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, empty) = open(folder.path());
    assert_eq!(empty, Book::new(1, 1));
    for last in [book(1), book(40), book(3)] {
        store.write(&last, Usage::new()).unwrap();
        drop(store);
        let read;
        (store, read) = open(folder.path());
        assert_eq!(read, last);
    }
    assert_eq!(names(folder.path()), ["registry.redb"]);
    let file = fs::metadata(folder.path().join("registry.redb")).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
}

#[test]
fn a_session_of_an_older_store_has_no_virtual_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut old = book(2);
    old.sessions[0].leads.clear();
    // An entry without virtual time has the bytes that an older daemon wrote.
    let row = serde_json::to_string(&old.sessions[0]).unwrap();
    assert!(!row.contains("leads"), "{row}");
    let (mut store, _) = open(folder.path());
    store.write(&old, Usage::new()).unwrap();
    drop(store);
    assert_eq!(open(folder.path()).1, old);
}

#[test]
fn a_book_with_impossible_numbers_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let impossible = [
        Book { next_session: u64::MAX, ..book(2) },
        Book { next_client: 0, ..book(2) },
        Book { next_session: 2, ..book(2) },
    ];
    for (n, impossible) in impossible.iter().enumerate() {
        let (mut store, _) = open(folder.path());
        store.write(impossible, Usage::new()).unwrap();
        drop(store);
        assert_eq!(open(folder.path()).1, Book::new(1, 1), "{impossible:?}");
        assert!(folder.path().join(format!("registry.redb.corrupt-{n}")).exists());
    }
}

#[test]
fn a_file_that_is_no_store_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    for (n, text) in ["", "{\"format\": 1, ", &"x".repeat(100_000)].into_iter().enumerate() {
        fs::write(&path, text).unwrap();
        assert_eq!(open(folder.path()).1, Book::new(1, 1));
        let aside = folder.path().join(format!("registry.redb.corrupt-{n}"));
        assert_eq!(fs::read_to_string(aside).unwrap(), text);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(open(folder.path()).1, Book::new(1, 1));
    assert!(folder.path().join("registry.redb.corrupt-3").is_dir());
}

#[test]
fn after_a_reboot_persistent_sessions_and_usage_remain() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    let mut old = Book { boot: "another".into(), ..book(2) };
    old.sessions[1].origin = Origin::Created { token: None, binding: Binding::Uid(7), uid: 0 };
    store.write(&old, used(Hour::now(), 1, 9)).unwrap();
    drop(store);
    let (store, read) = open(folder.path());
    assert_eq!((read.next_session, read.next_client), (3, 4));
    let kept = SessionEntry { leads: vec![], ..old.sessions[1].clone() };
    assert_eq!((read.sessions, read.clients), (vec![kept], vec![]));
    assert_eq!(usage_from(&store, Hour::now())[0].held_ns, Nanos(9));
}

#[test]
fn another_daemons_registry_at_the_same_path_stays() {
    let root = tempfile::tempdir().unwrap();
    let (ours, gone) = (root.path().join("run"), root.path().join("gone"));
    fs::create_dir(&ours).unwrap();
    let (mut store, _) = open(&ours);
    fs::rename(&ours, &gone).unwrap();
    fs::create_dir(&ours).unwrap();
    fs::write(ours.join("registry.redb"), "another's").unwrap();
    store.write(&book(2), Usage::new()).unwrap();
    drop(store);
    assert_eq!(fs::read_to_string(ours.join("registry.redb")).unwrap(), "another's");
    assert_eq!(open(&gone).1, book(2));
}

#[test]
fn a_removed_file_is_written_completely_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    store.write(&book(2), Usage::new()).unwrap();
    fs::remove_file(folder.path().join("registry.redb")).unwrap();
    // The book did not change, but its file is gone.
    store.write(&book(2), Usage::new()).unwrap();
    drop(store);
    assert_eq!(open(folder.path()).1, book(2));
}

#[test]
fn usage_adds_up_by_session_since_an_hour() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    let now = Hour::now();
    let hour = |back: u64| Hour(now.0 - back);
    for (back, session, held) in [(30 * 24, 1, 1), (25, 1, 4), (0, 1, 8), (0, 2, 16), (0, 1, 32)] {
        store.write(&book(2), used(hour(back), session, held)).unwrap();
    }
    let held = |store: &Store, back| {
        let found = usage_from(store, hour(back)).into_iter();
        found
            .map(|usage| (usage.session.0, usage.held_ns.0, usage.peak_bytes.0, usage.from_unix_s))
            .collect::<Vec<_>>()
    };
    let today = hour(0).began();
    assert_eq!(held(&store, 0), [(1, 40, 32, today), (2, 16, 16, today)]);
    assert_eq!(held(&store, 25)[0], (1, 44, 32, hour(25).began()));
    assert_eq!(held(&store, 100 * 24)[0], (1, 45, 32, hour(30 * 24).began()));
    drop(store);
    let (store, _) = open(folder.path());
    assert_eq!(held(&store, 0), [(1, 40, 32, today), (2, 16, 16, today)]);
}

#[test]
fn usage_of_a_period_ends_with_it_and_names_users_of_ended_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    for (hour, session, held) in [(100, 1, 1), (101, 2, 2), (102, 1, 4)] {
        store.write(&book(0), used(Hour(hour), session, held)).unwrap();
    }
    let found = |store: &Store, hours| {
        let found = store.usage(hours).unwrap().into_iter();
        found
            .map(|found| (found.usage.session.0, found.user.unwrap(), found.usage.held_ns.0))
            .collect::<Vec<_>>()
    };
    let user = |session: u64| (1000 + session).to_string();
    let all = [(1, user(1), 5), (2, user(2), 2)];
    assert_eq!(found(&store, Hours::from(Hour(0))), all);
    assert_eq!(found(&store, Hours::of(100 * 3600, 102 * 3600)), [(1, user(1), 1), (2, user(2), 2)]);
    assert_eq!(found(&store, Hours::of(101 * 3600 + 1, 101 * 3600 + 2)), [(2, user(2), 2)]);
    assert_eq!(found(&store, Hours::of(100 * 3600, 100 * 3600)), []);
    drop(store);
    let (mut store, _) = open(folder.path());
    assert_eq!(found(&store, Hours::from(Hour(0))), all, "users survive a restart");

    // The user of a session without usage is removed with the next old hours.
    let write = store.open.as_ref().unwrap().database.begin_write().unwrap();
    write.open_table(USAGE).unwrap().remove((101, 2)).unwrap();
    write.commit().unwrap();
    store.write(&book(0), used(Hour(103), 3, 1)).unwrap();
    let read = store.open.as_ref().unwrap().database.begin_read().unwrap();
    assert_eq!(read_owners(&read).unwrap(), BTreeMap::from([1, 3].map(|session| (session, user(session)))));
}

#[test]
fn a_registry_without_users_of_usage_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    store.write(&book(1), used(Hour(100), 1, 1)).unwrap();
    let write = store.open.as_ref().unwrap().database.begin_write().unwrap();
    assert!(write.delete_table(OWNERS).unwrap());
    write.commit().unwrap();
    drop(store);
    let (store, read) = open(folder.path());
    assert_eq!(read, book(1));
    let found = store.usage(Hours::from(Hour(0))).unwrap();
    assert_eq!((found.len(), found[0].user.as_deref()), (1, None));
}

/// Returns the total time that each session held the lock.
fn all_held(store: &Store) -> Vec<(u64, u64)> {
    let usages = usage_from(store, Hour(0)).into_iter();
    usages.map(|usage| (usage.session.0, usage.held_ns.0)).collect()
}

#[test]
fn a_clock_that_jumps_makes_no_usage_old() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    let now = Hour::now().0;
    for (hour, held) in [(now, 1), (now + 100 * 365 * 24, 2), (0, 4), (now + 1, 8)] {
        store.write(&book(2), used(Hour(hour), 1, held)).unwrap();
        // Old rows are looked for once an hour.
        store.pruned = None;
    }
    store.write(&book(2), used(Hour(now + 2), 2, 16)).unwrap();
    assert_eq!(all_held(&store), [(1, 15), (2, 16)]);
}

#[test]
fn each_session_keeps_so_many_hours_of_its_own() {
    let folder = in_memory();
    let (mut store, _) = open(folder.path());
    let mut all = used(Hour(1), 2, 1);
    for hour in 0..usage::KEPT as u64 + 5 {
        all.extend(used(Hour(100 + hour), 1, 1));
    }
    store.write(&book(2), all).unwrap();
    assert_eq!(all_held(&store), [(1, usage::KEPT as u64), (2, 1)]);
}

#[test]
fn many_small_sessions_displace_their_own_usage() {
    let folder = in_memory();
    let (mut store, _) = open(folder.path());
    let spent = |hour, session, time| {
        let mut usage = used(Hour(hour), session, 1);
        usage.values_mut().for_each(|spent| spent.figures.gpu_time = Nanos(time));
        usage
    };
    store.write(&book(2), spent(1, 1, 1000)).unwrap();
    let sessions: Vec<u64> = (0..MOST_USAGE).collect();
    for some in sessions.chunks(5000) {
        let flood = some.iter().flat_map(|session| spent(2, 10 + session, 1));
        store.write(&book(2), flood.collect()).unwrap();
    }
    let left = all_held(&store);
    assert_eq!(left[0], (1, 1), "the oldest, and it said most");
    assert_eq!(left.len(), MOST_ANSWERED);
}

#[test]
fn the_file_does_not_grow_over_many_changes() {
    let folder = in_memory();
    let (mut store, _) = open(folder.path());
    for change in 0..600 {
        let mut book = book(100);
        book.sessions[change % 100].totals.held = Nanos(change as u64);
        store.write(&book, used(Hour::now(), 1, 1)).unwrap();
        let size = fs::metadata(folder.path().join("registry.redb")).unwrap().len();
        assert!(size <= 2 << 20, "{size} bytes after {change} changes");
    }
}

/// Pseudo-random numbers from a seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Returns a store as a killed daemon leaves it, and the books that it may contain.
fn left_by_a_kill() -> (Vec<u8>, [Book; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    let books = [book(30), book(33)];
    for book in &books {
        store.write(book, used(Hour::now(), 1, 1)).unwrap();
    }
    // Not closed: as it is on the disk now.
    (fs::read(folder.path().join("registry.redb")).unwrap(), books)
}

/// Opens a damaged store. It must have one of the books, or be set aside for an empty one. Returns whether it
/// was.
fn survives(damaged: &[u8], books: &[Book], what: &str) -> bool {
    let folder = in_memory();
    fs::write(folder.path().join("registry.redb"), damaged).unwrap();
    let (mut store, read) = open(folder.path());
    let aside = folder.path().join("registry.redb.corrupt-0").exists();
    match aside {
        true => assert_eq!(read, Book::new(1, 1), "{what}"),
        false => assert!(books.contains(&read), "{what}: {read:?}"),
    }
    // And it goes on from there.
    store.write(&book(5), used(Hour::now(), 1, 1)).unwrap();
    usage_from(&store, Hour(0));
    drop(store);
    assert_eq!(open(folder.path()).1, book(5), "{what}");
    aside
}

#[test]
fn a_truncated_store_is_set_aside() {
    let (whole, books) = left_by_a_kill();
    assert!(!survives(&whole, &books[1..], "whole"));
    for length in (0..whole.len()).step_by(4096) {
        survives(&whole[..length], &books, &format!("cut at {length}"));
    }
}

#[test]
fn a_store_with_flipped_bits_is_read_correctly_or_set_aside() {
    let (whole, books) = left_by_a_kill();
    let mut seeded = Seeded(5);
    let size = whole.len() as u64;
    for round in 0..150 {
        let mut damaged = whole.clone();
        // The header is small and all else hangs on it: every other time.
        let within = if round % 2 == 0 { 512 } else { size };
        let mut turned = Vec::new();
        for _ in 0..=seeded.below(3) {
            let (at, bit) = (seeded.below(within), seeded.below(8));
            damaged[usize::try_from(at).unwrap()] ^= 1 << bit;
            turned.push((at, bit));
        }
        survives(&damaged, &books, &format!("round {round}: {turned:?}"));
    }
}

#[test]
fn an_unnoticed_flipped_bit_damages_no_later_write() {
    let (whole, books) = left_by_a_kill();
    let mut damaged = whole;
    for (at, bit) in [(319, 7), (200, 3), (23, 7)] {
        damaged[at] ^= 1 << bit;
    }
    survives(&damaged, &books, "the layout's highest bit");
}

#[test]
fn a_store_that_cannot_be_created_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    fs::remove_file(folder.path().join("registry.redb")).unwrap();
    fs::create_dir(folder.path().join("registry.redb.new")).unwrap();
    assert!(store.write(&book(1), used(Hour::now(), 1, 3)).is_err());
    assert_eq!(names(folder.path()), ["registry.redb.new"]);
    fs::remove_dir(folder.path().join("registry.redb.new")).unwrap();
    // Usage of a failed write is kept.
    store.write(&book(1), used(Hour::now(), 1, 4)).unwrap();
    assert_eq!(usage_from(&store, Hour(0))[0].held_ns, Nanos(7));
}

#[test]
fn a_store_in_the_runtime_folder_is_taken_over_with_usage() {
    let root = tempfile::tempdir().unwrap();
    let (run, lib) = (root.path().join("run"), root.path().join("lib"));
    fs::create_dir(&run).unwrap();
    fs::create_dir(&lib).unwrap();
    let (mut store, _) = open(&run);
    store.write(&book(2), used(Hour::now(), 1, 9)).unwrap();
    drop(store);
    let open = || Store::open(at(&lib), Some(at(&run))).unwrap();
    let (store, read) = open();
    assert_eq!(read, book(2));
    assert_eq!(usage_from(&store, Hour::now())[0].held_ns, Nanos(9));
    assert_eq!((names(&run), names(&lib)), (vec![], vec!["registry.redb".to_owned()]));
    drop(store);
    assert_eq!(open().1, book(2), "and the next finds it there");
}

#[test]
fn a_store_is_taken_over_as_soon_as_possible() {
    let root = tempfile::tempdir().unwrap();
    let (run, lib) = (root.path().join("run"), root.path().join("lib"));
    fs::create_dir(&run).unwrap();
    fs::create_dir_all(lib.join("registry.redb.new")).unwrap();
    let (mut store, _) = open(&run);
    store.write(&book(2), used(Hour::now(), 1, 9)).unwrap();
    drop(store);
    let (mut store, read) = Store::open(at(&lib), Some(at(&run))).unwrap();
    assert_eq!(read, book(2), "the daemon goes on with what is there");
    store.write(&book(3), Usage::new()).unwrap_err();
    assert_eq!(names(&run), ["registry.redb"]);
    fs::remove_dir(lib.join("registry.redb.new")).unwrap();
    store.write(&book(3), Usage::new()).unwrap();
    assert_eq!(usage_from(&store, Hour::now())[0].held_ns, Nanos(9));
    drop(store);
    assert_eq!((names(&run), open(&lib).1), (vec![], book(3)));
}

#[test]
fn of_two_registries_the_one_in_the_state_folder_counts() {
    let root = tempfile::tempdir().unwrap();
    let (run, lib) = (root.path().join("run"), root.path().join("lib"));
    for (folder, sessions) in [(&run, 2), (&lib, 3)] {
        fs::create_dir(folder).unwrap();
        open(folder).0.write(&book(sessions), Usage::new()).unwrap();
    }
    assert_eq!(Store::open(at(&lib), Some(at(&run))).unwrap().1, book(3));
    assert_eq!(names(&run), ["registry.redb.old-0"]);
}

#[test]
fn a_registry_is_complete_after_an_orderly_end() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    assert!(store.complete, "there was no daemon before");
    store.write(&book(2), Usage::new()).unwrap();
    drop(store);
    let (mut store, _) = open(folder.path());
    assert!(!store.complete, "the last daemon was killed");
    store.write(&Book { ended: true, ..book(2) }, Usage::new()).unwrap();
    drop(store);
    assert!(open(folder.path()).0.complete);
    assert!(!open(folder.path()).0.complete, "the one that ended well has had a successor, which did not");
    let another_boot = Book { boot: "another".into(), ..book(2) };
    open(folder.path()).0.write(&another_boot, Usage::new()).unwrap();
    assert!(open(folder.path()).0.complete);
    fs::write(folder.path().join("registry.redb"), "half").unwrap();
    assert!(!open(folder.path()).0.complete, "the clients of a damaged store are unknown");
}
