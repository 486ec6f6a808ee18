//! Requests of processes, tools and administrators, with their checks and answers.

pub(crate) mod admin;
mod checks;
mod copies;
pub(crate) mod dry_run;
mod explain;
pub(crate) mod frost;
pub(crate) mod imports;
mod own;
mod register;
pub(crate) mod reload;
pub(crate) mod sessions;
pub(crate) mod tenant;
