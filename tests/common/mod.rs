//! Compiles C programs against `include/rie.h` and the shared library that cargo built for this test, and runs them.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod models;
pub mod parity;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A path inside the project.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A small checkpoint with its golden outputs.
pub fn case(name: &str) -> PathBuf {
    let path = root("tests/golden/cases").join(name);
    assert!(path.is_dir(), "{} is missing", path.display());
    path
}

/// The trained model of the project.
pub fn tiny_model() -> PathBuf {
    let path = root("tests/golden/tiny_model/model");
    assert!(path.is_dir(), "{} is missing", path.display());
    path
}

/// An empty directory of this name, for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    path
}

/// A C program that was built for a test, in a directory of its own with the library it is linked to.
pub struct Program {
    path: PathBuf,
}

impl Program {
    /// Compiles `sources` (paths inside the project). Panics, with the compiler's output, if that doesn't work, also
    /// when there is no compiler: a machine without one can't test a C ABI.
    pub fn build(name: &str, sources: &[&str]) -> Program {
        Program::build_with("include", name, sources)
    }

    /// [`build`](Self::build) with the header of the directory `include`.
    fn build_with(include: &str, name: &str, sources: &[&str]) -> Program {
        static BUILT: AtomicUsize = AtomicUsize::new(0);
        let nth = BUILT.fetch_add(1, Ordering::Relaxed); // tests that run at once may build the same program
        let dir = scratch(&format!("{}-{nth}-{name}", env!("CARGO_CRATE_NAME")));
        link_library(&dir);
        let path = dir.join(name);
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut cc = Command::new(&compiler);
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g", "-D_POSIX_C_SOURCE=200809L"])
            .arg("-I")
            .arg(root(include))
            .args(sources.iter().map(|s| root(s)))
            .arg("-o")
            .arg(&path)
            .arg("-L")
            .arg(&dir)
            // A program's own getenv comes before that of libc, for the library too.
            .args(["-Wl,--as-needed", "-rdynamic", "-lrie", "-lpthread", "-lm", "-ldl"])
            .arg(format!("-Wl,-rpath,{}", dir.display()));
        let output = cc.output().unwrap_or_else(|e| panic!("the C compiler {compiler:?} cannot be run: {e}"));
        assert!(output.status.success(), "{cc:?}\n{}", text(&output.stderr));
        Program { path }
    }

    /// A program of tests/c.
    pub fn test(name: &str) -> Program {
        Program::build(name, &[&format!("tests/c/{name}.c")])
    }

    /// A program of tests/c as it was compiled against the first header that there was.
    pub fn of_the_first_header(name: &str) -> Program {
        Program::build_with("tests/abi/first", name, &[&format!("tests/c/{name}.c")])
    }

    /// A program of examples-c.
    pub fn example(name: &str) -> Program {
        let parts: &[&str] = match name {
            "minimal" => &[],
            "inspect" => &["common", "json"],
            "bench" => &["common", "host", "json", "limits", "sessions"],
            "batch" | "chat" | "quantize" | "perplexity" => &["common", "host"],
            _ => &["common", "host", "json", "profile"],
        };
        let sources: Vec<_> = [name].iter().chain(parts).map(|part| format!("examples-c/{part}.c")).collect();
        let sources: Vec<_> = sources.iter().map(String::as_str).collect();
        Program::build(name, &sources)
    }

    /// Where the program is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shared library, as the program finds it.
    pub fn library(&self) -> PathBuf {
        self.path.with_file_name("librie.so")
    }

    /// A command that runs the program.
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// A command that runs it under valgrind: exit status 9 for an error or a definite leak.
    pub fn valgrind(&self) -> Command {
        let mut command = Command::new("valgrind");
        command
            .args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"])
            .arg(&self.path);
        command
    }
}

/// Puts the shared library into `dir` under the names the linker and the loader look for. Cargo builds it, in `deps/`
/// beside this test, as a part of the same crate that the test depends on, so that it is always current.
fn link_library(dir: &Path) {
    let exe = std::env::current_exe().expect("the test's own path");
    let library = exe.parent().expect("target/<profile>/deps").join("librie.so");
    assert!(library.is_file(), "{} was not built", library.display());
    for name in ["librie.so", "librie.so.0"] {
        std::os::unix::fs::symlink(&library, dir.join(name)).expect("a link to the library");
    }
}

/// Runs `command` with `input` on its stdin.
pub fn run(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A program that ends before it has read everything is judged by its exit status.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    writer.join().expect("the writer of stdin");
    output
}

/// Runs `command`, which must exit with 0, and returns its stdout.
pub fn expect_success(command: &mut Command, input: &str) -> String {
    let output = run(command, input);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Bytes as text.
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

/// Copies the files of a directory.
pub fn copy_dir(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let entry = entry.expect("a directory entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copied file");
    }
}

/// Deterministic values in about [-1, 1], with a few zeros and negative zeros.
pub struct Values(pub u64);

impl Values {
    /// The next one.
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        match self.0 >> 58 {
            0 => 0.0,
            1 => -0.0,
            _ => ((self.0 >> 33) as f32 / (1u64 << 30) as f32) - 1.0,
        }
    }

    /// The next `n`.
    pub fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}
