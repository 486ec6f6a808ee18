//! `gpushare-ctl cdi`: the spec names this world's cards, and the files that its daemon needs.

use std::fs;
use std::path::{Path, PathBuf};

use gpushare_proto::Bytes;
use gpushare_tests::{Part, World, output_of};
use serde_json::{Value, json};

/// Root of a machine with the device nodes of `cards` cards and CUDA's library, all empty.
fn root_of(world: &World, cards: u32) -> PathBuf {
    let root = world.folder().join("root");
    let nodes = (0..cards).map(|card| format!("dev/nvidia{card}"));
    let others = ["dev/nvidiactl", "dev/nvidia-uvm", "usr/lib64/libcuda.so.1"].map(str::to_owned);
    for file in nodes.chain(others) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    root
}

fn cdi(world: &World, words: &[&str], folder: &Path) -> std::process::Command {
    let mut ctl = world.part(Part::Ctl);
    ctl.arg("cdi").args(words).arg("--output").arg(folder);
    ctl
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_spec_has_every_card_and_mounts_the_daemons_folder() -> anyhow::Result<()> {
    let world = World::with_card_flags(gpushare_tests::Artifacts::of_tests()?, &["--gpus", "2"])?;
    let (world, daemon) = world.with_daemon(&[])?;
    let root = root_of(&world, 2);
    let folder = world.folder().join("cdi");
    let mut generate = cdi(&world, &["generate", "--json"], &folder);
    generate.arg("--root").arg(&root);
    let printed: Value = serde_json::from_str(&output_of(generate)?)?;

    let uuids: Vec<String> = daemon.status()?.gpus.iter().map(|gpu| gpu.uuid.to_string()).collect();
    assert_eq!(uuids.len(), 2);
    let names: Vec<String> = ["default"]
        .into_iter()
        .chain(uuids.iter().map(String::as_str))
        .map(str::to_owned)
        .collect();
    let full: Vec<String> = names.iter().map(|name| format!("gpushare.dev/share={name}")).collect();
    assert_eq!(printed["devices"], json!(full));
    assert_eq!(printed["cards"], "device_nodes");

    let spec = read(&folder.join("gpushare.dev-share.json"));
    let nodes: Vec<&Value> = spec["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| &device["containerEdits"]["deviceNodes"])
        .collect();
    let (first, second) = (json!({"path": "/dev/nvidia0"}), json!({"path": "/dev/nvidia1"}));
    assert_eq!(nodes, [&json!([first, second]), &json!([first]), &json!([second])]);
    let mounts = spec["containerEdits"]["mounts"].as_array().unwrap();
    let source = |target: &str| {
        let mount = mounts.iter().find(|mount| mount["containerPath"] == target).unwrap();
        assert_eq!(mount["options"][0], "ro");
        PathBuf::from(mount["hostPath"].as_str().unwrap())
    };
    assert_eq!(source("/run/gpushare/tenant"), world.runtime_dir().tenant_dir());
    assert_eq!(source("/usr/lib/gpushare/libgpushare.so"), world.path(Part::Library));
    let preload = fs::read_to_string(source("/etc/ld.so.preload"))?;
    assert_eq!(preload, "/usr/lib/gpushare/libgpushare.so\n");

    let listed: Value = serde_json::from_str(&output_of(cdi(&world, &["list", "--json"], &folder))?)?;
    assert_eq!(listed[0]["device"], "gpushare.dev/share=default");
    assert_eq!(listed.as_array().unwrap().len(), 3);
    output_of(cdi(&world, &["remove"], &folder))?;
    assert_eq!(fs::read_dir(&folder)?.count(), 0);
    let error = output_of(cdi(&world, &["remove"], &folder)).unwrap_err().to_string();
    assert!(error.contains("cdi list"), "{error}");
    Ok(())
}

#[test]
fn without_a_daemon_or_a_driver_no_spec_is_written() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let folder = world.folder().join("cdi");
    let refused = || output_of(cdi(&world, &["generate"], &folder)).unwrap_err().to_string();
    let error = refused();
    assert!(error.contains("start the daemon first"), "{error}");
    fs::create_dir_all(world.runtime_dir().tenant_dir())?;
    let bare = world.folder().join("bare");
    fs::create_dir(&bare)?;
    let mut generate = cdi(&world, &["generate"], &folder);
    generate.arg("--root").arg(&bare);
    let error = output_of(generate).unwrap_err().to_string();
    assert!(error.contains("/dev/nvidiactl does not exist") && error.contains("nvidia-modprobe"), "{error}");
    assert!(!folder.exists());
    Ok(())
}
