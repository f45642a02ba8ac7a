//! Compiling and running the suites in C and C++.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What every source must pass without a word.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];
/// What a static library of Rust needs.
#[cfg(target_os = "linux")]
pub(crate) const SYSTEM: &[&str] = &["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lrt", "-lutil"];
#[cfg(not(target_os = "linux"))]
pub(crate) const SYSTEM: &[&str] = &["-lpthread", "-lm"];

pub(crate) fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the libraries that this test is built with.
pub(crate) fn library_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

fn words(variable: &str) -> Vec<String> {
    let words = std::env::var(variable).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// A compiler with what is common to all calls.
pub(crate) fn compiler(variable: &str, default: &str, standard: &str) -> Command {
    let mut call = words(variable);
    if call.is_empty() {
        call.push(default.to_owned());
    }
    let mut command = Command::new(&call[0]);
    command
        .args(&call[1..])
        .args(STRICT)
        .arg(format!("-std={standard}"));
    command
        .arg("-I")
        .arg(crate_dir().join("include"))
        .args(words("CFLAGS"));
    command
}

pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// The program made of `sources`, linked with the static library.
pub(crate) fn program(compiler: &mut Command, sources: &[&str], into: &Path) -> OsString {
    let path = into.join(sources[0]).with_extension("out");
    let sources = sources
        .iter()
        .map(|name| crate_dir().join("tests/c").join(name));
    let library = library_dir().join("liblamella.a");
    assert!(library.exists(), "cargo left no {}", library.display());
    succeed(
        compiler
            .args(sources)
            .arg(library)
            .args(SYSTEM)
            .arg("-o")
            .arg(&path),
    );
    path.into_os_string()
}

/// Runs a program, under `LAMELLA_RUNNER` if there is one.
pub(crate) fn run(program: OsString, arguments: &[&str]) -> String {
    let mut call: Vec<OsString> = words("LAMELLA_RUNNER")
        .into_iter()
        .map(OsString::from)
        .collect();
    call.push(program);
    let output = succeed(Command::new(&call[0]).args(&call[1..]).args(arguments));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Names the registrars of the fixtures apart from those of the library.
pub(crate) fn fixture_names(compiler: &mut Command) -> &mut Command {
    let names = crate_dir().join("tests/c/fixture_names.h");
    compiler.arg("-include").arg(names)
}

/// Compiles as C99 and as C11, and runs what C11 made.
pub(crate) fn suite(sources: &[&str], arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    program(&mut compiler("CC", "cc", "c99"), sources, dir.path());
    let built = program(&mut compiler("CC", "cc", "c11"), sources, dir.path());
    run(built, arguments)
}
