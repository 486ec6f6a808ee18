use std::fs;

use gpushare_core::log::{Chain, FORMAT, Fingerprint, Header, Line, Link};
use gpushare_core::{Config, Event};
use gpushare_proto::{Bytes, ClientId, GateWord, GpuId, SessionId};
use tempfile::TempDir;

use super::*;

const GPU: GpuId = GpuId(0);

fn header() -> Header {
    Header {
        format: FORMAT,
        version: "0.0.9".to_owned(),
        generation: 1,
        expected: [].into(),
        incomplete: false,
        started: Nanos::from_secs(1),
        unix_seconds: 0,
        config: Config::default(),
    }
}

/// Two sessions that do not fit the card together, as a daemon would record them.
fn recorded() -> Vec<Line> {
    let session = |n| Event::SessionOpened { session: SessionId(n), limit: None, oversubscribe: false };
    let mut events = vec![Event::GpuFound { gpu: GPU, total: Bytes::gib(10) }];
    for n in 1..=2 {
        let client = ClientId(n);
        events.push(session(n));
        events.push(Event::ClientJoined { client, session: SessionId(n), holding: None });
        events.push(Event::Attached { client, gpu: GPU, used: Bytes::gib(6) });
        let word = GateWord(0);
        events.push(Event::Wait { client, word });
    }
    let mut machine = Harness::new(header().machine(), header().started);
    let mut lines = vec![Line::Header(Box::new(header()))];
    for (n, event) in events.into_iter().enumerate() {
        machine.now = Nanos::from_secs(2 + n as u64);
        let (effects, rules) = machine.step(event);
        assert_eq!(rules, Ok(()));
        let effects = Some(Fingerprint::of(&effects));
        lines.push(Line::Handled(Handled { now: machine.now, event, effects }));
    }
    lines.push(Line::End { reason: "the daemon ended".to_owned() });
    lines
}

/// Linked as a daemon links them.
fn text(lines: &[Line]) -> String {
    let mut chain = Chain::default();
    let lines = lines.iter().map(|line| {
        chain = chain.with(line);
        let line = line.clone();
        serde_json::to_string(&Link { line, chain }).unwrap() + "\n"
    });
    lines.collect()
}

/// Returns the output and the result of a replay of a file with this content.
fn replayed(content: &str, json: bool) -> anyhow::Result<(String, Report)> {
    let folder = TempDir::new()?;
    let path = folder.path().join("recording");
    fs::write(&path, content)?;
    let mut out = Vec::new();
    let report = replay(&mut Recording::open(&path)?, json, &mut out)?;
    Ok((String::from_utf8(out)?, report))
}

#[test]
fn the_same_log_gives_the_same_effects() {
    let log = text(&recorded());
    let (first, report) = replayed(&log, true).unwrap();
    let (second, again) = replayed(&log, true).unwrap();
    assert_eq!((&first, &report), (&second, &again));
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.events, report.ending), (9, Ending::Said("the daemon ended".to_owned())));
    let lines: Vec<serde_json::Value> =
        first.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 9);
    assert_eq!(lines[0]["line"], 2);
    assert_eq!(lines[0]["event"]["GpuFound"]["gpu"], 0);
    let effects: usize = lines.iter().map(|line| line["effects"].as_array().unwrap().len()).sum();
    assert_eq!(effects as u64, report.effects);
}

#[test]
fn people_read_the_line_the_time_and_what_follows() {
    let (told, _) = replayed(&text(&recorded()), false).unwrap();
    assert!(told.starts_with("      2      1.000000 s  GpuFound gpu=0 total=10737418240\n"), "{told}");
    assert!(told.contains("→ Notice ModeChanged={gpu=0 mode=serialized"), "{told}");
}

#[test]
fn other_effects_than_the_daemons_are_found_and_the_replay_goes_on() {
    let mut lines = recorded();
    let Line::Handled(third) = &mut lines[3] else { panic!("no event") };
    third.effects = Some(Fingerprint::of(&[Effect::Kill { client: ClientId(1) }]));
    let (_, report) = replayed(&text(&lines), false).unwrap();
    assert_eq!((report.diverged_at_line, report.events), (Some(4), 9));
    assert!(!report.is_clean());
    assert!(report.to_string().contains("it was gpushare 0.0.9"), "{report}");
}

#[test]
fn a_last_line_that_was_cut_is_reported_and_the_rest_is_replayed() {
    let whole = text(&recorded()[..5]);
    let (_, report) = replayed(&whole[..whole.len() - 9], false).unwrap();
    assert!(report.is_clean());
    assert_eq!((report.events, report.ending), (3, Ending::Truncated { line: 5 }));
    let (_, report) = replayed(&whole, false).unwrap();
    assert_eq!((report.events, report.ending), (4, Ending::Nothing));
}

#[test]
fn what_is_no_recording_is_refused_with_its_line() {
    let log = text(&recorded());
    let newer = log.replacen("\"format\":3", "\"format\":4", 1);
    let older = serde_json::to_string(&recorded()[0]).unwrap() + "\n";
    let older = older.replacen("\"format\":3", "\"format\":1", 1);
    let torn = log.replacen("{\"handled\":{\"now\":4", "{\"handled\":{now", 1);
    for (content, expected) in [
        ("", "is no recording"),
        ("hello\n", "is no recording"),
        (&text(&[Line::End { reason: "x".to_owned() }]), "it has no header"),
        (&newer, "has format 4"),
        (&older, "has format 1"),
        (&torn, "line 4 of"),
    ] {
        let error = replayed(content, false).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }
}

#[test]
fn a_recording_from_before_users_is_refused_with_what_to_do() {
    let mut before = recorded();
    let Line::Header(header) = &mut before[0] else { panic!("no header") };
    header.format = 2;
    let error = replayed(&text(&before), false).unwrap_err().to_string();
    assert!(error.contains("has format 2, and this xtask reads format 3"), "{error}");
    assert!(error.contains("check out the gpushare that its header names, or record again"), "{error}");
}

#[test]
fn a_broken_rule_ends_the_replay_with_its_line() {
    let report = Report {
        version: "0.1.0".to_owned(),
        events: 7,
        effects: 3,
        broken: Some(Break { line: 8, rule: "epochs rise".to_owned(), found: "1:2 after 1:3".to_owned() }),
        diverged_at_line: None,
        altered_at_line: None,
        ending: Ending::Nothing,
    };
    assert!(!report.is_clean());
    assert!(report.to_string().ends_with("broken in line 8: epochs rise: 1:2 after 1:3"), "{report}");
}

#[test]
fn a_line_that_is_changed_removed_repeated_or_moved_is_named() {
    let whole = text(&recorded());
    let (_, report) = replayed(&whole, false).unwrap();
    assert_eq!(report.altered_at_line, None);
    let lines: Vec<&str> = whole.lines().collect();
    let last = lines.len() - 1;
    for at in 1..=last {
        let altered = |edited: Vec<String>| {
            let (_, report) = replayed(&(edited.join("\n") + "\n"), false).unwrap();
            assert!(!report.is_clean());
            report.altered_at_line
        };
        let owned = || lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let (line, next) = (Some(at as u64 + 1), Some(at as u64 + 2));

        let mut repeated = owned();
        repeated.insert(at, lines[at].to_owned());
        assert_eq!(altered(repeated), next, "line {line:?} twice");
        let mut respelled = owned();
        respelled[at].insert(1, ' ');
        assert_eq!(altered(respelled), line, "line {line:?} with a space");
        if at < last {
            let mut removed = owned();
            removed.remove(at);
            assert_eq!(altered(removed), line, "without line {line:?}");
            let mut swapped = owned();
            swapped.swap(at, at + 1);
            assert_eq!(altered(swapped), line, "line {line:?} after the next");
        }
    }
    for (from, to, line) in [
        ("\"version\":\"0.0.9\"", "\"version\":\"0.0.8\"", 1),
        ("\"now\":2000000000,", "\"now\":2000000001,", 2),
        ("\"session\":1,\"limit\":null", "\"session\":1,\"limit\":9007199254740993", 3),
        ("the daemon ended", "the daemon endet", 11),
    ] {
        assert!(whole.contains(from), "{whole}");
        let (_, report) = replayed(&whole.replacen(from, to, 1), false).unwrap();
        assert_eq!(report.altered_at_line, Some(line), "{to}");
        assert!(
            report
                .to_string()
                .contains(&format!("line {line} is not what the daemon wrote there")),
            "{report}"
        );
    }
}

#[test]
fn time_that_runs_backwards_is_a_broken_rule() {
    for (line, early) in [(1, Nanos(7)), (4, Nanos::from_secs(3))] {
        let mut lines = recorded();
        let Line::Handled(handled) = &mut lines[line] else { panic!("no event") };
        handled.now = early;
        let (_, report) = replayed(&text(&lines), false).unwrap();
        let broken = report.broken.expect("a broken rule");
        assert_eq!((broken.line, broken.rule.as_str()), (line as u64 + 1, "time does not run backwards"));
    }
}
