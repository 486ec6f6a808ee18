//! Slices that a trace of `gpushare-ctl watch --trace` draws, and a check of their order.

use std::collections::BTreeMap;

use serde_json::Value;

/// Reads a trace, and holds its slices against their order: times never fall, on each track one slice is
/// after the other, every end has its beginning, and nothing is open at the end. Gives the slices' names in
/// the order of their ends.
///
/// # Panics
/// If the trace is not whole or its slices are in no such order.
pub fn slices(trace: &[u8]) -> Vec<String> {
    let whole: Value = serde_json::from_slice(trace).expect("valid JSON");
    let mut open: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let (mut done, mut last) = (Vec::new(), 0.0);
    for event in whole["traceEvents"].as_array().expect("events") {
        let Some(ts) = event["ts"].as_f64() else { continue };
        assert!(ts >= last, "{event} is before {last}");
        last = ts;
        let track = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().unwrap_or(0));
        match event["ph"].as_str().expect("a phase") {
            "B" => {
                let name = event["name"].as_str().expect("a name").to_owned();
                let within = open.insert(track, name);
                assert_eq!(within, None, "{event} is within it");
            }
            "E" => done.push(open.remove(&track).expect("a beginning")),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} never end");
    done
}
