//! Cost of a decision: events a second in the core alone, and the time from a request to the open gate over
//! the daemon's socket, beside an echo of the same frame over the same kind of socket. The clients only
//! speak the protocol (`benches/src/daemon/`).

use std::fmt;

use gpushare_tests::daemon::Daemon;
use serde::{Deserialize, Serialize};

use super::{Rig, parsed};
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "sched",
    effort: Effort::Timed,
    bounds: &[
        // docs/results/scheduling.md, "Cost of a decision", says why it is not 95.
        Bound::at_most("event in the core: 1000 sessions on 8 cards", 130.0, "map lookups"),
        Bound::at_most("event of 10,000 sessions / of 1000", 3.0, "×"),
        Bound::at_most("event of 10,000 sessions of users / of 1000", 3.0, "×"),
        Bound::at_most("event of 10,000 sessions with gangs / of 1000", 10.0, "×"),
        Bound::at_most("median of a grant / (1.5 echoes + 5 us)", 1.0, "×"),
        // The same page, "Grants", says why the echoes are not medians.
        Bound::at_most("p99 of a grant / (p99 of two echoes in a row + 20 us)", 1.0, "×"),
    ],
    measure: || Ok(measure()?.values()),
};

/// Mode in which even the only session must ask for its turns.
const TURNS: [&str; 2] = ["--mode", "serialized"];

/// Figures of the benchmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sched {
    /// A lookup in a hash map behind a mutex, for comparison.
    map_ns: f64,
    /// Events of 1000 sessions on 8 cards.
    events_per_s: u64,
    /// Time of an event with ten times as many sessions, divided by the time with these.
    growth: f64,
    /// Growth of that time where each user has four sessions.
    growth_of_users: f64,
    /// Growth of that time where each eighth session uses two cards.
    growth_of_gangs: f64,
    /// Median time of the same frame to another process and back.
    echo_p50_us: f64,
    /// The 99th percentile of two echoes in a row, which take as long as a grant and decide nothing.
    echo_pair_p99_us: f64,
    /// From the request to the open gate, on a card that is free.
    grant_p50_us: f64,
    grant_p99_us: f64,
}

#[derive(Deserialize)]
struct Core {
    events_per_s: u64,
    growth: f64,
    growth_of_users: f64,
    growth_of_gangs: f64,
}

#[derive(Deserialize)]
struct Grant {
    echo_p50_us: f64,
    two_echoes_p99_us: f64,
    grant_p50_us: f64,
    grant_p99_us: f64,
}

pub(super) fn measure() -> anyhow::Result<Sched> {
    let rig = Rig::build()?;
    let map_ns = rig.map_ns()?;
    progress("giving the core events");
    let mut core = rig.world.program(&rig.built["daemon"]);
    core.arg("core");
    let core: Core = parsed(core)?;
    let daemon = Daemon::start(&rig.world, &TURNS)?;
    progress("asking for turns");
    let grant: Grant = parsed(rig.peer_of("grant", &daemon))?;
    progress(format_args!("the 99th percentile of two echoes in a row was {} us", grant.two_echoes_p99_us));
    Ok(Sched {
        map_ns,
        events_per_s: core.events_per_s,
        growth: core.growth,
        growth_of_users: core.growth_of_users,
        growth_of_gangs: core.growth_of_gangs,
        echo_p50_us: grant.echo_p50_us,
        echo_pair_p99_us: grant.two_echoes_p99_us,
        grant_p50_us: grant.grant_p50_us,
        grant_p99_us: grant.grant_p99_us,
    })
}

impl Sched {
    /// Values of the promises, in the order of their bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        let echo = self.echo_p50_us;
        vec![
            1e9 / self.events_per_s as f64 / self.map_ns,
            self.growth,
            self.growth_of_users,
            self.growth_of_gangs,
            self.grant_p50_us / (1.5 * echo + 5.0),
            self.grant_p99_us / (self.echo_pair_p99_us + 20.0),
        ]
    }
}

impl fmt::Display for Sched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events_per_s, echo_p50_us, grant_p50_us, grant_p99_us, .. } = self;
        write!(
            f,
            "the core takes {events_per_s} events a second of 1000 sessions on 8 cards; a turn on a free card comes within \
             {grant_p50_us} us (p50) and {grant_p99_us} us (p99) where an echo takes {echo_p50_us} us"
        )
    }
}
