use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::mpsc::Sender;

use gpushare_core::log::{Chain, FORMAT};
use gpushare_core::{Config, Core};
use gpushare_proto::{ClientId, GpuId};

use super::*;

/// Disk of a limited size, which may wait for permission before each write.
#[derive(Clone)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    size: usize,
    may: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Disk {
    fn of(size: usize) -> Self {
        Self { bytes: Arc::default(), size, may: None }
    }

    /// Returns a disk that blocks until the sender is dropped.
    fn stopped() -> (Self, Sender<()>) {
        let (go_on, may) = std::sync::mpsc::channel();
        let disk = Self { may: Some(Arc::new(Mutex::new(may))), ..Self::of(usize::MAX) };
        (disk, go_on)
    }

    fn lines(&self) -> Vec<Line> {
        let text = String::from_utf8(self.bytes.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with('\n'), "half a line: {text}");
        let mut chain = Chain::default();
        text.lines()
            .map(|line| {
                let link: Link = serde_json::from_str(line).unwrap();
                chain = chain.with(&link.line);
                assert_eq!(link.chain, chain, "{line}");
                link.line
            })
            .collect()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(may) = &self.may {
            let _ = may.lock().unwrap().recv();
        }
        let mut taken = self.bytes.lock().unwrap();
        match bytes.len().min(self.size - taken.len()) {
            0 => Err(io::ErrorKind::StorageFull.into()),
            fits => {
                taken.extend(&bytes[..fits]);
                Ok(fits)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Medium for Disk {
    fn cut(&mut self, at: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().truncate(usize::try_from(at).unwrap());
        Ok(())
    }
}

fn header() -> Header {
    Header {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        generation: 1,
        expected: BTreeSet::new(),
        incomplete: false,
        started: Nanos(1),
        unix_seconds: 0,
        config: Config::default(),
    }
}

fn to(limit: Bytes) -> RecordTo {
    RecordTo { path: "test".into(), limit }
}

/// Passes so many events to a core and to the recorder.
fn handle_events(recorder: &mut Recorder, events: u64) {
    let mut core = header().machine();
    for n in 0..events {
        tell(recorder, &mut core, n);
    }
}

fn tell(recorder: &mut Recorder, core: &mut Core, n: u64) {
    let event = Event::GpuFound { gpu: GpuId(u8::try_from(n % 200).unwrap()), total: Bytes::gib(1) };
    recorder.begin(Nanos(n), event);
    core.handle(Nanos(n), event);
    let effects: Vec<Effect> = std::iter::from_fn(|| core.poll_effect()).collect();
    recorder.finish(effects.iter());
}

/// Returns the times of a recording's events, and checks its header and the reason of its end.
fn between(disk: &Disk, end: &str) -> Vec<u64> {
    let mut lines = disk.lines();
    assert!(matches!(lines.remove(0), Line::Header(_)));
    match lines.pop() {
        Some(Line::End { reason }) => assert!(reason.starts_with(end), "{reason}"),
        other => panic!("no end: {other:?}"),
    }
    let events = lines.into_iter().map(|line| match line {
        Line::Handled(handled) => handled.now.0,
        other => panic!("no event: {other:?}"),
    });
    events.collect()
}

#[test]
fn events_are_recorded_in_order_with_the_reason_of_the_end() {
    let disk = Disk::of(usize::MAX);
    let mut recorder = Recorder::on(disk.clone(), &to(Bytes::gib(1)), header(), QUEUE).unwrap();
    handle_events(&mut recorder, 3000);
    drop(recorder);
    assert_eq!(between(&disk, "the daemon ended"), (0..3000).collect::<Vec<_>>());
}

#[test]
fn a_disk_that_hangs_ends_the_recording_without_a_wait() {
    let (disk, go_on) = Disk::stopped();
    let mut recorder = Recorder::on(disk.clone(), &to(Bytes::gib(1)), header(), 16).unwrap();
    handle_events(&mut recorder, 100);
    assert!(recorder.running.is_none());
    drop(recorder);
    drop(go_on);
    let ended = || disk.bytes.lock().unwrap().windows(7).any(|bytes| bytes == br#"{"end":"#);
    while !ended() {
        thread::yield_now();
    }
    let events = between(&disk, "the disk is too slow");
    assert!((16..=17).contains(&events.len()), "{events:?}");
    assert_eq!(events, (0..events.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_ends_the_recording_with_a_last_line() {
    for size in [4000, 4001, 4050, 200_000] {
        let disk = Disk::of(size);
        let mut recorder = Recorder::on(disk.clone(), &to(Bytes::gib(1)), header(), QUEUE).unwrap();
        handle_events(&mut recorder, 3000);
        drop(recorder);
        let events = between(&disk, "the disk does not take it");
        assert!(!events.is_empty() && events.len() < 3000);
        assert_eq!(events, (0..events.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn the_size_limit_includes_the_last_line() {
    let disk = Disk::of(usize::MAX);
    let limit = Bytes(100_000);
    let mut recorder = Recorder::on(disk.clone(), &to(limit), header(), QUEUE).unwrap();
    handle_events(&mut recorder, 3000);
    drop(recorder);
    let events = between(&disk, "it has reached its limit of 97.6KiB");
    assert!(events.len() > 500, "{}", events.len());
    let size = disk.bytes.lock().unwrap().len() as u64;
    assert!(size <= limit.0, "{size}");
}

#[test]
fn an_event_on_which_the_core_panics_is_recorded() {
    let disk = Disk::of(usize::MAX);
    let mut recorder = Recorder::on(disk.clone(), &to(Bytes::gib(1)), header(), QUEUE).unwrap();
    handle_events(&mut recorder, 1);
    let fatal = Event::ClientGone { client: ClientId(7) };
    recorder.begin(Nanos(8), fatal);
    drop(recorder);
    assert_eq!(between(&disk, "the daemon did not survive the last event"), [0, 8]);
    let Line::Handled(last) = &disk.lines()[2] else { panic!("no event") };
    assert_eq!((last.event, last.effects), (fatal, None));
}

#[test]
fn a_recording_is_private_and_the_last_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let to = RecordTo { path: folder.path().join("log.jsonl"), limit: Bytes::mib(1) };
    for started in [5, 6] {
        let header = Header { started: Nanos(started), ..header() };
        drop(Recorder::start(Some(to.create().unwrap()), header).unwrap());
    }
    assert_eq!(fs::metadata(&to.path).unwrap().mode() & 0o777, 0o600);
    for (path, started) in [(older(&to.path), 5), (to.path.clone(), 6)] {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("\"started\":{started},")), "{text}");
    }
    let folder = RecordTo { path: folder.path().to_owned(), ..to };
    let error = folder.create().unwrap_err().to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[test]
fn a_file_that_is_no_recording_stays() {
    let folder = tempfile::tempdir().unwrap();
    let to = RecordTo { path: folder.path().join("thesis"), limit: Bytes::mib(1) };
    fs::write(&to.path, "chapter one\n").unwrap();
    let error = to.create().unwrap_err().to_string();
    assert!(error.contains("is no recording of ours"), "{error}");
    assert_eq!(fs::read_to_string(&to.path).unwrap(), "chapter one\n");
    assert!(!older(&to.path).exists());

    // A file at FILE.1 stays too, where the last recording would go.
    let first = RecordTo { path: folder.path().join("log"), ..to };
    drop(Recorder::start(Some(first.create().unwrap()), header()).unwrap());
    fs::write(older(&first.path), "chapter two\n").unwrap();
    let error = first.create().unwrap_err().to_string();
    assert!(error.contains("log.1 is no recording of ours"), "{error}");
    assert_eq!(fs::read_to_string(older(&first.path)).unwrap(), "chapter two\n");
    assert!(fs::read_to_string(&first.path).unwrap().contains("the daemon ended"));
}

#[test]
fn an_empty_file_is_recorded_to() {
    let folder = tempfile::tempdir().unwrap();
    let to = RecordTo { path: folder.path().join("made-by-mktemp"), limit: Bytes::mib(1) };
    fs::write(&to.path, "").unwrap();
    drop(Recorder::start(Some(to.create().unwrap()), header()).unwrap());
    assert!(fs::read_to_string(&to.path).unwrap().contains("the daemon ended"));
    assert!(!older(&to.path).exists());
}
