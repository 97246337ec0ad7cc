//! The layers of `src/lib.rs`: a file imports from its own room, from lower layers, and within its layer without a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every room (a directory or file of `src/`) with its layer, bottom to top.
const LAYERS: [(&str, u8); 15] = [
    ("error", 0),
    ("faults", 0),
    ("log", 0),
    ("memory", 0),
    ("panic", 0),
    ("tensor", 1),
    ("kernels", 2),
    ("pool", 2),
    ("checkpoint", 3),
    ("ops", 4),
    ("model", 5),
    ("sampler", 5),
    ("text", 5),
    ("session", 6),
    ("ffi", 7),
];

fn layer(room: &str) -> u8 {
    let found = LAYERS.iter().find(|(name, _)| *name == room);
    found.unwrap_or_else(|| panic!("the room `{room}` has no layer in tests/layers.rs")).1
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// The first names behind each `crate::`, one or a group in braces.
fn imports(source: &str) -> BTreeSet<String> {
    let code: String = source.lines().filter(|l| !l.trim_start().starts_with("//")).flat_map(|l| [l, "\n"]).collect();
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // Not the end of a longer name, such as `pub_crate::`.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            names.insert(first_name(rest));
            continue;
        };
        let mut depth = 0;
        let mut member = true;
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => member = true,
                c if member && !c.is_whitespace() => {
                    names.insert(first_name(&group[i..]));
                    member = false;
                }
                _ => {}
            }
        }
    }
    // The macros of the lowest room live at the crate's root.
    names.into_iter().map(|n| if n == "err" || n == "bail" { "error".to_string() } else { n }).collect()
}

fn first_name(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Room → the other rooms that it imports from, each with a file that does.
fn graph() -> BTreeMap<String, BTreeMap<String, String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    files.sort();
    let mut graph: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        let room = name.split('/').next().unwrap().trim_end_matches(".rs").to_string();
        if room == "lib" {
            continue;
        }
        let edges = graph.entry(room.clone()).or_default();
        for import in imports(&fs::read_to_string(&file).unwrap()) {
            if import != room {
                edges.entry(import).or_insert_with(|| name.clone());
            }
        }
    }
    graph
}

#[test]
fn no_file_imports_upward() {
    let mut wrong = Vec::new();
    for (room, edges) in graph() {
        for (import, file) in edges {
            if layer(&import) > layer(&room) {
                wrong.push(format!("src/{file} (layer {}) imports {import} (layer {})", layer(&room), layer(&import)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_circle_between_rooms() {
    let graph = graph();
    // Rooms that import from nothing that is left are taken away until none is left, or only a circle.
    let mut left: BTreeSet<&String> = graph.keys().collect();
    while let Some(&room) = left.iter().find(|r| graph[**r].keys().all(|import| !left.contains(import))) {
        left.remove(room);
    }
    assert!(left.is_empty(), "rooms that import from each other in a circle, or from such: {left:?}");
}

#[test]
fn imports_are_found_in_every_spelling() {
    let source = "use crate::a::{b, c};\nuse crate::{\n    d::{e, f},\n    bail, g,\n};\n// use crate::h;\nlet x = crate::i::j();";
    assert_eq!(imports(source).into_iter().collect::<Vec<_>>(), ["a", "d", "error", "g", "i"]);
}
