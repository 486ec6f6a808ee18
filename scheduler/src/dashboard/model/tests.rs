use gpushare_proto::admin::{Activity, ResidenceView};
use gpushare_proto::follow::CardUse;
use gpushare_proto::handoff::Direction;
use gpushare_proto::session::Quota;
use serde_json::{Value, json};

use super::*;

const FIRST: SessionId = SessionId(1);

fn at(ticks: u64, what: WatchEventKind) -> WatchEvent {
    WatchEvent { at_ns: Nanos(ticks * TICK.0), what }
}

fn turned(ticks: u64, to: Activity) -> WatchEvent {
    at(ticks, WatchEventKind::Turned { session: FIRST, to })
}

fn waiting() -> Activity {
    Activity::Waiting { reason: "train holds gpu0".to_owned() }
}

/// Model with one session that holds from the fourth tick on.
fn model() -> Model {
    let mut model = Model::new(Nanos(4 * TICK.0));
    model.apply(&at(4, WatchEventKind::SessionBegan { session: FIRST, name: "train".to_owned() }));
    model.apply(&turned(4, Activity::Holding));
    model
}

fn read(text: &[u8]) -> Value {
    let text = std::str::from_utf8(text).unwrap();
    serde_json::from_str(text.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap()).unwrap()
}

#[test]
fn a_message_has_only_what_changed() {
    let mut model = model();
    model.apply(&turned(6, waiting()));
    let more = read(&model.more(true));
    assert_eq!((&more["sessions"][0]["state"], &more["tick"]), (&json!("waiting"), &json!(6)));
    assert_eq!(more["runs"], json!([[1, [4, [100, 0, 0]]]]));
    model.sent();
    assert_eq!(read(&model.more(true)), json!({"kind": "more", "tick": 6}));
    model.pass(Nanos(8 * TICK.0) + LAG);
    assert_eq!(read(&model.more(true)), json!({"kind": "more", "tick": 8, "runs": [[1, [6, [0, 0, 100]]]]}));
    let full = read(&model.full(true));
    assert_eq!(full["runs"], json!([[1, [[4, [100, 0, 0]], [6, [0, 0, 100]]]]]));
}

fn increments(changes: Vec<Increment>) -> Increments {
    Increments { changes, ..Increments::default() }
}

fn facts(name: &str) -> Increment {
    Increment::Session(SessionFacts {
        session: FIRST,
        name: name.to_owned(),
        user: None,
        memory: Quota::default(),
        weight: 100,
        priority: Priority::Normal,
        phase: SessionPhase::Good,
        pids: vec![7],
    })
}

fn figures(bytes: Bytes, gpu_time_ns: Nanos) -> Increment {
    figures_with(LockState::Stuck, bytes, gpu_time_ns)
}

fn figures_with(lock: LockState, bytes: Bytes, gpu_time_ns: Nanos) -> Increment {
    Increment::SessionFigures(SessionFigures {
        session: FIRST,
        lock,
        memory: vec![CardUse { gpu: GpuId(0), allocated_bytes: bytes, limit_bytes: None }],
        gpu_time_ns,
        refusals: 2,
    })
}

#[test]
fn figures_that_the_page_does_not_show_change_no_row() {
    let mut model = model();
    model.follow(&increments(vec![facts("train"), figures(Bytes(5), Nanos(1))]));
    let row = &read(&model.more(true))["sessions"][0];
    assert_eq!(
        (&row["memory"], &row["stuck"], &row["processes"]),
        (&json!([[0, 5, null]]), &json!(true), &json!(1))
    );
    model.sent();
    model.follow(&increments(vec![figures(Bytes(5), Nanos(2))]));
    assert_eq!(read(&model.more(true)).get("sessions"), None);
    model.follow(&increments(vec![figures(Bytes(6), Nanos(3))]));
    assert_eq!(read(&model.more(true))["sessions"][0]["memory"], json!([[0, 6, null]]));
}

#[test]
fn a_frozen_session_is_shown_as_such_until_it_has_a_turn() {
    let mut model = model();
    let frozen = |model: &Model| read(&model.full(true))["sessions"][0]["frozen"].clone();
    model.follow(&increments(vec![facts("nb"), figures_with(LockState::Frozen, Bytes(5), Nanos(1))]));
    assert_eq!(frozen(&model), json!(true));
    model.apply(&turned(4, Activity::Holding));
    assert_eq!(frozen(&model), json!(false));
}

#[test]
fn a_later_name_is_not_replaced_by_the_first_and_an_ended_session_does_not_come_back() {
    let mut model = Model::new(Nanos::ZERO);
    let ended = Increment::SessionEnded { session: FIRST };
    model.follow(&increments(vec![facts("new")]));
    model.apply(&at(0, WatchEventKind::SessionBegan { session: FIRST, name: "old".to_owned() }));
    assert_eq!(read(&model.full(true))["sessions"][0]["name"], "new");
    model.apply(&at(0, WatchEventKind::SessionEnded { session: FIRST }));
    model.follow(&increments(vec![facts("new"), ended]));
    assert_eq!(read(&model.full(true))["sessions"], json!([]));
}

#[test]
fn a_session_counts_for_its_card_as_soon_as_it_has_memory() {
    let mut model = model();
    model.apply(&at(4, WatchEventKind::Allocated { session: FIRST, gpu: GpuId(0), bytes: Bytes(5) }));
    model.cards.insert(GpuId(0), Card::default());
    let waited_ns = Nanos::from_millis(3);
    model.apply(&at(4, WatchEventKind::Granted { session: FIRST, quantum_ns: waited_ns, waited_ns }));
    assert_eq!(model.cards[&GpuId(0)].waits.percentiles().map(|waits| waits.count), Some(1));
}

#[test]
fn no_name_and_no_reason_is_in_a_message_for_guests() {
    let mut model = model();
    model.apply(&turned(5, waiting()));
    for text in [model.full(false), model.more(false)] {
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains("train") && text.contains("waiting"), "{text}");
    }
    assert!(String::from_utf8(model.full(true)).unwrap().contains("train"));
}

#[test]
fn an_ended_session_is_told_once() {
    let mut model = model();
    model.apply(&at(5, WatchEventKind::SessionEnded { session: FIRST }));
    let more = read(&model.more(true));
    assert_eq!((&more["gone"], more.get("sessions")), (&json!([1]), None));
    model.sent();
    assert_eq!(read(&model.more(true)).get("gone"), None);
    assert_eq!(read(&model.full(true))["sessions"], json!([]));
}

#[test]
fn percentiles_are_those_of_the_latest_waits() {
    let mut model = model();
    for ms in 1..=200 {
        let granted = WatchEventKind::Granted {
            session: FIRST,
            quantum_ns: Nanos::from_secs(1),
            waited_ns: Nanos::from_millis(ms),
        };
        model.apply(&at(4, granted));
    }
    let row = &read(&model.more(true))["sessions"][0];
    // Of 137 to 200 ms.
    assert_eq!(row["wait"], json!({"p50": 169.0, "p99": 200.0, "count": 64}));
    assert_eq!(row["turns"], 200);
    assert_eq!(Samples::<4>::default().percentiles(), None);
}

#[test]
fn a_long_time_without_an_event_costs_nothing() {
    let mut model = model();
    model.pass(Nanos(5 * TICK.0) + LAG);
    model.sent();
    model.pass(Nanos::from_secs(1_000_000) + LAG);
    assert_eq!(model.tick, 4_000_000);
    assert!(model.changes.runs.is_empty() && model.stirred.is_empty());
    model.apply(&turned(4_000_002, Activity::Idle));
    model.pass(Nanos(4_000_003 * TICK.0) + LAG);
    assert_eq!(read(&model.more(true))["runs"], json!([[1, [4_000_002, [0, 0, 0]]]]));
}

fn card() -> Vec<Increment> {
    let (gpu, total_bytes) = (GpuId(0), Bytes::gib(8));
    let facts = CardFacts { gpu, uuid: GpuUuid::gpu([1; 16]), name: "a card".to_owned(), total_bytes };
    let figures = CardFigures {
        gpu,
        capacity_bytes: total_bytes,
        allocated_bytes: total_bytes,
        mode: Mode::Serialized,
        reason: String::new(),
        holding: 0,
        holders: Vec::new(),
        waiting: 0,
        queue: Vec::new(),
        quantum_ns: Nanos::ZERO,
        turn_ends_ns: None,
        handoffs: 0,
    };
    vec![Increment::Card(facts), Increment::CardFigures(figures)]
}

#[test]
fn places_of_remapped_memory_and_the_last_handoff_are_shown() {
    let mut model = model();
    let (gpu, gib) = (GpuId(0), Bytes::gib(1).0);
    let residence = |resident, hosted| {
        let (resident_bytes, hosted_bytes) = (Bytes::gib(resident), Bytes::gib(hosted));
        CardResidence { gpu, resident_bytes, hosted_bytes, moving_bytes: Bytes::ZERO }
    };
    let place = ResidenceView {
        session: FIRST,
        gpu,
        resident_bytes: Bytes::gib(3),
        hosted_bytes: Bytes::gib(1),
        mapped_bytes: Bytes::ZERO,
        moving_bytes: Bytes(7),
    };
    model.follow(&increments(card()));
    let shown = |model: &Model| read(&model.more(true));
    let card = &shown(&model)["cards"][0];
    assert_eq!((card.get("remapped"), card.get("moved")), (None, None));
    model.follow(&increments(vec![
        Increment::CardResidence(residence(5, 2)),
        Increment::Residence { session: FIRST, places: vec![place] },
    ]));
    let way = |bytes, rest| Direction {
        bytes: Bytes(bytes),
        rest_bytes: Bytes(rest),
        bytes_per_second: Bytes(9),
        ..Direction::default()
    };
    let handoff = Handoff {
        gpu,
        took_ns: Nanos::from_millis(1500),
        out: way(4, 0),
        copied_out_bytes: Bytes::ZERO,
        into: way(3, 1),
        both_ns: Nanos::from_millis(750),
        overlap: gpushare_proto::Percent(5000),
    };
    model.apply(&at(4, WatchEventKind::HandingOver(handoff.clone())));
    let more = shown(&model);
    assert_eq!(more["cards"][0]["remapped"], json!({"resident": 5 * gib, "hosted": 2 * gib, "moving": 0}));
    assert_eq!(
        more["sessions"][0]["remapped"],
        json!([[0, {"resident": 3 * gib, "hosted": gib, "moving": 7}]])
    );
    assert_eq!(
        more["cards"][0]["moved"],
        json!({
            "is_running": true, "took_ms": 1500.0, "overlap_percent": 50.0,
            "out": {"bytes": 4, "rest": 0, "per_second": 9}, "in": {"bytes": 3, "rest": 1, "per_second": 9},
        })
    );
    model.follow(&increments(vec![Increment::CardResidence(residence(5, 2))]));
    assert_eq!(shown(&model)["cards"][0].get("moved"), None, "nothing moves any more, and no end was told");
    model.apply(&at(4, WatchEventKind::HandedOver(handoff)));
    model.follow(&increments(vec![
        Increment::CardResidence(residence(0, 0)),
        Increment::Residence { session: FIRST, places: Vec::new() },
    ]));
    let more = shown(&model);
    assert_eq!(more["cards"][0]["moved"]["is_running"], false);
    assert_eq!((more["cards"][0].get("remapped"), more["sessions"][0].get("remapped")), (None, None));
}
