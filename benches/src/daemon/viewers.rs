//! Browsers that show the page of a daemon with a thousand sessions, which take turns.
//!
//! ```text
//!   the crowd takes turns: without a viewer ─▶ with one ─▶ with eight ─▶ without a viewer again
//!                                   processor time of the daemon and times of grants, in each part
//! ```
//!
//! Each viewer is a connection with a key whose events are read to their ends, as a browser does.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::crowd::Crowd;
use crate::figures::microseconds;

const SESSIONS: usize = 1000;
/// Viewers of the third part.
const MANY: usize = 8;
/// Turns of each part.
const TURNS: usize = 1500;
/// Longest wait for an answer of the page.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which the daemon watches on after the last viewer has left, and some more.
const LINGER: Duration = Duration::from_secs(8);

pub(crate) fn measure(socket: &Path, daemon: u32, page: SocketAddr, link: &str) -> anyhow::Result<Value> {
    let key = exchange(page, link)?;
    let mut crowd = Crowd::begin(socket, SESSIONS, 1)?;
    let before = Run::of(&mut crowd, daemon)?;
    let mut viewers = vec![Viewer::open(page, &key)?];
    let one = Run::of(&mut crowd, daemon)?;
    for _ in 1..MANY {
        viewers.push(Viewer::open(page, &key)?);
    }
    let (heard, begun) = (viewers[0].heard(), Instant::now());
    let many = Run::of(&mut crowd, daemon)?;
    let bytes_per_s = (viewers[0].heard() - heard) as f64 / begun.elapsed().as_secs_f64();
    ensure!(viewers.iter().all(|viewer| viewer.heard() > heard), "a viewer heard nothing");
    drop(viewers);
    let begun = Instant::now();
    while begun.elapsed() < LINGER {
        crowd.turns(TURNS / 10, daemon)?;
    }
    let after = Run::of(&mut crowd, daemon)?;
    let base = (before.daemon_cpu + after.daemon_cpu) / 2.0;
    let rounded = |cpu: f64| (cpu * 1e4).round() / 1e4;
    Ok(json!({
        "sessions": SESSIONS,
        "viewers": MANY,
        "without_cpu": [rounded(before.daemon_cpu), rounded(after.daemon_cpu)],
        "first_viewer_cpu": rounded(one.daemon_cpu - base),
        "each_viewer_cpu": rounded((many.daemon_cpu - base) / MANY as f64),
        "bytes_per_s": bytes_per_s.round(),
        "grant_p99_us": before.grant_p99_us.max(after.grant_p99_us),
        "grant_p99_with_one_us": one.grant_p99_us,
        "grant_p99_with_many_us": many.grant_p99_us,
    }))
}

/// Figures of one part.
struct Run {
    grant_p99_us: f64,
    /// Processors that the daemon used.
    daemon_cpu: f64,
}

impl Run {
    fn of(crowd: &mut Crowd, daemon: u32) -> anyhow::Result<Self> {
        let (grants, daemon_cpu) = crowd.turns(TURNS, daemon)?;
        Ok(Self { grant_p99_us: microseconds(grants, 99)?, daemon_cpu })
    }
}

/// Sends a request with a secret, and returns the connection.
fn ask(page: SocketAddr, line: &str, secret: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(page)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {page}\r\nAuthorization: Bearer {secret}\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Exchanges a link for a key.
fn exchange(page: SocketAddr, link: &str) -> anyhow::Result<String> {
    let mut answer = String::new();
    ask(page, "POST /api/key", link)?.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let view: Value = serde_json::from_str(body).with_context(|| format!("no key: {answer}"))?;
    Ok(view["key"].as_str().context("no key")?.to_owned())
}

/// Browser that shows the page, until it is dropped.
struct Viewer {
    stream: TcpStream,
    heard: Arc<AtomicU64>,
}

impl Viewer {
    /// Opens the page, and waits until it is whole.
    fn open(page: SocketAddr, key: &str) -> anyhow::Result<Self> {
        let stream = ask(page, "GET /api/events", key)?;
        let viewer = Self { stream: stream.try_clone()?, heard: Arc::default() };
        let heard = viewer.heard.clone();
        thread::spawn(move || read(stream, &heard));
        let begun = Instant::now();
        // The whole page has more than a hundred bytes for each session.
        while viewer.heard() < 100 * SESSIONS as u64 {
            if begun.elapsed() > PATIENCE {
                bail!("the page has only {} bytes", viewer.heard());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(viewer)
    }

    /// Returns the number of bytes heard so far.
    fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        // Ends the reader too.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn read(mut stream: TcpStream, heard: &AtomicU64) {
    let mut bytes = [0; 1 << 16];
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        heard.fetch_add(read as u64, Ordering::Relaxed);
    }
}
