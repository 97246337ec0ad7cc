//! Generates the C header from `src/ffi/` and names the shared library.
//!
//! The header goes to `OUT_DIR`, where `tests/header.rs` compares it with the committed `include/rie.h`. With
//! `RIE_UPDATE_HEADER=1` the committed one is replaced. A source that cannot be parsed or written builds all the same:
//! the compiler has the better message for the first, and a package needs no second.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let generated = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("rie.h");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/ffi");
    println!("cargo:rerun-if-env-changed=RIE_UPDATE_HEADER");

    // What an earlier build left must not stand in for a header that failed.
    let _ = fs::remove_file(&generated);
    match header(&root.join("src/ffi")) {
        Ok(bindings) => {
            let mut header = Vec::new();
            bindings.write(&mut header);
            let header = parenthesize(&String::from_utf8_lossy(&header));
            if let Err(e) = fs::write(&generated, header) {
                println!("cargo:warning={}: {e}", generated.display());
            }
            if env::var_os("RIE_UPDATE_HEADER").is_some() {
                let committed = root.join("include/rie.h");
                if let Err(e) = fs::copy(&generated, &committed) {
                    println!("cargo:warning={}: {e}", committed.display());
                }
            }
        }
        Err(e) => println!("cargo:warning=include/rie.h is as committed, not generated: {e}"),
    }

    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux" | "android") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librie.so.0");
            // Threads and thread-local storage may outlive a dlclose.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/librie.dylib"),
        _ => {}
    }
}

/// Negative constants in parentheses, so that they can stand behind any operator.
fn parenthesize(header: &str) -> String {
    let lines = header.lines().map(|line| match line.strip_prefix("#define ").and_then(|l| l.split_once(" -")) {
        Some((name, value)) => format!("#define {name} (-{value})\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

fn header(ffi: &Path) -> Result<cbindgen::Bindings, String> {
    let head = ffi.join("head.txt");
    let head = fs::read_to_string(&head).map_err(|e| format!("{}: {e}", head.display()))?;
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Type,
        header: Some(head.trim_end().to_string()),
        include_guard: Some("RIE_H".to_string()),
        no_includes: true,
        after_includes: Some("\n#include <stddef.h>\n#include <stdint.h>".to_string()),
        cpp_compat: true,
        usize_is_size_t: true,
        line_length: 120,
        tab_width: 4,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        sort_by: cbindgen::SortKey::None,
        constant: cbindgen::ConstantConfig { sort_by: Some(cbindgen::SortKey::None), ..Default::default() },
        function: cbindgen::FunctionConfig { sort_by: Some(cbindgen::SortKey::None), ..Default::default() },
        ..Default::default()
    };
    // The modules that it names are followed, in its order.
    let builder = cbindgen::Builder::new().with_config(config).with_src(ffi.join("mod.rs"));
    builder.generate().map_err(|e| e.to_string())
}
