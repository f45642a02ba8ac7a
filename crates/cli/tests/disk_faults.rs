//! Experts on a disk that fails: the right tokens, or an error that says where.

#![cfg(target_os = "linux")]

mod common;

use common::{Ran, World, repository};
use std::path::PathBuf;
use std::process::Command;

/// A container of the demo model whose experts do not fit, and a library that makes reads fail.
struct Faulty {
    world: World,
    shim: PathBuf,
    memory: String,
}

const TEXT: [&str; 4] = ["Once upon a time", "--raw", "--max-tokens", "24"];

impl Faulty {
    fn new() -> Faulty {
        let world = World::new();
        let shim = world.path("faults.so");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        cc.arg(&shim)
            .arg(repository("crates/cli/tests/disk_faults.c"))
            .arg("-ldl");
        assert!(cc.status().expect("a C compiler").success());
        let converted = world.run(["convert", "demo", "model", "--encoding", "q8", "--quiet"]);
        converted.ok();
        // The refusal names the least that opens; a little more holds two dozen experts.
        let refused = world.run(["run", "model", "--memory", "1M", "--context", "128", "Once"]);
        let sum = refused.err.rsplit_once(" = ").expect("a sum").1;
        let least = sum.split(' ').next().expect("a number").parse::<u64>();
        let memory = (least.expect("bytes") + (400 << 10)).to_string();
        Faulty {
            world,
            shim,
            memory,
        }
    }

    fn run(&self, reader: &str, fault: &[(&str, &str)], more: &[&str]) -> Ran {
        let mut args = vec![
            "run",
            "model",
            "--json",
            "--context",
            "128",
            "--heat",
            "off",
        ];
        args.extend([
            "--temperature",
            "0",
            "--speculate",
            "off",
            "--reader",
            reader,
        ]);
        args.extend(["--memory", self.memory.as_str()]);
        args.extend(more);
        args.extend(TEXT);
        let mut command = self.world.command(args);
        command
            .env("LD_PRELOAD", &self.shim)
            .envs(fault.iter().copied());
        Ran::of(command.output().expect("the binary starts"))
    }
}

#[test]
fn a_failing_disk_gives_the_right_tokens_or_an_error_that_says_where() {
    let faulty = Faulty::new();
    let sound = faulty.run("buffered", &[], &[]).json();
    let (text, experts) = (&sound["text"], &sound["experts"]);
    assert!(text.as_str().is_some_and(|t| !t.is_empty()), "{sound}");
    assert!(
        experts["bytes_read"].as_u64() > Some(0) && experts["failures"] == 0,
        "{sound}"
    );
    let direct = faulty.run("direct", &[], &[]);
    let readers: &[&str] = match direct.code {
        Some(0) => &["buffered", "direct"],
        // Not every file system reads past the cache.
        _ => &["buffered"],
    };
    for reader in readers {
        // One read in seven fails, and the next try does not.
        for fault in ["eio", "end", "flip", "torn"] {
            let ran = faulty.run(reader, &[("FAULT", fault), ("FAULT_EVERY", "7")], &[]);
            let found = ran.json();
            assert_eq!(&found["text"], text, "{reader}, {fault}");
            assert!(
                found["experts"]["failures"].as_u64() > Some(0),
                "{reader}, {fault}"
            );
        }
        // What only takes longer, or comes in pieces, is no failure.
        for (fault, every) in [("short", "1"), ("slow", "50")] {
            let ran = faulty.run(reader, &[("FAULT", fault), ("FAULT_EVERY", every)], &[]);
            let found = ran.json();
            assert_eq!(&found["text"], text, "{reader}, {fault}");
            assert_eq!(found["experts"]["failures"], 0, "{reader}, {fault}");
        }
        // Every read fails from some time on.
        for (fault, code, word) in [
            ("eio", 1, "Input/output error"),
            ("end", 1, "experts-"),
            ("flip", 3, "digest"),
            ("torn", 3, "digest"),
        ] {
            let ran = faulty.run(reader, &[("FAULT", fault), ("FAULT_FROM", "40")], &[]);
            ran.fails(code, &["expert ", "of layer ", "experts-", word]);
        }
    }
    let never = faulty.run(
        "buffered",
        &[("FAULT", "eio"), ("FAULT_EVERY", "9")],
        &["--prefetch", "off"],
    );
    assert_eq!(&never.json()["text"], text);
}

#[test]
fn what_was_found_damaged_is_on_a_list_until_all_is_whole() {
    let faulty = Faulty::new();
    let fault = [("FAULT", "flip"), ("FAULT_FROM", "40")];
    faulty.run("buffered", &fault, &[]).fails(3, &["digest"]);
    let listed = |more: &[&str]| {
        let args = ["doctor", "model", "--json"].iter().chain(more);
        let findings = faulty.world.run(args).json()["findings"].clone();
        let findings = findings.as_array().cloned().expect("a list");
        let found = findings.into_iter().find(|f| f["id"] == "quarantine");
        found.expect("it was looked at")
    };
    let found = listed(&[]);
    assert_eq!(found["severity"], "warning", "{found}");
    let what = found["what"].as_str().expect("a text");
    assert!(
        what.contains("expert ") && what.contains("digest"),
        "{what}"
    );
    assert_eq!(listed(&["--deep"])["severity"], "ok");
    let found = listed(&[]);
    assert_eq!(
        found["what"], "no run has found an expert damaged",
        "{found}"
    );
}

#[test]
fn a_conversation_goes_on_when_the_disk_is_back() {
    let faulty = Faulty::new();
    let copied = faulty.world.path("copy");
    std::fs::create_dir(&copied).expect("a directory");
    for entry in std::fs::read_dir(faulty.world.path("model")).expect("lists") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, copied.join(path.file_name().expect("a name"))).expect("copies");
    }
    let sound = faulty.run("buffered", &[], &[]).json();
    // One of two copies that fails now and then is made up for by the other.
    let gone = [("FAULT", "gone"), ("FAULT_MS", "300"), ("FAULT_EVERY", "3")];
    let ran = faulty.run("buffered", &gone, &["--mirror", "copy"]);
    assert_eq!(ran.json()["text"], sound["text"]);
    let refused = faulty.run("buffered", &[], &["--mirror", "nowhere"]);
    refused.fails_with(1);
    std::fs::remove_file(copied.join("lamella.json")).expect("removes");
    assert_ne!(
        faulty.run("buffered", &[], &["--mirror", "copy"]).code,
        Some(0)
    );
}
