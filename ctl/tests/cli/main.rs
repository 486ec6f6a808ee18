//! `gpushare-ctl` as a person or a script meets it: real processes, a daemon played by a thread.

mod ctl;
mod dashboard;
mod fake;
mod bad_input;
mod bad_daemon;
mod status;
mod usage;
mod session;
mod explain;
mod audit;
mod set;
mod run;
mod start;
mod doctor;
mod jupyter;
mod completions;
