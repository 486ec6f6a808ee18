//! Comparison of what the daemon says of the programs in [`super`] with what their card has.

use std::collections::BTreeMap;

use anyhow::Context;
use gpushare_proto::{Backend, Bytes};
use gpushare_tests::patience::until;

use super::{PROGRAMS, Run, Worker, harm};

/// Most bytes by which the chunks of a program are larger than its blocks.
const ROUNDING: Bytes = Bytes::mib(8);

impl Run {
    /// Compares what the daemon says with what the card has, once nothing moves.
    pub(super) fn compare(&mut self) -> anyhow::Result<()> {
        self.outcome.refused = harm::refused(self.card()?)?;
        loop {
            for at in 0..PROGRAMS {
                // A leaver may have been killed in a call of its own.
                if self.workers[at].program.ended()? {
                    self.bury(at)?;
                }
            }
            let found = self.at_rest();
            if !self.has_lost_one()? {
                self.outcome.bytes_unaccounted = self.outcome.bytes_unaccounted.max(found?);
                return Ok(());
            }
        }
    }

    /// Whether a program has ended.
    fn has_lost_one(&mut self) -> anyhow::Result<bool> {
        let mut has_ended = false;
        for worker in &mut self.workers {
            has_ended |= worker.program.ended()?;
        }
        Ok(has_ended)
    }

    /// Bytes that are not accounted for once nothing moves. If a program ends meanwhile, they mean nothing.
    fn at_rest(&mut self) -> anyhow::Result<u64> {
        let mut last = None;
        let found = until("the figures rest", || {
            if self.has_lost_one()? {
                return Ok(Some(0));
            }
            let now = self.unaccounted()?;
            let rests = last.replace(now) == Some(now);
            Ok((rests && now.is_some_and(|now| now == 0)).then_some(0))
        });
        // What does not come to rest is counted as it is.
        found.or_else(|cause| last.flatten().context(cause))
    }

    /// Bytes that are not accounted for; `None` while memory moves, or before a new daemon has heard of it.
    fn unaccounted(&self) -> anyhow::Result<Option<u64>> {
        let stats = self.card()?.stats()?;
        let living = || stats.processes.iter().filter(|process| process.alive);
        let mut sum = 0;
        if self.backend != Backend::Remap {
            // The driver moves it, so all that can be compared is what there is.
            let on_card: BTreeMap<u32, u64> =
                living().map(|process| (process.pid, process.managed_bytes)).collect();
            for Worker { name, program, .. } in &self.workers {
                let session = self.daemon.session(name)?;
                let Some(here) = session.gpus.first() else { return Ok(None) };
                let used = here.allocated_bytes.0;
                sum += used.abs_diff(on_card.get(&program.process().pid()).copied().unwrap_or(0));
            }
            return Ok(Some(sum));
        }
        let on_card: BTreeMap<u32, u64> =
            living().map(|process| (process.pid, process.device_bytes)).collect();
        for Worker { name, program, .. } in &self.workers {
            let Ok(place) = self.daemon.residence(name) else { return Ok(None) };
            if !place.moving_bytes.is_zero() {
                return Ok(None);
            }
            let resident = place.resident_bytes.0;
            let card = on_card.get(&program.process().pid()).copied().unwrap_or(0);
            let session = self.daemon.session(name)?;
            let Some(here) = session.gpus.first() else { return Ok(None) };
            let placed = place.resident_bytes + place.hosted_bytes;
            let lost = here.allocated_bytes - placed;
            let invented = placed - (here.allocated_bytes + ROUNDING);
            sum += resident.abs_diff(card) + lost.0 + invented.0;
        }
        Ok(Some(sum))
    }
}
