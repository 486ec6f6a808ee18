//! Every move of a chunk, with failures injected at each of its steps.

use gpushare_proto::Bytes;

use super::*;
use crate::remap::fake::FakeCard;
use crate::remap::host::{self, Pool};
use crate::remap::vmm::{Answer, HostAddress, perform};

const SIZE: Bytes = Bytes::mib(32);
const SPAN: Span = Span { address: 1 << 40, size: SIZE };
const AIMS: [Aim; 3] = [Aim::At(Tier::Device), Aim::At(Tier::Host), Aim::Away];
const DEVICE: Aim = Aim::At(Tier::Device);
/// Address of a copy that other processes share.
const COPY: HostAddress = HostAddress(7 << 50);

/// A chunk, its card, the pool of its slots, and the value that its memory should have.
struct Rig {
    card: FakeCard,
    pool: Pool,
    chunk: Chunk,
    truth: Option<u64>,
}

impl Rig {
    /// A chunk on the card, which work has written.
    fn new(is_checked: bool) -> Self {
        let (card, mut pool) = (FakeCard::default(), Pool::default());
        pool.set_budget(Bytes::gib(1));
        pool.set_target(host::REGION);
        let mut rig = Self { card, pool, chunk: Chunk::new(SPAN, is_checked), truth: None };
        rig.work();
        assert_eq!(rig.drive(DEVICE), Ok(()));
        rig.open(7);
        rig
    }

    /// Work runs: it finds the last value and writes another.
    fn open(&mut self, value: u64) {
        let before = self.card.work(SPAN.address, value);
        assert_eq!(before, self.truth.unwrap_or(0));
        self.chunk.note_work();
        self.truth = Some(value);
    }

    /// Moves until the chunk is where it aims, or a step fails.
    fn drive(&mut self, aim: Aim) -> Result<(), Call> {
        self.chunk.set_aim(aim);
        loop {
            match self.step() {
                Some(Change::Failed(call, _)) => return Err(call),
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    fn step(&mut self) -> Option<Change> {
        let change = if self.chunk.is_copying() {
            Some(self.chunk.copied(self.card.land(SPAN.address)))
        } else if let Some(call) = self.chunk.take() {
            Some(self.chunk.done(perform(call, SPAN, &self.card)))
        } else if self.chunk.wants_slot() {
            let slot = self.pool.take(SIZE).expect("a slot");
            if let Some(before) = self.chunk.give_slot(slot) {
                assert!(before.is_shared());
                self.pool.put(before);
                self.work();
            }
            Some(Change::Moved)
        } else if self.chunk.aim() == Aim::Gone {
            self.chunk.take_spare_slot(false).map(|slot| {
                self.pool.put(slot);
                self.work();
                Change::Moved
            })
        } else {
            None
        };
        self.check();
        change
    }

    /// Carries out the tasks of the pool.
    fn work(&mut self) {
        while let Some((memory, task)) = self.pool.take_task() {
            self.pool.done(memory, host::perform(task, &self.card));
        }
    }

    /// Puts a copy with the same bytes in the place of the slot.
    fn share(&mut self) {
        self.card.hold_copy(COPY, self.truth.unwrap());
        let copy = self.pool.add_copy(COPY, SIZE);
        self.work();
        let own = self.chunk.exchange_slot(copy);
        assert!(!own.is_shared());
        self.pool.put(own);
        self.check();
    }

    /// Nothing is lost, and all bytes are accounted.
    fn check(&self) {
        let footprint = self.chunk.footprint();
        assert_eq!(footprint.device, self.card.bytes(Tier::Device));
        assert_eq!(footprint.host_handle, self.card.bytes(Tier::Host));
        assert_eq!(footprint.slot, self.pool.sizes().taken);
        let is_live = self.chunk.aim() != Aim::Gone;
        assert!(!is_live || self.chunk.is_hole() || self.card.at(SPAN.address).is_some());
        let Some(truth) = self.truth.filter(|_| is_live) else { return };
        let in_slot = |slot: &Slot| self.card.in_slot(slot.address()) == Some(truth);
        let in_piece = |backing: &Backing| self.card.in_piece(backing.handle) == truth;
        let is_kept = match &self.chunk.state {
            State::Hole { slot } => slot.as_ref().is_some_and(in_slot),
            State::Backed { backing, bytes, .. } => match bytes {
                Holder::Nobody => false,
                Holder::Slot(slot) => in_slot(slot),
                Holder::Handle(_) => in_piece(backing),
                Holder::Both(slot) => in_slot(slot) && in_piece(backing),
            },
            State::Copying { backing, direction: Direction::Out, .. } => in_piece(backing),
            State::Copying { slot, .. } => in_slot(slot),
        };
        assert!(is_kept, "{:?} lost {truth}", self.chunk);
    }

    /// Frees the chunk. Nothing of it is left.
    fn end(mut self) {
        self.card.fail_at(&[]);
        assert_eq!(self.drive(Aim::Gone), Ok(()));
        assert!(self.chunk.is_gone());
        self.card.assert_empty();
        assert_eq!(self.pool.sizes().taken, Bytes::ZERO);
    }
}

fn place(aim: Aim) -> Place {
    match aim {
        Aim::At(Tier::Device) => Place::Device,
        Aim::At(Tier::Host) => Place::HostMapped,
        Aim::Away => Place::Pinned,
        Aim::Gone => Place::Empty,
    }
}

/// Every pair of places, checked and not.
fn moves() -> impl Iterator<Item = (bool, Aim, Aim)> {
    let pairs = AIMS.into_iter().flat_map(|from| AIMS.map(|to| (from, to)));
    let pairs = pairs.chain(AIMS.map(|from| (from, Aim::Gone)));
    pairs.flat_map(|(from, to)| [false, true].map(|is_checked| (is_checked, from, to)))
}

fn at(is_checked: bool, from: Aim) -> Rig {
    let mut rig = Rig::new(is_checked);
    assert_eq!(rig.drive(from), Ok(()));
    assert_eq!(rig.chunk.place(), place(from));
    rig
}

#[test]
fn each_move_ends_at_its_aim_with_the_right_bytes() {
    for (is_checked, from, to) in moves() {
        let mut rig = at(is_checked, from);
        assert_eq!(rig.drive(to), Ok(()), "{from:?} to {to:?}");
        assert_eq!(rig.chunk.place(), place(to), "{from:?} to {to:?}");
        if to != Aim::Gone {
            assert_eq!(rig.drive(DEVICE), Ok(()));
            rig.open(8);
        }
        rig.end();
    }
}

#[test]
fn a_failure_at_any_step_of_any_move_loses_nothing_and_the_move_can_be_repeated() {
    let mut failures = 0;
    for (is_checked, from, to) in moves() {
        let mut whole = at(is_checked, from);
        whole.card.fail_at(&[]);
        assert_eq!(whole.drive(to), Ok(()));
        let steps = whole.card.calls();
        whole.end();
        for step in 0..steps {
            let mut rig = at(is_checked, from);
            rig.card.fail_at(&[step]);
            // Without a digest a chunk moves all the same, unless it is checked.
            let is_needless =
                !is_checked && from == DEVICE && ![DEVICE, Aim::Gone].contains(&to) && step == 0;
            assert_eq!(rig.drive(to).is_err(), !is_needless, "{from:?} to {to:?}, step {step}");
            failures += 1;
            // The rollback ends where the bytes were, or in a slot. A release is only repeated.
            let fallback = rig.chunk.aim();
            assert_eq!(rig.drive(fallback), Ok(()));
            let is_safe = [place(from), Place::Pinned, place(to)].contains(&rig.chunk.place());
            assert!(rig.chunk.is_settled() && is_safe, "{:?}", rig.chunk);
            assert_eq!(rig.drive(to), Ok(()), "{from:?} to {to:?} again, after step {step}");
            assert_eq!(rig.chunk.place(), place(to));
            rig.end();
        }
    }
    assert!(failures > 60, "{failures} failures");
}

#[test]
fn a_chunk_whose_way_out_fails_before_it_is_a_hole_stays_usable() {
    for (is_checked, steps) in [(false, 1..4), (true, 0..5)] {
        for step in steps {
            let mut rig = Rig::new(is_checked);
            rig.card.fail_at(&[step]);
            assert!(rig.drive(Aim::Away).is_err());
            assert_eq!((rig.chunk.aim(), rig.chunk.place()), (DEVICE, Place::Device), "step {step}");
            rig.open(8);
            rig.end();
        }
    }
}

#[test]
fn two_failures_in_a_move_and_its_rollback_lose_nothing() {
    for (is_checked, from, to) in moves() {
        for first in 0..10 {
            for second in first + 1..first + 12 {
                let mut rig = at(is_checked, from);
                rig.card.fail_at(&[first, second]);
                for _ in 0..3 {
                    let _ = rig.drive(to);
                    let fallback = rig.chunk.aim();
                    let _ = rig.drive(fallback);
                }
                rig.card.fail_at(&[]);
                assert_eq!(rig.drive(to), Ok(()), "{from:?} to {to:?}, {first} and {second}");
                assert_eq!(rig.chunk.place(), place(to));
                rig.end();
            }
        }
    }
}

#[test]
fn an_aim_that_changes_at_any_step_is_followed() {
    for (is_checked, from, to) in moves() {
        for step in 0..16 {
            for turn in AIMS.into_iter().chain([Aim::Gone]) {
                let mut rig = at(is_checked, from);
                rig.chunk.set_aim(to);
                let _ = (0..step).map_while(|_| rig.step()).count();
                // The aim changes while a call is out, too.
                let call = rig.chunk.take();
                let is_followed = rig.chunk.set_aim(turn);
                assert_eq!(is_followed, to != Aim::Gone || turn == Aim::Gone);
                if let Some(call) = call {
                    rig.chunk.done(perform(call, SPAN, &rig.card));
                }
                let aim = rig.chunk.aim();
                assert_eq!(rig.drive(aim), Ok(()));
                assert_eq!(rig.chunk.place(), place(aim), "{from:?} to {to:?}, {step} steps, then {turn:?}");
                rig.end();
            }
        }
    }
}

#[test]
fn a_chunk_that_no_work_has_touched_leaves_without_a_copy() {
    let mut rig = at(false, Aim::Away);
    assert_eq!(rig.drive(DEVICE), Ok(()));
    assert!(rig.chunk.is_clean());
    rig.card.fail_at(&[]);
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    assert_eq!(rig.card.calls(), 2, "unmap and release");
    rig.end();
}

#[test]
fn an_eviction_that_is_called_off_before_the_release_needs_no_copy_in() {
    let mut rig = Rig::new(false);
    rig.chunk.set_aim(Aim::Away);
    while !matches!(rig.chunk.next(), Some(Call::Release(_))) {
        assert!(rig.step().is_some());
    }
    assert!(rig.chunk.is_hole());
    rig.card.fail_at(&[]);
    assert_eq!(rig.drive(DEVICE), Ok(()));
    assert_eq!(rig.card.calls(), 2, "map and set access");
    rig.open(8);
    rig.end();
}

#[test]
fn memory_without_bytes_moves_without_copies_and_slots() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.drive(Aim::Gone), Ok(()));
    let mut rig = Rig { chunk: Chunk::new(SPAN, false), truth: None, ..rig };
    assert_eq!(rig.drive(DEVICE), Ok(()));
    rig.card.fail_at(&[]);
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    assert_eq!((rig.card.calls(), rig.chunk.place()), (2, Place::Empty));
    rig.end();
}

#[test]
fn an_immovable_chunk_stays_at_its_handle_and_without_one_comes_to_the_card() {
    let host = Aim::At(Tier::Host);
    for from in AIMS {
        let (stays, place) = if from == host {
            (host, Place::HostMapped)
        } else {
            (DEVICE, Place::Immovable)
        };
        let mut rig = at(false, from);
        rig.chunk.make_immovable();
        assert_eq!(rig.chunk.aim(), stays);
        assert_eq!(rig.drive(stays), Ok(()));
        assert_eq!(rig.chunk.place(), place);
        for other in AIMS.into_iter().filter(|&aim| aim != stays && aim != Aim::Gone) {
            assert!(!rig.chunk.set_aim(other), "from {from:?} to {other:?}");
        }
        rig.open(8);
        rig.end();
    }
}

#[test]
fn work_that_writes_during_a_copy_out_makes_the_copy_worthless() {
    let mut rig = Rig::new(false);
    rig.chunk.set_aim(Aim::Away);
    while !rig.chunk.is_copying() {
        assert!(rig.step().is_some());
    }
    rig.chunk.set_aim(DEVICE);
    assert!(!rig.chunk.is_hole(), "the gate may open beside the copy");
    rig.card.missed_work(SPAN.address, 9);
    rig.chunk.note_work();
    rig.truth = Some(9);
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    rig.end();
}

#[test]
fn work_between_the_beginning_of_a_copy_and_the_answer_makes_the_copy_worthless() {
    let mut rig = Rig::new(false);
    rig.chunk.set_aim(Aim::Away);
    while !matches!(rig.chunk.next(), Some(Call::Copy(..))) {
        assert!(rig.step().is_some());
    }
    let call = rig.chunk.take().unwrap();
    assert_eq!(rig.chunk.take(), None, "one call at a time");
    let answer = perform(call, SPAN, &rig.card);
    rig.card.missed_work(SPAN.address, 9);
    rig.chunk.note_work();
    rig.truth = Some(9);
    rig.chunk.done(answer);
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    rig.end();
}

#[test]
fn work_during_a_digest_is_no_missed_work() {
    let mut rig = Rig::new(true);
    rig.chunk.set_aim(Aim::Away);
    while !(rig.chunk.next() == Some(Call::Digest) && rig.chunk.digests.needs_proof()) {
        assert!(rig.step().is_some());
    }
    let call = rig.chunk.take().unwrap();
    rig.chunk.set_aim(DEVICE);
    rig.open(9);
    let change = rig.chunk.done(perform(call, SPAN, &rig.card));
    assert_eq!((change, rig.chunk.is_immovable()), (Change::Moved, false));
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    rig.end();
}

#[test]
fn a_digest_finds_work_that_was_missed_during_the_copy() {
    let mut rig = Rig::new(true);
    rig.chunk.set_aim(Aim::Away);
    while !rig.chunk.digests.needs_proof() {
        assert!(rig.step().is_some());
    }
    rig.card.missed_work(SPAN.address, 9);
    rig.truth = Some(9);
    let mut changes = std::iter::from_fn(|| rig.step());
    assert!(changes.any(|change| change == Change::Written));
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    assert_eq!(rig.chunk.place(), Place::Immovable, "its proof of idleness is worth nothing");
    rig.open(10);
    rig.end();
}

/// Lets work run that writes `value`, and the chunk leave. Returns whether it was copied.
fn is_copied_out(rig: &mut Rig, value: u64) -> bool {
    assert_eq!(rig.drive(DEVICE), Ok(()));
    rig.open(value);
    rig.chunk.set_aim(Aim::Away);
    let mut is_copied = false;
    while rig.step().is_some() {
        is_copied |= rig.chunk.is_copying();
    }
    assert_eq!(rig.chunk.place(), Place::Pinned);
    is_copied
}

#[test]
fn a_chunk_that_did_not_change_leaves_without_a_copy() {
    for is_checked in [false, true] {
        let mut rig = at(is_checked, Aim::Away);
        let copied = [7, 7, 8, 8, 7].map(|value| is_copied_out(&mut rig, value));
        assert_eq!(copied, [false, false, true, false, true]);
        rig.end();
    }
}

#[test]
fn a_slot_that_a_copy_may_have_reached_has_no_known_bytes() {
    let mut rig = at(false, Aim::Away);
    assert_eq!(rig.drive(DEVICE), Ok(()));
    rig.open(8);
    // The digest succeeds, the copy does not.
    rig.card.fail_at(&[1]);
    assert!(matches!(rig.drive(Aim::Away), Err(Call::Copy(Direction::Out, _))));
    assert!(is_copied_out(&mut rig, 7), "the slot had these bytes before");
    rig.end();
}

#[test]
fn a_chunk_without_a_digest_is_copied() {
    let mut rig = at(false, Aim::Away);
    assert_eq!(rig.drive(DEVICE), Ok(()));
    rig.open(7);
    rig.chunk.set_aim(Aim::Away);
    assert_eq!(rig.chunk.take(), Some(Call::Digest));
    let refused = Answer::Failed(VmmError::Refused(801));
    assert_eq!((rig.chunk.done(refused), rig.chunk.aim()), (Change::Moved, Aim::Away));
    assert!(matches!(rig.chunk.next(), Some(Call::Copy(Direction::Out, _))));
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    rig.end();
}

#[test]
fn a_proof_without_a_digest_fails_the_move() {
    let mut rig = Rig::new(true);
    rig.chunk.set_aim(Aim::Away);
    while rig.chunk.next() != Some(Call::Digest) {
        assert!(rig.step().is_some());
    }
    rig.chunk.take();
    let error = VmmError::Refused(801);
    assert_eq!(rig.chunk.done(Answer::Failed(error)), Change::Failed(Call::Digest, error));
    assert_eq!(rig.chunk.aim(), DEVICE);
    rig.end();
}

#[test]
fn spare_slots_are_given_back_and_needed_ones_are_kept() {
    let mut rig = at(false, Aim::Away);
    assert_eq!(rig.chunk.take_spare_slot(false), None, "the only copy");
    assert_eq!(rig.drive(DEVICE), Ok(()));
    assert_eq!(rig.chunk.take_spare_slot(true), None, "kept for the next move");
    let slot = rig.chunk.take_spare_slot(false).expect("the bytes are on the card");
    rig.pool.put(slot);
    rig.open(8);
    assert_eq!(rig.drive(Aim::Away), Ok(()));
    rig.end();
}

#[test]
fn a_chunk_reads_a_shared_copy_and_writes_what_it_changes_into_a_slot_of_its_own() {
    for (is_checked, changes) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut rig = at(is_checked, Aim::Away);
        rig.share();
        assert_eq!(rig.drive(DEVICE), Ok(()));
        rig.open(if changes { 8 } else { 7 });
        assert_eq!(rig.drive(Aim::Away), Ok(()));
        assert_eq!(rig.chunk.resting_slot().map(Slot::is_shared), Some(!changes));
        let others = rig.card.in_slot(COPY);
        assert!(others == Some(7) || (changes && others.is_none()), "nobody else's bytes change: {others:?}");
        assert_eq!(rig.drive(DEVICE), Ok(()));
        rig.open(9);
        rig.end();
    }
}

#[test]
fn a_shared_slot_is_given_up_when_it_was_never_compared_and_the_chunk_moves_without_a_digest() {
    let mut rig = at(false, Aim::Away);
    rig.share();
    assert_eq!(rig.drive(DEVICE), Ok(()));
    for value in 10..30 {
        rig.open(value);
        assert_eq!(rig.drive(Aim::Away), Ok(()));
        assert_eq!(rig.chunk.resting_slot().map(Slot::is_shared), Some(false));
        assert_eq!(rig.drive(DEVICE), Ok(()));
    }
    rig.open(30);
    rig.end();
}

#[test]
fn a_slot_is_exchanged_only_while_the_chunk_rests_in_it() {
    let mut rig = at(false, Aim::Away);
    rig.chunk.set_aim(DEVICE);
    rig.chunk.take();
    rig.card.hold_copy(COPY, 7);
    let copy = rig.pool.add_copy(COPY, SIZE);
    let unused = rig.chunk.exchange_slot(copy);
    assert!(unused.is_shared());
    assert_eq!(rig.chunk.resting_slot(), None);
    rig.pool.put(unused);
    rig.work();
}
