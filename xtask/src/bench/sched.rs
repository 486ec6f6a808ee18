//! What a decision costs: events a second in the core alone, and the way from a request to the open gate over the daemon's
//! socket, beside an echo of the same frame over the same kind of socket. The clients only speak the protocol
//! (`benches/src/daemon/`).

use std::fmt;

use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;
use serde::{Deserialize, Serialize};

use super::quota::{parsed, talking_about};
use crate::output::progress;

/// The one session takes turns with nobody.
const TURNS: [&str; 2] = ["--mode", "serialized"];
const EVENTS_PER_S: u64 = 1_000_000;

/// All figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sched {
    /// Of 1000 sessions on 8 cards.
    events_per_s: u64,
    /// The same frame to another process and back; the median.
    echo_p50_us: f64,
    /// From the request to the open gate, on a card that is free.
    grant_p50_us: f64,
    grant_p99_us: f64,
}

#[derive(Deserialize)]
struct Core {
    events_per_s: u64,
}

#[derive(Deserialize)]
struct Grant {
    echo_p50_us: f64,
    /// How much of the grant's is the machine's.
    echo_p99_us: f64,
    grant_p50_us: f64,
    grant_p99_us: f64,
}

pub(super) fn measure() -> anyhow::Result<Sched> {
    progress("building in release");
    let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
    let built = cargo::build(&["gpushare-benches"], Profile::Release, Progress::Shown)?;
    let world = World::on_this_machine(&artifacts)?;
    let bench = &built["daemon"];

    progress("giving the core events");
    let core: Core = parsed({
        let mut command = world.program(bench);
        command.arg("core");
        command
    })?;
    let daemon = Daemon::start(&world, &TURNS)?;
    progress("asking for turns");
    let grant: Grant = parsed(talking_about(&world, bench, "grant", &daemon))?;
    progress(format_args!("the 99th percentile of an echo was {} us", grant.echo_p99_us));
    Ok(Sched {
        events_per_s: core.events_per_s,
        echo_p50_us: grant.echo_p50_us,
        grant_p50_us: grant.grant_p50_us,
        grant_p99_us: grant.grant_p99_us,
    })
}

impl Sched {
    /// Whether every figure is on the right side of its bound.
    pub(super) fn hold(&self) -> anyhow::Result<()> {
        let Self { events_per_s, echo_p50_us: echo, grant_p50_us, grant_p99_us } = *self;
        let needed = EVENTS_PER_S as f64;
        let (p50, p99) = (1.5 * echo + 5.0, 2.0 * echo + 20.0);
        let figures = [
            (
                needed,
                events_per_s as f64,
                format!("the core takes {events_per_s} events a second, at least {EVENTS_PER_S} are needed"),
            ),
            (
                grant_p50_us,
                p50,
                format!(
                    "the median grant, with 1.5 echoes and 5 us as its bound, is {grant_p50_us} us, at most {p50:.1} are allowed"
                ),
            ),
            (
                grant_p99_us,
                p99,
                format!(
                    "the 99th percentile of a grant, with 2 echoes and 20 us as its bound, is {grant_p99_us} us, at most \
                     {p99:.1} are allowed"
                ),
            ),
        ];
        super::within(figures.into_iter())
    }
}

impl fmt::Display for Sched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events_per_s, echo_p50_us, grant_p50_us, grant_p99_us } = self;
        write!(
            f,
            "the core takes {events_per_s} events a second of 1000 sessions on 8 cards; a turn on a free card comes within \
             {grant_p50_us} us (p50) and {grant_p99_us} us (p99) where an echo takes {echo_p50_us} us"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_THE_BOUND: Sched = Sched {
        events_per_s: 1_000_000,
        echo_p50_us: 10.0,
        grant_p50_us: 20.0,
        grant_p99_us: 40.0,
    };

    #[test]
    fn every_broken_bound_has_its_sentence() {
        AT_THE_BOUND.hold().unwrap();
        let slow = Sched { events_per_s: 999_999, grant_p50_us: 20.5, ..AT_THE_BOUND };
        assert_eq!(
            slow.hold().unwrap_err().to_string(),
            "the core takes 999999 events a second, at least 1000000 are needed; the median grant, with 1.5 echoes and 5 us \
             as its bound, is 20.5 us, at most 20.0 are allowed"
        );
    }
}
