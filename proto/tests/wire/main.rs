//! Tests of the wire: released bytes stay as they are, messages come back equal, hostile bytes do no harm.

mod any_message;
mod golden;
mod hostile;
mod round_trip;
mod samples;
