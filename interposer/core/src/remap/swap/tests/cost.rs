//! Time that the engine itself takes for a move of very many chunks. Run with:
//!
//! ```text
//! cargo test --release -p gpushare-client --lib remap::swap::tests::cost -- --ignored --nocapture
//! ```

use std::time::{Duration, Instant};

use super::*;

/// Most time that the engine takes for all steps of a move.
const MOST: Duration = Duration::from_millis(50);
/// CPU time of the same move out while the pool makes its regions one by one, which takes the system seconds.
const MOST_COLD: Duration = Duration::from_millis(500);

/// Engine whose own time is measured, and a card that answers at once.
struct Measured {
    world: World,
    /// Tasks of the pool that are done between two steps.
    tasks: usize,
    most: Duration,
    spent: Duration,
    steps: u32,
}

impl Measured {
    fn time<T>(&mut self, step: impl FnOnce(&mut World) -> T) -> T {
        let began = Instant::now();
        let result = step(&mut self.world);
        self.spent += began.elapsed();
        self.steps += 1;
        result
    }

    /// Sets a goal and a phase, and takes all steps that follow.
    fn follow(&mut self, number: u64, bytes: Bytes, phase: Phase) {
        (self.spent, self.steps) = (Duration::ZERO, 0);
        self.time(|world| {
            world.engine.set_phase(phase);
            world.engine.set_goal(Goal { number: GoalNumber(number), bytes });
        });
        let mut copying = Vec::new();
        loop {
            let mut goes_on = false;
            for lane in Lane::ALL {
                let order = self.time(|world| world.engine.next(lane, &mut world.pool));
                goes_on |= order.is_some();
                match order {
                    None => {}
                    Some(Order::Guard(_)) => self.time(|world| world.engine.note_guard(Ok(()))),
                    Some(Order::Call(span, call)) => {
                        let answer = match call {
                            Call::Create(_) => Answer::Created(span.address),
                            Call::Digest => Answer::Digest(span.address.into()),
                            _ => Answer::Done,
                        };
                        self.time(|world| world.engine.done(span.address, answer));
                        if let Call::Copy(..) = call {
                            copying.push(span.address);
                        }
                    }
                }
            }
            goes_on |= (0..self.tasks).take_while(|_| self.world.prepare()).count() > 0;
            if copying.len() == DEPTH || !goes_on {
                goes_on |= !copying.is_empty();
                for address in copying.drain(..) {
                    self.time(|world| world.engine.copied(address, Ok(())));
                }
            }
            if !goes_on {
                return;
            }
        }
    }

    fn report(&self, what: &str) {
        let Self { spent, steps, most, .. } = self;
        println!("{what}: {spent:?} in {steps} steps, {:?} each", *spent / *steps);
        assert!(spent <= most, "{what} takes {spent:?}");
    }
}

/// A process with 3,000 blocks of 20 MiB on the card, all of which leave and come back.
fn move_out_and_in(tasks: usize, most: Duration) {
    let mut world = World::new(false);
    world.pool.set_budget(Bytes::gib(100));
    for number in 0..3000 {
        let block = Span { address: (1 << 40) + (number << 25), size: Bytes::mib(20) };
        for span in world.engine.cut(block) {
            assert_eq!(world.engine.add(span), Birth::Backed);
            while let Some(call) = world.engine.take_own(span.address) {
                let answer = match call {
                    Call::Create(_) => Answer::Created(span.address),
                    _ => Answer::Done,
                };
                world.engine.done(span.address, answer);
            }
            world.engine.born(span.address).unwrap();
        }
    }
    let whole = world.engine.figures().resident;
    println!(
        "{} chunks of {whole}, {tasks} tasks of the pool at most in each step",
        world.engine.chunks.addresses().len()
    );
    let mut measured = Measured { world, tasks, most, spent: Duration::ZERO, steps: 0 };
    measured.follow(1, Bytes::ZERO, Phase::Drained);
    assert_eq!(measured.world.engine.figures().hosted, whole);
    measured.report("out");
    measured.follow(2, whole, Phase::Entering);
    assert_eq!(measured.world.engine.can_open(), Ok(()));
    measured.report("in");
}

#[test]
#[ignore = "measures time; run it in a release build on a machine that does nothing else"]
fn a_move_of_thousands_of_chunks_takes_little_time_in_the_engine() {
    move_out_and_in(usize::MAX, MOST);
}

#[test]
#[ignore = "measures time; run it in a release build on a machine that does nothing else"]
fn a_move_into_host_memory_that_is_made_meanwhile_takes_little_time_in_the_engine() {
    move_out_and_in(1, MOST_COLD);
}
