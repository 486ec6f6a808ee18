//! Trace in Chrome's JSON format, for Perfetto: a track per card with its mode, a track per session with its
//! activity, counters of allocated bytes.
//!
//! ```text
//!   [head, event, event, …] [tail: ends of the open slices, "]}"]
//!                           └─ the next write begins here, and ends with a new tail
//! ```
//!
//! The file is thus valid JSON after every write, however this program ends.

use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};

use gpushare_proto::admin::{Activity, WatchEvent, WatchEventKind as Kind};
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use serde_json::{Value, json};

const HEAD: &str = r#"{"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"cards"}},
{"ph":"M","pid":2,"name":"process_name","args":{"name":"sessions"}}"#;

/// Row of the trace, for one card or one session; in Chrome's format a process and a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Card(GpuId),
    Session(SessionId),
}

impl Track {
    fn ids(self) -> (u64, u64) {
        match self {
            Self::Card(gpu) => (1, u64::from(gpu.0) + 1),
            Self::Session(session) => (2, session.0),
        }
    }
}

/// Trace file of a daemon's events in Chrome's format, valid JSON after every write.
#[derive(Debug)]
pub(super) struct Trace<W> {
    out: W,
    /// Offset in the file at which the next event is written: the beginning of the closing text.
    body: u64,
    /// Offset in the file of the end of the closing text.
    end: u64,
    now: Nanos,
    open: BTreeMap<Track, &'static str>,
    names: BTreeMap<SessionId, String>,
    allocated: BTreeMap<(GpuId, SessionId), Bytes>,
}

impl<W: Write + Seek> Trace<W> {
    /// Writes an empty, valid trace to `out`.
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut trace = Self {
            out,
            body: 0,
            end: 0,
            now: Nanos::ZERO,
            open: BTreeMap::new(),
            names: BTreeMap::new(),
            allocated: BTreeMap::new(),
        };
        trace.write(HEAD)?;
        Ok(trace)
    }

    pub(super) fn add(&mut self, happenings: &[WatchEvent]) -> io::Result<()> {
        let mut events = Vec::new();
        for WatchEvent { at_ns, what } in happenings {
            self.now = self.now.max(*at_ns);
            self.happened(what, &mut events);
        }
        let lines = events.into_iter().map(|event| format!(",\n{event}"));
        self.write(&lines.collect::<String>())
    }

    /// Overwrites the closing text of the trace file by `body` and a new closing text.
    fn write(&mut self, body: &str) -> io::Result<()> {
        let mut text = body.to_owned();
        for track in self.open.keys() {
            text += &format!(",\n{}", self.slice_end(*track));
        }
        text += "\n]}\n";
        // White space covers the rest of a longer old tail; the format ignores it.
        while self.body + (text.len() as u64) < self.end {
            text.push(' ');
        }
        self.out.seek(SeekFrom::Start(self.body))?;
        self.out.write_all(text.as_bytes())?;
        self.end = self.body + text.len() as u64;
        self.body += body.len() as u64;
        Ok(())
    }

    fn happened(&mut self, what: &Kind, events: &mut Vec<Value>) {
        match what {
            Kind::CardFound { gpu, name, .. } => {
                events.push(named(Track::Card(*gpu), &format!("{gpu} {name}")));
            }
            Kind::ModeChanged { gpu, mode, reason } => {
                self.turn(Track::Card(*gpu), Some(mode.name()), reason, events);
            }
            Kind::SessionBegan { session, name } => {
                let name = format!("{session} {name}");
                events.push(named(Track::Session(*session), &name));
                self.names.insert(*session, name);
            }
            // The track gets another name; the counter of the old name goes on there.
            Kind::SessionRenamed { session, name } => {
                events.push(named(Track::Session(*session), &format!("{session} {name}")));
            }
            Kind::SessionEnded { session } => {
                self.turn(Track::Session(*session), None, "", events);
                let had: Vec<_> = self.allocated.keys().filter(|(_, id)| id == session).copied().collect();
                for (gpu, session) in had {
                    self.count(gpu, session, Bytes::ZERO, events);
                    self.allocated.remove(&(gpu, session));
                }
            }
            Kind::Turned { session, to } => {
                let (slice, reason) = match to {
                    Activity::Idle => (None, ""),
                    Activity::Waiting { reason } => (Some("waiting"), reason.as_str()),
                    Activity::Moving => (Some("moving"), ""),
                    Activity::Holding => (Some("holding"), ""),
                    Activity::Dropping => (Some("dropping"), ""),
                };
                self.turn(Track::Session(*session), slice, reason, events);
            }
            Kind::Allocated { session, gpu, bytes } => self.count(*gpu, *session, *bytes, events),
            Kind::Refused { session, refusal, .. } => {
                let asked =
                    json!({ "requested": refusal.requested, "limit": refusal.limit, "used": refusal.used });
                events.push(self.instant(Track::Session(*session), "refused", &asked));
            }
            Kind::DropReopened { session, tries } => {
                events.push(self.instant(
                    Track::Session(*session),
                    "drop reopened",
                    &json!({ "tries": tries }),
                ));
            }
            Kind::Stuck { session, reason } => {
                events.push(self.instant(Track::Session(*session), "stuck", &json!({ "reason": reason })));
            }
            Kind::HandedOver(handoff) => {
                events.push(self.instant(Track::Card(handoff.gpu), "handed over", &json!(handoff)));
            }
            Kind::HandingOver(handoff) => {
                events.push(self.instant(Track::Card(handoff.gpu), "handing over", &json!(handoff)));
            }
            Kind::Watching { .. }
            | Kind::ProcessJoined { .. }
            | Kind::ProcessLeft { .. }
            | Kind::Granted { .. }
            | Kind::Entered { .. }
            | Kind::Dropped { .. }
            | Kind::Recovered { .. } => {}
        }
    }

    /// Ends the open time slice of a row of the trace, and begins `slice` if given.
    fn turn(&mut self, track: Track, slice: Option<&'static str>, reason: &str, events: &mut Vec<Value>) {
        if self.open.remove(&track).is_some() {
            events.push(self.slice_end(track));
        }
        if let Some(name) = slice {
            let (pid, tid) = track.ids();
            let ts = micros(self.now);
            events.push(json!({
                "ph": "B", "pid": pid, "tid": tid, "ts": ts, "name": name, "args": { "reason": reason }
            }));
            self.open.insert(track, name);
        }
    }

    fn slice_end(&self, track: Track) -> Value {
        let (pid, tid) = track.ids();
        json!({ "ph": "E", "pid": pid, "tid": tid, "ts": micros(self.now) })
    }

    fn count(&mut self, gpu: GpuId, session: SessionId, bytes: Bytes, events: &mut Vec<Value>) {
        self.allocated.insert((gpu, session), bytes);
        let here = self.allocated.iter().filter(|((card, _), _)| *card == gpu);
        let all: Bytes = here.map(|(_, bytes)| *bytes).sum();
        let name = self.names.get(&session).cloned().unwrap_or_else(|| session.to_string());
        for (pid, name, bytes) in
            [(1, format!("{gpu} allocated"), all), (2, format!("{name} allocated on {gpu}"), bytes)]
        {
            events.push(json!({
                "ph": "C", "pid": pid, "ts": micros(self.now), "name": name, "args": { "bytes": bytes }
            }));
        }
    }

    fn instant(&self, track: Track, name: &str, args: &Value) -> Value {
        let (pid, tid) = track.ids();
        json!({ "ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": micros(self.now), "name": name, "args": args })
    }
}

fn named(track: Track, name: &str) -> Value {
    let (pid, tid) = track.ids();
    json!({ "ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": { "name": name } })
}

/// Converts nanoseconds to the microseconds of Chrome's trace format.
fn micros(at: Nanos) -> f64 {
    at.0 as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use gpushare_tests::slices::slices;

    use gpushare_proto::admin::Mode;

    use super::*;

    #[test]
    fn the_trace_is_whole_after_every_write_and_its_slices_follow_one_another() {
        let (gpu, session) = (GpuId(0), SessionId(3));
        let turned = |to| Kind::Turned { session, to };
        let story = [
            Kind::ModeChanged { gpu, mode: Mode::Serialized, reason: "a \"reason\"".to_owned() },
            Kind::SessionBegan { session, name: "train".to_owned() },
            turned(Activity::Waiting { reason: String::new() }),
            Kind::Allocated { session, gpu, bytes: Bytes::gib(1) },
            turned(Activity::Moving),
            turned(Activity::Holding),
            turned(Activity::Dropping),
            turned(Activity::Idle),
            turned(Activity::Holding),
            Kind::SessionEnded { session },
        ];
        let mut trace = Trace::new(Cursor::new(Vec::new())).unwrap();
        assert!(slices(trace.out.get_ref()).is_empty());
        for (what, n) in story.into_iter().zip(1..) {
            let at_ns = Nanos::from_millis(n);
            trace.add(&[WatchEvent { at_ns, what }]).unwrap();
            slices(trace.out.get_ref());
        }
        assert_eq!(
            slices(trace.out.get_ref()),
            ["waiting", "moving", "holding", "dropping", "holding", "serialized"]
        );
    }
}
