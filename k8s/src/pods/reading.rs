//! Texts of annotations: which ones are kept, what they mean, and what is wrong with them.

use std::collections::BTreeMap;

use gpushare_proto::admin::MIN_MEMORY;
use gpushare_proto::session::{Amount, Priority};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Bytes, Percent, ranges};

/// Annotations by which a pod asks for its terms.
pub(crate) const MEMORY: &str = "gpushare.dev/memory";
pub(crate) const COMPUTE: &str = "gpushare.dev/compute";
pub(crate) const WEIGHT: &str = "gpushare.dev/weight";
pub(crate) const PRIORITY: &str = "gpushare.dev/priority";

/// All of them.
const ALL: [&str; 4] = [MEMORY, COMPUTE, WEIGHT, PRIORITY];

/// Largest number of characters of an annotation that is kept. No valid one is as long.
const LONGEST: usize = 128;
/// Largest number of characters of an annotation that a message repeats. The API server takes events of up to
/// 1024 bytes.
const LONGEST_QUOTE: usize = 48;

/// Returns the annotations of a pod that count. A longer text is cut, and becomes one that cannot be read.
///
/// All annotations of a pod together may have 256 KiB, and each look at the pods copies them.
pub(crate) fn kept(mut all: BTreeMap<String, String>) -> BTreeMap<String, String> {
    all.retain(|key, _| ALL.contains(&key.as_str()));
    for text in all.values_mut() {
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push('…');
        }
    }
    all
}

/// Reads an amount of memory. A size may have Kubernetes' own form, like `8Gi`.
pub(super) fn memory(text: &str) -> Result<Amount, String> {
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

/// Reads a share of a card's time.
pub(super) fn compute(text: &str) -> Result<Percent, String> {
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
pub(super) fn weight(text: &str) -> Result<u32, String> {
    let weight = text
        .parse()
        .map_err(|_| format!("{} is no weight; write a number like 100", quoted(text)))?;
    ranges::WEIGHT.check(weight).map_err(|error| error.to_string())
}

/// Reads a priority.
pub(super) fn priority(text: &str) -> Result<Priority, String> {
    text.parse()
        .map_err(|_| format!("{} is no priority; write low, normal or high", quoted(text)))
}

/// Returns the text of an annotation for a log or an event: its beginning, with `?` for characters that
/// command a terminal or cannot be seen.
fn quoted(text: &str) -> String {
    let mut rest = text.chars();
    let shown = |character| if is_printable(character) { character } else { '?' };
    let begin: String = rest.by_ref().take(LONGEST_QUOTE).map(shown).collect();
    let more = if rest.next().is_some() { "…" } else { "" };
    format!("`{begin}{more}`")
}
