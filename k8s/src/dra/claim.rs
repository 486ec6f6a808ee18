//! Decision what a claim gets on this node, or why it gets nothing.

use std::collections::BTreeMap;

use gpushare_proto::admin::MIN_MEMORY;
use gpushare_proto::session::Amount;
use gpushare_proto::{Bytes, GpuUuid};
use serde::{Deserialize, Serialize};

use super::DRIVER;
use super::config::{self, ConfigError};
use super::devices::{self, MEMORY, OfferedCard};
use super::objects::{AllocationResult, ClaimStatus};
use crate::quantity::{BadQuantity, Quantity};
use crate::terms::Asked;

/// Claim in the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Claim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Whether the claim was made for one pod, and no other pod may use it.
    pub(crate) is_of_one_pod: bool,
    pub(crate) status: ClaimStatus,
}

/// Claim that is prepared on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PreparedClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// UIDs of the pods that may use it.
    pub(crate) pods: Vec<String>,
    pub(crate) is_of_one_pod: bool,
    pub(crate) devices: Vec<PreparedDevice>,
}

/// Device of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PreparedDevice {
    pub(crate) request: String,
    pub(crate) device: String,
    pub(crate) share_id: Option<String>,
    pub(crate) card: GpuUuid,
    /// Whether it counts among the card's shares.
    pub(crate) is_share: bool,
    /// Memory on the card; none for no limit.
    pub(crate) memory: Option<Bytes>,
    /// The other terms.
    pub(crate) asked: Asked,
}

/// Node on which a claim is prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    /// Name of the node, which is also that of its pool.
    pub(crate) name: &'a str,
    pub(crate) cards: &'a [OfferedCard],
    /// Number of shares of each card.
    pub(crate) shares: u16,
}

/// Reason why a claim gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(
        "it has another UID in the cluster, {0}, since it was deleted and made again; delete the pod too"
    )]
    Replaced(String),
    #[error("it is not allocated; kube-scheduler allocates it once a pod asks for it")]
    Unallocated,
    #[error("it is reserved for no pod; gpushare gives cards to pods, by resourceClaims in their specs")]
    Unreserved,
    #[error("none of its devices is of the driver {DRIVER}")]
    Foreign,
    #[error("it has device {device} of pool {pool}, and this node's pool is {node}; delete the pod")]
    OtherNode { device: String, pool: String, node: String },
    #[error("device {0} is none of this node's; if its cards changed, delete the pod and restart the plugin")]
    UnknownDevice(String),
    #[error("its parameters for request {request} are wrong: {cause}")]
    Config { request: String, cause: ConfigError },
    #[error("its memory cannot be read: {0}")]
    Memory(#[from] BadQuantity),
    #[error("it asks for {asked} of memory on card {card}, which has {total}; ask for less")]
    TooMuch { asked: Bytes, card: GpuUuid, total: Bytes },
    #[error("it asks for {0} of memory, with which a program can do nothing; ask for {MIN_MEMORY} or more")]
    TooLittle(Bytes),
    #[error("claim {holder} has device {device}; delete the pod that is not needed")]
    Taken { device: String, holder: String },
    #[error("all {shares} shares of card {card} are in use; delete a pod, or raise --shares")]
    Full { card: GpuUuid, shares: u16 },
}

/// Decides what the claim with this UID gets beside others that are prepared.
pub(crate) fn prepare(
    claim: &Claim,
    uid: &str,
    node: Node<'_>,
    others: &BTreeMap<String, PreparedClaim>,
) -> Result<PreparedClaim, ClaimError> {
    if claim.uid != uid {
        return Err(ClaimError::Replaced(claim.uid.clone()));
    }
    let allocated = &claim.status.allocation.as_ref().ok_or(ClaimError::Unallocated)?.devices;
    let pods = pods(claim);
    if pods.is_empty() {
        return Err(ClaimError::Unreserved);
    }
    let ours = allocated.results.iter().filter(|result| result.driver == DRIVER);
    let mut devices: Vec<PreparedDevice> = Vec::new();
    for result in ours {
        let asked = config::asked(&allocated.config, &result.request)
            .map_err(|cause| ClaimError::Config { request: result.request.clone(), cause })?;
        let device = device(result, asked, node)?;
        if device.is_share {
            free(&device, node, others, &devices)?;
        }
        devices.push(device);
    }
    if devices.is_empty() {
        return Err(ClaimError::Foreign);
    }
    let (namespace, name) = (claim.namespace.clone(), claim.name.clone());
    Ok(PreparedClaim { namespace, name, pods, is_of_one_pod: claim.is_of_one_pod, devices })
}

/// Returns the UIDs of the pods for which a claim is reserved.
pub(crate) fn pods(claim: &Claim) -> Vec<String> {
    let consumers = claim.status.reserved_for.iter().filter(|consumer| consumer.resource == "pods");
    consumers.map(|consumer| consumer.uid.clone()).collect()
}

fn device(result: &AllocationResult, asked: Asked, node: Node<'_>) -> Result<PreparedDevice, ClaimError> {
    let AllocationResult { request, pool, device, .. } = result.clone();
    if pool != node.name {
        return Err(ClaimError::OtherNode { device, pool, node: node.name.to_owned() });
    }
    let Some((card, _)) = devices::find(node.cards, &device) else {
        return Err(ClaimError::UnknownDevice(device));
    };
    let consumed = result.consumed_capacity.get(MEMORY).map(Quantity::value).transpose()?;
    // A claim that asked for no memory consumes none.
    let consumed = consumed.filter(|&bytes| bytes > 0).map(Bytes);
    let written = asked.memory.map(|memory| memory.of(card.memory));
    let memory = [consumed, written].into_iter().flatten().min();
    match [consumed, written].into_iter().flatten().find(|asked| *asked > card.memory) {
        Some(asked) => return Err(ClaimError::TooMuch { asked, card: card.uuid, total: card.memory }),
        None if memory.is_some_and(|memory| memory < MIN_MEMORY) => {
            return Err(ClaimError::TooLittle(memory.unwrap_or_default()));
        }
        None => {}
    }
    Ok(PreparedDevice {
        request,
        device,
        share_id: result.share_id.clone(),
        card: card.uuid,
        is_share: result.admin_access != Some(true),
        memory,
        asked: Asked { memory: memory.map(Amount::Bytes), ..asked },
    })
}

/// Checks that kube-scheduler has not given a share twice.
fn free(
    device: &PreparedDevice,
    node: Node<'_>,
    others: &BTreeMap<String, PreparedClaim>,
    own: &[PreparedDevice],
) -> Result<(), ClaimError> {
    let of_others = others
        .values()
        .flat_map(|claim| claim.devices.iter().map(move |device| (Some(claim), device)));
    let all = of_others.chain(own.iter().map(|device| (None, device)));
    let taken: Vec<_> = all.filter(|(_, taken)| taken.is_share && taken.card == device.card).collect();
    let is_whole = devices::find(node.cards, &device.device).is_some_and(|(_, share)| share.is_none());
    let holder = taken.iter().find(|(_, taken)| !is_whole && taken.device == device.device);
    if let Some((holder, _)) = holder {
        let holder =
            holder.map_or("itself".to_owned(), |claim| format!("{}/{}", claim.namespace, claim.name));
        return Err(ClaimError::Taken { device: device.device.clone(), holder });
    }
    match taken.len() >= usize::from(node.shares) {
        true => Err(ClaimError::Full { card: device.card, shares: node.shares }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11";
    const DEVICE: &str = "gpu-01010101-0101-0101-0101-010101010101";

    /// Claim with these results, each completed by what all of them have.
    fn claim(results: Value, config: &Value) -> Claim {
        let Value::Array(mut results) = results else { panic!("{results}") };
        for result in &mut results {
            for (key, usual) in
                [("request", "main"), ("driver", DRIVER), ("pool", "node-1"), ("device", DEVICE)]
            {
                if result[key].is_null() {
                    result[key] = json!(usual);
                }
            }
        }
        let status = json!({
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [{"resource": "pods", "name": "train", "uid": "u1"}],
        });
        Claim {
            namespace: "ml".to_owned(),
            name: "card".to_owned(),
            uid: UID.to_owned(),
            is_of_one_pod: true,
            status: serde_json::from_value(status).unwrap(),
        }
    }

    fn prepared(claim: &Claim, others: &[PreparedClaim]) -> Result<PreparedClaim, ClaimError> {
        let uuid = GpuUuid::gpu([1; 16]);
        let cards = [OfferedCard { uuid, product: String::new(), memory: Bytes::gib(80) }];
        let node = Node { name: "node-1", cards: &cards, shares: 2 };
        let others = others
            .iter()
            .enumerate()
            .map(|(place, other)| (place.to_string(), other.clone()));
        prepare(claim, UID, node, &others.collect())
    }

    fn refusal(claim: &Claim) -> String {
        prepared(claim, &[]).unwrap_err().to_string()
    }

    fn parameters(memory: &str) -> Value {
        let parameters =
            json!({"apiVersion": "gpushare.dev/v1", "kind": "ShareParameters", "memory": memory});
        json!([{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}])
    }

    #[test]
    fn the_consumed_memory_is_the_limit_on_the_card() {
        let result = json!([{"consumedCapacity": {"shares": "1", "memory": "8Gi"}, "shareID": "s-1"}]);
        let claim = prepared(&claim(result, &json!([])), &[]).unwrap();
        let [device] = &claim.devices[..] else { panic!("{claim:?}") };
        assert_eq!((device.memory, device.share_id.as_deref()), (Some(Bytes::gib(8)), Some("s-1")));
        assert_eq!((claim.pods, device.card), (vec!["u1".to_owned()], GpuUuid::gpu([1; 16])));
    }

    #[test]
    fn the_smaller_of_consumed_and_written_memory_counts() {
        let consumed = |memory: &str| json!([{"consumedCapacity": {"memory": memory}}]);
        for (consumed, written, wanted) in [
            (consumed("8Gi"), parameters("4GiB"), Some(Bytes::gib(4))),
            (consumed("8Gi"), parameters("16GiB"), Some(Bytes::gib(8))),
            (consumed("0"), parameters("10%"), Some(Bytes::gib(8))),
            (consumed("0"), json!([]), None),
            (json!([{}]), parameters("2GiB"), Some(Bytes::gib(2))),
        ] {
            let claim = prepared(&claim(consumed, &written), &[]).unwrap();
            assert_eq!(claim.devices[0].memory, wanted);
        }
    }

    #[test]
    fn memory_that_no_card_has_is_refused() {
        let said = refusal(&claim(json!([{}]), &parameters("1TiB")));
        assert!(said.starts_with("it asks for 1TiB of memory on card GPU-01010101"), "{said}");
        assert!(said.ends_with("which has 80GiB; ask for less"), "{said}");
        let said = refusal(&claim(json!([{"consumedCapacity": {"memory": "1"}}]), &json!([])));
        assert!(said.contains("with which a program can do nothing; ask for 1MiB or more"), "{said}");
        let said = refusal(&claim(json!([{"consumedCapacity": {"memory": "lots"}}]), &json!([])));
        assert!(said.contains("`lots` is no quantity"), "{said}");
    }

    #[test]
    fn a_claim_that_is_not_for_this_node_says_why() {
        for (result, wanted) in [
            (json!([{"pool": "node-2"}]), "of pool node-2, and this node's pool is node-1"),
            (json!([{"device": "gpu-02"}]), "device gpu-02 is none of this node's"),
            (json!([{"driver": "gpu.example.com"}]), "none of its devices is of the driver gpushare.dev"),
        ] {
            let said = refusal(&claim(result, &json!([])));
            assert!(said.contains(wanted), "{said}");
        }
        let said = refusal(&claim(json!([{}]), &parameters("lots")));
        assert!(
            said.starts_with("its parameters for request main are wrong: memory: `lots` is no size"),
            "{said}"
        );
        let fresh = Claim { status: ClaimStatus::default(), ..claim(json!([{}]), &json!([])) };
        assert!(refusal(&fresh).starts_with("it is not allocated"));
        let mut unused = claim(json!([{}]), &json!([]));
        unused.status.reserved_for.clear();
        assert!(refusal(&unused).starts_with("it is reserved for no pod"));
        let other = Claim { uid: "other".to_owned(), ..claim(json!([{}]), &json!([])) };
        assert!(refusal(&other).starts_with("it has another UID in the cluster, other"));
    }

    #[test]
    fn a_share_is_never_given_twice() {
        let share = format!("{DEVICE}-1");
        let of_share = claim(json!([{"device": share}]), &json!([]));
        let holder = prepared(&of_share, &[]).unwrap();
        assert_eq!(
            prepared(&of_share, std::slice::from_ref(&holder)),
            Err(ClaimError::Taken { device: share, holder: "ml/card".to_owned() })
        );
        let of_card = claim(json!([{}]), &json!([]));
        let second = prepared(&of_card, std::slice::from_ref(&holder)).unwrap();
        let full = prepared(&of_card, &[holder.clone(), second.clone()]).unwrap_err();
        assert!(full.to_string().starts_with("all 2 shares of card GPU-0101"), "{full}");
        let observer = claim(json!([{"adminAccess": true}]), &json!([]));
        prepared(&observer, &[holder, second]).unwrap();
    }
}
