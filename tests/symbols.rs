//! The ABI as a list: exported symbols and constants. Lines may be added to `tests/abi/`, never changed or removed.
//!
//! With `RIE_UPDATE_ABI=1` the tests write the lists instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn compare(list: &str, found: &str) {
    let path = project(list);
    if std::env::var_os("RIE_UPDATE_ABI").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{list}: {e}"));
    let lines = |a: &str, b: &str| a.lines().filter(|l| !b.lines().any(|m| m == *l)).collect::<Vec<_>>().join("\n");
    assert!(
        expected == found,
        "{list} differs.\nGone or changed, which breaks programs:\n{}\nNew (add with RIE_UPDATE_ABI=1):\n{}",
        lines(&expected, found),
        lines(found, &expected)
    );
}

/// The shared library that cargo built along with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join("librie.so"), deps.parent().unwrap().join("librie.so")];
    candidates.into_iter().find(|p| p.exists()).expect("librie.so beside the test's executable")
}

fn output(tool: &str, args: &[&str]) -> String {
    let library = library();
    let output = Command::new(tool).args(args).arg(&library).output();
    let output = output.unwrap_or_else(|e| panic!("`{tool}` is needed: {e}"));
    assert!(output.status.success(), "{tool} {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn exported_symbols_are_the_list() {
    let listing = output("nm", &["-D", "--defined-only", "--format=posix"]);
    let mut symbols: Vec<String> =
        listing.lines().filter_map(|l| l.split_whitespace().next()).map(|s| format!("{s}\n")).collect();
    symbols.sort();
    compare("tests/abi/symbols.txt", &symbols.concat());
}

#[test]
#[cfg(target_os = "linux")]
fn the_library_has_a_soname_and_stays_loaded() {
    let dynamic = output("readelf", &["-d"]);
    assert!(dynamic.contains("[librie.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// A closure is not compiled with the CPU features of the function around it: unless the compiler happens to inline it there, each
/// vector operation in it becomes a call.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn vector_operations_are_instructions() {
    let listing = output("nm", &["--defined-only", "--demangle", "--format=posix"]);
    assert!(listing.lines().any(|symbol| symbol.starts_with("rie::kernels::x86::avx2::")), "a stripped library");
    // Those of f32, which no other crate has: every kernel that could be torn apart in this way has some.
    let is_operation =
        |name: &&str| ["::_mm256_", "::_mm512_"].iter().any(|p| name.contains(p)) && name.ends_with("_ps");
    let called: Vec<&str> = listing.lines().filter_map(|l| l.split_whitespace().next()).filter(is_operation).collect();
    assert!(called.is_empty(), "called, not inlined:\n{}", called.join("\n"));
}

#[test]
fn constants_are_the_list() {
    let header = fs::read_to_string(project("include/rie.h")).unwrap();
    let constants = header.lines().filter_map(|l| l.strip_prefix("#define RIE_")).filter(|l| l.contains(' '));
    let mut constants: Vec<String> = constants.map(|l| format!("RIE_{l}\n")).collect();
    constants.sort();
    compare("tests/abi/constants.txt", &constants.concat());
}
