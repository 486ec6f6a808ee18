//! Passes over chunks with real bytes, against a daemon of the test.

mod daemon;

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::mpsc::channel;

use gpushare_proto::page::{Goal, GoalNumber};
use gpushare_sys::memory_file;

use self::daemon::{Daemon, Heard};
use super::*;
use crate::process::lock;
use crate::remap::blocks::Allocation;
use crate::remap::fake::FakeCard;
use crate::remap::host::{HostError, HostMemory};
use crate::remap::swap::Phase;
use crate::remap::vmm::{HostAddress, perform};

/// Size of a chunk.
const SIZE: Bytes = Bytes::mib(2);
const PATIENCE: Duration = Duration::from_secs(30);

/// Host memory that can be read and written. It is never given back.
struct Host<'a>(&'a Sharing);

impl HostMemory for Host<'_> {
    fn touch(&self, size: Bytes) -> Result<HostAddress, HostError> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let memory = unsafe { libc::mmap(null_mut(), size.0 as usize, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Ok(HostAddress(memory.expose_provenance() as u64))
    }

    fn register(&self, _: HostAddress, _: Bytes) -> Result<(), HostError> {
        Ok(())
    }

    fn unregister(&self, _: HostAddress, _: Bytes) -> Result<(), HostError> {
        Ok(())
    }

    fn unmap(&self, _: HostAddress, _: Bytes) -> Result<(), HostError> {
        Ok(())
    }

    fn register_to_read(&self, _: HostAddress, _: Bytes) -> Result<(), HostError> {
        Ok(())
    }

    fn end_copy(&self, address: HostAddress, _: Bytes) {
        self.0.unmap(address);
    }
}

/// Process whose chunks can leave the card.
struct Process<'a> {
    lanes: &'a Lanes,
    card: &'a FakeCard,
    goals: u64,
}

impl Process<'_> {
    /// Allocates blocks of one chunk each.
    fn allocate(&self, blocks: u64) -> Vec<CUdeviceptr> {
        let block = |number: u64| {
            let base = number << 40;
            let begun = self.lanes.change(|moving| moving.blocks.begin(SIZE, |_| Ok(base)).unwrap());
            let Allocation::Backing(backing) = begun else { panic!("a block of its own") };
            while let Some((chunk, call)) = self.lanes.change(|moving| moving.blocks.take(&backing)) {
                let answer = perform(call, chunk, self.card);
                self.lanes.change(|moving| moving.blocks.done(chunk, answer));
            }
            self.lanes.change(|moving| moving.blocks.finish(backing).unwrap().unwrap())
        };
        (1..=blocks).map(block).collect()
    }

    fn follow(&mut self, phase: Phase, bytes: Bytes) {
        self.goals += 1;
        let goal = Goal { number: GoalNumber(self.goals), bytes };
        self.lanes.change(|moving| {
            moving.blocks.engine().set_goal(goal);
            moving.blocks.engine().set_phase(phase);
        });
    }

    /// Lets all chunks leave, and returns them at rest.
    fn leave(&mut self) -> Vec<Resting> {
        self.follow(Phase::Drained, Bytes::ZERO);
        self.rest()
    }

    fn rest(&self) -> Vec<Resting> {
        self.until_rests(|_| true)
    }

    /// Waits until the process rests with such chunks. Nobody wakes others when it begins to.
    fn until_rests(&self, are_these: impl Fn(&[Resting]) -> bool) -> Vec<Resting> {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "the process does not rest");
            match self.lanes.look(Pass::resting) {
                Some(resting) if are_these(&resting) => return resting,
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Runs a pass until nothing is left to ask for. The kernel maps a sealed file by a descriptor for writing since
    /// Linux 6.7 only, so the first chunk may keep its own slot.
    fn share(&self, sharing: &Sharing) {
        Pass { pause: Duration::from_millis(10), ..Pass::new(self.lanes, sharing) }.run();
        let own = self.rest().into_iter().filter(|chunk| !sharing.is_known_copy(chunk.slot));
        assert!(own.count() <= 1, "chunks have slots of their own");
    }

    fn come_back(&mut self) {
        self.follow(Phase::Entering, Bytes::gib(1));
        self.lanes.wait_for(|moving| moving.blocks.engine().can_open().ok());
        self.follow(Phase::Open, Bytes::gib(1));
    }

    fn free(&self, address: CUdeviceptr) {
        let is_freed = self.lanes.change(|moving| {
            let is_freed = moving.blocks.end(address);
            moving.blocks.end_unused();
            is_freed
        });
        assert!(is_freed);
    }
}

/// Runs a test with a process whose lanes run, under a daemon that shares.
fn with_process(sharing: &Sharing, test: impl FnOnce(&mut Process<'_>)) {
    struct Ending<'a>(&'a Lanes);
    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }
    let (lanes, card) = (Lanes::default(), FakeCard::default());
    lanes.change(|moving| {
        moving.pool.set_budget(Bytes::gib(1));
        moving.set_sharing(true);
    });
    thread::scope(|scope| {
        let _ending = Ending(&lanes);
        scope.spawn(|| lanes.run_calls(&card));
        scope.spawn(|| lanes.run_copies(&card));
        scope.spawn(|| lanes.run_digests(&card));
        scope.spawn(|| lanes.run_tasks(&Host(sharing), || (), || false));
        test(&mut Process { lanes: &lanes, card: &card, goals: 0 });
    });
}

/// Changes the bytes of a chunk at rest.
fn write(chunk: &Resting, value: u8) {
    // SAFETY: the slot is mapped, and nobody else looks at it now.
    unsafe { with_exposed_provenance_mut::<u8>(chunk.slot.0 as usize).write(value) };
}

#[test]
fn equal_chunks_share_a_copy_and_the_last_one_ends_the_connection() {
    let daemon = Daemon::with_copy();
    let sharing = daemon.sharing();
    with_process(&sharing, |process| {
        let blocks = process.allocate(2);
        process.leave();
        process.share(&sharing);
        assert_eq!(daemon.hears(), Heard::Hello);
        let Heard::Copy(name, 1) = daemon.hears() else { panic!("the first chunk") };
        assert_eq!(daemon.hears(), Heard::Copy(name, 2));
        blocks.into_iter().for_each(|block| process.free(block));
        let end = std::iter::repeat_with(|| daemon.hears()).find(|heard| !matches!(heard, Heard::Copy(..)));
        assert_eq!(end, Some(Heard::HungUp));
    });
}

#[test]
fn a_daemon_that_knows_no_copy_any_more_is_asked_for_all_of_them_again() {
    let daemon = Daemon::with_copy();
    let sharing = daemon.sharing();
    with_process(&sharing, |process| {
        process.allocate(2);
        process.leave();
        process.share(&sharing);
        sharing.hang_up(&mut lock(&sharing.desk));
        let copies: Vec<_> = process.rest().iter().map(|chunk| chunk.slot).collect();
        assert!(!copies.iter().any(|&slot| sharing.is_known_copy(slot)), "nobody knows them");
        let hung_up = std::iter::repeat_with(|| daemon.hears()).find(|heard| *heard == Heard::HungUp);
        assert!(hung_up.is_some());
        process.share(&sharing);
        assert_eq!(daemon.hears(), Heard::Hello);
        let Heard::Copy(name, 1) = daemon.hears() else { panic!("the first chunk") };
        assert_eq!(daemon.hears(), Heard::Copy(name, 2));
    });
}

#[test]
fn a_chunk_for_which_there_is_no_use_in_asking_is_asked_for_once_in_a_rest() {
    let (stop, stopped) = channel();
    let mut first = None;
    let mut questions = 0;
    let daemon = Daemon::start(move |name, _| {
        if *first.get_or_insert(name) == name {
            return (CopyAnswer::Refused, None);
        }
        questions += 1;
        if questions == 4 {
            stop.send(()).unwrap();
        }
        (CopyAnswer::Busy, None)
    });
    let sharing = daemon.sharing();
    with_process(&sharing, |process| {
        process.allocate(2);
        let resting = process.leave();
        write(&resting[1], 1);
        let lanes = process.lanes;
        thread::scope(|scope| {
            let pass = Pass { pause: Duration::from_millis(5), ..Pass::new(lanes, &sharing) };
            scope.spawn(move || pass.run());
            stopped.recv_timeout(PATIENCE).unwrap();
            process.come_back();
        });
        let heard: Vec<_> = std::iter::repeat_with(|| daemon.hears())
            .take_while(|heard| *heard != Heard::HungUp)
            .collect();
        let Heard::Copy(refused, 1) = heard[1] else { panic!("{heard:?}") };
        let questions = heard.iter().filter(|heard| **heard == Heard::Copy(refused, 1));
        assert_eq!(questions.count(), 1, "{heard:?}");
        let ends = heard.iter().filter(|heard| **heard == Heard::End(refused));
        assert_eq!(ends.count(), 1, "its claim ends once: {heard:?}");
    });
}

#[test]
fn an_offer_ends_with_the_rest_of_its_chunk() {
    let daemon = Daemon::start(|_, _| (CopyAnswer::Alone, None));
    let sharing = daemon.sharing();
    with_process(&sharing, |process| {
        let blocks = process.allocate(1);
        let resting = process.leave();
        let mut pass = Pass { pause: Duration::ZERO, ..Pass::new(process.lanes, &sharing) };
        assert!(pass.offer(resting[0]).is_ok());
        assert_eq!(daemon.hears(), Heard::Hello);
        assert!(matches!(daemon.hears(), Heard::Copy(_, 1)));
        process.free(blocks[0]);
        process.until_rests(<[_]>::is_empty);
        assert!(pass.is_due(&resting[0]));
        pass.run();
        assert_eq!(daemon.hears(), Heard::HungUp);
    });
}

/// A copy with these bytes.
fn copy_of(bytes: &[u8]) -> Copy {
    let file = memory_file::create("copy").unwrap();
    // SAFETY: changes the size of a file of the test's own, and reads the slice.
    let file = unsafe {
        assert_eq!(libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), SIZE.0 as i64), 0);
        copies::fill(file, bytes.as_ptr(), SIZE, || true).unwrap()
    };
    copies::map(file, SIZE).unwrap()
}

#[test]
fn a_copy_that_is_given_up_stays_mapped_while_a_pass_reads_it() {
    let sharing = Sharing::default();
    let bytes = vec![1; SIZE.0 as usize];
    let claim = sharing.claims.add((CopyName([1; 16]), SIZE));
    let address = sharing.keep(copy_of(&bytes), claim);
    let read = sharing.copy_at(address).unwrap();
    sharing.unmap(address);
    assert!(sharing.copy_at(address).is_none());
    // SAFETY: the vector is mapped.
    assert_eq!(unsafe { read.equals(bytes.as_ptr(), || true) }, Some(true));
}

#[test]
fn a_copy_ends_at_once_while_the_daemon_is_asked() {
    let (go_on, goes_on) = channel();
    let daemon = Daemon::start(move |_, _| {
        goes_on.recv_timeout(PATIENCE).unwrap();
        (CopyAnswer::Alone, None)
    });
    let sharing = daemon.sharing();
    let [key, other] = [1, 2].map(|name| (CopyName([name; 16]), SIZE));
    go_on.send(()).unwrap();
    let (claim, ..) = sharing.ask(other, None).unwrap();
    let address = sharing.keep(copy_of(&[1; SIZE.0 as usize]), claim);
    thread::scope(|scope| {
        let asking = scope.spawn(|| sharing.ask(key, None));
        let asked = [daemon.hears(), daemon.hears(), daemon.hears()];
        assert_eq!(asked, [Heard::Hello, Heard::Copy(other.0, 1), Heard::Copy(key.0, 1)]);
        sharing.unmap(address);
        // Not answered before.
        go_on.send(()).unwrap();
        let (claim, answer, _) = asking.join().unwrap().expect("an answer in time");
        assert_eq!(answer, CopyAnswer::Alone);
        assert_eq!(daemon.hears(), Heard::End(other.0), "the thread that asks tells it afterwards");
        drop(claim);
    });
    sharing.settle();
    assert_eq!(daemon.hears(), Heard::HungUp);
}

/// More claims than a connection takes messages for.
#[test]
fn claims_that_end_all_at_once_end_none_that_is_used() {
    const ENDING: u32 = 3000;
    let daemon = Daemon::slow(|_, _| (CopyAnswer::Alone, None));
    let sharing = daemon.sharing();
    let key = |number: u32| (CopyName(u128::from(number).to_le_bytes()), SIZE);
    let kept = thread::scope(|scope| {
        let asking = scope.spawn(|| sharing.ask(key(0), None).map(|(claim, ..)| claim));
        assert_eq!([daemon.hears(), daemon.hears()], [Heard::Hello, Heard::Copy(key(0).0, 1)]);
        asking.join().unwrap().unwrap()
    });
    let ending: Vec<_> = (1..=ENDING).map(|number| sharing.claims.add(key(number))).collect();
    drop(ending);
    sharing.settle();
    assert!(sharing.claims.next_ended().is_some(), "the daemon takes no more now");
    for number in 1..=ENDING {
        assert!(matches!(daemon.hears(), Heard::End(_)), "{number}");
        sharing.settle();
    }
    assert!(kept.is_known() && sharing.claims.next_ended().is_none());
    drop(kept);
    sharing.settle();
    assert_eq!(daemon.hears(), Heard::HungUp);
}

#[test]
fn bytes_are_named_once_as_long_as_they_stay_in_their_slot() {
    let sharing = Sharing::default();
    with_process(&sharing, |process| {
        let blocks = process.allocate(1);
        let first = process.leave()[0];
        let name = CopyName([7; 16]);
        let (lanes, card) = (process.lanes, process.card);
        assert!(lanes.look(|moving| moving.blocks.engine().set_name(&first, name)));
        let known = |chunk: &Resting| lanes.look(|moving| moving.blocks.engine().name_of(chunk));
        process.come_back();
        assert_eq!(process.leave()[0], first, "nothing has changed it");
        assert_eq!(known(&first), Some(name));
        process.come_back();
        card.work(blocks[0], 9);
        let second = process.leave()[0];
        assert_ne!(second, first);
        assert_eq!([known(&first), known(&second)], [None; 2]);
        assert!(!lanes.look(|moving| moving.blocks.engine().set_name(&first, name)));
    });
}

#[test]
fn a_chunk_at_the_same_place_as_a_freed_one_is_another_one() {
    let sharing = Sharing::default();
    with_process(&sharing, |process| {
        let mut seen: Vec<Resting> = Vec::new();
        for _ in 0..2 {
            let blocks = process.allocate(1);
            let chunk = process.leave()[0];
            assert!(!seen.contains(&chunk), "{chunk:?}");
            if let Some(before) = seen.first() {
                assert_eq!((before.chunk, before.slot), (chunk.chunk, chunk.slot));
            }
            seen.push(chunk);
            process.free(blocks[0]);
            process.until_rests(<[_]>::is_empty);
            process.come_back();
        }
    });
}

#[test]
fn the_thread_of_a_pass_runs_after_all_others() {
    let priority = thread::spawn(|| {
        crate::process::lower_priority();
        // SAFETY: has no condition. 0 is the calling thread.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    });
    assert_eq!(priority.join().unwrap(), 19);
    // SAFETY: as above.
    assert!(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) } < 19, "it is the thread's alone");
}

#[test]
fn equal_bytes_have_equal_names_and_others_have_others() {
    let mut bytes = vec![7_u8; 9 << 20];
    let named = |bytes: &[u8], goes_on| {
        // SAFETY: the slice is mapped.
        unsafe { name(bytes.as_ptr(), bytes.len(), || goes_on) }
    };
    let first = named(&bytes, true);
    assert!(first.is_some());
    assert_eq!(named(&bytes.clone(), true), first);
    *bytes.last_mut().unwrap() = 8;
    assert_ne!(named(&bytes, true), first);
    assert_eq!(named(&bytes, false), None);
}
