//! Tests of the machine in virtual time: each test names one rule. `schedules.rs`, `crowds.rs` and
//! `gangs_searched.rs` check the invariants over drawn or enumerated events.

mod absent_memory;
mod crowds;
mod drawn;
mod world;

mod early_release;
mod fixed;
mod forecasts;
mod found;
mod freezing;
mod freezing_ends;
mod freezing_idle;
mod freezing_stuck;
mod frosts_searched;
mod gangs;
mod gangs_searched;
mod handoffs;
mod late_drops;
mod leads;
mod leases;
mod liveness;
mod managed;
mod modes;
mod moves_searched;
mod observing;
mod orphans;
mod overlap;
mod recovery;
mod residency;
mod returning;
mod schedules;
mod several_cards;
mod sharing;
mod standing;
mod strangers;
mod switching;
mod telling;
mod thaws;

mod turns;
mod users;
