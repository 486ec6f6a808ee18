//! Two programs that together need 1.5 times what may be resident, run in every way that is to be compared.
//!
//! ```text
//!   plan      what they do on this card
//!   measure   one run: one after the other, both at once without gpushare, or both at once with it
//!   timeline  who had the GPU when
//! ```

pub(crate) mod plan;

pub(crate) mod measure;

pub(crate) mod timeline;
