//! The driver's functions that `src/lib.rs` does not write out: a real driver has them all, and what a
//! lookup costs depends on that.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use gpushare_symbols::variants;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=src/lib.rs");
    let written = fs::read_to_string("src/lib.rs")?;
    let (mut functions, mut table) = (String::new(), String::new());
    for variant in variants().iter().filter(|variant| variant.is_listed()) {
        let (base, export) = (variant.base, variant.export);
        if !written.contains(&format!(" {export}(")) {
            writeln!(functions, "driver! {{ {export}(); }}")?;
        }
        let (version, per_thread) = (variant.version.0, variant.per_thread());
        writeln!(
            table,
            "    Known {{ base: b\"{base}\", version: {version}, per_thread: {per_thread}, function: {export} as *const c_void }},"
        )?;
    }
    let generated = format!("{functions}\n/// By base name.\nstatic KNOWN: &[Known] = &[\n{table}];\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("exports.rs"), generated)?;
    Ok(())
}
