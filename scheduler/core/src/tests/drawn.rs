//! Number of cases that property tests draw: as many as a test says, or with `PROPTEST_CASES=N` in the same
//! proportion as the schedules, of which there are then N. `PROPTEST_RNG_SEED` chooses them.

use proptest::test_runner::{Config, RngAlgorithm};

/// Schedules of `schedules.rs`.
pub(super) const SCHEDULES: u32 = 20_000;
/// Number of cases that proptest draws by default.
const UNSET: u32 = 256;

/// Number of cases of a test that draws `cases` where others draw [`SCHEDULES`] schedules.
pub(super) fn cases(cases: u32) -> Config {
    // Proptest reads both variables for its default.
    let usual = Config::default();
    let asked = match usual.cases {
        UNSET => SCHEDULES,
        asked => asked,
    };
    let cases = u64::from(cases) * u64::from(asked) / u64::from(SCHEDULES);
    Config {
        cases: u32::try_from(cases).unwrap_or(u32::MAX).max(1),
        rng_algorithm: RngAlgorithm::XorShift,
        failure_persistence: None,
        ..usual
    }
}
