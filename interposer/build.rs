//! Binds the library's references to its own exports when it is linked. The loader would look each up by name at the
//! start of every program, and would answer with a function of another preloaded library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
