//! Ctrl-C and SIGTERM: the program ends, and nothing is left lying about.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
#![cfg(target_os = "linux")]

mod common;

use common::{Ran, World};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const BOTH: [Signal; 2] = [Signal::INT, Signal::TERM];

fn start(world: &World, args: &[&str]) -> Child {
    let mut command = world.command(args);
    command
        .env("TMPDIR", world.path("tmp"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until `there` holds.
#[track_caller]
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn ends(mut child: Child) -> Ran {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ran::of(child.wait_with_output().unwrap())
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().into_string().unwrap()
    };
    entries.map(name).collect()
}

/// A world whose user has no cache: the demo model is unpacked into a temporary directory.
fn world_without_cache() -> World {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    // A file where the directory would be: also root cannot write there.
    std::fs::write(world.path(".cache"), "").unwrap();
    world
}

#[test]
fn an_idle_chat_on_a_pipe_ends() {
    for signal in BOTH {
        let world = World::new();
        std::fs::create_dir(world.path("tmp")).unwrap();
        let mut child = start(&world, &["run", "demo", "--chat"]);
        // A first answer tells that the prompt is reached; the pipe stays open and silent.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"What is the capital of Kenya?\n").unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert!(line.contains("Nairobi"), "{line}");
        std::thread::sleep(Duration::from_millis(300));
        send(&child, signal);
        ends(child).fails(130, &["interrupted"]);
        drop(stdin);
    }
}

#[test]
fn a_chat_that_never_said_anything_ends() {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let mut child = start(&world, &["run", "demo", "--chat"]);
    let stdin = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    send(&child, Signal::INT);
    ends(child).fails(130, &["interrupted"]);
    drop(stdin);
}

#[test]
fn unwritten_logits_leave_no_file() {
    for signal in BOTH {
        let world = World::new();
        std::fs::create_dir(world.path("tmp")).unwrap();
        std::fs::create_dir(world.path("out")).unwrap();
        let ids = vec!["5"; 1000].join(",");
        let args = ["exec", "demo", "--tokens", &ids, "--logits", "out/a.f32"];
        let slow = ["--backend", "reference", "--chunk", "1"];
        let child = start(&world, &[&args[..], &slow].concat());
        until("the file is begun", || {
            !names(&world.path("out")).is_empty()
        });
        send(&child, signal);
        ends(child).fails(
            130,
            &["interrupted", "of 1000 tokens", "no logits are kept"],
        );
        assert_eq!(names(&world.path("out")), [""; 0]);
    }
}

#[test]
fn an_unpacked_demo_model_goes_with_the_program() {
    let bench: &[&str] = &["bench", "demo", "-r", "1000", "--no-bandwidth"];
    let run: &[&str] = &["run", "demo", "--chat"];
    let endless: &[&str] = &["exec", "demo", "--tokens", "1", "--generate", "1000"];
    for args in [bench, run, endless] {
        for signal in BOTH {
            let world = world_without_cache();
            let mut child = start(&world, args);
            let stdin = child.stdin.take();
            until("it is unpacked", || !names(&world.path("tmp")).is_empty());
            std::thread::sleep(Duration::from_millis(100));
            send(&child, signal);
            let ran = ends(child);
            // A short run may have been quicker.
            assert!(matches!(ran.code, Some(0 | 130)), "{ran:?}");
            assert_eq!(names(&world.path("tmp")), [""; 0], "{args:?}");
            drop(stdin);
        }
    }
}

#[test]
fn layers_of_an_interrupted_run_are_counted_and_kept() {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let ids = vec!["5"; 700].join(",");
    let args = ["exec", "demo", "--tokens", &ids, "--layers", "st"];
    let child = start(&world, &[&args[..], &["--backend", "reference"]].concat());
    until("a layer is there", || {
        world.path("st/layer-000.f32").exists()
    });
    send(&child, Signal::TERM);
    let ran = ends(child);
    if ran.code != Some(0) {
        ran.fails(
            130,
            &["st: interrupted", "of 4 layers are kept", "--resume"],
        );
        assert!(!world.path("st/manifest.json").exists());
    }
    let resumed = [&args[..], &["--backend", "reference", "--resume"]].concat();
    world.run(resumed).ok();
    assert!(names(&world.path("st")).iter().all(|n| !n.starts_with('.')));
}

#[test]
fn six_first_runs_at_once_all_work() {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let children: Vec<Child> = (0..6)
        .map(|_| start(&world, &["exec", "demo", "--tokens", "1,2,3", "-q"]))
        .collect();
    let all: Vec<Ran> = children.into_iter().map(ends).collect();
    for ran in &all {
        assert_eq!(ran.ok(), all[0].out);
    }
    assert_eq!(names(&world.path(".cache/lamella")).len(), 1);
    assert_eq!(names(&world.path("tmp")), [""; 0]);
}

#[test]
fn a_hangup_that_was_to_be_ignored_is() {
    let world = World::new();
    std::fs::create_dir(world.path("tmp")).unwrap();
    let lamella = env!("CARGO_BIN_EXE_lamella");
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", lamella])
        .args(["run", "demo", "--chat"])
        .current_dir(world.path("tmp"))
        .env("HOME", world.path("tmp"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    send(&child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    stdin.write_all(b"What is the capital of Kenya?\n").unwrap();
    drop(stdin);
    let mut answer = String::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("Nairobi"), "{answer}");
    assert_eq!(ends(child).code, Some(0));
}
