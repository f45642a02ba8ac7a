//! What happens where the system gives too little: threads and address space.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Ran, World};
use std::path::Path;
use std::process::Command;

/// Runs the binary with at most this much address space, in KiB.
fn run_within(kibibytes: u32, args: &[&str]) -> Ran {
    let world = World::new();
    let limited = format!("ulimit -v {kibibytes}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_lamella")]);
    command.args(args).current_dir(world.path("."));
    command.env("HOME", world.path("."));
    Ran::of(command.output().unwrap())
}

#[test]
fn refused_threads_are_an_error_that_says_so() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/olmoe-101");
    let fixture = fixture.to_str().unwrap();
    // Scratch for so many threads is refused first where it is large; their stacks never fit.
    let args = [
        "exec",
        fixture,
        "--tokens",
        "1,2",
        "--context",
        "64",
        "-t",
        "1024",
    ];
    let ran = run_within(500_000, &args);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let said = ran.err.contains("refused threads") || ran.err.contains("not enough memory");
    assert!(said, "{ran:?}");
}

#[test]
fn too_little_address_space_is_named() {
    let ran = run_within(200_000, &["run", "demo", "hi", "-q"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("ulimit -v"), "{ran:?}");
}
