//! Compiles the kubelet's APIs from their `.proto` files, without `protoc`.

/// Files of the APIs.
const FILES: [&str; 5] = [
    "deviceplugin.proto",
    "podresources.proto",
    "pluginregistration.proto",
    "dra.v1.proto",
    "dra.v1beta1.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    // Maps in order, so that equal answers print equally.
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
