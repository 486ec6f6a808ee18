//! Bugs that tools of this kind have had, one file each, on the simulated card. The numbers are those of
//! the list in the design notes on interposition.
//!
//! As in `e2e`: real processes, and no assertion on how long something took.

mod tenants;
mod b01_variants;
mod b02_rtld_next;
mod b03_every_allocation_hook;
mod b04_unknown_pointers;
mod b05_killed_anywhere;
mod b06_last_block;
mod b07_names_of_a_card;
mod b08_manners;
mod b09_daemons_and_peers;
mod b10_families;
mod b11_racing_launches;
mod b12_captures;
mod b13_forgeries;
mod b14_crowds;
mod b15_work_that_waits;
mod b16_unfinished_business;
