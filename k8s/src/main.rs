//! Program `gpushare-k8s`: shares of a node's cards for Kubernetes.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gpushare_k8s::main()
}
