//! Program `gpushare-ctl`: the command line of gpushare.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    gpushare_ctl::main()
}
