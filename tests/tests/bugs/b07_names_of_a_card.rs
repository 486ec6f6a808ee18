//! Bug 7: the same card by different names must be one card: by index in either order, by UUID, by the
//! beginning of that, as a MIG instance; and what names no card must stay no card.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use gpushare_proto::{Bytes, GpuUuid, names};
use gpushare_tests::{Artifacts, Part, Program, Sharing, World, foreign, output_of};

const SMALL: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
const LARGE: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000002";
/// The instances of the large one, as the simulated card names them.
const FIRST: &str = "MIG-44bbbbbb-0000-0000-0000-000000000002";
const SECOND: &str = "MIG-44bbbbbb-0000-0000-0000-000000000102";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A small card first on the bus, and a large one that CUDA counts first unless it is told to count by the
/// bus.
fn two_cards() -> anyhow::Result<World> {
    let flags = ["--gpus", "2", "--memory", "32MiB", "--memory", "64MiB", "--uuid", SMALL, "--uuid", LARGE];
    World::with_card_flags(Artifacts::of_tests()?, &flags)
}

/// The same, but the large one is divided.
fn divided() -> anyhow::Result<World> {
    let flags = ["--gpus", "2", "--memory", "32MiB", "--memory", "64MiB", "--uuid", SMALL, "--uuid", LARGE];
    let mig = ["--mig", "1=24MiB,16MiB"];
    World::with_card_flags(Artifacts::of_tests()?, &[&flags[..], &mig].concat())
}

fn smi(world: &World) -> anyhow::Result<PathBuf> {
    foreign::program(world, "smi")
}

fn uuids(texts: &[&str]) -> Vec<GpuUuid> {
    texts.iter().map(|text| text.parse().expect("a UUID")).collect()
}

#[test]
fn a_card_named_five_ways_is_one_card_with_one_quota() -> anyhow::Result<()> {
    let (world, daemon) = two_cards()?.with_daemon(&[])?;
    let mut first =
        Program::hold_with(&world, &Sharing::limited("a", Bytes::mib(16)), "first", VISIBLE, LARGE)?;
    first.must("alloc x 3MiB")?;
    let environment = fs::read(format!("/proc/{}/environ", first.process().pid()))?;
    let environment = String::from_utf8(environment)?;
    let mut variables = environment.split('\0');
    let token = variables.find_map(|variable| variable.strip_prefix(names::TOKEN_FILE)?.strip_prefix('='));
    let token = token.context("no token")?;

    let mut others = Vec::new();
    for (order, name) in [("FASTEST_FIRST", "0"), ("PCI_BUS_ID", "1"), ("PCI_BUS_ID", "1,0"), ("", "GPU-b")] {
        let mut command = world.workload(&Sharing::Preload);
        command
            .env(names::TOKEN_FILE, token)
            .env(VISIBLE, name)
            .env("CUDA_DEVICE_ORDER", order);
        let mut program = Program::begin(command, &world, &format!("other-{order}-{name}"))?;
        program.ready()?;
        assert_eq!(Bytes(program.must("total-mem")?.number("total_bytes")), Bytes::mib(16), "{order} {name}");
        program.must("alloc x 3MiB")?;
        others.push(program);
    }
    let session = daemon.session("a")?;
    let used: Vec<_> = session.gpus.iter().map(|gpu| (gpu.gpu.0, gpu.allocated_bytes)).collect();
    assert_eq!(used, [(1, Bytes::mib(15))]);
    assert_eq!(session.clients.len(), 5);
    for program in &mut others {
        let refused = program.ask("alloc y 2MiB")?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "one quota for all names");
    }
    let cards: Vec<GpuUuid> = daemon.status()?.gpus.iter().map(|gpu| gpu.uuid).collect();
    assert_eq!(cards, uuids(&[SMALL, LARGE]));
    Ok(())
}

#[test]
fn a_name_of_no_card_gives_no_device() -> anyhow::Result<()> {
    let (world, daemon) = two_cards()?.with_daemon(&[])?;
    let smi = smi(&world)?;
    for name in ["", "-1", "7", "GPU-c", "MIG-0", "nonsense"] {
        for sharing in [Sharing::Native, Sharing::Preload, Sharing::limited("none", Bytes::mib(8))] {
            let mut command = world.sharing(&sharing, &smi);
            command.args(["nvml", "init", "total"]).env(VISIBLE, name);
            let text = output_of(command)?;
            assert!(text.ends_with("init 100\n"), "`{name}` {sharing:?}: {text}");
            assert_eq!(text.matches("GPU-").count(), 2, "NVML counts them all the same: {text}");
        }
    }
    daemon.until("nothing is left of it", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn run_takes_a_card_by_its_number_its_uuid_or_the_beginning_of_that() -> anyhow::Result<()> {
    let (world, _daemon) = two_cards()?.with_daemon(&[])?;
    let smi = smi(&world)?;
    let seen = |gpu: &str| {
        let flags = ["--gpu", gpu, "--memory", "8MiB"].map(str::to_owned).to_vec();
        foreign::run(&world, &Sharing::Run(flags), &smi, &["init", "total"])
    };
    let total = Bytes::mib(8).0;
    for gpu in ["0", "gpu0", SMALL, "GPU-aa", &SMALL.to_uppercase()] {
        assert_eq!(seen(gpu)?, format!("init 0\ndevice 0 aaaa.00.01 total={total}\n"), "{gpu}");
    }
    for gpu in ["1", LARGE, "GPU-BB"] {
        assert_eq!(seen(gpu)?, format!("init 0\ndevice 0 bbbb.00.02 total={total}\n"), "{gpu}");
    }
    let unknown = seen("GPU-c").unwrap_err().to_string();
    assert!(unknown.contains("there is no GPU GPU-c"), "{unknown}");
    Ok(())
}

#[test]
fn natively_an_instance_is_seen_by_who_names_it_and_by_nvml() -> anyhow::Result<()> {
    let world = divided()?;
    let smi = smi(&world)?;
    let seen = |name: Option<&str>| {
        let mut command = world.program(&smi);
        command.args(["init", "total"]);
        if let Some(name) = name {
            command.env(VISIBLE, name);
        }
        output_of(command)
    };
    let device = |uuid: &str, size: Bytes| format!("init 0\ndevice 0 {uuid} total={}\n", size.0);
    assert_eq!(seen(None)?, device("aaaa.00.01", Bytes::mib(32)), "instances are not counted");
    assert_eq!(seen(Some(SECOND))?, device("44bb.01.02", Bytes::mib(16)));
    assert_eq!(seen(Some("MIG-44"))?, device("44bb.00.02", Bytes::mib(24)), "the first that fits");
    assert_eq!(seen(Some(LARGE))?, "init 100\n", "a divided GPU is no device");
    let nvml = foreign::run(&world, &Sharing::Native, &smi, &["nvml"])?;
    let sizes: Vec<(&str, &str)> = nvml
        .lines()
        .zip(nvml.lines().skip(1))
        .filter(|(uuid, _)| !uuid.starts_with(' '))
        .map(|(uuid, memory)| (uuid, memory.split_whitespace().nth(1).unwrap_or_default()))
        .collect();
    let total = |size: Bytes| format!("total={}", size.0);
    let [small, large, first, second] = [32, 40, 24, 16].map(|size| total(Bytes::mib(size)));
    assert_eq!(sizes, [(SMALL, &small[..]), (LARGE, &large[..]), (FIRST, &first[..]), (SECOND, &second[..])]);
    Ok(())
}

#[test]
fn an_instance_is_a_card_of_its_own_and_the_gpu_around_it_is_none() -> anyhow::Result<()> {
    let (world, daemon) = divided()?.with_daemon(&[])?;
    let status = daemon.status()?;
    let cards: Vec<String> = status.gpus.iter().map(|gpu| gpu.uuid.to_string()).collect();
    assert_eq!(cards, [SMALL, FIRST, SECOND]);
    let totals: Vec<Bytes> = status.gpus.iter().map(|gpu| gpu.total_bytes).collect();
    assert_eq!(totals, [Bytes::mib(32), Bytes::mib(24), Bytes::mib(16)]);
    let locks: BTreeSet<String> = fs::read_dir(world.folder().join("locks"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    for uuid in [SMALL, FIRST, SECOND] {
        assert!(locks.iter().any(|lock| lock.contains(uuid)), "{uuid} in {locks:?}");
    }

    // Two sessions on the two instances do not meet: together they have more than either holds.
    let on = |name: &str, gpu: &str| Sharing::Run(["--name", name, "--gpu", gpu].map(str::to_owned).to_vec());
    let mut first = Program::hold(&world, &on("first", FIRST), "first")?;
    let mut second =
        Program::hold(&world, &on("second", "MIG-44bbbbbb-0000-0000-0000-0000000001"), "second")?;
    assert_eq!(Bytes(first.must("total-mem")?.number("total_bytes")), Bytes::mib(24));
    assert_eq!(Bytes(second.must("total-mem")?.number("total_bytes")), Bytes::mib(16));
    first.must("alloc x 16MiB")?;
    second.must("alloc x 10MiB")?;
    for program in [&mut first, &mut second] {
        program.must("fill x 3; check x 3")?;
    }
    let on_card =
        |name: &str| anyhow::Ok(daemon.session(name)?.gpus.iter().map(|gpu| gpu.gpu.0).collect::<Vec<_>>());
    assert_eq!((on_card("first")?, on_card("second")?), (vec![1], vec![2]));
    Ok(())
}

#[test]
fn an_instance_named_by_index_variable_or_another_prefix_is_the_same_card() -> anyhow::Result<()> {
    let (world, daemon) = divided()?.with_daemon(&[])?;
    let smi = smi(&world)?;
    let total = Bytes::mib(8).0;
    let expected = format!("init 0\ndevice 0 44bb.00.02 total={total}\n");
    for gpu in ["1", FIRST, "MIG-44bbbbbb-0000-0000-0000-0000000000", &FIRST.replace("MIG", "GPU")] {
        let flags = ["--gpu", gpu, "--memory", "8MiB"].map(str::to_owned).to_vec();
        assert_eq!(foreign::run(&world, &Sharing::Run(flags), &smi, &["init", "total"])?, expected, "{gpu}");
    }
    let mut by_variable = world.sharing(&Sharing::limited("a", Bytes::mib(8)), &smi);
    by_variable.args(["init", "total"]).env(VISIBLE, format!("{FIRST},{SECOND}"));
    assert_eq!(output_of(by_variable)?, expected, "CUDA takes the first instance and no other");
    daemon.until("nothing is left of it", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn nvml_tells_of_an_instance_what_cuda_does_before_and_after_cuda_starts() -> anyhow::Result<()> {
    let (world, _daemon) = divided()?.with_daemon(&[])?;
    let smi = smi(&world)?;
    let flags = ["--gpu", SECOND, "--memory", "8MiB"].map(str::to_owned).to_vec();
    let steps = ["pid", "nvml", "init", "total", "context", "alloc=3", "info", "nvml"];
    let text = foreign::run(&world, &Sharing::Run(flags), &smi, &steps)?;
    let pid = text.lines().find_map(|line| line.strip_prefix("pid ")).context("no pid")?;
    let (limit, used) = (Bytes::mib(8).0, Bytes::mib(3).0);
    let pictures: Vec<&str> = text.split(&format!("{SECOND}\n")).skip(1).collect();
    let [before, after] = pictures[..] else { panic!("{text}") };
    assert!(before.starts_with(&format!(" memory total={limit} used=0 free={limit}\n")), "{before}");
    let free = limit - used;
    assert!(after.starts_with(&format!(" memory total={limit} used={used} free={free}\n")), "{after}");
    assert!(after.contains(&format!(" v3 {pid}={used}\n instance 2 0\n")), "{after}");
    assert!(text.contains(&format!("info total={limit} free={free}\n")), "{text}");
    // The GPU around the instances shows what the session has on them together, and the other one nothing of it.
    let whole: Vec<&str> = text.split(&format!("{LARGE}\n")).skip(1).collect();
    assert!(whole[1].starts_with(&format!(" memory total={} used={used} ", 2 * limit)), "{}", whole[1]);
    assert!(whole[1].contains(&format!(" details {pid}={used}\n")), "{}", whole[1]);
    let other: Vec<&str> = text.split(&format!("{FIRST}\n")).skip(1).collect();
    assert!(other[1].starts_with(&format!(" memory total={limit} used=0 ")), "{}", other[1]);
    assert!(other[1].contains(" processes=0 code=0\n"), "{}", other[1]);
    Ok(())
}

#[test]
fn a_second_daemon_gets_none_of_the_instances() -> anyhow::Result<()> {
    let (world, _daemon) = divided()?.with_daemon(&[])?;
    let mut second = world.part(Part::Scheduler);
    second.args(["--user", "--runtime-dir"]).arg(world.folder().join("second"));
    let refused = output_of(second).unwrap_err().to_string();
    assert!(refused.contains("already belongs to a gpushare daemon"), "{refused}");
    Ok(())
}
