//! Real processes, the real library preloaded, the real daemon, a simulated card. One world at a time.
//!
//! Nothing here asserts how long something took: counters, checksums, order and states only.

mod programs;
mod handoffs;
mod managed;
mod overflow;
mod shared_copies;
mod headroom;
mod shares;
mod users;
mod sharing;
mod hooks;
mod checkpoints;
mod freezing;
mod trials;
mod letting_go;
mod importing;
mod interrupts;
mod window;
mod memory;
mod at_once;
mod measuring;
mod five_minutes;
mod simulated_page;
mod one_story;
mod utilization;
mod orphans;
mod backends;
mod remap;
mod segments;
mod addresses;
mod audit;
mod captures;
mod containers;
mod contexts;
mod deaths;
mod hangups;
mod restarts;
mod guests;
mod recordings;
mod watching;
mod terminal;
mod top;
mod doctor;
mod tenants;
mod unknown;
