//! Compiles the kubelet's API from its `.proto` files, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["deviceplugin.proto", "podresources.proto"], ["proto"])?;
    // Maps in order, so that equal answers print equally.
    tonic_prost_build::configure().btree_map(".").compile_fds(files)?;
    Ok(())
}
