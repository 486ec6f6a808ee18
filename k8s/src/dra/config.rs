//! Parameters for gpushare in a claim or its class.
//!
//! ```yaml
//! config:
//!   - opaque:
//!       driver: gpushare.dev
//!       parameters:
//!         apiVersion: gpushare.dev/v1
//!         kind: ShareParameters
//!         memory: 8GiB
//!         weight: 200
//! ```
//!
//! Parameters of the claim count before those of its class, and later ones before earlier ones.

use gpushare_proto::session::Amount;
use serde::Deserialize;
use serde_json::Value;

use super::DRIVER;
use super::objects::AllocationConfig;
use crate::terms::{self, Asked};

/// Version of the parameters.
const VERSION: &str = "gpushare.dev/v1";
/// Kind of the parameters.
const KIND: &str = "ShareParameters";

/// Largest number of characters of parameters that a message repeats.
const LONGEST: usize = 128;

/// Reason why parameters mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("they are {found}; write `apiVersion: {VERSION}` and `kind: {KIND}`")]
    Kind { found: String },
    #[error("{0}; they may have memory, compute, weight and priority")]
    Form(String),
    #[error("{key}: {cause}")]
    Term { key: &'static str, cause: String },
}

/// Parameters as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Parameters {
    api_version: String,
    kind: String,
    memory: Option<String>,
    compute: Option<String>,
    weight: Option<u32>,
    priority: Option<String>,
}

/// Returns what the parameters ask for a request. The API server lists those of the class first.
pub(crate) fn asked(configs: &[AllocationConfig], request: &str) -> Result<Asked, ConfigError> {
    let main = request.split('/').next().unwrap_or_default();
    let is_for = |config: &&AllocationConfig| {
        config.requests.is_empty() || config.requests.iter().any(|name| name == request || name == main)
    };
    let mut asked = Asked::default();
    for config in configs.iter().filter(is_for) {
        if let Some(opaque) = config.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER) {
            let later = read(&opaque.parameters)?;
            asked = Asked {
                memory: later.memory.or(asked.memory),
                compute: later.compute.or(asked.compute),
                weight: later.weight.or(asked.weight),
                priority: later.priority.or(asked.priority),
            };
        }
    }
    Ok(asked)
}

fn read(parameters: &Value) -> Result<Asked, ConfigError> {
    let text = |key: &str| terms::shown(parameters[key].as_str().unwrap_or("nothing"), LONGEST);
    if (text("apiVersion"), text("kind")) != (VERSION.to_owned(), KIND.to_owned()) {
        return Err(ConfigError::Kind { found: format!("{} of {}", text("kind"), text("apiVersion")) });
    }
    let parameters = Parameters::deserialize(parameters)
        .map_err(|cause| ConfigError::Form(terms::shown(&cause.to_string(), LONGEST)))?;
    let term = |key| move |cause| ConfigError::Term { key, cause };
    let weight = parameters.weight.map(|weight| terms::weight(&weight.to_string()));
    Ok(Asked {
        memory: memory(parameters.memory.as_deref()).map_err(term("memory"))?,
        compute: parameters
            .compute
            .as_deref()
            .map(terms::compute)
            .transpose()
            .map_err(term("compute"))?,
        weight: weight.transpose().map_err(term("weight"))?,
        priority: parameters
            .priority
            .as_deref()
            .map(terms::priority)
            .transpose()
            .map_err(term("priority"))?,
    })
}

fn memory(text: Option<&str>) -> Result<Option<Amount>, String> {
    text.map(|text| terms::memory(text.trim())).transpose()
}

#[cfg(test)]
mod tests {
    use gpushare_proto::session::Priority;
    use gpushare_proto::{Bytes, Percent};
    use serde_json::json;

    use super::*;
    use crate::dra::objects::Opaque;

    fn config(requests: &[&str], mut parameters: Value) -> AllocationConfig {
        for (key, value) in [("apiVersion", VERSION), ("kind", KIND)] {
            if parameters[key].is_null() {
                parameters[key] = json!(value);
            }
        }
        AllocationConfig {
            requests: requests.iter().map(|&name| name.to_owned()).collect(),
            opaque: Some(Opaque { driver: DRIVER.to_owned(), parameters }),
        }
    }

    fn of_main(configs: &[AllocationConfig]) -> Result<Asked, ConfigError> {
        asked(configs, "main")
    }

    #[test]
    fn later_parameters_replace_earlier_ones_of_the_same_name() {
        let class = config(&[], json!({"memory": "8GiB", "weight": 50}));
        let claim = config(&["main"], json!({"weight": 200, "compute": "25%", "priority": "high"}));
        let wanted = Asked {
            memory: Some(Amount::Bytes(Bytes::gib(8))),
            compute: Some(Percent(2500)),
            weight: Some(200),
            priority: Some(Priority::High),
        };
        assert_eq!(of_main(&[class, claim]), Ok(wanted));
    }

    #[test]
    fn parameters_count_for_their_requests_and_this_driver_only() {
        let mut foreign = config(&[], json!({"anything": 1}));
        foreign.opaque.as_mut().unwrap().driver = "gpu.example.com".to_owned();
        let other = config(&["other"], json!({"weight": 7}));
        assert_eq!(of_main(&[foreign, other.clone()]), Ok(Asked::default()));
        assert_eq!(asked(&[other], "other/small").unwrap().weight, Some(7));
    }

    #[test]
    fn the_example_of_the_page_is_right() {
        const PAGE: &str = include_str!("../../../docs/dra.md");
        let example = PAGE.split("```yaml\n").find(|block| block.starts_with("config:")).unwrap();
        let example = example.split("```").next().unwrap();
        let mut parsed: Value = serde_yaml_ng::from_str(example).unwrap();
        let configs: Vec<AllocationConfig> = serde_json::from_value(parsed["config"].take()).unwrap();
        let asked = of_main(&configs).unwrap();
        assert_eq!((asked.memory, asked.weight), (Some(Amount::Bytes(Bytes::gib(8))), Some(200)));
        assert_eq!((asked.compute, asked.priority), (Some(Percent(5000)), Some(Priority::Normal)));
    }

    #[test]
    fn wrong_parameters_say_what_would_be_right() {
        for (parameters, wanted) in [
            (json!({"memory": "lots"}), "memory: `lots` is no size; write it like 8GiB or 50%"),
            (json!({"compute": "150%"}), "compute: `150%` is above 100%"),
            (json!({"weight": 0}), "weight: "),
            (json!({"weight": "heavy"}), "they may have memory, compute, weight and priority"),
            (json!({"priority": "urgent"}), "priority: "),
            (json!({"memroy": "8GiB"}), "unknown field `memroy`"),
            (json!({"kind": "GpuConfig"}), "they are GpuConfig of gpushare.dev/v1; write `apiVersion"),
        ] {
            let error = of_main(&[config(&[], parameters)]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        let long = json!({("\u{1b}[2J".repeat(9999)): 1});
        let error = of_main(&[config(&[], long)]).unwrap_err().to_string();
        assert!(error.len() < 300 && error.contains("unknown field `?[2J"), "{error}");
        let empty = AllocationConfig {
            opaque: Some(Opaque { driver: DRIVER.to_owned(), parameters: Value::Null }),
            ..AllocationConfig::default()
        };
        assert!(
            of_main(&[empty])
                .unwrap_err()
                .to_string()
                .starts_with("they are nothing of nothing;")
        );
    }
}
