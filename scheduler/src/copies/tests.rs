use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use gpushare_proto::Bytes;
use gpushare_proto::copies::{CopiesView, CopyName};

use super::table::{Asked, Bounds, Files, Key, Stage, Table};
use crate::connections::ConnectionId;
use crate::identity::User;

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);
const C: ConnectionId = ConnectionId(3);

/// Number of a file, counted from 0, with the stage that its filler has left it in. Its clones are the same
/// file.
type Numbered = (usize, Rc<Cell<Stage>>);

/// Files that tests seal and spoil, with a limit on their number.
#[derive(Clone, Debug)]
struct Paper {
    made: Rc<RefCell<Vec<Numbered>>>,
    most: usize,
    closing: Rc<Cell<usize>>,
}

impl Files for Paper {
    type File = Numbered;

    fn make(&mut self, _: Bytes) -> io::Result<Numbered> {
        let mut made = self.made.borrow_mut();
        if made.len() == self.most {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let file = (made.len(), Rc::new(Cell::new(Stage::Open)));
        made.push(file.clone());
        Ok(file)
    }

    fn stage(&self, file: &Numbered, _: Bytes) -> Stage {
        file.1.get()
    }

    fn closing(&self) -> usize {
        self.closing.get()
    }

    fn for_readers(&self, file: &Numbered) -> Numbered {
        file.clone()
    }
}

/// Answer as tests compare it, with the number of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Alone,
    Fill(usize),
    Made(usize),
    Busy,
    Refused,
}

struct Fixture {
    table: Table<Paper>,
    paper: Paper,
}

const BOUNDS: Bounds = Bounds { of_connection: 4, of_user: 6, files_of_user: 2, files: 3 };

fn user(uid: u32) -> User {
    User::Uid(uid)
}

fn key(name: u8) -> Key {
    Key { name: CopyName([name; 16]), bytes: Bytes::mib(32) }
}

impl Fixture {
    fn new() -> Self {
        Self::with_files(usize::MAX)
    }

    fn with_files(most: usize) -> Self {
        let paper = Paper { made: Rc::default(), most, closing: Rc::default() };
        Self { table: Table::new(paper.clone(), BOUNDS), paper }
    }

    fn ask_for(&mut self, uid: u32, connection: ConnectionId, key: Key, chunks: u32) -> Said {
        match self.table.ask(&user(uid), connection, key, chunks) {
            Asked::Alone => Said::Alone,
            Asked::Fill(file) => Said::Fill(file.0),
            Asked::Made(file) => Said::Made(file.0),
            Asked::Busy => Said::Busy,
            Asked::Refused => Said::Refused,
        }
    }

    /// Asks as user 7 with one chunk.
    fn ask(&mut self, connection: ConnectionId, name: u8) -> Said {
        self.ask_for(7, connection, key(name), 1)
    }

    fn leave(&self, file: usize, stage: Stage) {
        self.paper.made.borrow()[file].1.set(stage);
    }

    /// Number of owners of a file beside the test.
    fn owners(&self, file: usize) -> usize {
        Rc::strong_count(&self.paper.made.borrow()[file].1) - 1
    }

    fn copies(&self) -> (u64, Bytes, u64) {
        let CopiesView { copies, bytes, users } = self.table.view();
        (copies, bytes, users)
    }
}

#[test]
fn the_second_process_fills_and_the_others_share() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ask(A, 1), Said::Alone);
    assert_eq!(fixture.ask(A, 1), Said::Alone, "asking again is no second chunk");
    assert_eq!(fixture.copies(), (0, Bytes::ZERO, 0));
    assert_eq!(fixture.ask(B, 1), Said::Fill(0));
    assert_eq!(fixture.ask(A, 1), Said::Busy);
    assert_eq!(fixture.ask(B, 1), Said::Fill(0), "the filler gets its file again");
    fixture.leave(0, Stage::Sealed);
    assert_eq!([A, B, C].map(|connection| fixture.ask(connection, 1)), [Said::Made(0); 3]);
    assert_eq!(fixture.copies(), (1, Bytes::mib(32), 1));
}

#[test]
fn two_chunks_of_one_process_share_a_copy() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ask(A, 1), Said::Alone);
    assert_eq!(fixture.ask_for(7, A, key(1), 2), Said::Fill(0));
    fixture.leave(0, Stage::Sealed);
    assert_eq!(fixture.ask_for(7, A, key(1), 1), Said::Made(0));
}

#[test]
fn equal_names_of_other_sizes_are_other_bytes() {
    let mut fixture = Fixture::new();
    let larger = Key { bytes: Bytes::mib(64), ..key(1) };
    assert_eq!(fixture.ask(A, 1), Said::Alone);
    assert_eq!(fixture.ask_for(7, B, larger, 1), Said::Alone);
}

#[test]
fn users_share_nothing_and_learn_nothing() {
    let mut fixture = Fixture::new();
    fixture.ask(A, 1);
    fixture.ask(B, 1);
    fixture.leave(0, Stage::Sealed);
    assert_eq!(fixture.ask(A, 1), Said::Made(0));
    assert_eq!(fixture.ask_for(8, C, key(1), 1), Said::Alone);
    assert_eq!(fixture.ask_for(8, ConnectionId(4), key(1), 1), Said::Fill(1));
    assert_eq!(fixture.ask(A, 1), Said::Made(0));
    assert_eq!(fixture.copies(), (2, Bytes::mib(64), 2));
}

#[test]
fn a_filler_that_ends_leaves_the_file_to_the_next() {
    let mut fixture = Fixture::new();
    fixture.ask(A, 1);
    assert_eq!(fixture.ask(B, 1), Said::Fill(0));
    fixture.ask(C, 1);
    fixture.table.close(B);
    assert_eq!(fixture.owners(0), 0);
    assert_eq!(fixture.copies(), (0, Bytes::ZERO, 0));
    assert_eq!(fixture.ask(A, 1), Said::Fill(1));
    fixture.table.end(A, key(1));
    assert_eq!(fixture.ask(C, 1), Said::Alone, "nobody else is left");
}

#[test]
fn a_filler_that_ends_after_the_seal_leaves_the_copy() {
    let mut fixture = Fixture::new();
    fixture.ask(A, 1);
    fixture.ask(B, 1);
    fixture.leave(0, Stage::Sealed);
    fixture.table.close(B);
    assert_eq!(fixture.ask(A, 1), Said::Made(0));
}

#[test]
fn a_file_that_can_never_be_sealed_is_replaced() {
    let mut fixture = Fixture::new();
    fixture.ask(A, 1);
    fixture.ask(B, 1);
    fixture.leave(0, Stage::Spoilt);
    assert_eq!(fixture.ask(A, 1), Said::Fill(1));
    assert_eq!((fixture.owners(0), fixture.copies().0), (0, 1));
}

#[test]
fn the_last_one_takes_the_copy_with_it() {
    let mut fixture = Fixture::new();
    fixture.ask(A, 1);
    fixture.ask(B, 1);
    fixture.leave(0, Stage::Sealed);
    fixture.table.end(B, key(1));
    assert_eq!(fixture.ask(A, 1), Said::Made(0), "one is left");
    fixture.table.end(B, key(1));
    fixture.table.close(A);
    assert_eq!((fixture.owners(0), fixture.copies()), (0, (0, Bytes::ZERO, 0)));
    assert_eq!(fixture.ask(A, 1), Said::Alone);
}

#[test]
fn a_file_counts_until_it_is_closed() {
    let mut fixture = Fixture::new();
    fixture.paper.closing.set(BOUNDS.files);
    fixture.ask(A, 1);
    assert_eq!(fixture.ask(B, 1), Said::Refused);
    fixture.paper.closing.set(BOUNDS.files - 1);
    assert_eq!(fixture.ask(B, 1), Said::Fill(0));
}

#[test]
fn a_size_of_no_copy_is_refused_and_so_are_no_chunks() {
    let mut fixture = Fixture::new();
    for bytes in [Bytes::ZERO, Bytes::mib(1), Bytes::mib(3), Bytes::mib(130), Bytes::MAX] {
        assert_eq!(fixture.ask_for(7, A, Key { bytes, ..key(1) }, 2), Said::Refused, "{bytes}");
    }
    assert_eq!(fixture.ask(A, 1), Said::Alone);
    assert_eq!(fixture.ask_for(7, A, key(1), 0), Said::Refused);
    assert_eq!(fixture.ask(B, 1), Said::Alone, "the first one is noted no more");
}

#[test]
fn a_connection_and_a_user_have_bounds() {
    let mut fixture = Fixture::new();
    assert_eq!([1, 2, 3, 4].map(|name| fixture.ask(A, name)), [Said::Alone; 4]);
    assert_eq!(fixture.ask(A, 5), Said::Refused);
    assert_eq!(fixture.ask(A, 4), Said::Alone, "what it has said before stays");
    assert_eq!([11, 12, 13].map(|name| fixture.ask(B, name)), [Said::Alone, Said::Alone, Said::Refused]);
    assert_eq!(fixture.ask_for(8, C, key(1), 1), Said::Alone, "of another user");
    fixture.table.end(A, key(1));
    assert_eq!(fixture.ask(B, 13), Said::Alone);
    fixture.table.close(A);
    fixture.table.close(B);
    assert_eq!([1, 2, 3, 4].map(|name| fixture.ask(A, name)), [Said::Alone; 4]);
}

#[test]
fn files_of_a_user_and_of_all_are_bounded() {
    let mut fixture = Fixture::new();
    let two = |fixture: &mut Fixture, uid, connection, name| fixture.ask_for(uid, connection, key(name), 2);
    assert_eq!(two(&mut fixture, 7, A, 1), Said::Fill(0));
    assert_eq!(two(&mut fixture, 7, A, 2), Said::Fill(1));
    assert_eq!(two(&mut fixture, 7, A, 3), Said::Refused);
    assert_eq!(two(&mut fixture, 8, B, 1), Said::Fill(2));
    assert_eq!(two(&mut fixture, 9, C, 1), Said::Refused);
    assert_eq!(fixture.copies(), (3, Bytes::mib(96), 2));
    fixture.table.close(B);
    assert_eq!(two(&mut fixture, 9, C, 1), Said::Fill(3));
}

#[test]
fn without_a_file_a_process_is_refused() {
    let mut fixture = Fixture::with_files(0);
    assert_eq!(fixture.ask(A, 1), Said::Alone);
    assert_eq!(fixture.ask(B, 1), Said::Refused);
    assert_eq!(fixture.ask(A, 1), Said::Alone);
}

#[test]
fn a_quarter_of_the_descriptors_is_for_copies() {
    let files = |descriptors| {
        let bounds = Bounds::with_descriptors(descriptors);
        (bounds.files, bounds.files_of_user)
    };
    assert_eq!(files(Some(1024)), (256, 128));
    assert_eq!(files(Some(65_536)), (16_384, 8_192));
    assert_eq!((files(Some(1 << 40)), files(None)), ((16_384, 8_192), (16_384, 8_192)));
}
