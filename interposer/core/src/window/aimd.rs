//! Window size by additive increase and multiplicative decrease (AIMD): how many launches may be in flight.
//! The calculation is pure: its input are completed launches and their durations.
//!
//! ```text
//!   cost   = nanoseconds ÷ launches of the last completions; older ones count less
//!   drain  = launches in flight × cost                time that a drop has to wait
//!   drain > target + target ÷ 8   W = W ÷ 2     (work in flight is known only to some markers)
//!   else, if the window was full  W += 4        for each marker's worth of launches, up to target ÷ cost
//! ```
//!
//! A window that the program does not fill keeps its size, because nothing was learned about a larger one.
//! Growth ends at the size for which a drain takes the target, by the measured cost. Kernels longer than the
//! target give `W = 1`, and [`Aimd::drain`] then returns how long a drop really takes.
//!
//! A completion that was noticed late gives an upper bound of the cost. It counts only if it is below the
//! present estimate. It is late when no thread looked in time, or when the card may have been idle meanwhile.

use gpushare_proto::Nanos;

/// Size of a new launch window: number of launches that may be in flight.
pub const START: u32 = 64;
/// Number of launches by which the window grows for each completed launch marker (an event between launches).
pub const INCREASE: u32 = 4;
/// Number of launch markers (events between launches) in a full window. The end of the work in flight is known
/// to about one of them.
pub const MARKERS: u32 = 16;
/// Largest size of the launch window: number of launches that may be in flight.
pub const LARGEST: u32 = 1 << 16;
/// Default target for the time from a drop (request to give the lock back) until no work is in flight.
pub const DRAIN_TARGET: Nanos = Nanos::from_millis(10);

/// Controller of the launch window: its size in launches, and the measured cost of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aimd {
    window: u32,
    /// Weighted sum of the durations of past completions, in nanoseconds. Each completion first reduces this
    /// sum and `launches` by the same share, so nanos ÷ launches is the cost of a launch.
    nanos: u64,
    /// Weighted sum of the launches in past completions, in parts of [`UNIT`] so that rounding loses nothing.
    launches: u64,
}

/// Launches that a look at the card found completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of completed launches; a graph counts as many launches as it has kernel nodes.
    pub launches: u64,
    /// Duration of these launches, by their share of the work in flight.
    pub took: Nanos,
    /// Whether the card worked on these launches for all of `took`. Otherwise `took` is an upper bound.
    pub exact: bool,
    /// Number of launches in flight before this completion.
    pub in_flight: u64,
}

/// Weight of one launch in the controller's sum of launches.
const UNIT: u64 = 1 << 20;
/// Divisor of the target that gives the excess of a drain for which the window does not shrink.
const TOLERANCE: u64 = 8;
/// Number of completions after which a completion's weight has faded, about half a window.
const MEMORY: u64 = 8;

impl Default for Aimd {
    fn default() -> Self {
        Self { window: START, nanos: 0, launches: 0 }
    }
}

impl Aimd {
    /// Restores a controller from the result of [`Self::parts`].
    pub const fn from_parts(window: u32, nanos: u64, launches: u64) -> Self {
        Self { window, nanos, launches }
    }

    /// Returns window size, nanoseconds and launches, which a caller can keep in atomics.
    pub const fn parts(self) -> (u32, u64, u64) {
        (self.window, self.nanos, self.launches)
    }

    /// Returns the number of launches that may be in flight.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Returns the number of launches from one launch marker to the next.
    pub const fn stride(&self) -> u32 {
        if self.window < MARKERS { 1 } else { self.window / MARKERS }
    }

    /// Returns the measured time of one launch; zero before the first completion.
    pub fn cost(&self) -> Nanos {
        self.drain(1)
    }

    /// Returns the time until `in_flight` launches are completed, by the measured cost.
    pub fn drain(&self, in_flight: u64) -> Nanos {
        Nanos(ratio(self.nanos, in_flight.saturating_mul(UNIT), self.launches))
    }

    /// Learns the cost from completed launches and adapts the window size to `target`.
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
        // Launches beyond the window are draining already, so they are no reason to halve it again.
        let held = in_flight.min(u64::from(self.window));
        // Work in flight is known only to some markers, so less than that is no excess.
        let excess = target.0.saturating_add(target.0 / TOLERANCE);
        if self.drain(held).0 > excess {
            self.window = (self.window / 2).max(1);
        } else if held > u64::from(self.window / 2) {
            self.grow(launches, target);
        }
    }

    /// Grows the window after a held launch went through because work in flight may have waited for it.
    /// `in_flight` is the size that the window should have had.
    pub fn released(&mut self, in_flight: u64, target: Nanos) {
        let missing = in_flight.saturating_sub(u64::from(self.window));
        self.grow_by(missing.max(u64::from(INCREASE)), target);
    }

    /// Adds a completion to the sums, after reducing them by one eighth, or by more after the window shrank.
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

fn ratio(a: u64, b: u64, c: u64) -> u64 {
    let product = u128::from(a) * u128::from(b) + u128::from(c / 2);
    u64::try_from(product.checked_div(u128::from(c)).unwrap_or_default()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;
    const MILLI: u64 = 1_000_000;

    /// A program that launches as far ahead as it may, kernel after kernel of `cost`, marker after marker, on
    /// a card that does one thing at a time. Returns the controller and the longest drain in the second half.
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
        assert_eq!((aimd.window(), aimd.stride(), aimd.cost()), (64, 4, Nanos::ZERO));
    }

    #[test]
    fn short_kernels_fill_the_target_and_no_more() {
        let (aimd, longest) = saturated(|_| 5 * MICRO, 1_000);
        assert_eq!((aimd.window(), aimd.stride()), (2_000, 125));
        assert_eq!(longest, DRAIN_TARGET);
    }

    #[test]
    fn kernels_of_half_a_millisecond_fill_it_too() {
        let (aimd, longest) = saturated(|_| 500 * MICRO, 100);
        assert_eq!((aimd.window(), aimd.stride()), (20, 1));
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
        for _ in 0..80 {
            let launches = u64::from(aimd.stride());
            let in_flight = u64::from(aimd.window());
            let took = Nanos(launches * 500 * MICRO);
            aimd.completed(Completion { launches, took, exact: true, in_flight }, DRAIN_TARGET);
            windows.push(aimd.window());
        }
        assert_eq!(windows[..6], [2_000, 1_000, 500, 250, 125, 62]);
        assert!((20..=22).contains(&aimd.window()), "{windows:?}");
    }

    #[test]
    fn what_is_beyond_the_window_already_does_not_halve_it_again() {
        let mut aimd = Aimd::from_parts(20, 500 * MICRO, UNIT);
        let sample = Completion { launches: 2, took: Nanos(MILLI), exact: true, in_flight: 5_000 };
        aimd.completed(sample, DRAIN_TARGET);
        assert_eq!(aimd.window(), 20);
    }

    #[test]
    fn a_window_that_is_not_full_does_not_grow() {
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
        assert_eq!(aimd.window(), 64 + 250 * 4);
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
        assert_eq!(aimd.window(), 104);
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
