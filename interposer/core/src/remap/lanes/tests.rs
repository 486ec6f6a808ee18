//! The loops of the lanes' threads, on a card that holds real values.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use gpushare_proto::page::{Goal, GoalNumber};

use super::*;
use crate::driver::types::CUmemHandle;
use crate::remap::blocks::Allocation;
use crate::remap::fake::FakeCard;
use crate::remap::host::Supply;
use crate::remap::vmm::{Direction, HostAddress, Tier};

/// Allocates a block, and returns its chunks.
fn allocate(lanes: &Lanes, card: &FakeCard, base: CUdeviceptr, size: Bytes) -> (CUdeviceptr, Vec<Span>) {
    let begun = lanes.change(|moving| moving.blocks.begin(size, |_| Ok(base)).unwrap());
    let Allocation::Backing(backing) = begun else { panic!("a block of its own") };
    while let Some((chunk, call)) = lanes.change(|moving| moving.blocks.take(&backing)) {
        let answer = perform(call, chunk, card);
        lanes.change(|moving| moving.blocks.done(chunk, answer));
    }
    let address = lanes.change(|moving| moving.blocks.finish(backing).unwrap().unwrap());
    let chunks = lanes.change(|moving| moving.blocks.engine().chunks_in(Span { address, size }));
    (address, chunks)
}

/// Ends the lanes, also after a failed assertion.
struct Ending<'a>(&'a Lanes);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn set(lanes: &Lanes, phase: Phase, number: u64, bytes: Bytes) {
    lanes.change(|moving| {
        moving.blocks.engine().set_goal(Goal { number: GoalNumber(number), bytes });
        moving.blocks.engine().set_phase(phase);
    });
}

#[test]
fn threads_move_memory_out_and_in_and_end() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| lanes.run_calls(&card));
        scope.spawn(|| lanes.run_copies(&card));
        scope.spawn(|| lanes.run_digests(&card));
        (0..2).for_each(|_| drop(scope.spawn(|| lanes.run_tasks(&card, || (), || false))));
        let (address, chunks) = allocate(&lanes, &card, 1 << 40, Bytes::gib(1));
        assert_eq!(chunks.len(), 24);
        for round in 0..50 {
            for chunk in &chunks {
                let before = card.work(chunk.address, round + 1);
                assert_eq!(before, round, "lost bytes at {:#x}", chunk.address);
            }
            let goal = Bytes::mib(100 * (round % 11));
            set(&lanes, Phase::Drained, 2 * round + 1, goal);
            lanes.wait_for(|moving| (moving.blocks.engine().figures().resident <= goal).then_some(()));
            set(&lanes, Phase::Entering, 2 * round + 2, Bytes::gib(1));
            lanes.wait_for(|moving| moving.blocks.engine().can_open().ok());
            assert!(!card.is_marked());
            set(&lanes, Phase::Open, 2 * round + 2, Bytes::gib(1));
        }
        assert!(lanes.change(|moving| moving.blocks.end(address)));
        lanes.wait_for(|moving| (moving.blocks.engine().chunks_in(chunks[0]).is_empty()).then_some(()));
        lanes.wait_for(|_| card.bytes(Tier::Device).is_zero().then_some(()));
    });
    card.assert_empty();
    assert!(lanes.change(|moving| moving.pool.sizes().taken.is_zero()));
    assert!(card.most_digests() > 1, "digests are computed together");
}

#[test]
fn host_memory_is_prepared_ahead_only_behind_a_closed_gate() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    let target = host::REGION;
    lanes.change(|moving| {
        moving.pool.set_budget(Bytes::gib(2));
        moving.pool.set_target(target);
    });
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| lanes.run_calls(&card));
        for phase in [Phase::Open, Phase::Entering] {
            set(&lanes, phase, 1, Bytes::gib(1));
            assert!(!lanes.look(Moving::has_tasks), "{phase:?}");
        }
        scope.spawn(|| lanes.run_tasks(&card, || (), || false));
        set(&lanes, Phase::Drained, 1, Bytes::gib(1));
        lanes.wait_for(|moving| (moving.pool.sizes().free == target).then_some(()));
    });
}

#[test]
fn a_lane_of_tasks_calls_for_help_while_others_are_left_and_does_without() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    let (regions, calls) = (Bytes(4 * host::REGION.0), AtomicUsize::new(0));
    lanes.change(|moving| {
        moving.pool.set_budget(regions);
        assert_eq!(moving.pool.demand(regions), Supply::Coming);
    });
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| {
            let help = || {
                calls.fetch_add(1, Ordering::Relaxed);
            };
            lanes.run_tasks(&card, help, || false);
        });
        lanes.wait_for(|moving| (moving.pool.sizes().free == regions).then_some(()));
    });
    // Two tasks for each region. Beside those of the last one there are no others.
    assert_eq!(calls.load(Ordering::Relaxed), 6);
}

#[test]
fn a_helper_ends_when_no_tasks_are_left() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    let region = host::REGION;
    lanes.change(|moving| {
        moving.pool.set_budget(region);
        assert_eq!(moving.pool.demand(region), Supply::Coming);
    });
    lanes.help_with_tasks(&card, || panic!("there is one region"));
    assert_eq!(lanes.change(|moving| moving.pool.sizes().free), region);
}

#[test]
fn nothing_is_prepared_ahead_while_memory_is_still_to_leave() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    allocate(&lanes, &card, 1 << 40, Bytes::mib(256));
    lanes.change(|moving| moving.pool.set_target(host::REGION));
    set(&lanes, Phase::Drained, 1, Bytes::ZERO);
    // No lane has looked at the goal yet.
    assert!(!lanes.look(Moving::has_tasks));
    lanes.change(|moving| while moving.blocks.engine().next(Lane::Calls, &mut moving.pool).is_some() {});
    assert!(!lanes.look(|moving| moving.blocks.engine().rests()), "its chunks wait for slots");
}

#[test]
fn memory_leaves_after_the_proof_that_follows_a_refused_mark() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
    card.refuse_marks(2);
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| lanes.run_calls(&card));
        scope.spawn(|| lanes.run_copies(&card));
        scope.spawn(|| lanes.run_digests(&card));
        scope.spawn(|| lanes.run_tasks(&card, || (), || false));
        allocate(&lanes, &card, 1 << 40, Bytes::mib(256));
        for refused in 1..=2 {
            set(&lanes, Phase::Drained, 1, Bytes::ZERO);
            while card.asked_for_proofs() < refused {
                thread::yield_now();
            }
            assert_eq!(lanes.look(|moving| moving.blocks.engine().phase()), Phase::Open);
        }
        set(&lanes, Phase::Drained, 1, Bytes::ZERO);
        lanes.wait_for(|moving| moving.blocks.engine().figures().resident.is_zero().then_some(()));
        assert_eq!((card.asked_for_proofs(), card.is_marked()), (2, true));
    });
}

#[test]
fn the_gate_is_marked_for_an_allocation_that_waits_for_it() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| lanes.run_calls(&card));
        set(&lanes, Phase::Drained, 1, Bytes::ZERO);
        let size = Bytes::mib(256);
        assert!(lanes.look(|moving| moving.blocks.engine().may_be_hole(size)));
        lanes.change(|moving| moving.blocks.engine().wait_for_mark(true));
        lanes.wait_for(|moving| (!moving.blocks.engine().may_be_hole(size)).then_some(()));
        assert!(card.is_marked());
        lanes
            .change(|moving| moving.blocks.begin(size, |_| Ok(1 << 40)).map(drop))
            .unwrap();
        lanes.change(|moving| moving.blocks.engine().wait_for_mark(false));
        set(&lanes, Phase::Entering, 2, Bytes::ZERO);
        assert!(card.is_marked(), "the block is a hole");
        assert!(lanes.look(|moving| moving.blocks.engine().can_open().is_err()));
    });
}

/// Asserts that another thread can take the lock.
fn assert_free(lanes: &'static Lanes) {
    let (free, is_free) = mpsc::channel();
    thread::spawn(move || {
        lanes.look(|_| ());
        free.send(())
    });
    let patience = Duration::from_secs(10);
    assert_eq!(is_free.recv_timeout(patience), Ok(()), "the lock is held in a driver call");
}

#[test]
fn addresses_are_reserved_without_the_lock_and_an_error_is_not_asked_for_again() {
    let lanes: &Lanes = Box::leak(Box::default());
    let reserve = |base| {
        move |_| {
            assert_free(lanes);
            base
        }
    };
    let begin = |base| {
        lanes.change_with_addresses(reserve(base), |moving, addresses| {
            moving.blocks.begin(Bytes::mib(64), |size| addresses.take(size)).map(drop)
        })
    };
    assert_eq!(begin(Err(VmmError::Refused(3))), Err(VmmError::Refused(3).into()));
    assert_eq!(begin(Ok(1 << 40)), Ok(()));
    assert_eq!(begin(Err(VmmError::Refused(3))), Ok(()), "there are addresses");
}

#[test]
fn peers_get_their_access_without_the_lock() {
    let lanes: &Lanes = Box::leak(Box::default());
    let (_, chunks) = allocate(lanes, &FakeCard::default(), 1 << 40, Bytes::mib(96));
    let peers = Peers { lanes, given: Mutex::default() };
    lanes.renew_access(&peers);
    assert_eq!(*lock(&peers.given), chunks);
}

/// Driver that is only asked for access.
struct Peers {
    lanes: &'static Lanes,
    given: Mutex<Vec<Span>>,
}

impl Vmm for Peers {
    fn set_access(&self, span: Span) -> Result<(), VmmError> {
        assert_free(self.lanes);
        lock(&self.given).push(span);
        // As of a hole.
        Err(VmmError::Refused(1))
    }

    fn create(&self, _: Tier, _: Span) -> Result<CUmemHandle, VmmError> {
        unreachable!()
    }

    fn map(&self, _: Span, _: CUmemHandle) -> Result<(), VmmError> {
        unreachable!()
    }

    fn unmap(&self, _: Span) -> Result<(), VmmError> {
        unreachable!()
    }

    fn release(&self, _: CUmemHandle) -> Result<(), VmmError> {
        unreachable!()
    }

    fn digests(&self, _: &[Span]) -> Result<Vec<u128>, VmmError> {
        unreachable!()
    }

    fn copy(&self, _: Direction, _: Span, _: HostAddress) -> Result<(), VmmError> {
        unreachable!()
    }
}

#[test]
fn lanes_end_in_the_middle_of_a_move() {
    for round in 0..20 {
        let (lanes, card) = (Lanes::default(), FakeCard::default());
        lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
        thread::scope(|scope| {
            let _ending = Ending(&lanes);
            scope.spawn(|| lanes.run_calls(&card));
            scope.spawn(|| lanes.run_copies(&card));
            scope.spawn(|| lanes.run_digests(&card));
            scope.spawn(|| lanes.run_tasks(&card, || (), || false));
            allocate(&lanes, &card, 1 << 40, Bytes::gib(1));
            set(&lanes, Phase::Drained, 1, Bytes::ZERO);
            let left = Bytes::mib(64 * round % 1024);
            lanes.wait_for(|moving| {
                let resident = moving.blocks.engine().figures().resident;
                (resident <= Bytes::gib(1) - left).then_some(())
            });
        });
        assert!(card.copies().is_empty());
        assert!(lanes.change(|moving| moving.blocks.engine().is_quiet()));
    }
}

/// Lets a process rest for as long as sharing waits.
fn rest_long(lanes: &Lanes) {
    set(lanes, Phase::Drained, 1, Bytes::gib(1));
    lanes.look(|moving| {
        // As the lane of calls does.
        assert_eq!(moving.blocks.engine().next(Lane::Calls, &mut moving.pool), None);
        moving.rest();
        moving.rests_since = Instant::now().checked_sub(LONG_REST);
    });
}

#[test]
fn a_card_has_one_pass_at_a_time_and_one_in_a_rest() {
    let lanes = Lanes::default();
    lanes.change(|moving| moving.set_sharing(true));
    let begins = || lanes.look(|moving| matches!(moving.next(), Next::Share));
    rest_long(&lanes);
    assert!(begins());
    assert!(!begins(), "it runs");
    set(&lanes, Phase::Open, 1, Bytes::gib(1));
    rest_long(&lanes);
    assert!(!begins(), "the pass has not seen that the process ran");
    assert!(!lanes.look(Moving::may_go_on), "this is another rest");
    lanes.change(|moving| moving.end_pass(true));
    assert!(begins(), "what it found was of the rest before");
    lanes.change(|moving| moving.end_pass(true));
    assert!(!begins(), "there is nothing more to share in this rest");
    set(&lanes, Phase::Open, 1, Bytes::gib(1));
    rest_long(&lanes);
    assert!(begins());
}

#[test]
fn a_helper_leaves_the_pass_to_the_thread_that_can_start_it() {
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    lanes.change(|moving| moving.set_sharing(true));
    rest_long(&lanes);
    lanes.help_with_tasks(&card, || panic!("there is no task"));
    assert!(lanes.look(|moving| matches!(moving.next(), Next::Share)));
}
