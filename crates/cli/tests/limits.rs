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
    // How much is too little depends on what the allocator sets aside for each thread.
    let mut refused = (10..20).map(|n| run_within(n * 10_000, &["run", "demo", "hi", "-q"]));
    let named = |ran: Ran| ran.code == Some(4) && ran.err.contains("ulimit -v");
    assert!(refused.any(named), "nothing is refused");
}

#[test]
fn a_model_whose_experts_do_not_fit_answers_as_one_that_does() {
    let world = World::new();
    let ask = |more: &[&str]| {
        let args = ["run", "demo", "What is the capital of Kenya?", "--json"];
        world.run(args.iter().chain(more))
    };
    // The refusal says what is enough.
    let mut limit = "4096".to_owned();
    let least = loop {
        let ran = ask(&["--memory", &limit, "--context", "256"]);
        if ran.code == Some(0) {
            break ran.json();
        }
        assert_eq!(ran.code, Some(4), "{ran:?}");
        let told = ran.err.split(" = ").nth(1).unwrap();
        let told = told.split(' ').next().unwrap().to_owned();
        assert!(
            told.parse::<u64>().unwrap() > limit.parse().unwrap(),
            "{ran:?}"
        );
        limit = told;
    };
    let all = ask(&["--context", "256"]).json();
    assert_eq!(least["text"], "The capital of Kenya is Nairobi.");
    assert_eq!(least["ids"], all["ids"]);
    assert!(all["experts"].is_null(), "{all}");
    let counts = &least["experts"];
    // Once it is loaded there is room for more than the one that opening asks for.
    let few = counts["slots"].as_u64() < counts["experts"].as_u64();
    assert!(few, "{counts}");
    assert!(counts["bytes_read"].as_u64().unwrap() > 0, "{counts}");
    let number = |name: &str| counts[name].as_u64().unwrap();
    assert!(number("hits") < number("uses"), "{counts}");
    // A person is told.
    let args = ["run", "demo", "Hi", "--memory", &limit, "--context", "256"];
    let ran = world.run(args);
    ran.ok();
    assert!(ran.err.contains("experts fit into memory"), "{ran:?}");
    assert!(ran.err.contains("of experts in memory,"), "{ran:?}");
    let bench = [
        "bench",
        "demo",
        "-p",
        "8",
        "-n",
        "4",
        "-r",
        "1",
        "--no-bandwidth",
    ];
    let more = ["--memory", &limit, "--context", "256"];
    assert!(world.run(bench.iter().chain(&more)).code == Some(0));
}
