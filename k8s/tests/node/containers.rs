//! A container runtime: it starts programs with what an answer of the plugin or of the driver of claims names, and
//! with nothing else of gpushare.
//!
//! ```text
//!   answer ── CDI names ──▶ spec in the runtime's folder ──┐
//!          ── mounts, variables, device nodes ─────────────┴▶ edits ─▶ control group of the pod
//!                                                                      namespaces: mount, PID, control group
//!                                                                      root, capabilities, mounts, variables
//! ```
//!
//! Control groups and namespaces are there as far as the machine allows them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use gpushare_inject::{Edits, Mount, Node as DeviceNode, Spec, container};
use gpushare_k8s::api::v1beta1::ContainerAllocateResponse;
use gpushare_tests::{Part, output_of};

use crate::groups::PodGroups;
use crate::node::Node;

/// Script that becomes a program in a container.
const CONTAINER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/container.sh");
/// Script that enters a control group and becomes a program.
const IN_GROUP: &str = r#"echo $$ > "$0" && exec "$@""#;
/// Namespaces of a container.
const NAMESPACES: [&str; 6] = ["unshare", "--mount", "--cgroup", "--pid", "--fork", "--kill-child"];
/// Capabilities of root in a container, as runtimes give them by default.
const CAPABILITIES: &str = "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,\
                            +setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";
/// Place of the test's program in all images.
pub(crate) const PROGRAM: &str = "/usr/bin/gpushare-workload";
/// Variables of all images. The simulated driver reaches its card through the device node.
const VARIABLES: [&str; 2] = ["PATH=/usr/bin:/bin", "SIMGPU_SOCKET=/dev/nvidiactl"];

/// Answer for a container.
pub(crate) struct Answer {
    /// Share that the plugin gave, empty for a claim.
    pub(crate) share: String,
    edits: Edits,
}

impl Answer {
    /// Reads an answer as a container runtime does: names of CDI devices are looked up in the specs.
    pub(crate) fn new(
        share: String,
        answer: &ContainerAllocateResponse,
        node: &Node,
    ) -> anyhow::Result<Self> {
        let mut edits = Edits {
            env: answer.envs.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            device_nodes: answer
                .devices
                .iter()
                .map(|device| DeviceNode::at(&device.container_path))
                .collect(),
            mounts: answer
                .mounts
                .iter()
                .map(|mount| {
                    let options = if mount.read_only { "ro" } else { "rw" };
                    Mount {
                        host_path: (&mount.host_path).into(),
                        container_path: (&mount.container_path).into(),
                        options: vec![options.to_owned()],
                        others: Default::default(),
                    }
                })
                .collect(),
            ..Edits::default()
        };
        let names = answer.cdi_devices.iter().map(|device| device.name.as_str());
        add_devices(&mut edits, names, node)?;
        Ok(Self { share, edits })
    }

    /// Reads the CDI devices of a claim's answer as a container runtime does.
    pub(crate) fn of_claim(names: &[String], node: &Node) -> anyhow::Result<Self> {
        let mut edits = Edits::default();
        add_devices(&mut edits, names.iter().map(String::as_str), node)?;
        Ok(Self { share: String::new(), edits })
    }

    /// Path on the host of what a container has at a path.
    fn source(&self, node: &Node, target: &str) -> Option<PathBuf> {
        let mount = self.edits.mounts.iter().find(|mount| mount.container_path == Path::new(target));
        mount.map(|mount| node.on_host(&mount.host_path))
    }
}

/// Adds what the specs of a node say about CDI devices with these names.
fn add_devices<'a>(
    edits: &mut Edits,
    names: impl Iterator<Item = &'a str>,
    node: &Node,
) -> anyhow::Result<()> {
    for name in names {
        let spec: Spec =
            serde_json::from_str(&fs::read_to_string(node.path("cdi/gpushare.dev-share.json"))?)?;
        let device = spec.devices.iter().find(|device| spec.full_name(device) == name);
        let device = device.with_context(|| format!("no spec has the device {name}"))?;
        edits.add(&spec.container_edits);
        edits.add(&device.container_edits);
    }
    Ok(())
}

/// Container runtime of a node.
pub(crate) struct Runtime {
    /// Control groups of pods, if the machine allows them.
    pub(crate) groups: Option<PodGroups>,
    /// Whether containers have namespaces.
    pub(crate) has_namespaces: bool,
    /// Folder on which each container mounts its root.
    folder: PathBuf,
}

impl Runtime {
    /// A runtime with the control groups and namespaces that this machine allows. It says which it does not.
    pub(crate) fn new(node: &Node, test: &str) -> anyhow::Result<Self> {
        let folder = node.path("containers");
        fs::create_dir(&folder)?;
        let mut probe = node.world.program(NAMESPACES[0].as_ref());
        probe.args(&NAMESPACES[1..]).args(["sh", CONTAINER]).arg(&folder);
        probe.args(["--", "setpriv", CAPABILITIES, "true"]);
        let tried = output_of(probe);
        if let Err(error) = &tried {
            eprintln!(
                "not tested: containers in namespaces, and root in them, which this machine does not allow: {error:#}"
            );
        }
        let groups = PodGroups::new(test);
        if groups.is_none() {
            eprintln!(
                "not tested: limits of pods, since processes of pods are known by their control groups"
            );
        }
        Ok(Self { groups, has_namespaces: tried.is_ok(), folder })
    }

    /// Command of the test's program in the container of a pod. It ends in the program's name.
    pub(crate) fn program(&self, node: &Node, uid: &str, answer: &Answer) -> anyhow::Result<Command> {
        let mut command = self.container(node, uid, answer)?;
        command.arg(if self.has_namespaces {
            PROGRAM.as_ref()
        } else {
            node.world.path(Part::Workload)
        });
        Ok(command)
    }

    /// Command that starts the container of a pod. The words of its program are to follow.
    pub(crate) fn container(&self, node: &Node, uid: &str, answer: &Answer) -> anyhow::Result<Command> {
        let mut command = self.in_group(node, uid)?;
        if !self.has_namespaces {
            command.args(self.without_namespaces(node, answer));
            return Ok(command);
        }
        command.args(NAMESPACES).args(["sh", CONTAINER]).arg(&self.folder);
        let mount = |command: &mut Command, from: &Path, to: &Path, options: &str| {
            command.arg("--mount").args([from, to]).arg(options);
        };
        mount(&mut command, node.world.path(Part::Workload), PROGRAM.as_ref(), "ro");
        for Mount { host_path, container_path, options, .. } in &answer.edits.mounts {
            let options: Vec<&str> =
                options.iter().map(String::as_str).filter(|option| *option != "bind").collect();
            mount(&mut command, &node.on_host(host_path), container_path, &options.join(","));
        }
        for device in &answer.edits.device_nodes {
            mount(&mut command, &node.on_host(&device.path), &device.path, "rw");
        }
        command.arg("--").args(self.started(answer));
        Ok(command)
    }

    /// Runs a command as root in the container of a pod, whose process has this pid on the node.
    pub(crate) fn run(
        &self,
        node: &Node,
        uid: &str,
        answer: &Answer,
        pid: u32,
        words: &[&str],
    ) -> anyhow::Result<std::process::Output> {
        let mut command = self.in_group(node, uid)?;
        command.args(["nsenter", "--target", &pid.to_string()]);
        command.args(["--mount", "--pid", "--cgroup", "--root", "--wd"]);
        command.args(self.started(answer)).args(words);
        Ok(command.output()?)
    }

    /// Start of a command that runs in the control group of a pod.
    fn in_group(&self, node: &Node, uid: &str) -> anyhow::Result<Command> {
        let group = match &self.groups {
            Some(groups) => groups.container(uid)?,
            None => "/dev/null".into(),
        };
        let mut command = node.world.program("/bin/sh".as_ref());
        command.args(["-c", IN_GROUP]).arg(group);
        Ok(command)
    }

    /// Words that start a program as root in a container, with the variables of its image and of the answer.
    fn started(&self, answer: &Answer) -> Vec<String> {
        let words = ["setpriv", CAPABILITIES, "--inh-caps=-all", "env", "-i"]
            .into_iter()
            .chain(VARIABLES);
        words.map(str::to_owned).chain(answer.edits.env.iter().cloned()).collect()
    }

    /// Words that start a program beside the node's other processes, with the files that the answer mounts.
    fn without_namespaces(&self, node: &Node, answer: &Answer) -> Vec<String> {
        let folder = |target: &str| Some(answer.source(node, target)?.parent()?.to_owned());
        let socket = node.on_host("/dev/nvidiactl".as_ref());
        let mut words = vec!["env".to_owned(), "-i".to_owned()];
        words.extend(answer.edits.env.iter().cloned());
        for (name, path) in [
            ("LD_PRELOAD", answer.source(node, container::LIBRARY)),
            ("GPUSHARE_RUNTIME_DIR", folder(container::TENANT)),
            ("LD_LIBRARY_PATH", Some(node.path("lib"))),
            ("SIMGPU_SOCKET", Some(socket)),
        ] {
            words.push(format!("{name}={}", path.unwrap_or_default().display()));
        }
        words
    }
}
