//! Decision what to change: from the pods of the node and the daemon's sessions to acts on sessions.
//!
//! ```text
//!   pod in the cluster, has a share, no session       create one, named NAMESPACE/POD
//!   pod in the cluster, session with other limits     change the session
//!   session of a pod that the cluster no longer has   delete the session
//! ```
//!
//! Sessions of pods are recognised by their binding. So nothing is remembered here: a new agent, or a new
//! daemon, is brought to the same state.

use std::collections::BTreeMap;

use gpushare_proto::admin::{Change, SessionView};
use gpushare_proto::lookup::MAX_SESSION_NAME;
use gpushare_proto::session::{Amount, Binding, CardQuota, NewSession, Terms};
use gpushare_proto::tenant::GpuChoice;
use gpushare_proto::{Bytes, GpuUuid};

use super::annotations::{Limits, judge};
use super::given::Given;
use super::maxima::Maxima;
use super::problem::Problem;
use super::reading::COMPUTE;
use crate::dra::PodClaims;
use crate::terms;

/// Pod of this node, as the cluster has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// Session of a pod, as the daemon has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) pod: String,
    /// Number of the session, which no other session has as its name.
    pub(crate) session: String,
    pub(crate) name: String,
    pub(crate) terms: Terms,
    /// Whether the session has processes.
    pub(crate) is_busy: bool,
}

impl Held {
    /// Returns a session as one of a pod; none if it is not bound to a pod.
    pub(crate) fn of(session: &SessionView) -> Option<Self> {
        let Binding::Pod(pod) = &session.state.binding else {
            return None;
        };
        Some(Self {
            pod: pod.clone(),
            session: session.session.to_string(),
            name: session.name.clone(),
            terms: session.state.terms.clone(),
            is_busy: !session.clients.is_empty(),
        })
    }
}

/// Act on a session of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Create {
        new: Box<NewSession>,
        pod: String,
    },
    Change {
        session: String,
        change: Change,
    },
    /// The session has neither a pod nor processes any more.
    Delete {
        session: String,
    },
}

/// Facts from which the acts follow.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) pods: &'a [Pod],
    pub(crate) given: &'a Given,
    pub(crate) held: &'a [Held],
    /// Names of all other sessions that last.
    pub(crate) names: &'a [String],
    /// Memory of the cards.
    pub(crate) cards: &'a BTreeMap<GpuUuid, Bytes>,
    pub(crate) maxima: &'a Maxima,
}

/// Acts, and the problems of pods' annotations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) acts: Vec<Act>,
    /// Places of pods among the facts, each with one problem.
    pub(crate) problems: Vec<(usize, Problem)>,
}

/// Decides what to change.
pub(crate) fn plan(facts: &Facts<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut names: Vec<String> = facts.held.iter().map(|held| held.name.clone()).collect();
    names.extend_from_slice(facts.names);
    for (place, pod) in facts.pods.iter().enumerate() {
        let cards = facts.given.cards(pod);
        let held = facts.held.iter().find(|held| held.pod == pod.uid);
        if cards.is_none() && (held.is_none() || !facts.given.follows_without_cards()) {
            continue;
        }
        let total = |card: &GpuUuid| facts.cards.get(card).copied();
        let totals: Option<Vec<Bytes>> = cards.as_ref().and_then(|cards| cards.iter().map(total).collect());
        let claims = facts.given.claims(pod);
        let asked = claims.map(|claims| claims.asked).unwrap_or_default();
        let had = held.map(|held| Limits::of(&held.terms));
        let most = facts.maxima.of(&pod.namespace);
        let totals = totals.unwrap_or_default();
        let (limits, problems) = judge(&pod.annotations, &asked, &most, had.as_ref(), &totals);
        let limits = match claims {
            Some(claims) => Limits {
                memory_by_card: memory_by_card(facts, claims, &limits),
                compute_by_card: compute_by_card(pod, claims, &limits, had.as_ref()),
                ..limits
            },
            None => limits,
        };
        plan.problems.extend(problems.into_iter().map(|problem| (place, problem)));
        match (held, had) {
            (Some(held), Some(had)) => plan.acts.extend(changes(&held.session, &had, &limits)),
            _ => {
                let name = name(pod, &names);
                names.push(name.clone());
                let new = new_session(pod, name, &limits, cards.as_deref().unwrap_or_default());
                plan.acts.push(Act::Create { new: Box::new(new), pod: pod.uid.clone() });
            }
        }
    }
    let is_gone = |held: &&Held| !facts.pods.iter().any(|pod| pod.uid == held.pod);
    let gone = facts.held.iter().filter(is_gone).filter(|held| !held.is_busy);
    plan.acts.extend(gone.map(|held| Act::Delete { session: held.session.clone() }));
    plan
}

/// Returns the memory on those cards of which a pod's claims ask for less than its limit on every card.
fn memory_by_card(facts: &Facts<'_>, claims: &PodClaims, limits: &Limits) -> Vec<CardQuota> {
    let quota = |(card, memory): (&GpuUuid, &Option<Bytes>)| {
        let asked = (*memory)?;
        let is_less = match limits.memory {
            None => true,
            Some(Amount::Bytes(limit)) => asked < limit,
            // Until the card is known, it has the limit of every card.
            Some(limit) => asked < limit.of(*facts.cards.get(card)?),
        };
        is_less.then_some(CardQuota { card: GpuChoice::Uuid(*card), amount: Amount::Bytes(asked) })
    };
    claims.memory.iter().filter_map(quota).collect()
}

/// Returns the share of the time of those cards of which a pod's claims ask for less than its limit on every card.
fn compute_by_card(pod: &Pod, claims: &PodClaims, limits: &Limits, had: Option<&Limits>) -> Vec<CardQuota> {
    let asked = claims.compute.iter().filter_map(|(card, share)| {
        Some(CardQuota { card: GpuChoice::Uuid(*card), amount: Amount::Share((*share)?) })
    });
    let annotation = pod.annotations.get(COMPUTE).map(|text| terms::compute(text.trim()));
    let quotas: Vec<CardQuota> = match (annotation, had) {
        // It counts for every card, in place of the claims.
        (Some(Ok(_)), _) => Vec::new(),
        // The pod keeps what it has.
        (Some(Err(_)), Some(had)) => had.compute_by_card.clone(),
        (Some(Err(_)), None) | (None, _) => asked.collect(),
    };
    let is_less = |quota: &CardQuota| match (quota.amount, limits.compute) {
        (Amount::Share(share), Some(limit)) => share < limit,
        _ => true,
    };
    quotas.into_iter().filter(is_less).collect()
}

/// Returns the changes from old to new limits.
fn changes(session: &str, old: &Limits, new: &Limits) -> Vec<Act> {
    let mut changes = Vec::new();
    if old.memory() != new.memory() {
        changes.push(Change::Memory(new.memory()));
    }
    if old.compute() != new.compute() {
        changes.push(Change::Compute(new.compute()));
    }
    if old.weight != new.weight {
        changes.push(Change::Weight(new.weight));
    }
    if old.priority != new.priority {
        changes.push(Change::Priority(new.priority));
    }
    if old.freeze_after != new.freeze_after {
        changes.push(Change::FreezeAfter(new.freeze_after));
    }
    let act = |change| Act::Change { session: session.to_owned(), change };
    changes.into_iter().map(act).collect()
}

fn new_session(pod: &Pod, name: String, limits: &Limits, cards: &[GpuUuid]) -> NewSession {
    let labels = [("namespace", &pod.namespace), ("pod", &pod.name)];
    NewSession {
        name: Some(name),
        terms: Terms {
            memory: limits.memory(),
            compute: limits.compute(),
            weight: limits.weight,
            priority: limits.priority,
            ttl: None,
            labels: labels.map(|(key, value)| (key.to_owned(), value.clone())).into(),
            freeze_after: limits.freeze_after,
        },
        oversubscribe: false,
        // It counts as placed there. A pod with shares of several cards may use all of them.
        gpu: cards.first().map_or(GpuChoice::Auto, |card| GpuChoice::Uuid(*card)),
    }
}

/// Returns the name of a pod's session: `NAMESPACE/POD`. A part of the UID follows if the name is too long, or
/// belongs to the session of a former pod that has not ended.
fn name(pod: &Pod, taken: &[String]) -> String {
    let full = format!("{}/{}", pod.namespace, pod.name);
    if full.len() <= MAX_SESSION_NAME && !taken.contains(&full) {
        return full;
    }
    let suffix: String = format!("-{}", pod.uid).chars().take(9).collect();
    let kept: String = full.chars().take(MAX_SESSION_NAME - suffix.len()).collect();
    kept + &suffix
}

#[cfg(test)]
mod tests {
    use gpushare_proto::session::{FreezeAfter, Quota};
    use gpushare_proto::{Nanos, Percent};

    use super::*;
    use crate::terms::Asked;

    const CARD: GpuUuid = GpuUuid::gpu([7; 16]);

    fn pod(name: &str, uid: &str, annotations: &[(&str, &str)]) -> Pod {
        let annotations = annotations
            .iter()
            .map(|(key, value)| (format!("gpushare.dev/{key}"), (*value).to_owned()));
        Pod {
            uid: uid.to_owned(),
            namespace: "ml".to_owned(),
            name: name.to_owned(),
            annotations: annotations.collect(),
        }
    }

    fn given(uids: &[&str]) -> Given {
        Given::Shares(uids.iter().map(|&uid| (uid.to_owned(), vec![CARD])).collect())
    }

    fn decided(pods: &[Pod], given: &Given, held: &[Held], names: &[&str]) -> Plan {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let (cards, maxima) = (BTreeMap::from([(CARD, Bytes::gib(80))]), Maxima::default());
        plan(&Facts { pods, given, held, names: &names, cards: &cards, maxima: &maxima })
    }

    /// Sessions as they are after the creations of a plan.
    fn after(plan: &Plan) -> Vec<Held> {
        let created = plan.acts.iter().filter_map(|act| match act {
            Act::Create { new, pod } => Some(Held {
                pod: pod.clone(),
                session: format!("s-{pod}"),
                name: new.name.clone().unwrap(),
                terms: new.terms.clone(),
                is_busy: false,
            }),
            _ => None,
        });
        created.collect()
    }

    #[test]
    fn a_pod_with_a_share_gets_a_session_with_its_name_and_card() {
        let pods = [pod("train", "u1", &[("memory", "8GiB")]), pod("web", "u2", &[])];
        let plan = decided(&pods, &given(&["u1", "gone"]), &[], &[]);
        let [Act::Create { new, pod }] = &plan.acts[..] else { panic!("{plan:?}") };
        assert_eq!((pod.as_str(), new.name.as_deref()), ("u1", Some("ml/train")));
        assert_eq!(new.gpu, GpuChoice::Uuid(CARD));
        assert_eq!(new.terms.memory, Quota::every(Amount::Bytes(Bytes::gib(8))));
        assert_eq!(new.terms.labels["namespace"], "ml");
        assert_eq!(plan.problems, []);
    }

    #[test]
    fn a_changed_annotation_changes_the_session_and_nothing_else() {
        let before = [pod("train", "u1", &[("memory", "8GiB")])];
        let all = given(&["u1"]);
        let held = after(&decided(&before, &all, &[], &[]));
        assert_eq!(decided(&before, &all, &held, &[]), Plan::default());
        let now = [pod("train", "u1", &[("memory", "4GiB"), ("weight", "50"), ("compute", "x")])];
        let plan = decided(&now, &all, &held, &[]);
        let change = |change| Act::Change { session: "s-u1".to_owned(), change };
        let memory = Change::Memory(Quota::every(Amount::Bytes(Bytes::gib(4))));
        assert_eq!(plan.acts, [change(memory), change(Change::Weight(50))]);
        assert!(matches!(plan.problems[..], [(0, Problem::Unreadable { .. })]));
    }

    #[test]
    fn a_pod_is_frozen_after_the_idle_time_of_its_annotation() {
        let all = given(&["u1"]);
        let with = |text: &str, held: &[Held]| {
            decided(&[pod("nb", "u1", &[("freeze-after", text)])], &all, held, &[])
        };
        let held = after(&with("10min", &[]));
        assert_eq!(held[0].terms.freeze_after, FreezeAfter::Idle(Nanos::from_secs(600)));
        let change = |after| Act::Change { session: "s-u1".to_owned(), change: Change::FreezeAfter(after) };
        assert_eq!(with("off", &held).acts, [change(FreezeAfter::Never)]);
        let unreadable = with("soon", &held);
        assert_eq!(unreadable.acts, []);
        let [(0, problem)] = &unreadable.problems[..] else { panic!("{unreadable:?}") };
        let told = "gpushare.dev/freeze-after: `soon` is no idle time; write it like 10min, off or auto. The pod keeps 600s";
        assert_eq!(problem.to_string(), told);
        let without = decided(&[pod("nb", "u1", &[])], &all, &held, &[]);
        assert_eq!(without.acts, [change(FreezeAfter::Usual)]);
    }

    #[test]
    fn limits_stay_while_the_cards_of_a_pod_are_not_known() {
        let text = "[default]\nmemory = '8GiB'";
        let maxima = Maxima::parse(text).unwrap();
        let pods = [pod("train", "u1", &[("memory", "5%")])];
        let cards = BTreeMap::from([(CARD, Bytes::gib(80))]);
        let with = |given: &Given, held: &[Held]| {
            plan(&Facts { pods: &pods, given, held, names: &[], cards: &cards, maxima: &maxima })
        };
        let held = after(&with(&given(&["u1"]), &[]));
        assert_eq!(held[0].terms.memory.to_string(), "5%");
        assert_eq!(with(&given(&[]), &held), Plan::default());
        let two = ("u1".to_owned(), vec![CARD, GpuUuid::gpu([8; 16])]);
        let unknown = Given::Shares([two].into());
        assert_eq!(with(&unknown, &held), Plan::default(), "the size of one card is not known");
    }

    #[test]
    fn a_pod_that_ended_keeps_its_session_until_the_cluster_forgets_it() {
        let pods = [pod("train", "u1", &[])];
        let held = after(&decided(&pods, &given(&["u1"]), &[], &[]));
        assert_eq!(decided(&pods, &given(&[]), &held, &[]), Plan::default());
        let busy = Held { is_busy: true, ..held[0].clone() };
        assert_eq!(decided(&[], &given(&[]), &[busy], &[]), Plan::default());
        let gone = decided(&[], &given(&[]), &held, &[]);
        assert_eq!(gone.acts, [Act::Delete { session: "s-u1".to_owned() }]);
    }

    #[test]
    fn a_pod_beside_another_session_of_its_name_gets_a_name_of_its_own() {
        let old = after(&decided(&[pod("db-0", "aaaaaaaa-1", &[])], &given(&["aaaaaaaa-1"]), &[], &[]));
        let new = [pod("db-0", "bbbbbbbb-2", &[])];
        let plan = decided(&new, &given(&["bbbbbbbb-2"]), &old, &[]);
        assert_eq!(after(&plan)[0].name, "ml/db-0-bbbbbbbb");
        assert_eq!(plan.acts[1], Act::Delete { session: "s-aaaaaaaa-1".to_owned() });
        let beside = decided(&new, &given(&["bbbbbbbb-2"]), &[], &["ml/db-0"]);
        assert_eq!(after(&beside)[0].name, "ml/db-0-bbbbbbbb");
        let long = [pod(&"x".repeat(99), "cccccccc-3", &[])];
        let name = &after(&decided(&long, &given(&["cccccccc-3"]), &[], &[]))[0].name;
        assert!(name.len() == MAX_SESSION_NAME && name.ends_with("x-cccccccc"), "{name}");
    }

    fn claims(memory: &[(GpuUuid, Option<Bytes>)]) -> Given {
        let memory: BTreeMap<_, _> = memory.iter().copied().collect();
        let claims = PodClaims::new(memory, BTreeMap::new(), Asked::default());
        Given::Claims([("u1".to_owned(), claims)].into())
    }

    #[test]
    fn the_memory_of_claims_is_the_limit_of_their_pod() {
        let pods = [pod("train", "u1", &[])];
        let plan = decided(&pods, &claims(&[(CARD, Some(Bytes::gib(8)))]), &[], &[]);
        assert_eq!(after(&plan)[0].terms.memory, Quota::every(Amount::Bytes(Bytes::gib(8))));
        let other = GpuUuid::gpu([8; 16]);
        let two = claims(&[(CARD, Some(Bytes::gib(8))), (other, Some(Bytes::gib(4)))]);
        let plan = decided(&pods, &two, &[], &[]);
        assert_eq!(after(&plan)[0].terms.memory.to_string(), format!("8GiB,{other}=4GiB"));
        assert_eq!(decided(&pods, &two, &after(&plan), &[]), Plan::default());
    }

    #[test]
    fn each_card_keeps_the_compute_limit_of_its_claim() {
        let other = GpuUuid::gpu([8; 16]);
        let given = |first: Option<u32>, second: u32| {
            let compute = [(CARD, first.map(Percent)), (other, Some(Percent(second)))];
            let memory = [(CARD, None), (other, None)];
            let claims = PodClaims::new(memory.into(), compute.into(), Asked::default());
            Given::Claims([("u1".to_owned(), claims)].into())
        };
        let with = |given: &Given, held: &[Held], annotation: Option<&str>| {
            let annotation = annotation.map(|text| ("compute", text));
            decided(&[pod("train", "u1", annotation.as_slice())], given, held, &[])
        };
        let both = given(Some(6000), 3000);
        let held = after(&with(&both, &[], None));
        assert_eq!(held[0].terms.compute.to_string(), format!("60%,{other}=30%"));
        assert_eq!(with(&both, &held, None), Plan::default());
        let one = after(&with(&given(None, 3000), &[], None));
        assert_eq!(one[0].terms.compute.to_string(), format!("{other}=30%"));

        // An annotation counts for every card, and one that cannot be read changes nothing.
        let change = |change| Act::Change { session: "s-u1".to_owned(), change };
        let annotated = with(&both, &held, Some("20%"));
        assert_eq!(annotated.acts, [change(Change::Compute(Quota::every(Amount::Share(Percent(2000)))))]);
        let unreadable = with(&both, &held, Some("x"));
        assert_eq!((unreadable.acts.len(), unreadable.problems.len()), (0, 1));
    }

    #[test]
    fn a_limit_that_is_a_share_leaves_no_card_with_more_than_its_claim() {
        let (pods, other) = ([pod("train", "u1", &[])], GpuUuid::gpu([8; 16]));
        let given = claims(&[(CARD, Some(Bytes::gib(8))), (other, Some(Bytes::gib(8)))]);
        let maxima = Maxima::parse("[default]\nmemory = '50%'").unwrap();
        let cards = BTreeMap::from([(CARD, Bytes::gib(80)), (other, Bytes::gib(8))]);
        let facts = Facts {
            pods: &pods,
            given: &given,
            held: &[],
            names: &[],
            cards: &cards,
            maxima: &maxima,
        };
        let memory = after(&plan(&facts))[0].terms.memory.to_string();
        assert_eq!(memory, format!("50%,{CARD}=8GiB"));
    }

    #[test]
    fn a_pod_whose_claims_are_gone_keeps_the_session_that_it_has() {
        let pods = [pod("train", "u1", &[])];
        let held = after(&decided(&pods, &claims(&[(CARD, Some(Bytes::gib(8)))]), &[], &[]));
        assert_eq!(decided(&pods, &Given::Claims(BTreeMap::new()), &held, &[]), Plan::default());
    }
}
