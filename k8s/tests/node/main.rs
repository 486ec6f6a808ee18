//! The device plugin as a process on a simulated node: a kubelet that this process plays, the simulated cards
//! and their NVML, and where it matters the daemon, an API server and programs in the groups of pods.

mod node;
mod registering;
mod allocating;
mod health;
mod groups;
mod cluster;
mod limits;
mod processes;
mod containers;
mod whole;
mod claims;
mod dra;
mod offers;
mod slices;
