//! A simulated node: world, folders of the kubelet and the runtime, and the plugin's process.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpushare_k8s::api::v1beta1::{Device, Empty, ListAndWatchResponse};
use gpushare_kubelet::{Kubelet, Plugin};
use gpushare_tests::{Artifacts, Part, Process, World};
use tonic::Streaming;

/// Node with simulated cards.
pub(crate) struct Node {
    pub(crate) world: World,
    /// Library that plugins of this node are installed with.
    pub(crate) library: PathBuf,
}

impl Node {
    /// A node with two cards, whose files of the driver are empty.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::of(&["--gpus", "2", "--memory", "256MiB"])
    }

    /// A node with one card that containers can use: the files of its driver are those of the simulated card. The
    /// device node that all programs of CUDA open stands for the card's socket.
    pub(crate) fn with_driver() -> anyhow::Result<Self> {
        let node = Self::of(&["--memory", "256MiB"])?;
        for (file, real) in [
            ("root/usr/lib64/libcuda.so.1", node.world.path(Part::SimulatedCuda)),
            ("root/dev/nvidiactl", &node.world.card_socket()),
        ] {
            fs::remove_file(node.path(file))?;
            symlink(real, node.path(file))?;
        }
        Ok(node)
    }

    fn of(card_flags: &[&str]) -> anyhow::Result<Self> {
        let world = World::with_card_flags(Artifacts::of_tests()?, card_flags)?;
        let library = world.path(Part::Library).to_owned();
        let node = Self { world, library };
        for folder in ["plugins", "registry", "cdi"] {
            fs::create_dir(node.path(folder))?;
        }
        for file in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"] {
            node.put(&format!("root/dev/{file}"))?;
        }
        node.put("root/usr/lib64/libcuda.so.1")?;
        Ok(node)
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.world.folder().join(relative)
    }

    /// Path at which this process finds a file of the node.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        let of_node = self.path("root").join(path.strip_prefix("/").unwrap_or(path));
        of_node.canonicalize().unwrap_or_else(|_| path.to_owned())
    }

    fn put(&self, relative: &str) -> anyhow::Result<()> {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        Ok(fs::write(path, "")?)
    }

    /// Starts the plugin with these flags besides those for the node's folders.
    pub(crate) fn plugin(&self, flags: &[&str]) -> anyhow::Result<Process> {
        Process::start(self.command(flags), self.world.folder(), "plugin")
    }

    /// Command that starts the plugin with these flags.
    pub(crate) fn command(&self, flags: &[&str]) -> Command {
        let mut command = self.world.program(Path::new(env!("CARGO_BIN_EXE_gpushare-k8s")));
        command.arg("device-plugin").args(flags);
        command.arg("--plugins-dir").arg(self.path("plugins"));
        command.arg("--registry-dir").arg(self.path("registry"));
        command.arg("--driver-dir").arg(self.path("driver"));
        command.arg("--cdi-dir").arg(self.path("cdi"));
        command.arg("--files").arg(self.path("files"));
        command.arg("--host-root").arg(self.path("root"));
        command.arg("--runtime-dir").arg(self.world.runtime_dir().root());
        command.arg("--library").arg(&self.library);
        command.arg("--ctl").arg(self.world.path(Part::Ctl));
        command.arg("--pod-resources").arg(self.path("pod-resources.sock"));
        command.arg("--maxima").arg(self.path("pods.toml"));
        command.env_remove("NODE_NAME").env("KUBECONFIG", self.path("kubeconfig"));
        command
    }

    pub(crate) fn kubelet(&self) -> anyhow::Result<Kubelet> {
        Kubelet::start(&self.path("plugins"))
    }

    /// Text with the paths of this run replaced by names.
    pub(crate) fn without_paths(&self, text: &str) -> String {
        text.replace(&*self.world.folder().to_string_lossy(), "WORLD")
            .replace("aarch64-linux-gnu", "x86_64-linux-gnu")
    }
}

/// Content of a library, changed so that programs of this machine see it as one of another processor.
pub(crate) fn of_another_processor(library: &Path) -> anyhow::Result<Vec<u8>> {
    // Field `e_machine` of the ELF header: EM_X86_64 and EM_AARCH64.
    let other: u16 = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let mut content = fs::read(library)?;
    content[18..20].copy_from_slice(&other.to_le_bytes());
    Ok(content)
}

/// Starts to watch the devices of a plugin. Returns the first list too.
pub(crate) async fn watch(
    plugin: &mut Plugin,
) -> anyhow::Result<(Vec<Device>, Streaming<ListAndWatchResponse>)> {
    let mut lists = plugin.list_and_watch(Empty {}).await?.into_inner();
    let first = next(&mut lists).await?;
    Ok((first, lists))
}

/// Waits for the next list of devices.
pub(crate) async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> anyhow::Result<Vec<Device>> {
    let list = tokio::time::timeout(gpushare_tests::patience::PATIENCE, lists.message()).await??;
    Ok(list.map(|list| list.devices).unwrap_or_default())
}
