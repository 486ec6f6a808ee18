//! Terms of a pod as people write them, in annotations and in claims.

use gpushare_proto::admin::MIN_MEMORY;
use gpushare_proto::session::{Amount, FreezeAfter, FreezeAfterError, Priority};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Bytes, Percent, ranges};
use serde::{Deserialize, Serialize};

/// Largest number of characters of a term that a message repeats. The API server takes events of up to 1024 bytes.
const LONGEST_QUOTE: usize = 48;

/// Terms that a claim asks for; none for those that it leaves to the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Memory on each card.
    pub(crate) memory: Option<Amount>,
    /// Share of each card's time.
    pub(crate) compute: Option<Percent>,
    pub(crate) weight: Option<u32>,
    pub(crate) priority: Option<Priority>,
}

/// Reads an amount of memory. A size may have Kubernetes' own form, like `8Gi`.
pub(crate) fn memory(text: &str) -> Result<Amount, String> {
    if text.ends_with('%') {
        return share(text).map(Amount::Share);
    }
    let full = match text.ends_with('i') {
        true => format!("{text}B"),
        false => text.to_owned(),
    };
    let no_size = |_| format!("{} is no size; write it like 8GiB or 50%", quoted(text));
    let bytes: Bytes = full.parse().map_err(no_size)?;
    match bytes < MIN_MEMORY {
        true => Err(format!("a program can do nothing with {bytes}; write {MIN_MEMORY} or more")),
        false => Ok(Amount::Bytes(bytes)),
    }
}

/// Reads a share of the time of each card.
pub(crate) fn compute(text: &str) -> Result<Percent, String> {
    share(text)
}

fn share(text: &str) -> Result<Percent, String> {
    let number: f64 = text.strip_suffix('%').unwrap_or(text).trim().parse().unwrap_or(f64::NAN);
    if number > 100.0 {
        return Err(format!("{} is above 100%; write at most 100%", quoted(text)));
    }
    let share: Result<Percent, _> = text.parse();
    match share {
        Ok(share) if share.0 > 0 => Ok(share),
        Ok(_) => Err(format!("{} is no part of a card; write more than 0%", quoted(text))),
        Err(_) => Err(format!("{} is no share; write it like 25%", quoted(text))),
    }
}

/// Reads a weight.
pub(crate) fn weight(text: &str) -> Result<u32, String> {
    let weight = text
        .parse()
        .map_err(|_| format!("{} is no weight; write a number like 100", quoted(text)))?;
    ranges::WEIGHT.check(weight).map_err(|error| error.to_string())
}

/// Reads a priority.
pub(crate) fn priority(text: &str) -> Result<Priority, String> {
    text.parse()
        .map_err(|_| format!("{} is no priority; write low, normal or high", quoted(text)))
}

/// Reads the idle time after which a pod is frozen.
pub(crate) fn freeze_after(text: &str) -> Result<FreezeAfter, String> {
    text.parse().map_err(|error| match error {
        FreezeAfterError::Unit(_) => {
            format!("{} is no idle time; write it like 10min, off or auto", quoted(text))
        }
        FreezeAfterError::Range(range) => range.to_string(),
    })
}

/// Returns a term for a message.
fn quoted(text: &str) -> String {
    format!("`{}`", shown(text, LONGEST_QUOTE))
}

/// Returns what a user wrote for a log or an event: its first characters, with `?` for those that command a terminal
/// or cannot be seen.
pub(crate) fn shown(text: &str, longest: usize) -> String {
    let mut rest = text.chars();
    let shown = |character| if is_printable(character) { character } else { '?' };
    let begin: String = rest.by_ref().take(longest).map(shown).collect();
    let more = if rest.next().is_some() { "…" } else { "" };
    format!("{begin}{more}")
}
