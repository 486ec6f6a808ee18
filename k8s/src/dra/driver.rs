//! Life of the driver: its parts run beside each other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::claim;
use super::devices::{Offer, OfferedCard};
use super::prepared::Prepared;
use super::publisher::{Publisher, Said};
use super::registration::Registration;
use super::resources::Connection;
use super::service::{Service, State};
use crate::notes::Notes;
use crate::pod_resources::PodResourcesList;
use crate::supply::Supply;
use crate::watch::Causes;

/// Interval between two looks at the claims that several pods may use.
const SHARED: Duration = Duration::from_secs(2);

/// Parts of which the driver is made.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) node: String,
    pub(crate) cards: Vec<OfferedCard>,
    pub(crate) offer: Offer,
    pub(crate) supply: Arc<Supply>,
    pub(crate) causes: watch::Receiver<Causes>,
    /// Kubelet's folder for registrations.
    pub(crate) registry: &'a Path,
    /// Folder of the driver's socket.
    pub(crate) folder: &'a Path,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) pod_resources: &'a Path,
}

/// Driver of this node.
#[derive(Debug)]
pub(crate) struct Driver {
    registration: Registration,
    publisher: Publisher,
    shared: SharedClaims,
}

impl Driver {
    pub(crate) fn new(setup: Setup<'_>) -> Self {
        let connection = Arc::new(Connection::of_node(&setup.node));
        let service = Service(Arc::new(State {
            node: setup.node.clone(),
            cards: setup.cards.clone(),
            shares: setup.offer.shares,
            connection: Arc::clone(&connection),
            supply: setup.supply,
            prepared: Arc::clone(&setup.prepared),
            turn: tokio::sync::Mutex::default(),
            notes: Notes::default(),
        }));
        let publisher = Publisher {
            node: setup.node,
            cards: setup.cards,
            offer: setup.offer,
            connection: Arc::clone(&connection),
            causes: setup.causes,
            plugin_shares: PodResourcesList::new(setup.pod_resources),
            form: None,
            said: Said::default(),
        };
        Self {
            registration: Registration::new(service, setup.registry, setup.folder),
            publisher,
            shared: SharedClaims { connection, prepared: setup.prepared, notes: Notes::default() },
        }
    }

    /// Runs for ever.
    pub(crate) async fn run(&mut self) {
        tokio::select! {
            () = self.registration.run() => {}
            () = self.publisher.run() => {}
            () = self.shared.follow() => {}
        }
    }
}

/// Prepared claims that several pods may use. The kubelet prepares such a claim for the first pod only, so the
/// cluster is asked for the others.
#[derive(Debug)]
struct SharedClaims {
    connection: Arc<Connection>,
    prepared: Arc<Prepared>,
    notes: Notes,
}

impl SharedClaims {
    async fn follow(&self) {
        loop {
            tokio::time::sleep(SHARED).await;
            let shared = self.prepared.all().into_iter().filter(|(_, prepared)| !prepared.is_of_one_pod);
            for (uid, prepared) in shared {
                let found = self.connection.claim(&prepared.namespace, &prepared.name).await;
                let known = match found {
                    Ok(Some(found)) if found.uid == uid => claim::pods(&found),
                    // The claim is gone; it stays prepared until the kubelet says otherwise.
                    Ok(_) => continue,
                    Err(problem) => {
                        self.notes.warn(&format!("new pods of shared claims get no session: {problem}"));
                        break;
                    }
                };
                match self.prepared.set_pods(&uid, known) {
                    Ok(()) => self.notes.clear(),
                    Err(problem) => self.notes.warn(&problem.to_string()),
                }
            }
        }
    }
}
