//! Containers and small values without rules of their own.

pub(crate) mod average;
pub(crate) mod gpu_set;
pub(crate) mod id_map;
pub(crate) mod small_map;
pub(crate) mod stopwatch;
