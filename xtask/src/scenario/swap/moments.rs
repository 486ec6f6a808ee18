//! Moments at which the faults of [`super`] count, by what the card and the daemon say: while memory moves, and while a
//! program waits for host memory.

use std::time::{Duration, Instant};

use gpushare_proto::Bytes;
use gpushare_tests::Ticket;

use super::{BLOCKS, Run, Worker};

/// Longest time for which a kill waits until memory moves.
const BEGINNING: Duration = Duration::from_millis(500);
/// Longest time for which a small budget is kept until a program waits for host memory.
const SHORTAGE: Duration = Duration::from_secs(3);
/// Pause between two questions to the daemon.
const LOOKS: Duration = Duration::from_millis(20);
/// Words of `explain` for a program that waits for host memory.
const WITHOUT_HOST_MEMORY: &str = "the host memory is too full";

impl Run {
    /// Bytes of programs' memory that are on the card, by the card's word; none of a program that has died.
    pub(super) fn on_card<const N: usize>(&self, who: [usize; N]) -> anyhow::Result<[u64; N]> {
        let stats = self.card()?.stats()?;
        Ok(who.map(|at| {
            let pid = self.workers[at].program.process().pid();
            let living = stats.processes.iter().filter(|process| process.alive && process.pid == pid);
            living.map(|process| process.device_bytes + process.resident_bytes).sum()
        }))
    }

    /// Whether all memory of a program is on the card.
    pub(super) fn is_whole(&self, at: usize) -> anyhow::Result<bool> {
        let whole: u64 = BLOCKS.iter().map(|(_, mib)| Bytes::mib(*mib).0).sum();
        Ok(self.on_card([at])?[0] >= whole)
    }

    /// Waits until memory of the leaver leaves or that of the entrant comes in. Returns false if the entrant answers
    /// before, or dies, or nothing moves for long.
    pub(super) fn wait_for_a_move(
        &self,
        who @ [_, entrant]: [usize; 2],
        begin: [u64; 2],
        tickets: &[Ticket],
    ) -> anyhow::Result<bool> {
        let began = Instant::now();
        while began.elapsed() < BEGINNING {
            let now = self.on_card(who)?;
            if now[0] < begin[0] || now[1] > begin[1] {
                return Ok(true);
            }
            let Some(&first) = tickets.first() else { return Ok(false) };
            if self.workers[entrant]
                .program
                .answer_within(first, Duration::from_micros(500))
                .is_ok()
            {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Whether a program comes to wait because there is no host memory, by the daemon's word.
    pub(super) fn waits_for_host_memory(&self, at: usize, tickets: &[Ticket]) -> anyhow::Result<bool> {
        let Worker { name, program, .. } = &self.workers[at];
        let began = Instant::now();
        while began.elapsed() < SHORTAGE {
            if self
                .daemon
                .ctl(&["explain", name])
                .unwrap_or_default()
                .contains(WITHOUT_HOST_MEMORY)
            {
                return Ok(true);
            }
            if tickets.first().is_none_or(|&first| program.answer_within(first, LOOKS).is_ok()) {
                return Ok(false);
            }
        }
        Ok(false)
    }
}
