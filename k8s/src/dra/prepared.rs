//! Claims that are prepared on this node, kept in a file.
//!
//! The kubelet prepares a claim once, whatever happens to the driver afterwards. So the file is written before the
//! kubelet is answered, and read at each start.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use gpushare_inject::{FilesError, write_file};
use gpushare_proto::session::Amount;
use gpushare_proto::{Bytes, GpuUuid, Percent};
use serde::{Deserialize, Serialize};

use super::claim::PreparedClaim;
use crate::terms::Asked;

/// Form of the file.
const FORM: u32 = 1;
/// All of a card's time.
const WHOLE: Percent = Percent(10_000);

/// Reason why the prepared claims are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreparedError {
    #[error("{path}, which has the claims of running pods, cannot be read: {cause}")]
    Unread { path: PathBuf, cause: io::Error },
    #[error(
        "{path}, which has the claims of running pods, is wrong: {cause}; end the pods with claims on this node, and \
         delete the file"
    )]
    Wrong { path: PathBuf, cause: String },
    #[error(transparent)]
    Unwritten(#[from] FilesError),
}

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    form: u32,
    /// By UID of the claim.
    claims: BTreeMap<String, PreparedClaim>,
}

/// Prepared claims.
#[derive(Debug)]
pub(crate) struct Prepared {
    path: PathBuf,
    claims: Mutex<BTreeMap<String, PreparedClaim>>,
}

impl Prepared {
    /// Reads the file; without one, no claim is prepared.
    pub(crate) fn read(path: &Path) -> Result<Self, PreparedError> {
        let claims = match fs::read(path) {
            Ok(text) => {
                parse(&text).map_err(|cause| PreparedError::Wrong { path: path.to_owned(), cause })?
            }
            Err(cause) if cause.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(cause) => return Err(PreparedError::Unread { path: path.to_owned(), cause }),
        };
        Ok(Self { path: path.to_owned(), claims: Mutex::new(claims) })
    }

    /// Returns all claims by their UIDs.
    pub(crate) fn all(&self) -> BTreeMap<String, PreparedClaim> {
        self.claims().clone()
    }

    /// Adds or replaces a claim.
    pub(crate) fn insert(&self, uid: &str, claim: PreparedClaim) -> Result<(), PreparedError> {
        self.change(|claims| drop(claims.insert(uid.to_owned(), claim)))
    }

    /// Removes a claim. Returns whether it was prepared.
    pub(crate) fn remove(&self, uid: &str) -> Result<bool, PreparedError> {
        if !self.claims().contains_key(uid) {
            return Ok(false);
        }
        self.change(|claims| drop(claims.remove(uid)))?;
        Ok(true)
    }

    /// Replaces the pods of a claim that is still prepared.
    pub(crate) fn set_pods(&self, uid: &str, pods: Vec<String>) -> Result<(), PreparedError> {
        match self.claims().get(uid) {
            Some(claim) if claim.pods != pods => {}
            _ => return Ok(()),
        }
        self.change(|claims| {
            if let Some(claim) = claims.get_mut(uid) {
                claim.pods = pods;
            }
        })
    }

    /// Returns what the claims of each pod ask for, by UID of the pod.
    pub(crate) fn by_pod(&self) -> BTreeMap<String, PodClaims> {
        by_pod(&self.claims())
    }

    /// Writes the file with a change, then makes the change.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, PreparedClaim>)) -> Result<(), PreparedError> {
        let mut claims = self.claims();
        let mut changed = claims.clone();
        change(&mut changed);
        let file = File { form: FORM, claims: changed };
        let text = serde_json::to_vec_pretty(&file)
            .map_err(|cause| PreparedError::Wrong { path: self.path.clone(), cause: cause.to_string() })?;
        write_file(&self.path, &text, 0o600)?;
        *claims = file.claims;
        Ok(())
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<String, PreparedClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(text: &[u8]) -> Result<BTreeMap<String, PreparedClaim>, String> {
    let file: File = serde_json::from_slice(text).map_err(|cause| cause.to_string())?;
    match file.form {
        FORM => Ok(file.claims),
        form => Err(format!("its form is {form}, and this version of gpushare reads {FORM}")),
    }
}

/// Sum of the claims of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodClaims {
    /// Memory on each card of the pod; none for no limit.
    pub(crate) memory: BTreeMap<GpuUuid, Option<Bytes>>,
    /// Terms on all cards. The memory is the most on one card.
    pub(crate) asked: Asked,
}

impl PodClaims {
    /// Joins the memory on each card with the other terms.
    pub(crate) fn new(memory: BTreeMap<GpuUuid, Option<Bytes>>, terms: Asked) -> Self {
        let most = memory.values().copied().reduce(|a, b| Some(a?.max(b?))).flatten();
        Self { memory, asked: Asked { memory: most.map(Amount::Bytes), ..terms } }
    }
}

/// Sums what claims ask for by pod: memory and time on each card are added, and of weights and priorities the
/// greatest counts.
fn by_pod(claims: &BTreeMap<String, PreparedClaim>) -> BTreeMap<String, PodClaims> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for claim in claims.values() {
        for (pod, device) in claim.pods.iter().flat_map(|pod| claim.devices.iter().map(move |it| (pod, it))) {
            let sum = sums.entry(pod).or_default();
            add(&mut sum.memory, device.card, device.memory, |a, b| Bytes(a.0.saturating_add(b.0)));
            let together = |a: Percent, b: Percent| Percent(a.0.saturating_add(b.0).min(WHOLE.0));
            add(&mut sum.compute, device.card, device.asked.compute, together);
            sum.terms.weight = sum.terms.weight.max(device.asked.weight);
            sum.terms.priority = sum.terms.priority.max(device.asked.priority);
        }
    }
    let joined = |sum: Sum| {
        let compute = sum.compute.into_values().reduce(|a, b| Some(a?.max(b?))).flatten();
        PodClaims::new(sum.memory, Asked { compute, ..sum.terms })
    };
    sums.into_iter().map(|(pod, sum)| (pod.to_owned(), joined(sum))).collect()
}

/// Terms of one pod while they are added.
#[derive(Default)]
struct Sum {
    memory: BTreeMap<GpuUuid, Option<Bytes>>,
    compute: BTreeMap<GpuUuid, Option<Percent>>,
    terms: Asked,
}

/// Adds a limit on a card. With one part that has no limit, the whole has none.
fn add<T: Copy>(
    sums: &mut BTreeMap<GpuUuid, Option<T>>,
    card: GpuUuid,
    more: Option<T>,
    together: impl Fn(T, T) -> T,
) {
    sums.entry(card)
        .and_modify(|sum| *sum = sum.zip(more).map(|(sum, more)| together(sum, more)))
        .or_insert(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::claim::PreparedDevice;

    const A: GpuUuid = GpuUuid::gpu([1; 16]);
    const B: GpuUuid = GpuUuid::gpu([2; 16]);

    fn claim(pods: &[&str], devices: &[(GpuUuid, Option<u64>, u32)]) -> PreparedClaim {
        let device = |&(card, memory, weight): &(GpuUuid, Option<u64>, u32)| PreparedDevice {
            request: "main".to_owned(),
            device: card.to_string().to_lowercase(),
            share_id: None,
            card,
            is_share: true,
            memory: memory.map(Bytes::gib),
            asked: Asked { weight: Some(weight), compute: Some(Percent(6000)), ..Asked::default() },
        };
        PreparedClaim {
            namespace: "ml".to_owned(),
            name: "card".to_owned(),
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            is_of_one_pod: false,
            devices: devices.iter().map(device).collect(),
        }
    }

    #[test]
    fn claims_survive_in_their_file_until_they_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.json");
        let prepared = Prepared::read(&path).unwrap();
        prepared.insert("c1", claim(&["u1"], &[(A, Some(8), 50)])).unwrap();
        prepared.insert("c2", claim(&["u2"], &[(B, None, 50)])).unwrap();
        prepared.set_pods("c2", vec!["u2".to_owned(), "u3".to_owned()]).unwrap();
        let again = Prepared::read(&path).unwrap();
        assert_eq!(again.all(), prepared.all());
        assert_eq!(again.by_pod().keys().collect::<Vec<_>>(), ["u1", "u2", "u3"]);
        assert!(again.remove("c1").unwrap());
        assert!(!again.remove("c1").unwrap(), "it is gone already");
        assert_eq!(Prepared::read(&path).unwrap().all().keys().collect::<Vec<_>>(), ["c2"]);
    }

    #[test]
    fn a_wrong_file_is_said_and_never_taken_for_no_claims() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.json");
        for (text, wanted) in [
            ("", "EOF"),
            (r#"{"form": 2, "claims": {}}"#, "its form is 2, and this version of gpushare reads 1"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Prepared::read(&path).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("end the pods with claims"), "{error}");
        }
    }

    #[test]
    fn a_claim_that_cannot_be_written_is_not_prepared() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = Prepared::read(&folder.path().join("nowhere/claims.json")).unwrap();
        assert!(prepared.insert("c1", claim(&["u1"], &[])).is_err());
        assert!(prepared.all().is_empty());
    }

    #[test]
    fn the_claims_of_a_pod_are_added_on_each_card() {
        let claims = BTreeMap::from([
            ("c1".to_owned(), claim(&["u1"], &[(A, Some(8), 50), (B, Some(4), 50)])),
            ("c2".to_owned(), claim(&["u1", "u2"], &[(A, Some(2), 200)])),
            ("c3".to_owned(), claim(&["u2"], &[(A, None, 1)])),
        ]);
        let by_pod = by_pod(&claims);
        let first = &by_pod["u1"];
        assert_eq!(first.memory, BTreeMap::from([(A, Some(Bytes::gib(10))), (B, Some(Bytes::gib(4)))]));
        assert_eq!(first.asked.memory, Some(Amount::Bytes(Bytes::gib(10))));
        assert_eq!((first.asked.weight, first.asked.compute), (Some(200), Some(WHOLE)));
        assert_eq!(by_pod["u2"].asked.memory, None, "one part has no limit");
    }
}
