//! Sensor values of the cards, read from NVML at most once a second. Old values are not shown.

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::nvml::{self, Reader, Readings};

/// Duration for which sensor values are reused.
const FRESH: Duration = Duration::from_secs(1);
/// Age from which sensor values are not shown.
const STALE: Duration = Duration::from_secs(10);
/// Longest wait of a scrape for the driver.
const PATIENCE: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Sensors {
    reader: Reader,
    latest: watch::Receiver<Sample>,
    /// Age up to which a reading is not repeated.
    fresh: Duration,
    /// Longest wait for a reading.
    patience: Duration,
}

/// Sensor values with the point in time of their reading; none before the first reading.
type Sample = Option<(Instant, Readings)>;

impl Sensors {
    /// Starts the thread that reads the sensors. The thread loads NVML at the first scrape.
    pub(super) fn start() -> io::Result<Self> {
        Self::with(FRESH, PATIENCE, |deliver| {
            Reader::start("sensors", |nvml, ()| nvml::readings(nvml), deliver)
        })
    }

    fn with(
        fresh: Duration,
        patience: Duration,
        start: impl FnOnce(Box<dyn FnMut(Option<Readings>) -> bool + Send>) -> io::Result<Reader>,
    ) -> io::Result<Self> {
        let (publish, latest) = watch::channel(Sample::default());
        let deliver = move |readings: Option<Readings>| {
            publish.send_replace(readings.map(|readings| (Instant::now(), readings)));
            !publish.is_closed()
        };
        Ok(Self { reader: start(Box::new(deliver))?, latest, fresh, patience })
    }

    /// Returns the cards' sensor values, which are at most ten seconds old.
    pub(super) async fn read(&self) -> Readings {
        let mut latest = self.latest.clone();
        let is_younger_than =
            |sample: &Sample, age| sample.as_ref().is_some_and(|(at, _)| at.elapsed() < age);
        let fresh = is_younger_than(&latest.borrow_and_update(), self.fresh);
        if !fresh && self.reader.ask(()) {
            let _ = timeout(self.patience, latest.changed()).await;
        }
        let sample = latest.borrow().clone().filter(|(at, _)| at.elapsed() < STALE);
        sample.map(|(_, readings)| readings).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use gpushare_proto::GpuUuid;

    use super::*;
    use crate::nvml::Reading;

    fn sensors<R: FnMut(()) -> Readings + 'static>(
        patience: Duration,
        open: impl FnOnce() -> Option<R> + Send + 'static,
    ) -> Sensors {
        let hour = Duration::from_secs(3600);
        Sensors::with(hour, patience, |deliver| Reader::reading("test", open, deliver)).unwrap()
    }

    fn readings(milliwatts: u32) -> Readings {
        let reading = Reading { milliwatts: Some(milliwatts), ..Reading::default() };
        [(GpuUuid::gpu([1; 16]), reading)].into()
    }

    #[tokio::test]
    async fn scrapes_within_a_second_share_a_reading() {
        let reads = Arc::new(AtomicU32::new(0));
        let count = reads.clone();
        let reading = move |()| readings(count.fetch_add(1, Ordering::Relaxed));
        let sensors = sensors(Duration::from_secs(3600), move || Some(reading));
        assert_eq!(sensors.read().await, readings(0));
        assert_eq!(sensors.read().await, readings(0));
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_driver_that_never_answers_blocks_no_scrape() {
        let (_hold, never) = std::sync::mpsc::channel::<()>();
        let sensors = sensors(PATIENCE, move || {
            Some(move |()| {
                let _ = never.recv();
                Readings::new()
            })
        });
        assert_eq!(sensors.read().await, Readings::new());
        assert_eq!(sensors.read().await, Readings::new());
    }

    #[tokio::test]
    async fn without_nvml_there_are_no_readings() {
        let sensors = sensors(PATIENCE, || None::<fn(()) -> Readings>);
        assert_eq!(sensors.read().await, Readings::new());
        assert_eq!(sensors.read().await, Readings::new());
    }
}
