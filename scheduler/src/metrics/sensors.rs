//! What NVML says of the cards, asked at most once a second by a thread of its own: the driver may take its time, or
//! never answer again when a card falls off. A reading that is too old is not shown.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::{Bytes, GpuUuid};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::nvml;

/// A reading is not repeated before this.
const FRESH: Duration = Duration::from_secs(1);
/// A reading is not shown after this.
const STALE: Duration = Duration::from_secs(10);
/// How long a scrape waits for the driver.
const PATIENCE: Duration = Duration::from_millis(300);

/// What NVML says of a card; none of it is certain to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Memory in use by everybody.
    pub(crate) used: Option<Bytes>,
    /// Share of the last sample period in which a kernel ran.
    pub(crate) busy_percent: Option<u32>,
    pub(crate) celsius: Option<u32>,
    pub(crate) milliwatts: Option<u32>,
}

/// By card.
pub(crate) type Readings = BTreeMap<GpuUuid, Reading>;

/// The thread that asks NVML.
#[derive(Debug)]
pub(super) struct Sensors {
    ask: SyncSender<()>,
    latest: watch::Receiver<Sample>,
}

#[derive(Clone, Debug, Default)]
struct Sample {
    at: Option<Instant>,
    readings: Readings,
}

impl Sample {
    fn is_younger_than(&self, age: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() < age)
    }
}

impl Sensors {
    /// Starts the thread, which loads NVML when it is asked for the first time, and ends where there is none.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub(super) fn start() -> io::Result<Self> {
        Self::reading(|| {
            let nvml = nvml::load().ok()?;
            Some(move || nvml::readings(&nvml))
        })
    }

    fn reading<R: FnMut() -> Readings>(
        open: impl FnOnce() -> Option<R> + Send + 'static,
    ) -> io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let (publish, latest) = watch::channel(Sample::default());
        thread::Builder::new()
            .name("sensors".to_owned())
            .spawn(move || watch_cards(open, &asked, &publish))?;
        Ok(Self { ask, latest })
    }

    /// What the cards' sensors say now, or said a short while ago.
    pub(super) async fn read(&self) -> Readings {
        let mut latest = self.latest.clone();
        let fresh = latest.borrow_and_update().is_younger_than(FRESH);
        if !fresh {
            // Refused if the thread is busy with the last request, or gone: then there is nothing to wait for but it.
            let _ = self.ask.try_send(());
            let _ = timeout(PATIENCE, latest.changed()).await;
        }
        let sample = latest.borrow();
        match sample.is_younger_than(STALE) {
            true => sample.readings.clone(),
            false => Readings::new(),
        }
    }
}

fn watch_cards<R: FnMut() -> Readings>(
    open: impl FnOnce() -> Option<R>,
    asked: &Receiver<()>,
    publish: &watch::Sender<Sample>,
) {
    if asked.recv().is_err() {
        return;
    }
    let Some(mut read) = open() else { return };
    loop {
        let readings = read();
        publish.send_replace(Sample { at: Some(Instant::now()), readings });
        if asked.recv().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn at_work(milliwatts: u32) -> Readings {
        let reading = Reading { milliwatts: Some(milliwatts), ..Reading::default() };
        [(GpuUuid::gpu([1; 16]), reading)].into()
    }

    #[tokio::test]
    async fn many_scrapes_are_one_reading() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let sensors =
            Sensors::reading(move || Some(move || at_work(count.fetch_add(1, Ordering::Relaxed)))).unwrap();
        assert_eq!(sensors.read().await, at_work(0));
        assert_eq!(sensors.read().await, at_work(0));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_driver_that_never_answers_holds_up_nobody() {
        let (_hold, never) = std::sync::mpsc::channel::<()>();
        let sensors = Sensors::reading(move || {
            Some(move || {
                let _ = never.recv();
                Readings::new()
            })
        })
        .unwrap();
        assert_eq!(sensors.read().await, Readings::new());
        assert_eq!(sensors.read().await, Readings::new());
    }

    #[tokio::test]
    async fn without_nvml_there_is_nothing_to_read() {
        let sensors = Sensors::reading(|| None::<fn() -> Readings>).unwrap();
        assert_eq!(sensors.read().await, Readings::new());
        assert_eq!(sensors.read().await, Readings::new());
    }
}
