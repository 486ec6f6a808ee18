//! Annotations of a pod: which ones count, and how much of their texts is kept.

use std::collections::BTreeMap;

/// Annotations by which a pod asks for its terms.
pub(crate) const MEMORY: &str = "gpushare.dev/memory";
pub(crate) const COMPUTE: &str = "gpushare.dev/compute";
pub(crate) const WEIGHT: &str = "gpushare.dev/weight";
pub(crate) const PRIORITY: &str = "gpushare.dev/priority";
pub(crate) const FREEZE_AFTER: &str = "gpushare.dev/freeze-after";

/// All of them.
const ALL: [&str; 5] = [MEMORY, COMPUTE, WEIGHT, PRIORITY, FREEZE_AFTER];

/// Largest number of characters of an annotation that is kept. No valid one is as long.
const LONGEST: usize = 128;

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
