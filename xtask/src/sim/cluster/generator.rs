//! Generator of a trace with the shapes of published ones. Its sources are named at each table.
//!
//! | quantity | source |
//! |---|---|
//! | fraction or whole card, memory, run time | openb: Alibaba, cluster-trace-gpu-v2023, `openb_pod_list_default.csv` |
//! | compute of a pod that asks for a fraction | PAI: Alibaba, cluster-trace-gpu-v2020, `pai_sensor_table` |
//! | compute of a pod that asks for a whole card, bursts, arrivals | assumptions |
//!
//! All is drawn in whole numbers, so that a seed gives the same trace on every machine.

use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::dice::Dice;

use super::Cluster;
use super::pods::{Pod, Pods};

/// Quantiles of a quantity: thousandths of all, and the value that so many do not exceed.
type Quantiles = [(u64, u64)];

/// openb: of 6,989 pods with one card, 3,078 ask for less than the whole.
const FRACTIONS_OF_1000: u64 = 440;
/// openb: thousandths of a card that those ask for.
const FRACTION: &Quantiles =
    &[(0, 50), (100, 230), (200, 320), (300, 470), (500, 470), (600, 650), (700, 810), (1000, 810)];
/// openb: seconds from the start of a pod with a fraction to its end. The longest twentieth is cut.
const FRACTION_RUNS: &Quantiles = &[
    (0, 4),
    (50, 35),
    (100, 55),
    (200, 103),
    (300, 173),
    (400, 289),
    (500, 539),
    (600, 928),
    (700, 1286),
    (800, 2879),
    (900, 9235),
    (950, 20_410),
];
/// openb: the same of a pod with a whole card.
const WHOLE_RUNS: &Quantiles = &[
    (0, 5),
    (50, 55),
    (100, 80),
    (200, 177),
    (300, 251),
    (400, 459),
    (500, 758),
    (600, 1210),
    (700, 1974),
    (800, 3536),
    (900, 6030),
    (950, 13_278),
];
/// PAI: thousandths of a card that an instance uses on average. None is below 10 here.
const USED: &Quantiles = &[(0, 10), (345, 10), (500, 15), (754, 100), (950, 500), (1000, 1000)];
/// Assumption: memory of a pod that asks for a whole card, in thousandths.
const WHOLE_MEMORY: &Quantiles = &[(0, 600), (1000, 950)];
/// Assumption: compute of a pod that asks for a whole card.
const WHOLE_USED: &Quantiles = &[(0, 500), (1000, 1000)];
/// Assumption: milliseconds of work of a burst.
const BURST: &Quantiles = &[(0, 1000), (1000, 10_000)];
/// Arrivals are spread over this time: a Poisson process of which the number of arrivals is known.
const WINDOW: Nanos = Nanos::from_secs(6 * 3600);

/// Generates the trace of a cluster's flags.
pub(super) fn pods(cluster: &Cluster) -> Pods {
    let pod = |number| {
        let mut dice = Dice::for_part(cluster.seed, number);
        let whole = dice.below(1000) >= FRACTIONS_OF_1000;
        let (memory, used, runs) = if whole {
            (WHOLE_MEMORY, WHOLE_USED, WHOLE_RUNS)
        } else {
            (FRACTION, USED, FRACTION_RUNS)
        };
        let memory = draw(memory, &mut dice);
        Pod {
            arrives: Nanos(dice.below(WINDOW.0)),
            runs: Nanos::from_secs(draw(runs, &mut dice)),
            memory: Bytes(cluster.memory.0 / 1000 * memory),
            compute: u32::try_from(draw(used, &mut dice)).unwrap_or(1000),
            burst: Nanos::from_millis(draw(BURST, &mut dice)),
        }
    };
    Pods::new("cluster", (0..u64::from(cluster.pods)).map(pod).collect())
}

/// Draws a quantity: linear between its quantiles.
fn draw(quantiles: &Quantiles, dice: &mut Dice) -> u64 {
    let last = quantiles.last().map_or(0, |(part, _)| *part);
    // Millionths, so that neighbours of a wide step differ.
    let at = dice.below(last * 1000 + 1);
    let between = quantiles.windows(2).find(|pair| at <= pair[1].0 * 1000);
    between.map_or(0, |pair| {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        low + (high - low) * (at - from * 1000) / ((to - from) * 1000).max(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_draws_are_below_the_median() {
        for (quantiles, median) in [(FRACTION_RUNS, 424), (WHOLE_RUNS, 690), (USED, 15), (WHOLE_USED, 750)] {
            let mut dice = Dice::new(1);
            let below = (0..10_000).filter(|_| draw(quantiles, &mut dice) <= median).count();
            assert!((4_700..5_300).contains(&below), "{below} of {quantiles:?}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_trace_and_another_seed_another() {
        let cluster = |seed| Cluster { seed, pods: 50, ..super::super::USUAL };
        assert_eq!(pods(&cluster(1)), pods(&cluster(1)));
        assert_ne!(pods(&cluster(1)), pods(&cluster(2)));
    }
}
