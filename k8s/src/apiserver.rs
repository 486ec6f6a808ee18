//! Connection to the cluster's API server.

use std::error::Error;

use kube::{Client, Config};

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error(
    "no API server is known ({0}); run this as a pod with a service account, or name a file in KUBECONFIG"
)]
pub(crate) struct NoServer(String);

/// Returns a client for the API server that a service account or KUBECONFIG names.
pub(crate) async fn client() -> Result<Client, NoServer> {
    let config = Config::infer().await;
    let mut config = config.map_err(|cause| NoServer(words(&cause)))?;
    // Errors are logged and tried again here. The crate would try for minutes without a word.
    config.default_retry = false;
    Client::try_from(config).map_err(|cause| NoServer(words(&cause)))
}

/// Returns an error with its first cause, which the crates of HTTP keep to themselves.
pub(crate) fn words(error: &dyn Error) -> String {
    let first = std::iter::successors(error.source(), |&cause| cause.source()).last();
    match first.map(ToString::to_string) {
        Some(first) if !error.to_string().contains(&first) => format!("{error}: {first}"),
        _ => error.to_string(),
    }
}
