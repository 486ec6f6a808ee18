//! Progress of handoffs that last longer than a second, for watchers.
//!
//! ```text
//!   begins ──── 1 s ───▶ progress ─── 1 s ───▶ progress, if bytes have moved since ─── …
//! ```
//!
//! The decision machine keeps the account, and this timer alone decides when it is shown. So a handoff costs no
//! message for each chunk. A handoff in which nothing moves any more is shown once.

use std::collections::BTreeMap;

use gpushare_proto::handoff::Handoff;
use gpushare_proto::{Bytes, GpuId, Nanos};

/// Interval between two looks at a handoff.
const INTERVAL: Nanos = Nanos::from_secs(1);

/// Running handoffs, as watchers know them.
#[derive(Debug, Default)]
pub(crate) struct Progress(BTreeMap<GpuId, Known>);

/// Running handoff of one card.
#[derive(Clone, Copy, Debug)]
struct Known {
    began: Nanos,
    /// Point in monotonic time of the next look.
    next: Nanos,
    /// Bytes that had moved in both directions when watchers were last told; none before the first time.
    told: Option<Bytes>,
}

impl Progress {
    /// Returns the point in monotonic time of the next look at a handoff.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.0.values().map(|known| known.next).min()
    }

    /// Returns the handoffs of which watchers are to hear at `now`. `running` are the cards with a running handoff
    /// and its beginning, and `view` returns such a handoff.
    pub(crate) fn of(
        &mut self,
        now: Nanos,
        running: impl Iterator<Item = (GpuId, Nanos)>,
        view: impl Fn(GpuId) -> Option<Handoff>,
    ) -> Vec<Handoff> {
        let running: BTreeMap<GpuId, Nanos> = running.collect();
        self.0.retain(|gpu, known| running.get(gpu) == Some(&known.began));
        for (gpu, began) in running {
            self.0.entry(gpu).or_insert(Known { began, next: began + INTERVAL, told: None });
        }
        let due = self.0.iter_mut().filter(|(_, known)| known.next <= now);
        let news = due.filter_map(|(&gpu, known)| {
            known.next = now + INTERVAL;
            let handoff = view(gpu)?;
            let moved = handoff.out.bytes + handoff.into.bytes;
            (known.told.replace(moved) != Some(moved)).then_some(handoff)
        });
        news.collect()
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Percent;
    use gpushare_proto::handoff::Direction;

    use super::*;

    const GPU: GpuId = GpuId(1);

    const fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Looks at a handoff that began at `began` and has brought `bytes` in. Returns whether watchers hear of it.
    fn is_told(progress: &mut Progress, now: Nanos, began: Nanos, bytes: u64) -> bool {
        let handoff = Handoff {
            gpu: GPU,
            took_ns: now - began,
            out: Direction::default(),
            copied_out_bytes: Bytes::ZERO,
            into: Direction { bytes: Bytes(bytes), ..Direction::default() },
            both_ns: Nanos::ZERO,
            overlap: Percent(0),
        };
        let news = progress.of(now, std::iter::once((GPU, began)), |_| Some(handoff.clone()));
        news.first().is_some_and(|told| *told == handoff)
    }

    #[test]
    fn a_handoff_is_told_after_a_second_and_then_each_second_while_bytes_move() {
        let mut progress = Progress::default();
        let began = ms(500);
        assert!(!is_told(&mut progress, ms(500), began, 0));
        assert_eq!(progress.due(), Some(ms(1500)));
        assert!(!is_told(&mut progress, ms(1499), began, 5));
        assert!(is_told(&mut progress, ms(1500), began, 5));
        assert!(!is_told(&mut progress, ms(1600), began, 6), "there was news within the second");
        assert!(is_told(&mut progress, ms(2600), began, 6));
        assert!(!is_told(&mut progress, ms(3700), began, 6), "nothing has moved");
        assert!(is_told(&mut progress, ms(4800), began, 7));
    }

    #[test]
    fn a_short_handoff_is_not_told_and_the_next_one_has_a_second_of_its_own() {
        let mut progress = Progress::default();
        is_told(&mut progress, ms(0), ms(0), 1);
        assert!(progress.of(ms(900), std::iter::empty(), |_| None).is_empty());
        assert_eq!(progress.due(), None);
        is_told(&mut progress, ms(950), ms(950), 1);
        assert!(!is_told(&mut progress, ms(1200), ms(1100), 1), "another handoff right after it");
        assert_eq!(progress.due(), Some(ms(2100)));
    }
}
