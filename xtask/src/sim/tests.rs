use std::fs;

use gpushare_core::log::{Chain, FORMAT, Handled, Header, Line, Link};
use gpushare_core::{Config, Event, FIRST_WORD};
use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, Percent, SessionId};
use tempfile::TempDir;

use super::tenant::{Piece, Program, Tenant};
use super::*;

/// A card of 10 GB, with 10 GB a second to it, where thrashing is three times slower.
fn trace(sessions: &str) -> Trace {
    let card = "until = '1h'\nmemory = '10GB'\nbandwidth = '10GB'\nthrashing = 3.0\n";
    Trace::parse("test", &format!("{card}{sessions}")).unwrap()
}

fn two_hogs(memory: &str, work: &str) -> Trace {
    trace(&format!(
        "[[sessions]]\nname = 'hog'\ncount = 2\nmemory = '{memory}'\nprogram = 'hog'\nwork = '{work}'"
    ))
}

fn row(trace: &Trace, policy: impl Policy) -> Row {
    of(trace, policy).0
}

fn gpushare(trace: &Trace) -> Gpushare {
    Gpushare::new(trace.config.clone(), &trace.machine, trace.tenants.len())
}

#[test]
fn two_hogs_take_turns_of_thirty_seconds_as_computed_by_hand() {
    let trace = two_hogs("8GB", "40s");
    let (row, curves) = of(&trace, Fifo::fixed(&trace.machine));
    // 0 in (8 GB), 0.8 to 30.01 first, in, 30.81 to 60.02 second, in, 60.82 to 71.61 first, which ends,
    // in (6 GB), 72.21 to 83.0 second.
    assert_eq!(row.makespan_s, Some(83.0));
    assert_eq!((row.handoffs, row.moved_gb), (4, 30.0));
    assert_eq!(curves.waits, [0.8, 12.19, 30.81, 30.81]);
    assert_eq!((row.wait_p50_s, row.wait_p99_s), (12.19, 30.81));
    assert_eq!(row.greatest_lag_s, 15.405, "half of what the second waited");
    assert_eq!(row.jain, 0.993, "1 and 40 of 47.195");
    assert_eq!(row.lost_percent, 3.614, "3.0 of 83.0");
    assert_eq!(row.work_s, 80.0);
}

#[test]
fn who_fits_runs_side_by_side_and_nothing_is_handed_over() {
    let trace = two_hogs("3GB", "10s");
    for row in [
        row(&trace, gpushare(&trace)),
        row(&trace, Fifo::per_gigabyte(&trace.machine)),
        row(&trace, Unscheduled::default()),
    ] {
        // The memory of the second comes in after that of the first, which is 0.3 ahead.
        assert_eq!(row.makespan_s, Some(20.3), "{}", row.policy);
        assert_eq!((row.handoffs, row.moved_gb), (0, 6.0), "{}", row.policy);
    }
}

/// gpushare with remapped memory, whose invariants are looked at after each event.
fn remapped(trace: &Trace) -> Gpushare {
    gpushare(trace).checked().remapped(&trace.machine)
}

#[test]
fn remapped_memory_moves_no_more_than_the_excess_and_both_ways_at_once() {
    let trace = two_hogs("8GB", "40s");
    let (swapped, managed) = (row(&trace, remapped(&trace)), row(&trace, gpushare(&trace)));
    assert_eq!(swapped.work_s, 80.0);
    assert!(swapped.handoffs > 2, "{swapped:?}");
    // Each handoff moves what does not fit beside the other one: about 7 GB of 8.
    let most = 16.0 + 7.5 * swapped.handoffs as f64;
    assert!((16.0..=most).contains(&swapped.moved_gb), "{swapped:?}");
    let per_handoff = |row: &Row| row.lost_percent * row.makespan_s.unwrap() / row.handoffs as f64;
    assert!(per_handoff(&swapped) <= per_handoff(&managed), "{swapped:?} {managed:?}");
}

#[test]
fn remapped_memory_that_fits_comes_in_once_and_stays() {
    let trace = two_hogs("3GB", "10s");
    let row = row(&trace, remapped(&trace));
    assert_eq!((row.handoffs, row.moved_gb, row.work_s), (0, 6.0, 20.0));
}

#[test]
fn the_invariants_hold_after_every_event_of_the_built_in_traces_with_remapped_memory() {
    for (name, until) in [("hogs", 300), ("notebooks", 200), ("mixed", 200), ("gangs", 100)] {
        let mut trace = Trace::load(name).unwrap();
        trace.until = Nanos::from_millis(until * 1000);
        let row = row(&trace, remapped(&trace));
        assert!(row.work_s > 0.0, "{row:?}");
    }
}

#[test]
fn who_does_not_fit_and_takes_no_turns_thrashes() {
    let trace = two_hogs("8GB", "10s");
    let row = row(&trace, Unscheduled::default());
    // 0.8 s alone while the other's memory comes in, 9.2 s of both six times as long, 0.8 s alone.
    assert_eq!(row.makespan_s, Some(57.6));
    assert_eq!(row.work_s, 20.0);
}

#[test]
fn five_seconds_for_each_gigabyte() {
    let trace = two_hogs("8GB", "60s");
    let row = row(&trace, Fifo::per_gigabyte(&trace.machine));
    // Turns of 40 s: the first, which ran while it was alone, is told at once, has nothing in flight, and queues up again.
    assert_eq!(row.handoffs, 4);
    assert_eq!(row.work_s, 120.0);
}

#[test]
fn bursts_wait_for_their_memory_once() {
    let bursts = "{ bursts = { work = '10ms', every = '1s' } }";
    let trace =
        trace(&format!("[[sessions]]\nname = 'b'\nmemory = '1GB'\nprogram = {bursts}\nwork = '30ms'"));
    let (row, curves) = of(&trace, Fifo::fixed(&trace.machine));
    assert_eq!(row.makespan_s, Some(2.01));
    assert_eq!(curves.delays, [0.0, 0.0, 0.1]);
    assert_eq!(curves.waits, [0.1]);
}

#[test]
fn a_burst_beside_a_hog_is_served_within_a_turn_and_all_work_is_done() {
    let trace = trace(
        "[[sessions]]\nname = 'hog'\nmemory = '8GB'\nprogram = 'hog'\nwork = '60s'\n\
         [[sessions]]\nname = 'burst'\nmemory = '8GB'\nwork = '1s'\n\
         program = { bursts = { work = '100ms', every = '5s' } }",
    );
    let (ours, curves) = of(&trace, gpushare(&trace));
    assert_eq!((ours.ended, ours.work_s), (2, 61.0));
    assert_eq!(curves.delays.len(), 10);
    let quantum_max = 30.0;
    assert!(curves.delays.iter().all(|delay| *delay < quantum_max + 2.0), "{:?}", curves.delays);
    let theirs = row(&trace, Fifo::fixed(&trace.machine));
    assert_eq!((theirs.ended, theirs.work_s), (2, 61.0));
    assert!(ours.makespan_s < theirs.makespan_s, "an idle holder keeps the card for 5 s there");
}

/// A thread asks for the next turn while the last work drains: nobody who is behind its session in line is
/// let in beside the next.
#[test]
fn a_small_session_that_fits_beside_either_of_two_large_ones_gets_no_more_than_they_do() {
    let steps = |memory| {
        format!(
            "[[sessions]]\nname = 'steps'\nmemory = '{memory}'\nprogram = {{ steps = {{ work = '100ms', host = '1ms' }} }}\n"
        )
    };
    let trace = Trace::parse(
        "test",
        &format!(
            "until = '1h'\nmemory = '80GB'\n[[sessions]]\nname = 'hog'\nmemory = '60GB'\nprogram = 'hog'\n{}{}",
            steps("24GB"),
            steps("16GB")
        ),
    )
    .unwrap();
    let row = row(&trace, gpushare(&trace));
    assert!(row.greatest_lag_s < 30.0, "{} s of an hour", row.greatest_lag_s);
}

/// Two programs, together too large, that work for 20 ms and pause for so long, a hundred times.
fn with_pauses(pause: &str) -> Row {
    let trace = trace(&format!(
        "[[sessions]]\nname = 'steps'\ncount = 2\nmemory = '8GB'\nwork = '2s'\n\
         program = {{ steps = {{ work = '20ms', host = '{pause}' }} }}"
    ));
    row(&trace, gpushare(&trace))
}

#[test]
fn a_session_that_comes_back_at_once_learns_to_keep_the_card_and_one_that_stays_away_does_not() {
    let (soon, late) = (with_pauses("30ms"), with_pauses("200ms"));
    assert_eq!((soon.ended, late.ended), (2, 2));
    assert_eq!(
        soon.handoffs, 6,
        "each lets go after 10 and after 20 ms, and then 40 are longer than its pauses"
    );
    assert_eq!(late.handoffs, 200, "a turn for each step");
}

#[test]
fn a_gang_has_all_of_its_cards_or_none() {
    let trace = Trace::parse(
        "test",
        "until = '1h'\nmemory = '10GB'\nbandwidth = '10GB'\ngpus = 2\n\
         [[sessions]]\nname = 'single'\non = [0]\nmemory = '8GB'\nprogram = 'hog'\nwork = '10s'\n\
         [[sessions]]\nname = 'gang'\non = [0, 1]\nmemory = '8GB'\nprogram = 'hog'\nwork = '10s'",
    )
    .unwrap();
    let row = row(&trace, Fifo::fixed(&trace.machine));
    // 0.8 and 10 of the single one, then both cards bring in at once.
    assert_eq!(row.makespan_s, Some(21.6));
    assert_eq!((row.work_s, row.moved_gb), (30.0, 24.0));
}

/// So long of a trace that comes with this command; the crowd is for release builds.
fn built_in(name: &str) -> Trace {
    let mut trace = Trace::load(name).unwrap();
    if name == "crowd" {
        trace.until = Nanos::from_secs(1800);
    }
    trace
}

#[test]
fn every_trace_that_comes_along_ends_under_every_scheduler() {
    for name in Trace::names() {
        let trace = built_in(name);
        let (report, _) = simulate(&trace, Backend::Managed).unwrap();
        let cards = f64::from(trace.machine.gpus) * trace.until.0 as f64 / 1e9;
        for row in &report.rows {
            assert!(row.work_s > 0.0 && row.work_s <= cards, "{name}: {row:?}");
            assert!(row.jain > 0.0 && row.jain <= 1.0, "{name}: {row:?}");
        }
    }
}

#[test]
fn work_that_was_asked_for_is_done_and_no_more() {
    for name in ["hogs", "gangs"] {
        let trace = Trace::load(name).unwrap();
        let asked: Nanos = trace
            .tenants
            .iter()
            .map(|tenant| Nanos(tenant.work.unwrap().0 * tenant.gpus.len() as u64))
            .sum();
        let asked = (asked.0 as f64 / 1e6).round() / 1e3;
        let ours = row(&trace, gpushare(&trace));
        let theirs = row(&trace, Fifo::fixed(&trace.machine));
        assert_eq!((ours.ended, ours.work_s), (trace.tenants.len(), asked), "{name}");
        assert_eq!((theirs.ended, theirs.work_s), (trace.tenants.len(), asked), "{name}");
    }
}

#[test]
fn the_same_trace_gives_the_same_figures_byte_for_byte() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let [first, second] = folders.each_ref().map(|folder| {
        let (report, curves) = simulate(&Trace::load("notebooks").unwrap(), Backend::Managed).unwrap();
        let files = draw::figures(&report, &curves, folder.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_owned()).collect();
        let drawn: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        (serde_json::to_string(&report).unwrap(), names, drawn)
    });
    assert_eq!(first, second);
    assert_eq!(first.1, ["sim-notebooks-waits.svg", "sim-notebooks-delays.svg", "sim-notebooks-bars.svg"]);
    assert!(first.2.iter().all(|svg| svg.starts_with("<svg") && svg.contains("gpushare")));
}

#[test]
fn what_is_drawn_depends_on_the_seed_alone() {
    let text = "until = '1h'\nmemory = '10GB'\nSEED\n[[sessions]]\nname = 'a'\ncount = 9\narrives = '0s..1h'\n\
                memory = '1GB..5GB'\nprogram = 'hog'";
    let of = |seed: &str| Trace::parse("test", &text.replace("SEED", seed)).unwrap().tenants;
    assert_eq!(of("seed = 1"), of("seed = 1"));
    assert_ne!(of("seed = 1"), of("seed = 2"));
    let tenants = of("seed = 1");
    assert!(tenants.is_sorted_by_key(|tenant| tenant.arrives));
    let memory = Bytes(1_000_000_000)..=Bytes(5_000_000_000);
    assert!(tenants.iter().all(|tenant| memory.contains(&tenant.memory)));
}

#[test]
fn the_trace_in_the_documentation_reads() {
    let page = include_str!("../../../docs/simulator.md");
    let (_, toml) = page.split_once("```toml\n").unwrap();
    let (toml, _) = toml.split_once("```").unwrap();
    let trace = Trace::parse("page", toml).unwrap();
    assert_eq!(trace.tenants.len(), 14);
    let equal = |tenant: &&Tenant| {
        (tenant.weight, tenant.priority) == (100, Priority::Normal) && tenant.compute == Percent(10_000)
    };
    assert_eq!(trace.tenants.iter().filter(equal).count(), 11);
    let usual = trace::Machine::of(Bytes::gib(80));
    let said = trace::Machine { gpus: 2, thrashing: 5.4, ..usual };
    assert_eq!(trace.machine, said, "the page shows what is usual");
    assert!((usual.thrashing - 5.4).abs() < 0.05);
    for name in Trace::names() {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not on the page");
    }
}

#[test]
fn a_trace_that_cannot_be_is_refused_with_what_is_wrong() {
    let error = |text: &str| format!("{:#}", Trace::parse("t", text).unwrap_err());
    let card = "until = '1s'\nmemory = '1GB'\n";
    let session = "[[sessions]]\nname = 'a'\nmemory = '1GB'\nprogram = 'hog'\n";
    assert_eq!(error(&format!("{card}sessions = []")), "the trace t has no sessions");
    assert_eq!(error(&format!("{card}{session}gpus = 2")), "sessions a of the trace t: 2 GPUs of 1");
    assert!(error(&format!("{card}{session}work = '5s..1s'")).contains("`5s..1s` begins above its end"));
    assert!(error(&format!("{card}{session}arrives = 'soon'")).contains("`soon` is not a time"));
    assert!(
        format!("{:#}", Trace::load("/no/such/trace").unwrap_err())
            .starts_with("cannot read the trace /no/such/trace; give a file, or one of hogs, notebooks")
    );
}

#[test]
fn a_recording_becomes_who_did_what_when() {
    let (client, session, gpu) = (ClientId(1), SessionId(7), GpuId(0));
    let moving = FIRST_WORD.next(GateState::Moving);
    let open = moving.with(GateState::Open);
    let closed = moving.with(GateState::Closed);
    let seconds = Nanos::from_secs;
    let capacity = Event::Set(Setting { gpu: Some(gpu), knob: Knob::Capacity(Some(Bytes::gib(8))) });
    let events = [
        (1, Event::GpuFound { gpu, total: Bytes::gib(10) }),
        (1, capacity),
        (2, Event::SessionOpened { session, limit: None, oversubscribe: false }),
        (2, Event::ClientJoined { client, session, holding: None }),
        (2, Event::Attached { client, gpu, used: Bytes::gib(6) }),
        (3, Event::Wait { client, word: FIRST_WORD }),
        (3, Event::Entered { client, word: moving, moved: Bytes::gib(6), took: seconds(1) }),
        (5, Event::Released { client, word: open, drain: Nanos::ZERO }),
        (6, Event::Wait { client, word: closed }),
        (7, Event::ClientGone { client }),
    ];
    let header = Header {
        format: FORMAT,
        version: "0.0.9".to_owned(),
        generation: 1,
        expected: [].into(),
        incomplete: false,
        started: seconds(1),
        unix_seconds: 0,
        config: Config { mode: Some(Mode::Serialized), ..Config::default() },
    };
    let handled = events.map(|(at, event)| Line::Handled(Handled { now: seconds(at), event, effects: None }));
    let mut chain = Chain::default();
    let lines = [Line::Header(Box::new(header))].into_iter().chain(handled).map(|line| {
        chain = chain.with(&line);
        serde_json::to_string(&Link { line, chain }).unwrap() + "\n"
    });
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("day.jsonl");
    fs::write(&path, lines.collect::<String>()).unwrap();

    let trace = Trace::load(path.to_str().unwrap()).unwrap();
    assert_eq!((trace.name.as_str(), trace.machine.capacity), ("day", Bytes::gib(8)));
    let [tenant] = trace.tenants.as_slice() else {
        panic!("{:?}", trace.tenants);
    };
    assert_eq!((tenant.arrives, tenant.memory), (seconds(1), Bytes::gib(6)));
    let piece = |pause, work| Piece { pause: seconds(pause), work: seconds(work) };
    assert_eq!(tenant.program, Program::Recorded(vec![piece(1, 2), piece(1, 1)]));
    let row = row(&trace, gpushare(&trace));
    assert_eq!((row.ended, row.work_s), (1, 3.0));
}
