//! Schedule of faults: computed from the seed alone, before anything runs.
//!
//! A fault that lasts (a stopped program, a full disk, a peer that does not read) ends by an entry of its
//! own, so that everything else can happen meanwhile. A daemon is not killed while another restart is under
//! way, since faults are done one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use gpushare_tests::dice::Dice;

/// Something breaks, or is whole again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9` of a program.
    KillProgram(usize),
    /// SIGSTOP of a program.
    StopProgram(usize),
    /// A program's connection is shut while it lives. Stopped with that, it comes back when it is continued.
    HangUpProgram(usize, bool),
    /// SIGCONT of it.
    ContinueProgram(usize),
    /// `kill -9` of the daemon, and a new one.
    KillDaemon,
    /// Kills the daemon; the monotonic clock of the next one is off by so many seconds.
    JumpClock(u64),
    /// A peer hangs up in the middle of a message; the seed says where.
    CutFrame(u64),
    /// A peer begins a message and sends no more of it; it hangs up at the end of that.
    LoseFrame(u64),
    /// Bytes that are no message.
    Garbage(u64),
    /// No byte more fits into the daemon's folder.
    FillDisk,
    /// The folder has room again.
    FreeDisk,
    /// A peer asks and never reads; the seed says what.
    SlowReader(u64),
    /// The oldest of the peers that stay away from reading or writing hangs up.
    HangUp,
    /// All programs pause, and the daemon's count is compared with their memory.
    Checkpoint,
}

impl Fault {
    /// The name in the report, for those that break something.
    pub(crate) fn kind(self) -> Option<&'static str> {
        Some(match self {
            Self::KillProgram(_) => "kill_program",
            Self::StopProgram(_) => "stop_program",
            Self::HangUpProgram(..) => "hangup",
            Self::KillDaemon => "kill_daemon",
            Self::JumpClock(_) => "clock_jump",
            Self::CutFrame(_) => "cut_frame",
            Self::LoseFrame(_) => "lost_frame",
            Self::Garbage(_) => "garbage_peer",
            Self::FillDisk => "full_disk",
            Self::SlowReader(_) => "slow_reader",
            Self::ContinueProgram(_) | Self::FreeDisk | Self::HangUp | Self::Checkpoint => return None,
        })
    }
}

/// Every fault with its time since the start, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule(pub(crate) Vec<(Duration, Fault)>);

/// From one checkpoint to the next.
const CHECK_EVERY: Duration = Duration::from_millis(3500);

impl Schedule {
    /// For so many programs, over so long.
    pub(crate) fn of(seed: u64, programs: usize, length: Duration) -> Self {
        let mut dice = Dice::new(seed);
        let mut at: BTreeMap<Duration, Vec<Fault>> = BTreeMap::new();
        let mut put = |when: Duration, fault| at.entry(when.min(length)).or_default().push(fault);
        let mut now = Duration::from_millis(300);
        let (mut disk_free, mut daemon_back) = (Duration::ZERO, Duration::from_millis(1000));
        let mut stopped = vec![Duration::ZERO; programs];
        while now < length {
            match dice.below(100) {
                0..24 => put(now, Fault::KillProgram(dice.index(programs))),
                24..42 => {
                    let who = dice.index(programs);
                    let until = now + dice.millis(50, 900);
                    let (hangs_up, runs_on) = (dice.one_in(2), dice.one_in(2));
                    if stopped[who] < now {
                        match hangs_up {
                            true => put(now, Fault::HangUpProgram(who, !runs_on)),
                            false => put(now, Fault::StopProgram(who)),
                        }
                        if !(hangs_up && runs_on) {
                            stopped[who] = until;
                            put(until, Fault::ContinueProgram(who));
                        }
                    }
                }
                42..54 if daemon_back < now => {
                    daemon_back = now + Duration::from_millis(2200);
                    put(
                        now,
                        match dice.one_in(3) {
                            true => Fault::JumpClock(1 + dice.below(1_000_000)),
                            false => Fault::KillDaemon,
                        },
                    );
                }
                42..62 => put(now, Fault::CutFrame(dice.throw())),
                62..70 => {
                    put(now, Fault::LoseFrame(dice.throw()));
                    put(now + dice.millis(100, 3000), Fault::HangUp);
                }
                70..82 => put(now, Fault::Garbage(dice.throw())),
                82..92 => {
                    put(now, Fault::SlowReader(dice.throw()));
                    put(now + dice.millis(300, 3000), Fault::HangUp);
                }
                _ if disk_free < now => {
                    disk_free = now + dice.millis(300, 3000);
                    put(now, Fault::FillDisk);
                    put(disk_free, Fault::FreeDisk);
                }
                _ => {}
            }
            now += dice.millis(20, 220);
        }
        let mut check = CHECK_EVERY;
        while check < length {
            put(check, Fault::Checkpoint);
            check += CHECK_EVERY;
        }
        let each =
            |(when, faults): (Duration, Vec<Fault>)| faults.into_iter().map(move |fault| (when, fault));
        Self(at.into_iter().flat_map(each).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seed: u64) -> Schedule {
        Schedule::of(seed, 6, Duration::from_secs(60))
    }

    #[test]
    fn the_same_seed_breaks_the_same_at_the_same_time() {
        assert_eq!(schedule(3), schedule(3));
        assert_ne!(schedule(3), schedule(4));
    }

    #[test]
    fn a_minute_breaks_everything_and_mends_what_lasts() {
        let Schedule(all) = schedule(1);
        let count = |wanted: fn(&Fault) -> bool| all.iter().filter(|(_, fault)| wanted(fault)).count();
        let kinds: std::collections::BTreeSet<_> = all.iter().filter_map(|(_, fault)| fault.kind()).collect();
        assert_eq!(kinds.len(), 10, "{kinds:?}");
        assert!(all.is_sorted_by_key(|(when, _)| *when));
        assert_eq!(
            count(|fault| matches!(fault, Fault::StopProgram(_) | Fault::HangUpProgram(_, true))),
            count(|fault| matches!(fault, Fault::ContinueProgram(_)))
        );
        assert_eq!(
            count(|fault| matches!(fault, Fault::FillDisk)),
            count(|fault| matches!(fault, Fault::FreeDisk))
        );
    }
}
