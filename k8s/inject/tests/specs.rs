//! Specs against the published schema, and against answers that were written down.

use std::fs;
use std::path::Path;

use gpushare_inject::{
    Card, CardEdits, Injection, Machine, Share, Source, Spec, Written, find, remove, write, write_file,
};
use gpushare_proto::GpuUuid;
use serde_json::Value;
use tempfile::TempDir;

/// Machine with two cards, whose files are empty.
fn machine() -> (TempDir, Machine) {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine::at(root.path());
    for file in ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0", "dev/nvidia1", "usr/lib64/libcuda.so.1"] {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    (root, machine)
}

fn cards() -> Vec<Card> {
    let card = |number| Card { uuid: GpuUuid::gpu([number; 16]), minor: Some(u32::from(number)) };
    vec![card(0), card(1)]
}

fn share() -> Share {
    Share {
        library: "/usr/lib/gpushare/libgpushare.so".into(),
        ctl: "/usr/bin/gpushare-ctl".into(),
        preload: "/etc/cdi/gpushare.dev-share.preload".into(),
        tenant: "/run/gpushare/tenant".into(),
    }
}

/// Spec of NVIDIA for the first `cards` cards, in the form of `nvidia-ctk cdi generate`.
fn nvidias(root: &Path, cards: u32) {
    let devices: String = (0..cards)
        .map(|card| {
            format!(
                "  - name: \"{card}\"\n    containerEdits:\n      deviceNodes:\n        - path: /dev/nvidia{card}\n"
            )
        })
        .collect();
    let text = format!(
        "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices:\n{devices}\
         containerEdits:\n  env:\n    - NVIDIA_VISIBLE_DEVICES=void\n  deviceNodes:\n    - path: /dev/nvidiactl\n  \
         mounts:\n    - hostPath: /usr/lib64/libcuda.so.580.1\n      containerPath: /usr/lib64/libcuda.so.580.1\n      \
         options: [ro, nosuid, nodev, rbind, rprivate]\n  hooks:\n    - hookName: createContainer\n      \
         path: /usr/bin/nvidia-cdi-hook\n      args: [nvidia-cdi-hook, update-ldcache]\n"
    );
    fs::create_dir_all(root.join("etc/cdi")).unwrap();
    fs::write(root.join("etc/cdi/nvidia.yaml"), text).unwrap();
}

/// Validates a spec as runtimes do: the published schema, and the rules of the specification that it lacks.
fn validate(spec: &Spec) {
    let json: Value = serde_json::from_str(&spec.json()).unwrap();
    let (schema, definitions) = (published("schema.json"), published("defs.json"));
    // The schema has no entry for the edits of the whole spec.
    let mut known = json.clone();
    let edits = known.as_object_mut().unwrap().remove("containerEdits").unwrap();
    check(&known, &schema, &definitions, "spec");
    check(&edits, &definitions["definitions"]["containerEdits"], &definitions, "containerEdits");
    for device in &spec.devices {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
        assert!(device.name.chars().all(is_inner), "{}", device.name);
        assert!(device.name.starts_with(|c: char| c.is_ascii_alphanumeric()));
        assert_ne!(serde_json::to_value(&device.container_edits).unwrap(), serde_json::json!({}));
    }
    for edits in spec
        .devices
        .iter()
        .map(|device| &device.container_edits)
        .chain([&spec.container_edits])
    {
        assert!(edits.mounts.iter().all(|mount| mount.container_path.is_absolute()));
        assert!(edits.env.iter().all(|variable| variable.contains('=')));
    }
}

/// File of the published schema.
fn published(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Checks a value against a schema of the form that CDI uses. A property that the schema does not have fails
/// too, and so does a keyword of the schema that this function does not know.
fn check(value: &Value, schema: &Value, definitions: &Value, at: &str) {
    for (keyword, wanted) in schema.as_object().unwrap() {
        match keyword.as_str() {
            // `ref` is a misprint of the published schema.
            "$schema" | "description" | "ref" => {}
            "$ref" => {
                let (_, name) = wanted.as_str().unwrap().rsplit_once('/').unwrap();
                check(value, &definitions["definitions"][name], definitions, at);
            }
            "type" => {
                let is = match wanted.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    other => panic!("the schema has the new type {other}"),
                };
                assert!(is, "{at} is no {wanted}: {value}");
            }
            "minimum" => assert!(value.as_i64() >= wanted.as_i64(), "{at} is too small: {value}"),
            "maximum" => assert!(value.as_i64() <= wanted.as_i64(), "{at} is too large: {value}"),
            "required" => {
                for name in wanted.as_array().unwrap() {
                    assert!(value.get(name.as_str().unwrap()).is_some(), "{at} lacks {name}");
                }
            }
            "items" => {
                for (place, item) in value.as_array().unwrap().iter().enumerate() {
                    check(item, wanted, definitions, &format!("{at}[{place}]"));
                }
            }
            "properties" => {
                for (name, inner) in value.as_object().unwrap() {
                    let known = wanted.get(name);
                    let known = known.unwrap_or_else(|| panic!("{at} has the unknown property {name}"));
                    check(inner, known, definitions, &format!("{at}.{name}"));
                }
            }
            "patternProperties" => {
                for (name, inner) in value.as_object().unwrap() {
                    check(inner, &wanted[".{1,}"], definitions, &format!("{at}.{name}"));
                }
            }
            other => panic!("the schema has the new keyword {other}"),
        }
    }
}

#[test]
#[should_panic(expected = "spec.devices[0].containerEdits.mounts[0] lacks \"containerPath\"")]
fn the_check_finds_what_the_schema_forbids() {
    let mount = serde_json::json!({"hostPath": "/a"});
    let device = serde_json::json!({"name": "a", "containerEdits": {"mounts": [mount]}});
    let spec = serde_json::json!({"cdiVersion": "0.5.0", "kind": "a/b", "devices": [device]});
    check(&spec, &published("schema.json"), &published("defs.json"), "spec");
}

/// Compares a text with a file. `GPUSHARE_BLESS=1` writes the file.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    // Folders of libraries depend on the processor.
    let text = text.replace("aarch64-linux-gnu", "x86_64-linux-gnu");
    if std::env::var_os("GPUSHARE_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(path).unwrap());
}

#[test]
fn a_link_in_place_of_the_temporary_file_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("claims.json"), folder.path().join("other"));
    fs::write(&other, "of somebody else").unwrap();
    let new = folder.path().join(format!("claims.json.{}.new", std::process::id()));
    std::os::unix::fs::symlink(&other, &new).unwrap();
    write_file(&path, b"claims", 0o600).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "of somebody else");
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), path.is_symlink()), ("claims", false));
    assert!(!new.exists());
}

#[test]
fn device_nodes_and_libraries_make_a_valid_spec() {
    let (_root, machine) = machine();
    let edits = CardEdits::for_spec(&machine, &cards()).unwrap();
    assert_eq!(edits.source, Source::Nodes);
    let spec = Injection::new(&share(), edits).spec();
    validate(&spec);
    golden("nodes.json", &spec.json());
}

#[test]
fn the_edits_of_nvidias_spec_are_taken_over_with_its_hooks() {
    let (root, machine) = machine();
    nvidias(root.path(), 2);
    let edits = CardEdits::for_spec(&machine, &cards()).unwrap();
    assert_eq!(edits.source, Source::Spec);
    let spec = Injection::new(&share(), edits).spec();
    validate(&spec);
    golden("nvidia.json", &spec.json());
}

#[test]
fn a_spec_of_nvidia_that_lacks_a_card_is_not_used() {
    let (root, machine) = machine();
    nvidias(root.path(), 1);
    assert_eq!(CardEdits::for_spec(&machine, &cards()).unwrap().source, Source::Nodes);
}

#[test]
fn an_instance_needs_nvidias_spec_and_a_card_its_node() {
    let (root, machine) = machine();
    let instance = Card { uuid: GpuUuid::mig([9; 16]), minor: None };
    let error = CardEdits::for_spec(&machine, &[instance]).unwrap_err().to_string();
    assert!(error.contains("nvidia-ctk cdi generate"), "{error}");
    fs::remove_file(root.path().join("dev/nvidia1")).unwrap();
    let error = CardEdits::for_spec(&machine, &cards()).unwrap_err().to_string();
    assert!(error.contains("/dev/nvidia1") && error.contains("nvidia-modprobe"), "{error}");
}

#[test]
fn a_container_with_one_card_gets_that_card_alone() {
    let (_root, machine) = machine();
    let injection = Injection::new(&share(), CardEdits::for_spec(&machine, &cards()).unwrap());
    let edits = injection.of_cards(&[GpuUuid::gpu([1; 16])]).unwrap();
    let nodes: Vec<_> = edits.device_nodes.iter().map(|node| node.path.to_str().unwrap()).collect();
    assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]);
    assert!(injection.of_cards(&[GpuUuid::gpu([2; 16])]).is_none());
}

#[test]
fn nvidias_runtime_is_told_the_cards_of_a_container() {
    let injection = Injection::new(&share(), CardEdits::of_runtime(&cards()));
    let edits = injection.of_cards(&[GpuUuid::gpu([1; 16]), GpuUuid::gpu([0; 16])]).unwrap();
    let both = format!("NVIDIA_VISIBLE_DEVICES={},{}", GpuUuid::gpu([1; 16]), GpuUuid::gpu([0; 16]));
    assert!(edits.env.contains(&both), "{:?}", edits.env);
    assert!(edits.device_nodes.is_empty());
}

#[test]
fn a_spec_is_written_found_and_removed_with_its_file() {
    let (_root, machine) = machine();
    let folder = tempfile::tempdir().unwrap();
    let share = Share { preload: Written::in_folder(folder.path()).preload, ..share() };
    let spec = Injection::new(&share, CardEdits::for_spec(&machine, &cards()).unwrap()).spec();
    let files = write(folder.path(), &spec).unwrap();
    assert_eq!(fs::read_to_string(&files.preload).unwrap(), Share::PRELOAD);
    fs::write(folder.path().join("other.json"), "{}").unwrap();
    let found = find(&[folder.path().to_owned()]);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].path, &found[0].spec), (&files.spec, &spec));
    assert_eq!(found[0].missing(), Some(Path::new("/usr/lib/gpushare/libgpushare.so")));
    assert_eq!(remove(folder.path()).unwrap(), [files.spec, files.preload]);
    assert_eq!(remove(folder.path()).unwrap(), Vec::<std::path::PathBuf>::new());
    assert!(folder.path().join("other.json").exists());
}
