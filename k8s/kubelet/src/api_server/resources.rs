//! Objects of the API group `resource.k8s.io`, as different releases of Kubernetes serve them.
//!
//! ```text
//!   GET    /apis                                                        versions of the group
//!   GET    …/resourceslices?fieldSelector=spec.nodeName=…,spec.driver=…  list, or watch
//!   POST   …/resourceslices[?dryRun=All]                                 new slice
//!   PUT    …/resourceslices/NAME, DELETE …/resourceslices/NAME
//!   GET    …/namespaces/NS/resourceclaims/NAME
//! ```
//!
//! Each slice is checked by the rules of the API. A release that has no consumable capacity, or has it switched
//! off, drops its fields without a word, as the real server does.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::answers::{Answer, as_json, failure};
use super::{ApiServer, Selection, Shared, State, slice_rules, watch};

const GROUP: &str = "resource.k8s.io";

/// Slices by name.
pub(super) type Slices = BTreeMap<String, Value>;
/// Claims by namespace and name.
pub(super) type Claims = BTreeMap<(String, String), Value>;

/// Release of Kubernetes, with the feature gates that it has by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Without a version of the group that is at least beta.
    V1_31,
    /// With v1beta1, switched on.
    V1_32,
    /// With v1beta2, switched on.
    V1_33,
    /// With v1. Consumable capacity is alpha, and off.
    V1_34,
    /// With v1 and consumable capacity.
    #[default]
    V1_36,
}

impl Release {
    /// Versions of the group, the preferred one first.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::V1_31 => &[],
            Self::V1_32 => &["v1beta1"],
            Self::V1_33 => &["v1beta2", "v1beta1"],
            Self::V1_34 | Self::V1_36 => &["v1", "v1beta2", "v1beta1"],
        }
    }
}

impl ApiServer {
    /// Serves the objects as a release does from now on.
    pub fn set_release(&self, release: Release) {
        self.shared.change(|state| state.release = release);
    }

    /// Creates or replaces a claim. The pods are pairs of name and UID for which it is reserved.
    pub fn put_claim(&self, namespace: &str, name: &str, uid: &str, pods: &[(&str, &str)], devices: &Value) {
        let reserved = pods
            .iter()
            .map(|(name, uid)| json!({"resource": "pods", "name": name, "uid": uid}));
        let claim = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {"devices": {}},
            "status": {"reservedFor": reserved.collect::<Vec<_>>(), "allocation": {"devices": devices}},
        });
        self.shared
            .change(|state| drop(state.claims.insert((namespace.to_owned(), name.to_owned()), claim)));
    }

    /// Deletes a claim.
    pub fn delete_claim(&self, namespace: &str, name: &str) {
        self.shared
            .change(|state| drop(state.claims.remove(&(namespace.to_owned(), name.to_owned()))));
    }

    /// Slices as they are now.
    pub fn slices(&self) -> Vec<Value> {
        self.shared.state().slices.values().cloned().collect()
    }

    /// Deletes all slices, as the kubelet does when it starts.
    pub fn wipe_slices(&self) {
        self.shared.change(|state| {
            for name in state.slices.keys().cloned().collect::<Vec<_>>() {
                remove(state, &name);
            }
        });
    }
}

/// Answers a request below `/apis`.
pub(super) fn answer(
    shared: &Arc<Shared>,
    method: &Method,
    path: &[&str],
    query: &BTreeMap<String, String>,
    body: &[u8],
) -> Answer {
    let release = shared.state().release;
    let (version, below) = match path {
        [] if method == Method::GET => return groups(release),
        [GROUP, version, below @ ..] if release.versions().contains(version) => (*version, below),
        _ => return failure(StatusCode::NOT_FOUND, "the server could not find the requested resource"),
    };
    match (method, below) {
        (&Method::GET, ["resourceslices"]) => list_or_watch(shared, version, query),
        (&Method::POST, ["resourceslices"]) => write(shared, version, None, query, body),
        (&Method::PUT, ["resourceslices", name]) => write(shared, version, Some(name), query, body),
        (&Method::DELETE, ["resourceslices", name]) => match shared.change(|state| remove(state, name)) {
            Some(slice) => as_json(StatusCode::OK, &slice),
            None => failure(StatusCode::NOT_FOUND, "there is no such slice"),
        },
        (&Method::GET, ["namespaces", namespace, "resourceclaims", name]) => {
            let found = shared
                .state()
                .claims
                .get(&((*namespace).to_owned(), (*name).to_owned()))
                .cloned();
            match found {
                Some(mut claim) => {
                    claim["apiVersion"] = json!(format!("{GROUP}/{version}"));
                    as_json(StatusCode::OK, &claim)
                }
                None => failure(StatusCode::NOT_FOUND, "there is no such claim"),
            }
        }
        _ => failure(StatusCode::NOT_FOUND, &format!("no such call: {method} {}", below.join("/"))),
    }
}

fn groups(release: Release) -> Answer {
    let versions = release.versions().iter();
    let versions: Vec<Value> = versions
        .map(|version| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}))
        .collect();
    let apps = json!({"groupVersion": "apps/v1", "version": "v1"});
    let mut groups = vec![json!({"name": "apps", "versions": [apps], "preferredVersion": apps})];
    if let Some(preferred) = versions.first() {
        groups.push(json!({"name": GROUP, "versions": versions, "preferredVersion": preferred}));
    }
    as_json(StatusCode::OK, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

fn list_or_watch(shared: &Arc<Shared>, version: &str, query: &BTreeMap<String, String>) -> Answer {
    let selector = query.get("fieldSelector").map(String::as_str).unwrap_or_default();
    let fields: BTreeMap<&str, &str> =
        selector.split(',').filter_map(|field| field.split_once('=')).collect();
    let (Some(node), Some(driver), 2) =
        (fields.get("spec.nodeName"), fields.get("spec.driver"), fields.len())
    else {
        return failure(StatusCode::BAD_REQUEST, "field label not supported");
    };
    let of = Selection {
        kind: "ResourceSlice",
        node: (*node).to_owned(),
        driver: Some((*driver).to_owned()),
        metadata_only: false,
    };
    if query.contains_key("watch") {
        return watch(shared, of, query);
    }
    let state = shared.state();
    let items: Vec<&Value> = state.slices.values().filter(|slice| of.has(slice)).collect();
    as_json(
        StatusCode::OK,
        &json!({
            "apiVersion": format!("{GROUP}/{version}"),
            "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": items,
        }),
    )
}

/// Creates a slice, or replaces the one with this name.
fn write(
    shared: &Shared,
    version: &str,
    name: Option<&str>,
    query: &BTreeMap<String, String>,
    body: &[u8],
) -> Answer {
    let Ok(mut slice) = serde_json::from_slice::<Value>(body) else {
        return failure(StatusCode::BAD_REQUEST, "the body is no JSON");
    };
    if shared.state().release != Release::V1_36 {
        slice_rules::drop_consumable(&mut slice);
    }
    let is_trial = query.get("dryRun").is_some_and(|value| value == "All");
    if let Err(rule) = slice_rules::check(&slice, version, is_trial) {
        return failure(StatusCode::UNPROCESSABLE_ENTITY, &rule);
    }
    shared.change(|state| {
        let name = match name {
            None => {
                let prefix = slice["metadata"]["generateName"].as_str().unwrap_or_default();
                format!("{prefix}{:05}", state.version + 1)
            }
            Some(name) => {
                let Some(present) = state.slices.get(name) else {
                    return failure(StatusCode::NOT_FOUND, "there is no such slice");
                };
                if present["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"] {
                    return failure(StatusCode::CONFLICT, "the object has been modified");
                }
                if ["driver", "nodeName"]
                    .iter()
                    .any(|field| present["spec"][field] != slice["spec"][field])
                {
                    return failure(StatusCode::UNPROCESSABLE_ENTITY, "spec: field is immutable");
                }
                name.to_owned()
            }
        };
        slice["metadata"]["name"] = json!(name);
        if !is_trial {
            state.version += 1;
            slice["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let was_there = state.slices.insert(name, slice.clone()).is_some();
            let kind = if was_there { "MODIFIED" } else { "ADDED" };
            state.log.push((state.version, kind, slice.clone()));
        }
        as_json(StatusCode::CREATED, &slice)
    })
}

fn remove(state: &mut State, name: &str) -> Option<Value> {
    let mut slice = state.slices.remove(name)?;
    state.version += 1;
    slice["metadata"]["resourceVersion"] = json!(state.version.to_string());
    state.log.push((state.version, "DELETED", slice.clone()));
    Some(slice)
}
