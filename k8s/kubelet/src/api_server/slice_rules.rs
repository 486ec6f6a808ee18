//! Rules of the API for a ResourceSlice.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Returns the first rule that a slice breaks. A trial needs no owner.
pub(super) fn check(slice: &Value, version: &str, is_trial: bool) -> Result<(), String> {
    let rule = |holds: bool, rule: &str| if holds { Ok(()) } else { Err(rule.to_owned()) };
    rule(slice["apiVersion"] == format!("resource.k8s.io/{version}"), "apiVersion: not that of the path")?;
    rule(slice["kind"] == "ResourceSlice", "kind: must be ResourceSlice")?;
    let name = slice["metadata"]["name"].as_str().unwrap_or_default();
    let is_named = !name.is_empty() || slice["metadata"]["generateName"].is_string();
    rule(is_named, "metadata: name or generateName is required")?;
    let owner = &slice["metadata"]["ownerReferences"][0];
    let is_owned =
        owner["kind"] == "Node" && owner["uid"] == format!("uid-of-{}", text(&slice["spec"]["nodeName"]));
    rule(is_owned || is_trial, "metadata.ownerReferences: the slice of a node goes with the node")?;

    let spec = fields(&slice["spec"], &["driver", "pool", "nodeName", "devices"], "spec")?;
    let driver = text(&slice["spec"]["driver"]);
    rule(driver.split('.').all(is_label) && driver.len() <= 63, "spec.driver: must be a DNS subdomain")?;
    rule(
        text(&slice["spec"]["nodeName"]).split('.').all(is_label),
        "spec.nodeName: must be a DNS subdomain",
    )?;
    let pool = &slice["spec"]["pool"];
    fields(pool, &["name", "generation", "resourceSliceCount"], "spec.pool")?;
    rule(text(&pool["name"]).split('.').all(is_label), "spec.pool.name: must be DNS subdomains")?;
    rule(pool["generation"].as_u64().is_some(), "spec.pool.generation: must not be negative")?;
    rule(pool["resourceSliceCount"].as_u64() > Some(0), "spec.pool.resourceSliceCount: must be above 0")?;
    let devices = spec.get("devices").and_then(Value::as_array);
    let devices = devices.ok_or("spec.devices: must be a list")?;
    rule(devices.len() <= 128, "spec.devices: must have at most 128 items")?;
    let names: BTreeSet<&str> = devices.iter().map(|device| text(&device["name"])).collect();
    rule(names.len() == devices.len(), "spec.devices: names must be unique")?;
    for device in devices {
        rule(is_label(text(&device["name"])), "spec.devices.name: must be a DNS label")?;
        let traits = match version {
            "v1beta1" => {
                fields(device, &["name", "basic"], "device")?;
                &device["basic"]
            }
            _ => device,
        };
        check_traits(traits).map_err(|rule| format!("device {}: {rule}", text(&device["name"])))?;
    }
    Ok(())
}

fn check_traits(traits: &Value) -> Result<(), String> {
    let known = ["name", "attributes", "capacity", "allowMultipleAllocations"];
    fields(traits, &known, "device")?;
    let empty = Map::new();
    let attributes = traits["attributes"].as_object().unwrap_or(&empty);
    let capacities = traits["capacity"].as_object().unwrap_or(&empty);
    if attributes.len() + capacities.len() > 32 {
        return Err("attributes and capacities: at most 32".to_owned());
    }
    for name in attributes.keys().chain(capacities.keys()) {
        let is_identifier = name.len() <= 32
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_identifier {
            return Err(format!("{name}: must be a C identifier"));
        }
    }
    for (name, attribute) in attributes {
        let attribute = fields(attribute, &["bool", "int", "string", "version"], name)?;
        let is_long = attribute
            .values()
            .any(|value| value.as_str().is_some_and(|text| text.len() > 64));
        if attribute.len() != 1 || is_long {
            return Err(format!("{name}: must have one value, of at most 64 characters"));
        }
    }
    let is_shared = traits["allowMultipleAllocations"] == true;
    for (name, capacity) in capacities {
        check_capacity(capacity, is_shared).map_err(|rule| format!("{name}: {rule}"))?;
    }
    Ok(())
}

fn check_capacity(capacity: &Value, is_shared: bool) -> Result<(), String> {
    fields(capacity, &["value", "requestPolicy"], "capacity")?;
    let value = quantity(&capacity["value"])?;
    let policy = &capacity["requestPolicy"];
    if policy.is_null() {
        return Ok(());
    }
    if !is_shared {
        return Err("requestPolicy: needs allowMultipleAllocations".to_owned());
    }
    fields(policy, &["default", "validRange"], "requestPolicy")?;
    fields(&policy["validRange"], &["min", "max"], "validRange")?;
    let (default, range) = (quantity(&policy["default"])?, &policy["validRange"]);
    let (min, max) = (quantity(&range["min"])?, quantity(&range["max"])?);
    match min <= default && default <= max && max <= value {
        true => Ok(()),
        false => Err(format!("requestPolicy: {min} ≤ {default} ≤ {max} ≤ {value} does not hold")),
    }
}

/// Drops the fields of consumable capacity, as a server without the feature does.
pub(super) fn drop_consumable(slice: &mut Value) {
    let devices = slice["spec"]["devices"].as_array_mut().into_iter().flatten();
    for device in devices {
        let traits = if device["basic"].is_object() { &mut device["basic"] } else { device };
        if let Some(traits) = traits.as_object_mut() {
            traits.remove("allowMultipleAllocations");
        }
        for capacity in traits["capacity"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(capacity) = capacity.as_object_mut() {
                capacity.remove("requestPolicy");
            }
        }
    }
}

/// Returns an object that has no other fields than these.
fn fields<'a>(value: &'a Value, known: &[&str], place: &str) -> Result<&'a Map<String, Value>, String> {
    let object = value.as_object().ok_or_else(|| format!("{place}: must be an object"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(format!("{place}.{unknown}: unknown field")),
        None => Ok(object),
    }
}

fn quantity(value: &Value) -> Result<u128, String> {
    let text = text(value);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[end..] {
        "" => 1,
        "k" => 1000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1u128 << 40,
        _ => return Err(format!("`{text}` is no quantity")),
    };
    let number: u128 = text[..end].parse().map_err(|_| format!("`{text}` is no quantity"))?;
    Ok(number * factor)
}

fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
