//! Cache between scrapers and the daemon's task. The task copies its state at most once in 250 ms, and all
//! scrapers share one text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{Mutex, OnceCell, mpsc, oneshot};
use tokio::time::timeout;

use super::page;
use super::picture::Picture;
use super::scene::Scene;
use super::sensors::Sensors;

/// Duration for which the metrics server reuses its last copy of the daemon's state.
const FRESH: Duration = Duration::from_millis(250);
/// Longest wait of the metrics server for an answer of the daemon's task.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) type PictureRequest = oneshot::Sender<Picture>;

#[derive(Debug)]
pub(super) struct Cache {
    requests: mpsc::Sender<PictureRequest>,
    pub(super) events: PrometheusHandle,
    sensors: Sensors,
    /// Whether names of sessions are shown.
    names: bool,
    last: Mutex<Option<Arc<View>>>,
}

/// Copy of the daemon's state, with its text. The text is made when the first scraper wants it.
#[derive(Debug)]
pub(super) struct View {
    taken: Instant,
    pub(super) picture: Picture,
    text: OnceCell<Bytes>,
}

impl Cache {
    pub(super) fn new(
        requests: mpsc::Sender<PictureRequest>,
        events: PrometheusHandle,
        sensors: Sensors,
        names: bool,
    ) -> Self {
        Self { requests, events, sensors, names, last: Mutex::default() }
    }

    /// Returns a recent view of the daemon's state; `None` if the daemon's task does not answer in time.
    pub(super) async fn view(&self) -> Option<Arc<View>> {
        let mut last = self.last.lock().await;
        if let Some(view) = last.as_ref().filter(|view| view.taken.elapsed() < FRESH) {
            return Some(view.clone());
        }
        let picture = timeout(PATIENCE, self.request()).await.ok()??;
        let view = Arc::new(View { taken: Instant::now(), picture, text: OnceCell::new() });
        Some(last.insert(view).clone())
    }

    async fn request(&self) -> Option<Picture> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(answer).await.ok()?;
        answered.await.ok()
    }

    pub(super) async fn text(&self, view: &View) -> Bytes {
        let write = async || {
            let readings = self.sensors.read().await;
            let mut text = page::text(&Scene::new(&view.picture, &readings, self.names));
            text.push_str(&self.events.render());
            text.into()
        };
        view.text.get_or_init(write).await.clone()
    }
}
