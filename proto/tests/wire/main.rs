//! What goes over the wire stays what it is, and hostile bytes stay harmless.

mod samples;

mod golden;

mod strategies;

mod round_trip;

mod hostile;
