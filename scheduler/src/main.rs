//! Program `gpushare-scheduler`: the gpushare daemon.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gpushare_scheduler::main()
}
