//! The codec under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gpushare_fuzz::codec::any(input));
