//! Timeline of a card and its sessions as SVG, drawn from the events of `gpushare-ctl watch --json`.

use std::collections::BTreeMap;
use std::fmt::Write;

use gpushare_proto::admin::{Activity, WatchEvent, WatchEventKind as Kind};
use gpushare_proto::{Nanos, SessionId};

const LEFT: f64 = 130.0;
const WIDTH: f64 = 800.0;
const TOP: f64 = 56.0;
const LANE: f64 = 34.0;
const BAR: f64 = 24.0;
/// Colours of the sessions. People who see no red and green can distinguish them (Okabe and Ito).
const COLOURS: [&str; 3] = ["#0072b2", "#009e73", "#cc79a7"];
const MOVING: &str = "#e69f00";
const DROPPING: &str = "#d55e00";
const WAITING: &str = "#888888";
/// Longest time between a drain and the move of the same handoff.
const AT_ONCE: Nanos = Nanos::from_millis(1);
/// Greatest number of marks on the axis.
const MARKS: u64 = 12;

/// Use of the card by one session, or the mode of the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) what: &'static str,
}

/// One row of the picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) slices: Vec<Slice>,
}

/// The modes of one card and what each session did, from the first to the last event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) card: Row,
    pub(super) sessions: Vec<Row>,
    pub(super) end: Nanos,
}

/// Period of a timeline that is drawn, and the unit of its axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// Name of the unit of the axis, and its length.
    pub(super) unit: (&'static str, Nanos),
}

impl Timeline {
    pub(super) fn of(events: &[WatchEvent]) -> Self {
        let mut timeline = Self::default();
        let mut rows: BTreeMap<SessionId, usize> = BTreeMap::new();
        for WatchEvent { at_ns, what } in events {
            timeline.end = timeline.end.max(*at_ns);
            match what {
                Kind::ModeChanged { gpu, mode, .. } => {
                    timeline.card.name = gpu.to_string();
                    timeline.card.turn(*at_ns, Some(mode.name()));
                }
                Kind::SessionBegan { session, name } => {
                    rows.insert(*session, timeline.sessions.len());
                    timeline.sessions.push(Row { name: name.clone(), slices: Vec::new() });
                }
                Kind::Turned { session, to } => {
                    let what = match to {
                        Activity::Idle => None,
                        Activity::Waiting { .. } => Some("waiting"),
                        Activity::Moving => Some("moving"),
                        Activity::Holding => Some("holding"),
                        Activity::Dropping => Some("dropping"),
                    };
                    if let Some(row) = rows.get(session) {
                        timeline.sessions[*row].turn(*at_ns, what);
                    }
                }
                Kind::SessionEnded { session } => {
                    if let Some(row) = rows.remove(session) {
                        timeline.sessions[row].turn(*at_ns, None);
                    }
                }
                _ => {}
            }
        }
        let end = timeline.end;
        timeline.card.turn(end, None);
        timeline.sessions.iter_mut().for_each(|row| row.turn(end, None));
        timeline
    }

    /// Returns the period around the longest handoff: a drain, and the move that follows at once.
    pub(super) fn longest_handoff(&self) -> Option<Window> {
        let slices = |what| {
            self.sessions
                .iter()
                .flat_map(|row| &row.slices)
                .filter(move |slice| slice.what == what)
        };
        let follows =
            |drain: &Slice, moved: &Slice| drain.to <= moved.from && moved.from - drain.to <= AT_ONCE;
        let handoffs = slices("dropping").flat_map(|drain| {
            slices("moving")
                .filter(move |moved| follows(drain, moved))
                .map(|moved| (drain.from, moved.to))
        });
        let (from, to) = handoffs.max_by_key(|(from, to)| *to - *from)?;
        let margin = Nanos((to - from).0 / 3);
        Some(Window {
            from: Nanos(from.0.saturating_sub(margin.0)),
            to: (to + margin).min(self.end),
            unit: ("ms", Nanos::from_millis(1)),
        })
    }

    /// Returns the whole period.
    pub(super) fn whole(&self) -> Window {
        let starts = self
            .sessions
            .iter()
            .filter_map(|row| row.slices.first())
            .map(|slice| slice.from);
        Window {
            from: starts.min().unwrap_or_default(),
            to: self.end,
            unit: ("s", Nanos::from_secs(1)),
        }
    }

    /// Draws a period.
    pub(super) fn draw(&self, title: &str, window: Window) -> String {
        let height = TOP + LANE * (self.sessions.len() + 1) as f64 + 64.0;
        let width = LEFT + WIDTH + 20.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, (12.0, 26.0), "font-size=\"16\" font-weight=\"bold\"", title);
        let mut top = TOP;
        lane(&mut svg, top, &self.card.name);
        for (slice, x, width) in visible(&self.card, window) {
            let style = match slice.what {
                "parallel" => "fill=\"#dddddd\"",
                _ => "fill=\"#bbbbbb\"",
            };
            bar(&mut svg, (x, top), (width, BAR), style);
            if width > 70.0 {
                text(&mut svg, (x + 6.0, top + 17.0), "fill=\"#222222\"", slice.what);
            }
        }
        for (row, colour) in self.sessions.iter().zip(COLOURS.iter().cycle()) {
            top += LANE;
            lane(&mut svg, top, &row.name);
            for (slice, x, width) in visible(row, window) {
                match slice.what {
                    "waiting" => {
                        bar(&mut svg, (x, top + BAR / 2.0 - 1.5), (width, 3.0), &fill(WAITING));
                    }
                    "moving" => bar(&mut svg, (x, top), (width, BAR), &fill(MOVING)),
                    "dropping" => bar(&mut svg, (x, top), (width, BAR), &fill(DROPPING)),
                    _ => bar(&mut svg, (x, top), (width, BAR), &fill(colour)),
                }
            }
        }
        axis(&mut svg, top + LANE, window);
        legend(&mut svg, height - 14.0);
        svg + "</svg>\n"
    }
}

impl Row {
    /// Ends the open slice at `now`, and begins the next one.
    fn turn(&mut self, now: Nanos, what: Option<&'static str>) {
        if let Some(open) = self.slices.last_mut().filter(|slice| slice.to == Nanos(u64::MAX)) {
            open.to = now;
        }
        self.slices
            .extend(what.map(|what| Slice { from: now, to: Nanos(u64::MAX), what }));
    }
}

/// Returns the slices of a row in the window, with place and width.
fn visible(row: &Row, window: Window) -> impl Iterator<Item = (&Slice, f64, f64)> {
    row.slices.iter().filter_map(move |slice| {
        let (from, to) = (slice.from.max(window.from), slice.to.min(window.to));
        (from < to).then(|| (slice, place(from, window), (place(to, window) - place(from, window)).max(0.5)))
    })
}

fn place(at: Nanos, window: Window) -> f64 {
    LEFT + WIDTH * (at - window.from).0 as f64 / (window.to - window.from).0.max(1) as f64
}

fn lane(svg: &mut String, top: f64, name: &str) {
    text(svg, (12.0, top + 17.0), "", name);
    bar(svg, (LEFT, top), (WIDTH, BAR), "fill=\"#f4f4f4\"");
}

/// Draws marks in round distances.
fn axis(svg: &mut String, top: f64, window: Window) {
    let (name, unit) = window.unit;
    let length = (window.to - window.from).0 / unit.0;
    let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];
    let step = steps.into_iter().find(|step| length / step <= MARKS).unwrap_or(length.max(1));
    for mark in (0..=length).step_by(step as usize) {
        let x = place(window.from + Nanos(mark * unit.0), window);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {top}v5\" stroke=\"#777777\"/>");
        let style = "fill=\"#777777\" font-size=\"12\" text-anchor=\"middle\"";
        text(svg, (x, top + 19.0), style, &format!("{mark} {name}"));
    }
}

fn legend(svg: &mut String, bottom: f64) {
    let mut x = LEFT;
    let all = [("holds the card", COLOURS[0]), ("drains", DROPPING), ("moves memory in", MOVING)];
    for (words, colour) in all {
        bar(svg, (x, bottom - 11.0), (14.0, 12.0), &fill(colour));
        text(svg, (x + 20.0, bottom), "", words);
        x += 160.0;
    }
    bar(svg, (x, bottom - 6.0), (14.0, 3.0), &fill(WAITING));
    text(svg, (x + 20.0, bottom), "", "waits for the card");
}

fn fill(colour: &str) -> String {
    format!("fill=\"{colour}\"")
}

fn bar(svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), style: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GpuId;
    use gpushare_proto::admin::Mode;

    use super::*;

    fn story() -> Timeline {
        let (a, b) = (SessionId(1), SessionId(2));
        let events = [
            (0, Kind::SessionBegan { session: a, name: "a".to_owned() }),
            (0, Kind::ModeChanged { gpu: GpuId(0), mode: Mode::Serialized, reason: String::new() }),
            (1, Kind::SessionBegan { session: b, name: "b".to_owned() }),
            (2, Kind::Turned { session: a, to: Activity::Holding }),
            (3, Kind::Turned { session: b, to: Activity::Waiting { reason: String::new() } }),
            (10, Kind::Turned { session: a, to: Activity::Dropping }),
            (12, Kind::Turned { session: a, to: Activity::Idle }),
            (12, Kind::Turned { session: b, to: Activity::Moving }),
            (16, Kind::Turned { session: b, to: Activity::Holding }),
            (30, Kind::SessionEnded { session: b }),
        ];
        let events = events.map(|(at, what)| WatchEvent { at_ns: Nanos::from_millis(at), what });
        Timeline::of(&events)
    }

    #[test]
    fn each_session_has_a_row_of_slices_without_gaps() {
        let timeline = story();
        let slices = |row: &Row| -> Vec<_> {
            let millis = |time: Nanos| time.0 / 1_000_000;
            row.slices
                .iter()
                .map(|slice| (millis(slice.from), millis(slice.to), slice.what))
                .collect()
        };
        assert_eq!(slices(&timeline.card), [(0, 30, "serialized")]);
        assert_eq!(slices(&timeline.sessions[0]), [(2, 10, "holding"), (10, 12, "dropping")]);
        let second = [(3, 12, "waiting"), (12, 16, "moving"), (16, 30, "holding")];
        assert_eq!(slices(&timeline.sessions[1]), second);
    }

    #[test]
    fn the_longest_handoff_is_from_the_request_to_the_end_of_the_move() {
        let window = story().longest_handoff().unwrap();
        assert_eq!((window.from, window.to), (Nanos::from_millis(8), Nanos::from_millis(18)));
    }
}
