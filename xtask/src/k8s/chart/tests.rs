//! Tests of the chart that need no other tools: its schema, and the manifests that are committed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use gpushare_tests::cargo;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::dist::VERSION;

fn text(path: &str) -> String {
    fs::read_to_string(cargo::workspace().join(path)).unwrap()
}

fn yaml(path: &str) -> Vec<Value> {
    let text = text(path);
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn schema() -> Value {
    serde_json::from_str(&text("k8s/chart/values.schema.json")).unwrap()
}

/// Command line of a container of a file of manifests.
fn command_of(file: &str, container: &str) -> Vec<String> {
    let objects = yaml(&format!("k8s/manifests/{file}"));
    let pods = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    let containers = pods["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let found = containers.iter().find(|found| found["name"] == container).unwrap();
    let words = found["command"].as_array().unwrap();
    words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[test]
fn kubernetes_gives_a_daemon_that_ends_the_time_to_thaw_all_processes() {
    let needed = gpushare_scheduler::THAWING.as_secs() + 15;
    let given = |value: &Value| value.as_u64().unwrap();
    assert!(given(&yaml("k8s/chart/values.yaml")[0]["terminationGracePeriodSeconds"]) >= needed);
    for file in ["gpushare.yaml", "gpushare-dra.yaml"] {
        let objects = yaml(&format!("k8s/manifests/{file}"));
        let daemons = objects.iter().filter(|object| object["kind"] == "DaemonSet").find(|object| {
            object["spec"]["template"]["spec"]["containers"]
                .as_array()
                .unwrap()
                .iter()
                .any(|container| container["name"] == "scheduler")
        });
        let pod = &daemons.unwrap()["spec"]["template"]["spec"];
        assert!(given(&pod["terminationGracePeriodSeconds"]) >= needed, "{file}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = &yaml("k8s/chart/Chart.yaml")[0];
    assert_eq!((chart["version"].as_str(), chart["appVersion"].as_str()), (Some(VERSION), Some(VERSION)));
}

#[test]
fn the_programs_know_every_flag_of_the_manifests() {
    for file in ["gpushare.yaml", "gpushare-dra.yaml"] {
        for (container, definition) in
            [("scheduler", gpushare_scheduler::command()), ("plugin", gpushare_k8s::command())]
        {
            let command = command_of(file, container);
            assert!(command[0].ends_with(definition.get_name()), "{command:?}");
            definition.try_get_matches_from(&command).unwrap();
        }
    }
}

/// A card is offered by one interface, whose folders alone are mounted.
#[test]
fn each_file_of_manifests_has_one_interface() {
    for (file, interface, own, other) in [
        ("gpushare.yaml", "--offer=device-plugin", "device-plugins", "plugins_registry"),
        ("gpushare-dra.yaml", "--offer=dra", "plugins_registry", "device-plugins"),
    ] {
        assert!(command_of(file, "plugin").contains(&interface.to_owned()), "{file}");
        let text = text(&format!("k8s/manifests/{file}"));
        assert!(text.contains(own) && !text.contains(other), "{file}");
        let classes = yaml(&format!("k8s/manifests/{file}"));
        let classes = classes.iter().filter(|object| object["kind"] == "DeviceClass");
        let names: Vec<_> = classes.filter_map(|class| class["metadata"]["name"].as_str()).collect();
        assert_eq!(names.contains(&gpushare_k8s::DRIVER), file == "gpushare-dra.yaml");
    }
}

#[test]
fn every_value_is_described_and_has_a_default_or_is_an_option_of_the_daemon() {
    let schema = schema();
    let defaults = &yaml("k8s/chart/values.yaml")[0];
    let mut described = 0;
    described_below("", &schema, &mut described);
    assert!(described > 80, "only {described} values are described");
    // Both ways: a default without a description, and a described value without a default.
    same_keys("", &schema, defaults);
}

fn described_below(path: &str, schema: &Value, described: &mut usize) {
    let named = ["properties", "patternProperties"];
    for (name, value) in named.iter().filter_map(|key| schema[*key].as_object()).flatten() {
        let path = format!("{path}.{name}");
        let description = value["description"].as_str().unwrap_or_default();
        assert!(description.len() > 8 && !description.ends_with('.'), "{path}: `{description}`");
        *described += 1;
        described_below(&path, value, described);
    }
}

fn same_keys(path: &str, schema: &Value, defaults: &Value) {
    // A value without keys of its own, or a map whose keys the user chooses.
    let (Some(known), Some(given)) = (schema["properties"].as_object(), defaults.as_object()) else {
        return;
    };
    if path.starts_with(".plugin.maxima.")
        || matches!(path, ".scheduler.config" | ".plugin.resources" | ".scheduler.resources")
    {
        return;
    }
    let known: BTreeMap<_, _> = known.iter().filter(|(name, _)| *name != "global").collect();
    let names: BTreeSet<_> = known.keys().copied().collect();
    assert_eq!(names, given.keys().collect::<BTreeSet<_>>(), "keys of `{path}`");
    for (name, value) in known {
        same_keys(&format!("{path}.{name}"), value, &given[name]);
    }
}

/// Keys of a table of the page about the configuration, by the table's name.
fn keys_of_the_page() -> BTreeMap<String, BTreeSet<String>> {
    let page = text("docs/configuration.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let table: toml::Table = example.parse().unwrap();
    let keys = |table: &toml::Table| {
        let plain = table.iter().filter(|(_, value)| !value.is_table());
        plain.map(|(name, _)| name.clone()).collect()
    };
    let tables = table.iter().filter_map(|(name, value)| Some((name.clone(), value.as_table()?)));
    let mut found: BTreeMap<String, BTreeSet<String>> = tables
        .map(|(name, table)| {
            let inner = table.values().find_map(toml::Value::as_table);
            (name, keys(inner.unwrap_or(table)))
        })
        .collect();
    found.insert(String::new(), keys(&table));
    found
}

#[test]
fn the_schema_has_the_settings_of_the_daemon() {
    /// Keys that the chart sets, or that make no sense in a pod.
    const LEFT_OUT: [&str; 9] = [
        "idle_exit",
        "implicit_sessions",
        "log_file",
        "metrics",
        "metrics_names",
        "pod_sessions",
        "record",
        "record_limit",
        "state_dir",
    ];
    let schema = schema();
    let config = &schema["properties"]["scheduler"]["properties"]["config"];
    for (table, keys) in keys_of_the_page() {
        let known = match table.as_str() {
            "" => config,
            "gpus" => config["properties"]["gpus"]["patternProperties"]
                .as_object()
                .unwrap()
                .values()
                .next()
                .unwrap(),
            table => &config["properties"][table],
        };
        let known = known["properties"].as_object().unwrap();
        let known = known
            .iter()
            .filter(|(_, value)| !is_table(value))
            .map(|(name, _)| name.as_str());
        let wanted = keys.iter().map(String::as_str).filter(|key| !LEFT_OUT.contains(key));
        assert_eq!(known.collect::<BTreeSet<_>>(), wanted.collect::<BTreeSet<_>>(), "table `{table}`");
    }
}

fn is_table(schema: &Value) -> bool {
    schema["type"] == "object"
}

fn ranges() -> BTreeMap<String, Value> {
    serde_yaml_ng::from_str(&text("k8s/chart/files/ranges.yaml")).unwrap()
}

#[test]
fn every_number_and_share_has_a_range_that_its_description_names() {
    let mut found = BTreeMap::new();
    numbers_below("", &schema(), &mut found);
    let ranges = ranges();
    assert_eq!(found.keys().collect::<Vec<_>>(), ranges.keys().collect::<Vec<_>>());
    for (path, range) in ranges {
        for (form, unit) in [("number", ""), ("percent", "%")] {
            if let Some(ends) = range[form].as_array() {
                let words = format!("{}{unit} to {}{unit}", ends[0], ends[1]);
                assert!(found[&path].contains(&words), "{path}: {words}, and `{}`", found[&path]);
            }
        }
    }
}

/// Collects the paths and descriptions of numbers and shares, with `*` for names that the user chooses.
fn numbers_below(path: &str, schema: &Value, found: &mut BTreeMap<String, String>) {
    let forms = schema["oneOf"].as_array().into_iter().flatten().chain([schema]);
    let is_number = |form: &Value| form["type"] == "integer" || form["$ref"] == "#/definitions/share";
    if forms.into_iter().any(is_number) {
        found.insert(path.trim_start_matches('.').to_owned(), schema["description"].to_string());
    }
    for (key, is_chosen) in [("properties", false), ("patternProperties", true)] {
        for (name, value) in schema[key].as_object().into_iter().flatten() {
            let name = if is_chosen { "*" } else { name };
            numbers_below(&format!("{path}.{name}"), value, found);
        }
    }
}

#[test]
fn numbers_have_the_ranges_of_the_page() {
    let page = text("docs/configuration.md");
    let mut compared = 0;
    for (path, range) in ranges() {
        let (Some(setting), Some(ends)) =
            (path.strip_prefix("scheduler.config."), range["number"].as_array())
        else {
            continue;
        };
        // The page names the keys of this table with the table.
        let name = match setting.strip_prefix("audit.") {
            Some(_) => setting,
            None => setting.rsplit('.').next().unwrap(),
        };
        let row = format!("| `{name}` | {} | {} |", ends[0], ends[1]);
        assert!(page.contains(&row), "the page has no row {row}");
        compared += 1;
    }
    assert_eq!(compared, 5);
}

#[test]
fn the_account_may_do_what_the_plugin_does_and_nothing_else() {
    let rules = |file: &str| -> Vec<Value> {
        let objects = yaml(&format!("k8s/manifests/{file}"));
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        roles.flat_map(|role| role["rules"].as_array().unwrap().clone()).collect()
    };
    let rule = |group: &str, of: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [of], "verbs": verbs});
    // The calls of k8s/src/pods/cluster.rs; the API server of the tests (k8s/kubelet) knows no others.
    let plugin = [rule("", "pods", &["list", "watch"]), rule("", "events", &["create"])];
    assert_eq!(rules("gpushare.yaml"), plugin);
    // The calls of k8s/src/dra/resources.rs.
    let driver = [
        rule("resource.k8s.io", "resourceslices", &["list", "watch", "create", "update", "delete"]),
        rule("resource.k8s.io", "resourceclaims", &["get"]),
        rule("", "nodes", &["get"]),
    ];
    assert_eq!(rules("gpushare-dra.yaml"), [&plugin[..], &driver].concat());
}

#[test]
fn times_sizes_and_shares_have_the_ranges_of_the_page() {
    let page = text("docs/configuration.md");
    let schema = schema();
    let config = &schema["properties"]["scheduler"]["properties"]["config"]["properties"];
    let tables = config.as_object().unwrap().iter();
    let mut compared = 0;
    for (table, value) in tables {
        for (key, value) in value["properties"].as_object().into_iter().flatten() {
            let description = value["description"].as_str().unwrap();
            let Some((least, greatest)) =
                description.rsplit_once(", ").and_then(|(_, range)| range.split_once(" to "))
            else {
                continue;
            };
            let greatest = greatest.split(';').next().unwrap();
            let name = if matches!(table.as_str(), "audit" | "dashboard") {
                format!("{table}.{key}")
            } else {
                key.clone()
            };
            let row = |least: &str| page.contains(&format!("| `{name}` | {least} | {greatest} |"));
            assert!(row(least) || row(&least.replace("us", "µs")), "{name}: {description}");
            compared += 1;
        }
    }
    assert!(compared > 20, "only {compared} settings have a range");
}

#[test]
fn each_profile_of_the_hub_asks_for_one_share_and_a_size_that_is_one() {
    let values = &yaml("k8s/jupyterhub/values.yaml")[0];
    let mut sizes = Vec::new();
    let mut shares = 0;
    overrides(values, &mut |settings| {
        for (key, value) in settings.as_object().unwrap() {
            match key.as_str() {
                "extra_resource_limits" => {
                    assert_eq!(*value, json!({ gpushare_k8s::RESOURCE: "1" }));
                    shares += 1;
                }
                "extra_annotations" => {
                    let mut annotations = value.as_object().unwrap().clone();
                    let frozen_after = annotations.remove("gpushare.dev/freeze-after").unwrap();
                    assert_eq!(frozen_after, json!("10min"));
                    for (name, size) in annotations {
                        assert_eq!(name, "gpushare.dev/memory");
                        sizes.push(size.as_str().unwrap().parse::<gpushare_proto::Bytes>().unwrap());
                    }
                }
                key => panic!("KubeSpawner's setting {key} is not looked at"),
            }
        }
    });
    assert_eq!(shares, 3);
    assert_eq!(sizes, [8, 16, 4].map(gpushare_proto::Bytes::gib));
}

/// Calls `look` for the settings of each profile and choice.
fn overrides(value: &Value, look: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "kubespawner_override" => look(value),
                    _ => overrides(value, look),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| overrides(value, look)),
        _ => {}
    }
}
