//! How commands tell what they do and what came of it.

use std::fmt::Display;

use serde::Serialize;

/// Tells on stderr what happens now.
pub(crate) fn progress(what: impl Display) {
    eprintln!("{what}");
}

/// Prints the result: as one line of JSON, or as people read it.
pub(crate) fn result<T: Serialize + Display>(result: &T, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(result)?);
    } else {
        println!("{result}");
    }
    Ok(())
}
