//! Events and effects as people read them: `Reserve client=1 gpu=0 request=4 bytes=67108864`. Made from
//! what serde makes of them, so that a new one needs nothing here.

use serde::Serialize;
use serde_json::Value;

/// `thing` in one line.
pub(super) fn words(thing: &impl Serialize) -> serde_json::Result<String> {
    Ok(match serde_json::to_value(thing)? {
        Value::Object(variant) if variant.len() == 1 => {
            let variant = variant.iter().map(|(name, content)| match content {
                Value::Object(fields) => {
                    let fields = fields.iter().map(|(name, value)| format!(" {name}={}", short(value)));
                    name.clone() + &fields.collect::<String>()
                }
                other => format!("{name} {}", short(other)),
            });
            variant.collect()
        }
        other => short(&other),
    })
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains(' ') => format!("{text:?}"),
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        Value::Array(items) => format!("[{}]", join(items.iter().map(short))),
        Value::Object(fields) => {
            format!("{{{}}}", join(fields.iter().map(|(name, value)| format!("{name}={}", short(value)))))
        }
        other => other.to_string(),
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use gpushare_core::{Effect, Event, Notice};
    use gpushare_proto::admin::{Knob, Mode, Setting};
    use gpushare_proto::{ClientId, GpuId};

    use super::*;

    #[test]
    fn every_shape_of_event_and_effect_has_its_words() {
        let client = ClientId(3);
        assert_eq!(words(&Event::Tick).unwrap(), "Tick");
        assert_eq!(words(&Event::ClientGone { client }).unwrap(), "ClientGone client=3");
        let set = Event::Set(Setting { gpu: None, knob: Knob::Mode(Some(Mode::Parallel)) });
        assert_eq!(words(&set).unwrap(), "Set gpu=none knob={Mode=parallel}");
        let changed = Effect::Notice(Notice::ModeChanged {
            gpu: GpuId(0),
            mode: Mode::Serialized,
            reason: "6GiB do not fit".to_owned(),
        });
        assert_eq!(
            words(&changed).unwrap(),
            "Notice ModeChanged={gpu=0 mode=serialized reason=\"6GiB do not fit\"}"
        );
    }
}
