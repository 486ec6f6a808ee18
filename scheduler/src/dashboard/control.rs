//! Changes that the page asks for, as JSON, and the administrator's requests that they mean.

use gpushare_proto::admin::{AdminRequest, Change, Knob, Mode, SessionRequest, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{GpuId, Nanos, SessionId};
use serde::Deserialize;

/// Change of a session or of a card, like `{"set": "weight", "session": 3, "value": 200}`.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "set", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Control {
    Weight {
        session: SessionId,
        value: u32,
    },
    Priority {
        session: SessionId,
        value: Priority,
    },
    Pause {
        session: SessionId,
    },
    Resume {
        session: SessionId,
    },
    /// Length of a turn, like `100ms`, or `auto`.
    Quantum {
        gpu: GpuId,
        value: String,
    },
    /// Mode of a card, or `auto`.
    Mode {
        gpu: GpuId,
        value: String,
    },
}

/// Reads a change from a request's body. The error is a sentence.
pub(super) fn read(body: &[u8]) -> Result<AdminRequest, String> {
    let control = serde_json::from_slice(body)
        .map_err(|cause| format!("the change cannot be read: {cause}; reload the page"))?;
    let of = |session: SessionId| session.to_string();
    let change = |session, change| SessionRequest::Change { which: of(session), change };
    let session = match control {
        Control::Weight { session, value } => change(session, Change::Weight(value)),
        Control::Priority { session, value } => change(session, Change::Priority(value)),
        Control::Pause { session } => SessionRequest::Pause { which: of(session) },
        Control::Resume { session } => SessionRequest::Resume { which: of(session) },
        Control::Quantum { gpu, value } => return Ok(set(gpu, Knob::Quantum(auto_or::<Nanos>(&value)?))),
        Control::Mode { gpu, value } => return Ok(set(gpu, Knob::Mode(auto_or::<Mode>(&value)?))),
    };
    Ok(AdminRequest::Session(session))
}

fn set(gpu: GpuId, knob: Knob) -> AdminRequest {
    AdminRequest::Set(Setting { gpu: Some(gpu), knob })
}

fn auto_or<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<Option<T>, String> {
    match text.trim() {
        "auto" => Ok(None),
        text => text.parse().map(Some).map_err(|error: T::Err| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_the_request_of_the_command_line() {
        let change = |change| {
            AdminRequest::Session(SessionRequest::Change { which: SessionId(3).to_string(), change })
        };
        for (text, request) in [
            (r#"{"set":"weight","session":3,"value":200}"#, change(Change::Weight(200))),
            (r#"{"set":"priority","session":3,"value":"low"}"#, change(Change::Priority(Priority::Low))),
            (
                r#"{"set":"pause","session":3}"#,
                AdminRequest::Session(SessionRequest::Pause { which: "s3".to_owned() }),
            ),
            (
                r#"{"set":"quantum","gpu":0,"value":"100ms"}"#,
                set(GpuId(0), Knob::Quantum(Some(Nanos::from_millis(100)))),
            ),
            (r#"{"set":"quantum","gpu":0,"value":"auto"}"#, set(GpuId(0), Knob::Quantum(None))),
            (
                r#"{"set":"mode","gpu":1,"value":"time-sliced"}"#,
                set(GpuId(1), Knob::Mode(Some(Mode::TimeSliced))),
            ),
        ] {
            assert_eq!(read(text.as_bytes()), Ok(request), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_one_sentence() {
        for (text, why) in [
            ("", "cannot be read"),
            (r#"{"set":"capacity","gpu":0,"value":"1GiB"}"#, "unknown variant `capacity`"),
            (r#"{"set":"weight","session":3,"value":-1}"#, "-1"),
            (r#"{"set":"weight","session":"train","value":1}"#, "cannot be read"),
            (r#"{"set":"pause","session":3,"value":1}"#, "unknown field `value`"),
            (r#"{"set":"quantum","gpu":0,"value":"soon"}"#, "like 250ms"),
            (r#"{"set":"mode","gpu":0,"value":"fast"}"#, "write parallel, time-sliced or serialized"),
        ] {
            let sentence = read(text.as_bytes()).unwrap_err();
            assert!(sentence.contains(why) && !sentence.contains('\n'), "{sentence}");
        }
    }
}
