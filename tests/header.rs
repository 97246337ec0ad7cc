//! The C header: as committed, as generated, and as the compilers see it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rie.h")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compiles `source`, which includes the header; warnings are errors.
fn compile(compiler: &str, language: &str, standard: &str, name: &str, source: &str) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", language.replace('+', "p")));
    fs::write(&file, source).unwrap();
    let include = committed().parent().unwrap().to_path_buf();
    let output = Command::new(compiler)
        .args(["-x", language, &format!("-std={standard}"), "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-c"])
        .args(["-o", "/dev/null", "-I"])
        .arg(include)
        .arg(&file)
        .output()
        .unwrap_or_else(|e| panic!("the compiler `{compiler}` is needed: {e}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} -std={standard}: {message}");
}

#[test]
fn the_committed_header_is_the_generated_one() {
    let generated = Path::new(env!("OUT_DIR")).join("rie.h");
    assert!(generated.exists(), "build.rs could not generate the header; its warning says why");
    let same = read(&generated) == read(&committed());
    assert!(same, "include/rie.h is not what src/ffi/ says: build with RIE_UPDATE_HEADER=1 and commit it");
}

#[test]
fn it_compiles_alone_in_every_standard() {
    let source = "#include \"rie.h\"\n#include \"rie.h\"\nextern int nothing;\n";
    compile("cc", "c", "c99", "alone99", source);
    compile("cc", "c", "c11", "alone11", source);
    compile("c++", "c++", "c++17", "alone17", source);
}

#[test]
fn the_example_at_its_head_compiles() {
    let header = read(&committed());
    let example: String = header
        .lines()
        .skip_while(|l| !l.contains("AN EXAMPLE"))
        .skip(2)
        .take_while(|l| !l.contains("STATUSES"))
        .flat_map(|l| [l.trim_start_matches(" *"), "\n"])
        .collect();
    assert!(example.contains("int main"), "no example found");
    compile("cc", "c", "c11", "example", &example);
    compile("c++", "c++", "c++17", "example", &example);
}

#[test]
fn it_holds_nothing_that_is_hostile_to_other_languages() {
    let header = read(&committed());
    assert!(header.is_ascii(), "some compilers read headers in the system's code page");
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("a comment ends").1;
    }
    code.push_str(rest);
    for word in ["bool", "long", "enum", "union", "...", "char **", "extern const", "static"] {
        assert!(!code.contains(word), "`{word}` in the header");
    }
    for line in code.lines().filter(|l| l.starts_with("#define")) {
        let name = line.split_whitespace().nth(1).unwrap();
        assert!(name.starts_with("RIE_") && !name.contains('('), "{line}");
    }
    for line in code.lines().filter(|l| l.starts_with("typedef struct")) {
        assert!(line.ends_with(';') && !line.contains('{'), "a public struct: {line}");
    }
    for line in code.lines().filter(|l| l.starts_with("#include")) {
        assert!(["#include <stddef.h>", "#include <stdint.h>"].contains(&line), "{line}");
    }
}
