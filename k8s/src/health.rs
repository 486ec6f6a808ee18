//! Decision whether a card may take new pods.
//!
//! A card is unhealthy
//!
//! - while NVML cannot read it, as after it fell off the bus,
//! - while the driver asks for a reset or a reboot (its recovery action),
//! - for some time (`--xid-quiet`) after its last Xid that is not a program's fault.
//!
//! It is healthy again as soon as none of these holds. Pods that have the card keep it.

use std::fmt;
use std::time::{Duration, Instant};

/// Xids that a program causes by its own faults: the card goes on for all others. From NVIDIA's catalogue of
/// Xids: 13 exception, 31 page fault, 43 stopped, 45 preemptive removal, 68 video exception, 109 time-out.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Answer of NVML about the state of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The card answers.
    Fine,
    /// The card answers, and needs this before it can be used.
    Needs(&'static str),
    /// The card does not answer, for this reason.
    Lost(String),
}

/// State of one card.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    look: Look,
    /// Time without another Xid after which a card that answers is healthy again.
    quiet: Duration,
    /// Last Xid that counts, and the time from which it no longer does.
    xid: Option<(u64, Instant)>,
}

/// Reason why a card is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Lost(String),
    Needs(&'static str),
    Xid { xid: u64, quiet: Duration },
}

impl Health {
    /// Returns the state of a healthy card, which is healthy again when it was `quiet` for so long.
    pub(crate) fn new(quiet: Duration) -> Self {
        Self { look: Look::Fine, quiet, xid: None }
    }

    /// Notes what NVML says.
    pub(crate) fn see(&mut self, look: Look) {
        self.look = look;
    }

    /// Notes an Xid.
    pub(crate) fn xid(&mut self, now: Instant, xid: u64) {
        if !OF_PROGRAMS.contains(&xid) {
            self.xid = Some((xid, now + self.quiet));
        }
    }

    /// Returns the reason why the card is unhealthy; none if it is healthy.
    pub(crate) fn cause(&self, now: Instant) -> Option<Cause> {
        match (&self.look, self.xid) {
            (Look::Lost(reason), _) => Some(Cause::Lost(reason.clone())),
            (Look::Needs(action), _) => Some(Cause::Needs(action)),
            (Look::Fine, Some((xid, until))) if now < until => Some(Cause::Xid { xid, quiet: self.quiet }),
            (Look::Fine, _) => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => write!(f, "NVML cannot read it ({reason}); see `dmesg` for its last Xid"),
            Self::Needs(action) => write!(f, "the driver asks for {action}"),
            Self::Xid { xid, quiet } => {
                write!(f, "it reported Xid {xid}; healthy again after {} s without another", quiet.as_secs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(30);

    #[test]
    fn a_lost_card_is_unhealthy_until_it_answers() {
        let (mut health, now) = (Health::new(QUIET), Instant::now());
        assert_eq!(health.cause(now), None);
        health.see(Look::Lost("GPU is lost".to_owned()));
        assert!(health.cause(now).unwrap().to_string().contains("GPU is lost"));
        health.see(Look::Needs("a reset of the card"));
        assert_eq!(health.cause(now), Some(Cause::Needs("a reset of the card")));
        health.see(Look::Fine);
        assert_eq!(health.cause(now), None);
    }

    #[test]
    fn an_xid_counts_until_the_card_was_quiet_unless_a_program_caused_it() {
        let (mut health, start) = (Health::new(QUIET), Instant::now());
        health.xid(start, 31);
        assert_eq!(health.cause(start), None);
        health.xid(start, 79);
        health.xid(start + QUIET / 2, 48);
        assert_eq!(health.cause(start + QUIET), Some(Cause::Xid { xid: 48, quiet: QUIET }));
        assert_eq!(health.cause(start + QUIET / 2 + QUIET), None);
    }
}
