//! Publication of this node's devices: their slices at the API server are kept as they should be.
//!
//! ```text
//!   withhold cards whose shares pods have from the device plugin, and look again from time to time
//!   is capacity consumable here? ──▶ devices ──▶ list ──▶ acts ──▶ wait: slices changed, health, a share ended
//!                                       ▲                                                         │
//!                                       └─────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gpushare_proto::{Bytes, GpuUuid};
use tokio::sync::watch;
use tracing::{info, warn};

use super::DRIVER;
use super::cards::Cards;
use super::claim::PreparedDevice;
use super::devices::{Form, Offer, OfferedCard, devices, form_of};
use super::objects::Version;
use super::prepared::Prepared;
use super::resources::{Connection, Resources, ResourcesError};
use super::slices::{Act, acts};
use crate::notes::Notes;
use crate::pod_resources::{PodResourcesError, PodResourcesList, Shares};
use crate::watch::Causes;

/// First pause after an error. Each further error doubles it.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval between two looks at pods with shares of the device plugin, while there are some.
const WITHHELD: Duration = Duration::from_secs(1);
/// Interval between two such looks while there are none. A kubelet that has just started may list none of its pods.
const ALL_OFFERED: Duration = Duration::from_secs(5);
/// Number of attempts after which slices that are still not as they were written are an error.
const ATTEMPTS: u32 = 5;

/// Reason why the devices are not published.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Resources(#[from] ResourcesError),
    #[error(
        "the API server keeps other slices than those that were written; another driver has the name {DRIVER}?"
    )]
    Mangled,
    #[error("whether pods have shares of the device plugin is not known: {0}")]
    Shares(#[from] PodResourcesError),
}

/// Publisher of a node's devices.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(super) node: String,
    pub(super) cards: Arc<Cards>,
    pub(super) offer: Offer,
    pub(super) connection: Arc<Connection>,
    pub(super) causes: watch::Receiver<Causes>,
    pub(super) plugin_shares: PodResourcesList,
    pub(super) prepared: Arc<Prepared>,
    /// Form that was decided at the first success. Another one would rename the devices under running pods.
    pub(super) form: Option<Form>,
    pub(super) said: Said,
}

/// Problems that were logged, so that each is logged once.
#[derive(Debug, Default)]
pub(crate) struct Said {
    problems: Notes,
    withheld: Notes,
}

impl Publisher {
    /// Publishes for ever. Problems are logged once, and tried again.
    pub(crate) async fn run(&mut self) {
        let mut pause = PAUSE;
        loop {
            let Err(problem) = self.publish(&mut pause).await else { continue };
            self.said.problems.warn(&format!(
                "the cards are not offered to claims as they should be: {problem}. Trying again"
            ));
            self.connection.forget();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Publishes until an error, and resets the pause with each success.
    async fn publish(&mut self, pause: &mut Duration) -> Result<(), PublishError> {
        let resources = self.connection.resources().await?;
        let form = match self.form {
            Some(form) => form,
            None => *self.form.insert(self.decide_form(&resources).await?),
        };
        let mut withheld = self.withheld().await?;
        let mut attempts = 0;
        loop {
            let usable = self.usable(&withheld);
            self.read_again(&usable).await;
            let devices = devices(&self.cards.offered(), &usable, self.offer, form, resources.version);
            let (published, version) = resources.published().await?;
            let acts = acts(&self.node, published, &devices);
            for act in &acts {
                resources.carry_out(act).await?;
            }
            if !acts.is_empty() {
                let slices = acts.iter().filter(|act| !matches!(act, Act::Delete { .. })).count();
                info!(
                    "offering {} devices to claims in {slices} slices of {}",
                    devices.len(),
                    resources.version
                );
                attempts += 1;
                if attempts == ATTEMPTS {
                    return Err(PublishError::Mangled);
                }
                // The list with these changes has another version.
                continue;
            }
            *pause = PAUSE;
            self.said.problems.clear();
            attempts = 0;
            tokio::select! {
                changed = resources.changed(&version) => changed?,
                // The sender lives as long as the program.
                _ = self.causes.changed() => {}
                () = tokio::time::sleep(if withheld.is_empty() { ALL_OFFERED } else { WITHHELD }) => {
                    match self.withheld().await {
                        Ok(new) => withheld = new,
                        // What is known counts until the kubelet answers again.
                        Err(problem) => self.said.withheld.warn(&problem.to_string()),
                    }
                }
            }
        }
    }

    /// Decides how several claims share a card. The form of claims that are prepared stays, if it can.
    async fn decide_form(&self, resources: &Resources) -> Result<Form, PublishError> {
        let possible = self.possible_form(resources).await?;
        let claims = self.prepared.all();
        let cards = self.cards.offered();
        let is_of = |device: &PreparedDevice, form| form_of(&cards, &device.device) == Some(form);
        let count_of = |form| {
            let claims = claims.values();
            claims
                .filter(|claim| claim.devices.iter().any(|device| is_of(device, form)))
                .count()
        };
        match possible {
            Form::Consumable => {
                let count = count_of(Form::Shares);
                if count == 0 {
                    return Ok(Form::Consumable);
                }
                warn!(
                    "{count} claims are prepared whose devices are shares, so each share stays a device of its own \
                     although capacity is consumable by now; drain the node, then restart the driver"
                );
            }
            Form::Shares => {
                let count = count_of(Form::Consumable);
                if count > 0 {
                    warn!(
                        "{count} claims are prepared whose devices are whole cards, which kube-scheduler counts no \
                         longer; drain the node"
                    );
                }
            }
        }
        Ok(Form::Shares)
    }

    /// Returns the form that this cluster can have.
    async fn possible_form(&self, resources: &Resources) -> Result<Form, PublishError> {
        if resources.version < Version::V1 {
            info!("{} has no consumable capacity: each share is a device of its own", resources.version);
            return Ok(Form::Shares);
        }
        // Any card will do, and NVML may not be able to read those of the node.
        let card =
            OfferedCard { uuid: GpuUuid::gpu([0; 16]), product: "trial".to_owned(), memory: Bytes::gib(1) };
        let all = [card.uuid].into();
        let tried = devices(&[card], &all, self.offer, Form::Consumable, resources.version);
        for act in acts(&self.node, Vec::new(), &tried) {
            if let Act::Create(spec) = act
                && !resources.keeps(&spec).await?
            {
                info!(
                    "the API server keeps no consumable capacity (feature gate DRAConsumableCapacity): each share is \
                     a device of its own"
                );
                return Ok(Form::Shares);
            }
        }
        Ok(Form::Consumable)
    }

    /// Returns the cards that are healthy and not withheld, and marks the health as seen.
    fn usable(&mut self, withheld: &BTreeSet<GpuUuid>) -> BTreeSet<GpuUuid> {
        let causes = self.causes.borrow_and_update();
        let healthy = causes.iter().filter(|(_, cause)| cause.is_none());
        healthy.map(|(card, _)| *card).filter(|card| !withheld.contains(card)).collect()
    }

    /// Reads the usable cards that NVML could not read when the driver started.
    async fn read_again(&self, usable: &BTreeSet<GpuUuid>) {
        if self.cards.lack_any_of(usable) {
            let cards = Arc::clone(&self.cards);
            let reading = tokio::task::spawn_blocking(move || cards.read_again());
            // NVML may hang. The next look finds what was read.
            let _ = tokio::time::timeout(WITHHELD, reading).await;
        }
    }

    /// Returns the cards of which pods have shares of the device plugin.
    async fn withheld(&mut self) -> Result<BTreeSet<GpuUuid>, PublishError> {
        let shares: Shares = self.plugin_shares.shares().await?;
        for ((namespace, name), cards) in &shares {
            let cards: Vec<String> = cards.iter().map(GpuUuid::to_string).collect();
            self.said.withheld.warn(&format!(
                "not offered to claims until pod {namespace}/{name} ends, which has a share of the device plugin: {}",
                cards.join(", ")
            ));
        }
        Ok(shares.into_values().flatten().collect())
    }
}
