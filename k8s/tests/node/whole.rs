//! A whole node: the daemon, the plugin, a kubelet, a container runtime, and pods that share the simulated card.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use gpushare_inject::container;
use gpushare_proto::Bytes;
use gpushare_proto::admin::Status;
use gpushare_proto::session::Terms;
use gpushare_tests::{Part, Program, Ticket};

use crate::cluster::Cluster;
use crate::containers::{Answer, PROGRAM, Runtime};
use crate::node::{Node, of_another_processor};

/// Variable that names a library of an earlier version, with which the pods start before the upgrade.
const OLD_LIBRARY: &str = "GPUSHARE_TEST_OLD_LIBRARY";
const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");

/// A pod by its name, which also gives its UID.
#[derive(Clone, Copy)]
struct Pod(&'static str, u8);

const ANA: Pod = Pod("ana", 1);
const BEN: Pod = Pod("ben", 2);
const CAY: Pod = Pod("cay", 3);
const DAN: Pod = Pod("dan", 4);
const EVE: Pod = Pod("eve", 5);

impl Pod {
    fn uid(self) -> String {
        format!("6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c{:02x}", self.1)
    }

    fn session(self) -> String {
        format!("ml/{}", self.0)
    }
}

/// Cluster with a runtime that starts containers by the plugin's answers.
struct Stage {
    // Programs end before their control groups go.
    cluster: Cluster,
    runtime: Runtime,
}

impl Stage {
    async fn new(test: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let mut node = Node::with_driver()?;
        node.library = old_library(&node)?;
        let runtime = Runtime::new(&node, test)?;
        // Without control groups nobody knows the pod of a process.
        let settings = match runtime.groups {
            Some(_) => "pod_sessions = true\n",
            None => "implicit_sessions = true\n",
        };
        let cluster = Cluster::with(node, settings, &["--quantum", "100ms"], flags).await?;
        Ok(Self { cluster, runtime })
    }

    fn knows_pods(&self) -> bool {
        self.runtime.groups.is_some()
    }

    /// Admits a pod and starts a program in it that the test drives.
    async fn hold(&mut self, pod: Pod, annotations: &[(&str, &str)]) -> anyhow::Result<(Program, Answer)> {
        let answer = self.cluster.admit(pod.0, &pod.uid(), annotations).await?;
        let command = self.runtime.program(&self.cluster.node, &pod.uid(), &answer)?;
        let mut program = Program::begin(command, &self.cluster.node.world, pod.0)?;
        program.ready()?;
        Ok((program, answer))
    }

    /// Waits until the limits of a pod are these: memory, compute, weight and priority.
    fn until(&self, pod: Pod, terms: &str) -> anyhow::Result<()> {
        self.cluster.until(&pod.session(), terms).map(drop)
    }

    /// Pid on the node of a pod's program.
    fn pid(&self, pod: Pod) -> anyhow::Result<u32> {
        let session = self.cluster.daemon.session(&pod.session())?;
        Ok(session.clients.first().context("the pod has a program")?.pid)
    }

    /// Library that a pod's container has mounted.
    fn library_of(&self, pod: Pod) -> anyhow::Result<Vec<u8>> {
        Ok(fs::read(format!("/proc/{}/root{}", self.pid(pod)?, container::LIBRARY))?)
    }

    /// Checks that root in a pod sees its own session, and neither other processes nor any way to administer.
    fn root_is_a_tenant(&self, pod: Pod, answer: &Answer) -> anyhow::Result<()> {
        let pid = self.pid(pod)?;
        let run = |words: &[&str]| {
            let output = self.runtime.run(&self.cluster.node, &pod.uid(), answer, pid, words)?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            anyhow::Ok((output.status.success(), text + &String::from_utf8_lossy(&output.stderr)))
        };
        assert_eq!(run(&["id", "-u"])?, (true, "0\n".to_owned()));
        assert_eq!(run(&["ls", container::RUNTIME])?, (true, "tenant\n".to_owned()));
        let (sees_own, own) = run(&["gpushare-ctl", "own"])?;
        assert!(sees_own && own.contains(&pod.session()), "{own}");
        assert!(
            [ANA, BEN, CAY, DAN]
                .iter()
                .all(|other| other.0 == pod.0 || !own.contains(&other.session())),
            "{own}"
        );

        let before = self.cluster.daemon.session(&pod.session())?.state.terms;
        for refused in [
            &["gpushare-ctl", "status"][..],
            &["gpushare-ctl", "set", "memory", "1GiB", "--session", &pod.session()],
            &["gpushare-ctl", "session", "delete", &BEN.session()],
            &["rm", "/run/gpushare/tenant/scheduler.sock"],
            &["touch", "/run/gpushare/tenant/admin.sock"],
            &["mount", "-o", "remount,bind,rw", container::TENANT],
            &["cp", "/bin/true", container::LIBRARY],
            // The first process of the node is no process of the container.
            &["sh", "-c", "kill -0 $1", "sh", &self.cluster.daemon.process().pid().to_string()],
        ] {
            let (succeeded, said) = run(refused)?;
            assert!(!succeeded && !said.is_empty(), "{refused:?} says {said}");
        }
        assert_eq!(self.cluster.daemon.session(&pod.session())?.state.terms, before);
        Ok(())
    }
}

/// Tells a program to fill its memory with several values and to check each of them, and does not wait.
fn told(program: &mut Program, first: u32) -> anyhow::Result<Vec<Ticket>> {
    let lines = (first..first + 20).flat_map(|value| [format!("fill x {value}"), format!("check x {value}")]);
    lines.map(|line| program.tell(&line)).collect()
}

/// Sessions with their names, numbers and terms, without the one whose annotation changes meanwhile.
fn kept(status: &Status) -> Vec<(String, String, Terms)> {
    let others = status.sessions.iter().filter(|session| session.name != ANA.session());
    let mut kept: Vec<_> = others
        .map(|session| (session.name.clone(), session.session.to_string(), session.state.terms.clone()))
        .collect();
    kept.sort_by(|a, b| a.0.cmp(&b.0));
    kept
}

/// Library that the pods have before the upgrade. If no older one is named, it is today's code in another file.
fn old_library(node: &Node) -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(OLD_LIBRARY) {
        return Ok(named.into());
    }
    let path = node.path("old-libgpushare.so");
    let mut content = fs::read(node.world.path(Part::Library))?;
    content.extend_from_slice(b"another build");
    fs::write(&path, content)?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_pods_share_a_card_through_new_limits_and_an_upgrade() -> anyhow::Result<()> {
    let mut stage = Stage::new("whole", &["--shares", "4"]).await?;
    let knows_pods = stage.knows_pods();
    let (mut ana, of_ana) = stage.hold(ANA, &[("memory", "80MiB")]).await?;
    let (mut ben, of_ben) = stage.hold(BEN, &[("memory", "96MiB"), ("weight", "50")]).await?;
    ana.must("alloc x 64MiB; fill x 1")?;
    ben.must("alloc x 64MiB; fill x 2")?;
    if knows_pods && stage.runtime.has_namespaces {
        stage.root_is_a_tenant(ANA, &of_ana)?;
    }
    let (mut cay, _) = stage.hold(CAY, &[("memory", "100MiB"), ("priority", "low")]).await?;
    let (mut dan, _) = stage.hold(DAN, &[]).await?;
    assert!(stage.cluster.shares.is_empty());
    // Programs of unknown pods are of one session, which never has more than the card.
    let size = Bytes::mib(if knows_pods { 72 } else { 48 });
    for program in [&mut cay, &mut dan] {
        program.must(&format!("alloc x {size}"))?;
    }
    let mut work = vec![told(&mut cay, 0)?, told(&mut dan, 100)?];
    // Together the pods need more than the card has, so memory of the idle ones is away.
    stage.cluster.daemon.until("all of it is allocated", |status| {
        status.gpus[0].allocated_bytes >= Bytes::mib(2 * 64) + size + size
    })?;

    if knows_pods {
        stage.until(DAN, "no limit, no limit, 100, normal")?;
        assert_eq!(ana.ask("alloc y 32MiB")?.error(), OUT_OF_MEMORY);
        stage.cluster.put(ANA.0, &ANA.uid(), &[("memory", "112MiB")]);
        stage.until(ANA, "112MiB, no limit, 100, normal")?;
        ana.must("alloc y 32MiB; fill y 3")?;
        stage.cluster.put(BEN.0, &BEN.uid(), &[("memory", "72MiB"), ("weight", "50")]);
        stage.until(BEN, "72MiB, no limit, 50, normal")?;
        assert_eq!(ben.ask("alloc y 16MiB")?.error(), OUT_OF_MEMORY);
    }

    let before = stage.cluster.daemon.status()?;
    let fill = ana.tell("fill x 4")?;
    stage.cluster.stop()?;
    work.extend([told(&mut cay, 200)?, told(&mut dan, 300)?]);
    // What is changed while nobody is there counts as soon as somebody is.
    stage.cluster.put(ANA.0, &ANA.uid(), &[("memory", "120MiB")]);
    stage.cluster.node.library = stage.cluster.node.world.path(Part::Library).to_owned();
    stage.cluster.start_again().await?;
    let after = stage.cluster.daemon.until("all are back", |status| {
        let processes =
            |status: &Status| -> usize { status.sessions.iter().map(|session| session.clients.len()).sum() };
        status.daemon.recovering == 0
            && processes(status) == processes(&before)
            && status
                .gpus
                .first()
                .is_some_and(|gpu| gpu.allocated_bytes == before.gpus[0].allocated_bytes)
    })?;
    assert_eq!(kept(&after), kept(&before));
    ana.answer(fill)?;
    ana.must("check x 4")?;
    ben.must("check x 2")?;

    if knows_pods {
        // A pod that was there has its old library, and new limits all the same.
        stage.until(ANA, "120MiB, no limit, 100, normal")?;
        ana.must("check y 3; alloc z 16MiB; fill z 5")?;
        assert_eq!(ben.ask("alloc y 16MiB")?.error(), OUT_OF_MEMORY);
    }
    let installed = fs::read(stage.cluster.node.path("files/libgpushare.so"))?;
    assert_eq!(installed, fs::read(&stage.cluster.node.library)?);
    let sees_mounts = knows_pods && stage.runtime.has_namespaces;
    if sees_mounts {
        assert_ne!(stage.library_of(ANA)?, installed);
    }

    // The share of a pod that ends goes to another one, which gets the new library.
    assert!(ben.quit()?.success());
    stage.cluster.delete(BEN.0, &of_ben);
    stage.cluster.daemon.until("the pod's session has ended", |status| {
        !status.sessions.iter().any(|session| session.name == BEN.session())
    })?;
    let (mut eve, _) = stage.hold(EVE, &[("memory", "64MiB")]).await?;
    eve.must("alloc x 32MiB; fill x 6")?;
    if sees_mounts {
        assert_eq!(stage.library_of(EVE)?, installed);
    }
    for (place, tickets) in work.into_iter().enumerate() {
        let program = if place % 2 == 0 { &cay } else { &dan };
        for ticket in tickets {
            let answer = program.answer(ticket)?;
            assert!(answer.flag("ok") && answer.json()["matches"] != false, "{:?}", answer.json());
        }
    }
    ana.must("check x 4")?;
    eve.must("check x 6")?;
    for mut program in [ana, cay, dan, eve] {
        assert!(program.quit()?.success());
    }
    stage.cluster.daemon.until("nothing is left on the card", |status| {
        status.gpus.iter().all(|gpu| gpu.allocated_bytes.is_zero())
    })?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_for_another_processor_is_warned_and_disturbs_nobody() -> anyhow::Result<()> {
    let mut stage = Stage::new("processor", &["--shares", "2"]).await?;
    if !stage.runtime.has_namespaces {
        return Ok(());
    }
    let (mut ana, _) = stage.hold(ANA, &[]).await?;
    ana.must("alloc x 64MiB; fill x 1")?;
    let answer = stage.cluster.admit(BEN.0, &BEN.uid(), &[]).await?;
    // Neither the library nor the driver is what the loader of this pod's programs looks for.
    for file in ["files/libgpushare.so", "root/usr/lib64/libcuda.so.1"] {
        let (path, new) = (stage.cluster.node.path(file), stage.cluster.node.path("foreign"));
        fs::write(&new, of_another_processor(&path)?)?;
        fs::rename(&new, &path)?;
    }
    let started = |words: &[&str]| {
        let mut command = stage.runtime.container(&stage.cluster.node, &BEN.uid(), &answer)?;
        let output = command.args(words).output()?;
        let said = [output.stderr, output.stdout].concat();
        anyhow::Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (succeeded, said) = started(&["true"])?;
    let is_warning = |line: &str| line.contains(container::LIBRARY) && line.contains("cannot be preloaded");
    assert!(succeeded, "{said}");
    assert!(said.lines().count() > 0 && said.lines().all(is_warning), "{said}");
    let (succeeded, said) = started(&[PROGRAM, "train", "--memory", "16MiB"])?;
    assert!(!succeeded && said.contains("libcuda.so.1"), "{said}");

    ana.must("check x 1; alloc y 16MiB; fill y 2; check y 2")?;
    let status = stage.cluster.daemon.status()?;
    assert_eq!(status.gpus[0].allocated_bytes, Bytes::mib(80));
    assert_eq!(status.sessions.iter().map(|session| session.clients.len()).sum::<usize>(), 1);
    Ok(())
}
