//! `lamella doctor`: findings, and the exit codes behind them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Ran, World, fixture};
use serde_json::Value;
use std::path::Path;

/// What was found, whatever the exit code.
fn findings(ran: &Ran) -> Vec<Value> {
    let json: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!(json["version"], 1);
    let findings = json["findings"].as_array().unwrap().clone();
    let problem = findings.iter().any(|f| f["severity"] == "problem");
    assert_eq!(json["sound"], !problem);
    for finding in &findings {
        assert!(!finding["what"].as_str().unwrap().is_empty(), "{finding}");
        let fine = finding["severity"] == "ok";
        assert_eq!(
            finding["why"].as_str().unwrap().is_empty(),
            fine,
            "{finding}"
        );
    }
    findings
}

fn of<'f>(findings: &'f [Value], id: &str) -> Vec<&'f Value> {
    findings.iter().filter(|f| f["id"] == id).collect()
}

#[test]
fn the_machine_alone() {
    let world = World::new();
    let ran = world.run(["doctor", "--json"]);
    ran.ok();
    let findings = findings(&ran);
    for id in [
        "processor",
        "memory",
        "control group",
        "address space",
        "open files",
        "locked memory",
        "huge pages",
        "io_uring",
    ] {
        assert_eq!(of(&findings, id).len(), 1, "{id}");
    }
    assert!(of(&findings, "container").is_empty() && of(&findings, "text").is_empty());
    let isa = world.run(["version", "--json"]).json()["isa"].clone();
    let what = of(&findings, "processor")[0]["what"].as_str().unwrap();
    assert!(what.starts_with(isa.as_str().unwrap()), "{what}");
    let text = world.run(["doctor"]);
    assert!(text.ok().lines().count() >= 8);
    world.run(["doctor", "--deep"]).fails_with(2);
}

#[test]
fn a_sound_container_is_fine() {
    let world = World::new();
    world
        .run(["convert", "demo", "small", "--encoding", "q8", "-q"])
        .ok();
    for more in [&[][..], &["--deep"]] {
        let ran = world.run(["doctor", "small", "--json"].iter().chain(more));
        ran.ok();
        let findings = findings(&ran);
        for id in [
            "container",
            "text",
            "fit",
            "direct I/O",
            "disk speed",
            "disk space",
        ] {
            assert_eq!(of(&findings, id).len(), 1, "{id} in {findings:?}");
        }
        for id in ["container", "text", "fit"] {
            assert_eq!(of(&findings, id)[0]["severity"], "ok", "{id}");
        }
    }
}

/// Turns a bit of `file` at `at`, from its end if that is negative.
fn flip(file: &Path, at: i64) {
    let mut bytes = std::fs::read(file).unwrap();
    let place = at.rem_euclid(bytes.len() as i64) as usize;
    bytes[place] ^= 4;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn damage_names_the_record() {
    let world = World::new();
    world
        .run(["convert", "demo", "small", "--encoding", "q8", "-q"])
        .ok();
    // The first record is in every sample.
    flip(&world.path("small/resident.pack"), 5);
    let ran = world.run(["doctor", "small", "--json"]);
    ran.fails(3, &["1 problem", "resident.pack"]);
    let found = findings(&ran);
    let damage = of(&found, "container");
    assert_eq!(damage.len(), 1, "{damage:?}");
    let what = damage[0]["what"].as_str().unwrap();
    let verified = world.run(["verify", "small"]);
    assert_eq!(verified.code, Some(3));
    assert!(
        verified.out.contains(what),
        "{what:?} is not in {}",
        verified.out
    );
    assert!(damage[0]["fix"].as_str().unwrap().contains("convert"));
    flip(&world.path("small/resident.pack"), 5);
    world.run(["doctor", "small"]).ok();
    // Any other is found by reading all.
    for number in 0..4 {
        flip(
            &world.path(&format!("small/experts-000{number}-q8.pack")),
            9000,
        );
    }
    let ran = world.run(["doctor", "small", "--deep"]);
    ran.fails(3, &["4 problems"]);
    assert_eq!(ran.out.matches("problem ").count(), 4, "{}", ran.out);
    // What does not even open is told once.
    flip(&world.path("small/operands.bin"), -1);
    world
        .run(["doctor", "small"])
        .fails(3, &["1 problem", "operands.bin"]);
    std::fs::remove_file(world.path("small/operands.bin")).unwrap();
    world.run(["doctor", "small"]).fails(3, &["operands.bin"]);
}

#[test]
fn a_checkpoint_without_a_tokenizer_is_a_warning() {
    let world = World::new();
    let fixture = fixture();
    for more in [&[][..], &["--deep"]] {
        let ran = world.run(["doctor", &fixture, "--json"].iter().chain(more));
        ran.ok();
        let findings = findings(&ran);
        assert_eq!(of(&findings, "checkpoint")[0]["severity"], "ok");
        assert_eq!(of(&findings, "text")[0]["severity"], "warning");
    }
}

#[test]
fn what_is_no_model_is_a_problem() {
    let world = World::new();
    world.run(["doctor", "gone"]).fails(3, &["gone"]);
    std::fs::create_dir(world.path("empty")).unwrap();
    world.run(["doctor", "empty"]).fails(3, &["config.json"]);
    std::fs::copy(
        Path::new(&fixture()).join("config.json"),
        world.path("empty/config.json"),
    )
    .unwrap();
    world.run(["doctor", "empty"]).fails(3, &["empty"]);
}
