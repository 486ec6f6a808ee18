//! Cost of a viewer, as `gpushare-ctl top` is one, beside a thousand sessions that take turns.
//!
//! ```text
//!   alone:     all wait ─▶ turns            processor time of the daemon while all wait
//!   viewed:    all wait ─▶ turns            how long grants take while sessions take turns
//!   … in alternation; the median of the differences and of the ratios counts
//! ```
//!
//! The processor time of a crowd that takes turns varies by more than a viewer costs. So it is measured while
//! no turn ends. As many sessions are compared then.

use std::io::Read as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec;
use gpushare_proto::tenant::{Hello, Role};
use serde_json::{Value, json};

use crate::crowd::{Crowd, cpu_time};
use crate::figures::microseconds;

const SESSIONS: usize = 1000;
const TURNS: usize = 500;
const PAIRS: usize = 5;
/// Time for which all sessions wait; the daemon makes a comparison each second.
const STILL: Duration = Duration::from_secs(4);

pub(crate) fn measure(socket: &Path, daemon: u32, admin: &Path) -> anyhow::Result<Value> {
    let mut crowd = Crowd::begin(socket, SESSIONS, 1)?;
    let (mut differences, mut ratios) = (Vec::new(), Vec::new());
    let (mut changes, mut messages) = (0, 0);
    for _ in 0..PAIRS {
        let without = busy(daemon, STILL)?;
        let (alone, _) = crowd.turns(TURNS, daemon)?;
        let viewer = Viewer::start(admin)?;
        let with = busy(daemon, STILL)?;
        let (viewed, _) = crowd.turns(TURNS, daemon)?;
        let seen = viewer.end()?;
        (changes, messages) = (changes + seen.changes, messages + seen.messages);
        differences.push(with - without);
        ratios.push(microseconds(viewed, 99)? / microseconds(alone, 99)?);
    }
    Ok(json!({
        "viewed_sessions": SESSIONS,
        "viewer_cpu": (median(differences) * 1e4).round() / 1e4,
        "viewed_grant_p99": (median(ratios) * 1e3).round() / 1e3,
        "changes_per_message": changes / messages.max(1),
    }))
}

/// Returns how many processors the daemon uses in the next time.
fn busy(daemon: u32, time: Duration) -> anyhow::Result<f64> {
    let (before, begun) = (cpu_time(daemon)?, Instant::now());
    thread::sleep(time);
    Ok((cpu_time(daemon)? - before).as_secs_f64() / begun.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Connection that follows the daemon, and the thread that reads it.
struct Viewer {
    stream: UnixStream,
    reader: JoinHandle<anyhow::Result<Seen>>,
}

/// Messages and changes that a viewer got after the whole state.
#[derive(Clone, Copy, Default)]
struct Seen {
    messages: usize,
    changes: usize,
}

impl Viewer {
    /// Connects, and waits for the whole state.
    fn start(admin: &Path) -> anyhow::Result<Self> {
        use std::io::Write as _;
        let mut stream = UnixStream::connect(admin).context("no socket for administrators")?;
        for request in [AdminRequest::Hello(Hello::new(Role::Tool)), AdminRequest::Follow] {
            stream.write_all(&codec::encode(&request)?)?;
        }
        let mut messages = Messages { stream: stream.try_clone()?, buffer: Vec::new() };
        let ready = messages.next()?;
        ensure!(matches!(ready, Some(AdminReply::Ready { .. })), "not ready: {ready:?}");
        let first = messages.next()?;
        ensure!(matches!(&first, Some(AdminReply::Increments(all)) if all.whole), "no state: {first:?}");
        let reader = thread::spawn(move || {
            let mut seen = Seen::default();
            while let Some(AdminReply::Increments(increments)) = messages.next()? {
                seen.messages += 1;
                seen.changes += increments.changes.len();
            }
            Ok(seen)
        });
        Ok(Self { stream, reader })
    }

    fn end(self) -> anyhow::Result<Seen> {
        self.stream.shutdown(Shutdown::Both)?;
        let seen = self.reader.join().map_err(|_| anyhow::anyhow!("the viewer panicked"))??;
        ensure!(seen.messages > 0, "the viewer got no increments");
        // The daemon notices that it is gone before the next turns are measured.
        thread::sleep(Duration::from_millis(50));
        Ok(seen)
    }
}

/// Messages of the daemon.
struct Messages {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Messages {
    /// Waits for the next message; none at the end of the connection.
    fn next(&mut self) -> anyhow::Result<Option<AdminReply>> {
        loop {
            if let Some((reply, length)) = codec::split(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(Some(reply));
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk)? {
                0 => return Ok(None),
                length => self.buffer.extend_from_slice(&chunk[..length]),
            }
        }
    }
}
