//! Cache between scrapers and the core's task: one picture a quarter second at most, and one text that all
//! share.

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

/// Time for which the metrics server reuses its last copy of the daemon's state.
const FRESH: Duration = Duration::from_millis(250);
/// Time within which a healthy core's task answers.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) type PictureRequest = oneshot::Sender<Picture>;

#[derive(Debug)]
pub(super) struct Cache {
    requests: mpsc::Sender<PictureRequest>,
    pub(super) events: PrometheusHandle,
    sensors: Sensors,
    last: Mutex<Option<Arc<View>>>,
}

/// Picture with its text, which is made when the first scraper wants it.
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
    ) -> Self {
        Self { requests, events, sensors, last: Mutex::default() }
    }

    /// Returns a fresh view of the daemon; `None` if the core's task does not answer in time.
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
            let mut text = page::text(&Scene::new(&view.picture, &readings));
            text.push_str(&self.events.render());
            text.into()
        };
        view.text.get_or_init(write).await.clone()
    }
}
