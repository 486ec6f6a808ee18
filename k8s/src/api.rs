//! Kubelet's API, as `build.rs` makes it from `proto/`.

/// Device plugins, version v1beta1.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// Devices of pods, version v1.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// Version of the device plugin's API.
pub const VERSION: &str = "v1beta1";
/// File name of the kubelet's socket.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// Health of a device that can be allocated.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that must not be allocated.
pub const UNHEALTHY: &str = "Unhealthy";
