//! A simulated libcuda: a client of the simulated card.
//!
//! In reading order:

// What C passes and gets.
mod codes;
mod ffi;
mod handles;
mod location;
// What the process has.
mod current;
mod driver;
mod faults;
mod hold;
mod mapping;
mod registered;
mod state;
// What it does.
mod arrays;
mod callbacks;
mod capture;
mod contexts;
mod copies;
mod graphs;
mod physical;
mod pools;
mod work;
// What it exports.
mod api;
