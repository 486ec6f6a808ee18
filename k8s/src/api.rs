//! Kubelet's APIs, as `build.rs` makes them from `proto/`.

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

/// Registration of drivers, version v1.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// Drivers of dynamic resource allocation.
pub mod dra {
    /// Version v1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }

    /// Version v1beta1, with the messages of v1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }

    /// Type of a driver in its registration.
    pub const PLUGIN_TYPE: &str = "DRAPlugin";
    /// Name of the service of version v1 in a registration.
    pub const V1: &str = "v1.DRAPlugin";
    /// Name of the service of version v1beta1 in a registration.
    pub const V1BETA1: &str = "v1beta1.DRAPlugin";
}

/// Version of the device plugin's API.
pub const VERSION: &str = "v1beta1";
/// File name of the kubelet's socket.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// Health of a device that can be allocated.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that must not be allocated.
pub const UNHEALTHY: &str = "Unhealthy";
