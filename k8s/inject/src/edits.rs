//! Changes that a container runtime makes to a container: variables, device nodes and mounts.
//!
//! The type is `containerEdits` of the Container Device Interface. Fields that gpushare never sets, such as
//! NVIDIA's hooks, are kept as they are.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Changes of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// Environment variables, as `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<Node>,
    /// Mounts of files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Fields that only other authors of specs use, such as `hooks`.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Device node in a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Path in the container, and on the host unless `others` has a `hostPath`.
    pub path: PathBuf,
    /// Other fields, such as `hostPath` and `permissions`.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// File or folder of the host in a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path in the container.
    pub container_path: PathBuf,
    /// Options of the mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Other fields, such as `type`.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl Node {
    /// Returns a node that has the same path on the host.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), others: Map::new() }
    }
}

impl Mount {
    /// Returns a read-only mount that honours no set-user-id bit and no device node.
    pub fn read_only(host: impl Into<PathBuf>, container: impl Into<PathBuf>) -> Self {
        Self {
            host_path: host.into(),
            container_path: container.into(),
            options: ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).to_vec(),
            others: Map::new(),
        }
    }

    /// Adds an option.
    #[must_use]
    pub fn and(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Returns whether the container cannot write through the mount.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

impl Edits {
    /// Adds the edits of `other` that are not there yet.
    pub fn add(&mut self, other: &Self) {
        add(&mut self.env, &other.env);
        add(&mut self.device_nodes, &other.device_nodes);
        add(&mut self.mounts, &other.mounts);
        for (name, value) in &other.others {
            match (self.others.get_mut(name), value) {
                (Some(Value::Array(own)), Value::Array(more)) => add(own, more),
                (Some(_), _) => {}
                (None, value) => drop(self.others.insert(name.clone(), value.clone())),
            }
        }
    }
}

fn add<T: Clone + PartialEq>(own: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !own.contains(item) {
            own.push(item.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn edits_are_added_once_and_unknown_fields_are_kept() {
        let read = |value| serde_json::from_value::<Edits>(value).unwrap();
        let mut edits = read(json!({
            "env": ["A=1"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        }));
        edits.add(&read(json!({
            "env": ["A=1", "B=2"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia0", "permissions": "rw"}],
            "hooks": [{"hookName": "startContainer", "path": "/bin/true"}],
            "additionalGids": [44],
        })));
        assert_eq!(
            serde_json::to_value(&edits).unwrap(),
            json!({
                "env": ["A=1", "B=2"],
                "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia0", "permissions": "rw"}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"},
                    {"hookName": "startContainer", "path": "/bin/true"},
                ],
                "additionalGids": [44],
            })
        );
    }
}
