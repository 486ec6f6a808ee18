//! How many launches may be in flight: additive increase, multiplicative decrease. Pure: no clock and no CUDA; it is fed with
//! what completed and how long that took, and answers with a window.
//!
//! ```text
//!   cost   = nanoseconds ÷ launches of the last completions, older ones count less
//!   drain  = launches in flight × cost                what a holder would take to let go
//!   above the target   W = W ÷ 2         by more than a marker's worth, which is as well as work in flight is known
//!   below it           W += 8 for each marker's worth of launches, if the window was what held the program back,
//!                           and never beyond target ÷ cost
//! ```
//!
//! A window that nobody fills does not grow: what it would have let through was not seen. It stops growing where the
//! measured rate says that the target is full: eight kernels of 8 ms more would be 64 ms more. Kernels longer than the target
//! leave W = 1, and [`Aimd::drain`] says what a drop then really takes.
//!
//! A completion that was noticed late (the program was elsewhere, or the card may have been idle) tells only that a launch does
//! not cost *more* than that, and is used if it is less than what was believed.

use gpushare_proto::Nanos;

/// Where a window begins.
pub const START: u32 = 64;
/// What one marker's worth of launches adds.
pub const INCREASE: u32 = 8;
/// Markers in a window.
pub const MARKERS: u32 = 8;
/// Nobody runs further ahead than this, however short its kernels are.
pub const LARGEST: u32 = 1 << 16;
/// How long a drop should take.
pub const DRAIN_TARGET: Nanos = Nanos::from_millis(10);

/// The controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aimd {
    window: u32,
    /// Of the last completions, the same share of both forgotten at each: their quotient is the cost of a launch.
    nanos: u64,
    /// In parts of `UNIT`, so that forgetting a share of a single launch does not round away.
    launches: u64,
}

/// Launches that are known to have completed since the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// How many, graphs by their kernel nodes.
    pub launches: u64,
    /// In what time, by the share that they had of the card.
    pub took: Nanos,
    /// Whether the card was at work on them all that time. If not, it is only a bound.
    pub exact: bool,
    /// Launches in flight when they completed, they among them.
    pub in_flight: u64,
}

/// One launch, as it is remembered.
const UNIT: u64 = 1 << 20;
/// How many samples are remembered, about: one window's.
const MEMORY: u64 = 8;

impl Default for Aimd {
    fn default() -> Self {
        Self { window: START, nanos: 0, launches: 0 }
    }
}

impl Aimd {
    /// As [`Self::parts`] gave it.
    #[must_use]
    pub const fn from_parts(window: u32, nanos: u64, launches: u64) -> Self {
        Self { window, nanos, launches }
    }

    /// For who keeps it in atomics: window and sums.
    #[must_use]
    pub const fn parts(self) -> (u32, u64, u64) {
        (self.window, self.nanos, self.launches)
    }

    /// Launches that may be in flight.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Launches from one marker to the next.
    #[must_use]
    pub const fn stride(&self) -> u32 {
        stride(self.window)
    }

    /// What a launch takes by measurement; zero before anything completed.
    #[must_use]
    pub fn cost(&self) -> Nanos {
        self.drain(1)
    }

    /// What so many launches in flight take to complete.
    #[must_use]
    pub fn drain(&self, in_flight: u64) -> Nanos {
        Nanos(ratio(self.nanos, in_flight.saturating_mul(UNIT), self.launches))
    }

    /// Launches completed.
    pub fn completed(&mut self, completion: Completion, target: Nanos) {
        let Completion { launches, took, exact, in_flight } = completion;
        if launches == 0 {
            return;
        }
        if exact || took.0 < self.drain(launches).0 {
            self.learn(launches, took.0);
        }
        if self.launches == 0 {
            return;
        }
        // What exceeds the window is on its way out already, and is no reason to halve it again.
        let held = in_flight.min(u64::from(self.window));
        // Work in flight is known to a marker, so less than that is no excess.
        let excess = target.0.saturating_add(target.0 / u64::from(MARKERS));
        if self.drain(held).0 > excess {
            self.window = (self.window / 2).max(1);
        } else if held > u64::from(self.window / 2) {
            self.grow(launches, target);
        }
    }

    /// What was in flight waited for a launch that the window kept out, so the window was too small by what had to be let through.
    pub fn released(&mut self, in_flight: u64, target: Nanos) {
        let missing = in_flight.saturating_sub(u64::from(self.window));
        self.grow_by(missing.max(u64::from(INCREASE)), target);
    }

    /// Forgets an eighth, and what is more than a window: of a window that was large, little is left when it is small.
    fn learn(&mut self, launches: u64, nanos: u64) {
        let old = self.launches - self.launches / MEMORY;
        let most = u64::from(self.window).max(launches.saturating_mul(MEMORY)).saturating_mul(UNIT);
        let kept = old.min(most);
        self.nanos = ratio(self.nanos, kept, self.launches).saturating_add(nanos);
        self.launches = kept.saturating_add(launches.saturating_mul(UNIT));
    }

    fn grow(&mut self, launches: u64, target: Nanos) {
        let markers = (launches / u64::from(self.stride())).max(1);
        self.grow_by(markers.saturating_mul(u64::from(INCREASE)), target);
    }

    fn grow_by(&mut self, more: u64, target: Nanos) {
        let full = match self.nanos {
            0 => u64::from(LARGEST),
            nanos => ratio(target.0, self.launches, nanos.saturating_mul(UNIT)).max(u64::from(self.window)),
        };
        let wanted = u64::from(self.window).saturating_add(more).min(full);
        self.window = u32::try_from(wanted).unwrap_or(LARGEST).min(LARGEST);
    }
}

/// `a`·`b` ÷ `c`, rounded; zero for nothing.
fn ratio(a: u64, b: u64, c: u64) -> u64 {
    let product = u128::from(a) * u128::from(b) + u128::from(c / 2);
    u64::try_from(product.checked_div(u128::from(c)).unwrap_or_default()).unwrap_or(u64::MAX)
}

/// Launches from one marker to the next within a window.
#[must_use]
pub const fn stride(window: u32) -> u32 {
    if window < MARKERS { 1 } else { window / MARKERS }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;

    /// A program that launches as far ahead as it may, kernel after kernel of `cost`, marker after marker, on a card that does one
    /// thing at a time. Returns the controller and the longest drain in the second half.
    fn saturated(mut cost: impl FnMut(u64) -> u64, markers: usize) -> (Aimd, Nanos) {
        let (mut aimd, mut kernel, mut longest) = (Aimd::default(), 0, 0);
        for marker in 0..markers {
            let launches = u64::from(aimd.stride());
            let in_flight = u64::from(aimd.window());
            let took = (kernel..kernel + launches).map(&mut cost).sum();
            kernel += launches;
            if marker >= markers / 2 {
                longest = longest.max((kernel..kernel + in_flight).map(&mut cost).sum());
            }
            aimd.completed(Completion { launches, took: Nanos(took), exact: true, in_flight }, DRAIN_TARGET);
        }
        (aimd, Nanos(longest))
    }

    #[test]
    fn it_begins_as_the_design_says() {
        let aimd = Aimd::default();
        assert_eq!((aimd.window(), aimd.stride(), aimd.cost()), (64, 8, Nanos::ZERO));
    }

    #[test]
    fn short_kernels_fill_the_target_and_no_more() {
        let (aimd, longest) = saturated(|_| 5 * MICRO, 1_000);
        assert_eq!((aimd.window(), aimd.stride()), (2_000, 250));
        assert_eq!(longest, DRAIN_TARGET);
    }

    #[test]
    fn kernels_of_half_a_millisecond_fill_it_too() {
        let (aimd, longest) = saturated(|_| 500 * MICRO, 100);
        assert_eq!((aimd.window(), aimd.stride()), (20, 2));
        assert_eq!(longest, DRAIN_TARGET);
    }

    #[test]
    fn kernels_longer_than_the_target_go_one_by_one_and_the_true_drain_is_told() {
        let (aimd, longest) = saturated(|_| 50 * MILLI, 40);
        assert_eq!((aimd.window(), aimd.stride()), (1, 1));
        assert_eq!(longest, Nanos(50 * MILLI));
        assert_eq!(aimd.drain(1).0.div_ceil(MICRO), 50_000);
    }

    #[test]
    fn a_window_of_one_does_not_jump_over_the_target() {
        // Eight of 8 ms more would be seven targets.
        let (aimd, longest) = saturated(|_| 8 * MILLI, 40);
        assert_eq!((aimd.window(), longest), (1, Nanos(8 * MILLI)));
    }

    #[test]
    fn a_mixture_is_held_near_the_target() {
        // Nine short ones and a longer one, in turn: 545 µs on average.
        let (aimd, longest) = saturated(|kernel| if kernel % 10 == 0 { 5 * MILLI } else { 50 * MICRO }, 400);
        assert!((9..=20).contains(&aimd.window()), "{aimd:?}");
        // Never more than two of the longer ones beyond it.
        assert!(longest <= Nanos(20 * MILLI), "{longest} {aimd:?}");
        // Every other kernel is longer than the target.
        let (aimd, longest) = saturated(|kernel| if kernel % 2 == 0 { 50 * MILLI } else { 5 * MICRO }, 400);
        assert_eq!(aimd.window(), 1);
        assert_eq!(longest, Nanos(50 * MILLI));
    }

    #[test]
    fn kernels_that_become_longer_halve_the_window_each_time_until_the_target_holds() {
        let (mut aimd, _) = saturated(|_| 5 * MICRO, 1_000);
        let mut windows = vec![aimd.window()];
        for _ in 0..40 {
            let launches = u64::from(aimd.stride());
            let in_flight = u64::from(aimd.window());
            let took = Nanos(launches * 500 * MICRO);
            aimd.completed(Completion { launches, took, exact: true, in_flight }, DRAIN_TARGET);
            windows.push(aimd.window());
        }
        assert_eq!(windows[..6], [2_000, 1_000, 500, 250, 125, 62]);
        assert_eq!(aimd.window(), 20, "{windows:?}");
    }

    #[test]
    fn what_is_beyond_the_window_already_does_not_halve_it_again() {
        let mut aimd = Aimd::from_parts(20, 500 * MICRO, UNIT);
        let sample = Completion { launches: 2, took: Nanos(MILLI), exact: true, in_flight: 5_000 };
        aimd.completed(sample, DRAIN_TARGET);
        assert_eq!(aimd.window(), 20);
    }

    #[test]
    fn a_window_that_nobody_fills_does_not_grow() {
        let mut aimd = Aimd::default();
        for _ in 0..100 {
            let sample = Completion { launches: 8, took: Nanos(8 * MICRO), exact: true, in_flight: 10 };
            aimd.completed(sample, DRAIN_TARGET);
        }
        assert_eq!(aimd.window(), START);
    }

    #[test]
    fn a_graph_grows_the_window_by_all_the_markers_that_it_is_worth() {
        let mut aimd = Aimd::default();
        let graph = Completion { launches: 1_000, took: Nanos(5 * MILLI), exact: true, in_flight: 1_000 };
        aimd.completed(graph, DRAIN_TARGET);
        assert_eq!(aimd.window(), 64 + 125 * 8);
        for _ in 0..50 {
            aimd.completed(graph, DRAIN_TARGET);
        }
        assert_eq!(aimd.window(), 2_000, "two of them fit the target");
    }

    #[test]
    fn what_was_noticed_late_never_makes_a_launch_dearer() {
        let mut aimd = Aimd::from_parts(64, 100 * MICRO, UNIT);
        let late = Completion { launches: 8, took: Nanos(1_000 * MILLI), exact: false, in_flight: 8 };
        aimd.completed(late, DRAIN_TARGET);
        assert_eq!((aimd.cost(), aimd.window()), (Nanos(100 * MICRO), 64));
        let quick = Completion { took: Nanos(8 * MICRO), ..late };
        aimd.completed(quick, DRAIN_TARGET);
        assert!(aimd.cost() < Nanos(100 * MICRO));
    }

    #[test]
    fn a_window_that_kept_out_what_its_work_waited_for_grows_by_that() {
        let mut aimd = Aimd::default();
        aimd.released(100, DRAIN_TARGET);
        assert_eq!(aimd.window(), 100);
        aimd.released(100, DRAIN_TARGET);
        assert_eq!(aimd.window(), 108);
        let mut dear = Aimd::from_parts(20, 500 * MICRO, UNIT);
        dear.released(100, DRAIN_TARGET);
        assert_eq!(dear.window(), 20, "and not beyond the target");
    }

    #[test]
    fn no_sample_breaks_it() {
        for took in [0, 1, u64::MAX] {
            for launches in [0, 1, u64::MAX] {
                for in_flight in [0, 1, u64::MAX] {
                    let mut aimd = Aimd::default();
                    for exact in [true, false, true] {
                        aimd.completed(
                            Completion { launches, took: Nanos(took), exact, in_flight },
                            DRAIN_TARGET,
                        );
                        assert!((1..=LARGEST).contains(&aimd.window()));
                        assert!(aimd.stride() >= 1);
                    }
                }
            }
        }
    }
}
