//! Faults on order: `SIMGPU_FAULTS` tells the simulated driver which calls go wrong, and how.
//!
//! ```text
//! cuMemAlloc@3=2, cuLaunchKernel@2+=hangs, cuMemcpyHtoDAsync=slow:5ms
//! |          | |  |              |         |                `- what happens
//! |          | |  |              |         `- every call
//! |          | |  |              `- the second one and all after it; @2/50 is the second one and every 50th after it
//! |          | `- answers this CUresult, and nothing is done
//! |          `- the third call of this process
//! `- the exported name, with or without its _v2
//! ```
//!
//! An order for a call that the driver does not have would never come true, and a test would believe it
//! had: it is refused, with the names that are like it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::wire::Sticky;

/// Effect of a fault: instead of the call, or on the work that it puts into a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call answers this code and does nothing.
    Answer(u32),
    /// `hangs`: the work never ends, or the call that puts none into a stream.
    Hang,
    /// `dies`: the process is killed as by `kill -9`, before the call does anything.
    Die,
    /// `asserts` or `illegal`: the work fails, and the process with it.
    Fail(Sticky),
    /// `slow:TIME`: the work takes that much longer, or the call that puts none into a stream.
    Slow(Duration),
}

/// All faults of a process, with how often each call was made.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

#[derive(Debug)]
struct Fault {
    call: String,
    /// The first call that is concerned, counted from 1, and the last.
    calls: (u64, u64),
    /// Every so many calls between them.
    every: u64,
    effect: Effect,
    seen: AtomicU64,
}

impl Faults {
    /// Reads a list of faults.
    pub fn parse(text: &str) -> Result<Self, String> {
        let faults = text.split(',').map(str::trim).filter(|fault| !fault.is_empty());
        faults.map(Fault::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Holds the names against the driver's exports.
    pub fn check(&self, exports: &[&str]) -> Result<(), String> {
        let strange = self.0.iter().find(|fault| !exports.iter().any(|export| fault.is_about(export)));
        let Some(Fault { call, .. }) = strange else {
            return Ok(());
        };
        let near = near(call, exports);
        let instead = match near.as_slice() {
            [] => "use the exported name of a function, like cuMemAlloc".to_owned(),
            near => format!("use {}", near.join(" or ")),
        };
        Err(format!("SIMGPU_FAULTS: the simulated driver has no {call}; {instead}"))
    }

    /// Counts a call and answers what becomes of it.
    pub fn of(&self, call: &str) -> Option<Effect> {
        let mut found = None;
        for fault in self.0.iter().filter(|fault| fault.is_about(call)) {
            let number = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if fault.concerns(number) {
                found = found.or(Some(fault.effect));
            }
        }
        found
    }
}

impl Fault {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "SIMGPU_FAULTS: {text} is no fault; write CALL@N=CODE (or @N+, @N/M), CALL@N=hangs, dies, asserts, illegal or slow:5ms"
            )
        };
        let (call, effect) = text.split_once('=').ok_or_else(wrong)?;
        let (call, number) = call.split_once('@').unwrap_or((call, "1+"));
        let (first, every, repeats) = match (number.split_once('/'), number.strip_suffix('+')) {
            (Some((first, every)), _) => (first, every, true),
            (None, Some(first)) => (first, "1", true),
            (None, None) => (number, "1", false),
        };
        let (first, every): (u64, u64) =
            (first.parse().map_err(|_| wrong())?, every.parse().map_err(|_| wrong())?);
        let effect = match effect {
            "hangs" => Some(Effect::Hang),
            "dies" => Some(Effect::Die),
            "asserts" => Some(Effect::Fail(Sticky::Assert)),
            "illegal" => Some(Effect::Fail(Sticky::IllegalAddress)),
            other => match other.strip_prefix("slow:") {
                Some(time) => duration(time).map(Effect::Slow),
                None => other.parse().ok().map(Effect::Answer),
            },
        };
        if first == 0 || every == 0 {
            return Err(wrong());
        }
        Ok(Self {
            call: call.to_owned(),
            calls: (first, if repeats { u64::MAX } else { first }),
            every,
            effect: effect.ok_or_else(wrong)?,
            seen: AtomicU64::new(0),
        })
    }

    /// Whether the call with this number goes wrong.
    fn concerns(&self, number: u64) -> bool {
        let (first, last) = self.calls;
        (first..=last).contains(&number) && (number - first).is_multiple_of(self.every)
    }

    fn is_about(&self, call: &str) -> bool {
        let rest = call.strip_prefix(&self.call);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.strip_prefix("_v").is_some_and(|v| v.parse::<u32>().is_ok())
        })
    }
}

/// At most five exports that are most like `call`: few letters of difference, or one the beginning of the
/// other.
fn near<'a>(call: &str, exports: &[&'a str]) -> Vec<&'a str> {
    let lower = plain(call);
    let mut near: Vec<(usize, &str)> = exports
        .iter()
        .filter_map(|export| {
            let other = plain(export);
            let inside = lower.len() > 4 && (other.starts_with(&lower) || lower.starts_with(&other));
            let distance = distance(lower.as_bytes(), other.as_bytes());
            (inside || distance <= lower.len() / 4).then_some((distance, *export))
        })
        .collect();
    near.sort_unstable();
    near.truncate(5);
    near.into_iter().map(|(_, export)| export).collect()
}

/// A name without what is easily mistaken.
fn plain(name: &str) -> String {
    let lower = name.to_lowercase();
    let base = lower.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match base.rsplit_once("_v") {
        Some((base, version)) if version.parse::<u32>().is_ok() => base.to_owned(),
        _ => base.to_owned(),
    }
}

/// How many letters must be put in, left out or exchanged to make `a` of `b` (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_with_the_number_goes_wrong_and_no_other() {
        let faults = Faults::parse("cuMemAlloc@2=2").unwrap();
        let answers: Vec<_> = (0..3).map(|_| faults.of("cuMemAlloc_v2")).collect();
        assert_eq!(answers, [None, Some(Effect::Answer(2)), None]);
        assert_eq!(faults.of("cuMemAllocManaged"), None);
    }

    #[test]
    fn from_a_number_on_and_always() {
        let faults = Faults::parse("cuLaunchKernel@2+=hangs, cuMemcpyHtoDAsync=slow:5ms").unwrap();
        let launches: Vec<_> = (0..3).map(|_| faults.of("cuLaunchKernel")).collect();
        assert_eq!(launches, [None, Some(Effect::Hang), Some(Effect::Hang)]);
        let slow = Effect::Slow(Duration::from_millis(5));
        assert_eq!(faults.of("cuMemcpyHtoDAsync_v2"), Some(slow));
    }

    #[test]
    fn from_a_number_on_and_every_so_many() {
        let faults = Faults::parse("cuMemCreate@2/3=2").unwrap();
        let wrong: Vec<u32> = (1..10).filter(|_| faults.of("cuMemCreate").is_some()).collect();
        assert_eq!(wrong, [2, 5, 8]);
    }

    #[test]
    fn what_is_no_fault_is_named_with_what_to_write() {
        for text in [
            "cuInit",
            "cuInit@0=1",
            "cuInit@x=1",
            "cuInit@2/0=1",
            "cuInit@2+/3=1",
            "cuInit=never",
            "cuInit=slow:5",
        ] {
            let sentence = Faults::parse(text).unwrap_err();
            assert!(sentence.contains(text) && sentence.contains("CALL@N=CODE"), "{sentence}");
        }
        assert!(Faults::parse("").unwrap().of("cuInit").is_none());
    }

    #[test]
    fn a_call_that_the_driver_lacks_is_refused_with_the_names_that_are_like_it() {
        let exports = ["cuInit", "cuMemAlloc_v2", "cuMemAllocManaged", "cuLaunchKernel"];
        let said = |text| Faults::parse(text).unwrap().check(&exports);
        for known in ["", "cuMemAlloc=2", "cuMemAlloc_v2=2", "cuInit=3, cuLaunchKernel@2=hangs"] {
            assert_eq!(said(known), Ok(()));
        }
        for (unknown, near) in [
            ("cuMemAloc=2", "no cuMemAloc; use cuMemAlloc_v2"),
            ("cuinit=2", "no cuinit; use cuInit"),
            ("cuInit=3, cuMemAlloc_v3=2", "no cuMemAlloc_v3; use cuMemAlloc_v2"),
            ("cuLaunchKernelEx=2", "no cuLaunchKernelEx; use cuLaunchKernel"),
            ("nvmlInit=2", "no nvmlInit; use the exported name of a function"),
        ] {
            let sentence = said(unknown).unwrap_err();
            assert!(sentence.contains(near), "{sentence}");
        }
    }
}
