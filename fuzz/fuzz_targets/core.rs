//! The decision machine under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(gpushare_fuzz::events::play(input)));
