//! `lamella convert` and what can be done with its result.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, fixture};

#[test]
fn a_container_is_inspected_verified_and_run() {
    let world = World::new();
    world
        .run(["convert", "demo", "small", "--encoding", "q8"])
        .ok();
    let json = world.run(["inspect", "small", "--json"]).json();
    assert_eq!(json["container"], true);
    let identity = json["identity"].as_str().unwrap().to_owned();
    let text = world.run(["inspect", "small"]);
    for word in [
        identity.as_str(),
        "q8",
        "2,303,872",
        "16 in each of 4 layers",
    ] {
        assert!(text.ok().contains(word), "{word:?} is not in {}", text.out);
    }
    assert!(world.run(["verify", "small"]).ok().contains(&identity));
    let ran = world.run(["run", "small", "-q", "What is the capital of Kenya?"]);
    assert_eq!(ran.ok(), "The capital of Kenya is Nairobi.\n");
    // Stored and made-at-load packs are the same numbers.
    let ids = [
        "exec",
        "small",
        "--tokens",
        "1,284,201,723,361",
        "--logits",
        "stored.f32",
    ];
    world.run(ids).ok();
    let made = [
        "exec",
        "demo",
        "--tokens",
        "1,284,201,723,361",
        "--logits",
        "made.f32",
    ];
    world.run(made.into_iter().chain(["--encoding", "q8"])).ok();
    let read = |name: &str| std::fs::read(world.path(name)).unwrap();
    assert!(read("stored.f32") == read("made.f32"));
    // What is not there is refused with a reason.
    let bf16 = ["exec", "small", "--tokens", "1", "--encoding", "bf16"];
    world.run(bf16).fails(2, &["bf16", "q8"]);
    world
        .run(["convert", "demo", "small", "--encoding", "q4"])
        .fails(1, &["small", "exists"]);
}

#[test]
fn damage_is_named_with_code_3() {
    let world = World::new();
    let source = fixture();
    world
        .run(["convert", &source, "c", "--encoding", "q4"])
        .ok();
    assert_eq!(world.run(["verify", "c", "--json"]).json()["sound"], true);
    let packs = std::fs::read_dir(world.path("c"))
        .unwrap()
        .map(|e| e.unwrap().path());
    let pack = packs
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let name = pack.file_name().unwrap().to_str().unwrap().to_owned();
    let verify = world.run(["verify", "c"]);
    verify.fails(3, &["c", "1 damaged"]);
    assert!(verify.out.contains(&name), "{verify:?}");
    let json = world.run(["verify", "c", "--json"]);
    assert_eq!(json.code, Some(3));
    let value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&value["sound"], value["damage"].as_array().unwrap().len()),
        (&false.into(), 1)
    );
    world
        .run(["exec", "c", "--tokens", "1,2,3"])
        .fails(3, &[&name]);
}

#[test]
fn a_checkpoint_is_verified_by_reading_it() {
    let world = World::new();
    assert!(world.run(["verify", "demo"]).ok().contains("sound"));
    let dir = world.path("nan");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(
        format!("{}/config.json", fixture()),
        dir.join("config.json"),
    )
    .unwrap();
    let mut bytes = std::fs::read(format!("{}/model.safetensors", fixture())).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    let verify = world.run(["verify", "nan"]);
    verify.fails(3, &["nan", "1 damaged"]);
    assert!(verify.out.contains("NaN"), "{verify:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_conversion_says_how_to_resume() {
    use common::Ran;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::Stdio;
    use std::time::Duration;
    let world = World::new();
    let source = fixture();
    world
        .run(["convert", &source, "whole", "--encoding", "q4,q8,f32"])
        .ok();
    let mut complete = false;
    for delay in [2, 5, 10, 20, 40, 80] {
        let args = [
            "convert",
            &source,
            "cut",
            "--encoding",
            "q4,q8,f32",
            "--progress",
            "none",
        ];
        let begun_before = world.path("cut.partial").exists();
        let mut child = world.command(args).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        if child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        let ran = Ran::of(child.wait_with_output().unwrap());
        println!("after {delay} ms: {ran:?}");
        match ran.code {
            Some(0) => complete = true,
            // Before the handler is in place, the signal itself ends the process.
            None => {}
            // The handler is in place, and the command has not begun.
            Some(130) if ran.err == "lamella: interrupted\n" => {
                assert_eq!(world.path("cut.partial").exists(), begun_before, "{ran:?}");
            }
            Some(_) => ran.fails(130, &["cut: interrupted", "resumes the conversion"]),
        }
        if complete {
            break;
        }
    }
    if !complete {
        world
            .run(["convert", &source, "cut", "--encoding", "q4,q8,f32"])
            .ok();
    }
    for entry in std::fs::read_dir(world.path("whole")).unwrap() {
        let name = entry.unwrap().file_name();
        let read = |dir: &str| std::fs::read(world.path(dir).join(&name)).unwrap();
        assert!(read("whole") == read("cut"), "{name:?}");
    }
}
