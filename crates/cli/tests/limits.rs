//! What happens where the system gives too little address space.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Ran, World};
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
fn threads_that_do_not_fit_are_refused() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/olmoe-101");
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
    for _ in 0..10 {
        let ran = run_within(500_000, &args);
        assert_eq!(ran.code, Some(4), "{ran:?}");
        assert!(
            ran.err.contains("refused threads, 1024 are wanted"),
            "{ran:?}"
        );
    }
}

#[test]
fn too_little_address_space_is_named() {
    let ran = run_within(200_000, &["run", "demo", "hi", "-q"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.err.contains("ulimit -v"), "{ran:?}");
}
