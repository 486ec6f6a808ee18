//! Forms of the server's answers.

use std::collections::BTreeMap;
use std::convert::Infallible;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Returns a line of a watch.
pub(super) fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(json!({"type": kind, "object": object}).to_string() + "\n")
}

/// Returns the parameters of a query. Only the escapes of selectors are known.
pub(super) fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.replace("%3D", "=").replace("%2C", ",")))
        .collect()
}

/// Returns the object that says why a request failed.
pub(super) fn status(code: StatusCode, message: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""),
        "code": code.as_u16(),
    })
}

/// Answers that a request failed.
pub(super) fn failure(code: StatusCode, message: &str) -> Answer {
    as_json(code, &status(code, message))
}

/// Answers with an object.
pub(super) fn as_json(code: StatusCode, value: &Value) -> Answer {
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(value.to_string())).boxed())
        .unwrap_or_default()
}
