//! What a reader is told: one picture at a time, asked of the core's task at most four times a second however many
//! readers there are, and one text of it that they all share.

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
use crate::input::Input;

/// A picture is shown so long.
const FRESH: Duration = Duration::from_millis(250);
/// A core's task that does not answer within this is not well.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks, and remembers the answer.
#[derive(Debug)]
pub(super) struct Desk {
    inputs: mpsc::Sender<Input>,
    events: PrometheusHandle,
    sensors: Sensors,
    last: Mutex<Option<Arc<View>>>,
}

/// A picture, and its text if somebody wanted it.
#[derive(Debug)]
pub(super) struct View {
    taken: Instant,
    pub(super) picture: Picture,
    text: OnceCell<Bytes>,
}

impl Desk {
    pub(super) fn new(inputs: mpsc::Sender<Input>, events: PrometheusHandle, sensors: Sensors) -> Self {
        Self { inputs, events, sensors, last: Mutex::default() }
    }

    /// The daemon as it is now; none if the core's task does not answer.
    pub(super) async fn view(&self) -> Option<Arc<View>> {
        let mut last = self.last.lock().await;
        if let Some(view) = last.as_ref().filter(|view| view.taken.elapsed() < FRESH) {
            return Some(view.clone());
        }
        let picture = timeout(PATIENCE, self.ask()).await.ok()??;
        let view = Arc::new(View { taken: Instant::now(), picture, text: OnceCell::new() });
        Some(last.insert(view).clone())
    }

    async fn ask(&self) -> Option<Picture> {
        let (answer, answered) = oneshot::channel();
        self.inputs.send(Input::Observe(answer)).await.ok()?;
        answered.await.ok()
    }

    /// The page.
    pub(super) async fn text(&self, view: &View) -> Bytes {
        let write = async || {
            let readings = self.sensors.read().await;
            let mut text = page::text(&Scene::new(&view.picture, &readings));
            text.push_str(&self.events.render());
            text.into()
        };
        view.text.get_or_init(write).await.clone()
    }

    /// Empties what the histograms have gathered since they were last read into their buckets.
    pub(super) fn sort_events(&self) {
        self.events.run_upkeep();
    }
}
