//! Tests of the daemon as a real process, with real sockets, peers and deaths.

mod hangups;
mod harness;
mod processes;

mod administration;

mod audit;
mod copies;
mod dashboard;
mod deaths;
mod entering;
mod following;
mod freezing;
mod hostile;
mod importing;
mod leases;
mod logs;
mod manager;
mod metrics;
mod names;
mod own;
mod passed;
mod queries;
mod reloading;
mod restart;
mod returns;
mod sessions;
mod starting;
mod state;
mod watching;
