//! What is refused, and how it is told: foreign files, pipes in the place of files, options that
//! change nothing, numbers out of range.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Ran, World, repository};
use serde_json::{Value, json};
use std::path::Path;

const LAYERS: [&str; 6] = ["exec", "demo", "--tokens", "1,2", "--layers", "d"];
const RESUME: [&str; 7] = [
    "exec", "demo", "--tokens", "1,2", "--layers", "d", "--resume",
];

/// A copy of the demo model in the new directory `to`.
fn demo_copy(to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(repository("demo/model")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn layers_overwrite_nothing_foreign() {
    let world = World::new();
    std::fs::create_dir(world.path("d")).unwrap();
    for name in [
        "manifest.json",
        "layer-000.f32",
        "journal.jsonl",
        "notes.txt",
    ] {
        let path = world.path("d").join(name);
        std::fs::write(&path, "mine").unwrap();
        for args in [&LAYERS[..], &RESUME] {
            world.run(args).fails(2, &["--layers", "d/", name, "empty"]);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert_eq!(std::fs::read_dir(world.path("d")).unwrap().count(), 1);
        std::fs::remove_file(&path).unwrap();
    }
    world.run(["convert", "demo", "c", "--encoding", "q8"]).ok();
    let mut args = LAYERS;
    args[5] = "c";
    world.run(args).fails(2, &["--layers", "c/"]);
    world.run(["verify", "c"]).ok();
    // What a run leaves that is ended before its first file.
    std::fs::write(world.path("d/.lamella-abc"), "").unwrap();
    world.run(LAYERS).ok();
    world.run(RESUME).ok();
}

#[cfg(target_os = "linux")]
#[test]
fn pipes_among_the_layers_are_refused_and_not_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let world = World::new();
    world.run(LAYERS).ok();
    for name in [
        "run.json",
        "layer-001.f32",
        "journal.jsonl",
        "manifest.json",
    ] {
        let path = world.path("d").join(name);
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        world.run(RESUME).fails(2, &[name, "not a regular file"]);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, kept).unwrap();
    }
    world.run(RESUME).ok();
}

#[test]
fn texts_are_checked_before_weights() {
    let world = World::new();
    demo_copy(&world.path("m"));
    // Weights that cannot be opened in this much memory.
    let run = || world.run(["run", "m", "x", "--memory", "1K"]);
    run().fails(4, &["memory"]);
    let removed = |name: &str| {
        std::fs::remove_file(world.path("m").join(name)).unwrap();
        run()
    };
    // The template is in two places.
    let config = world.path("m/tokenizer_config.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    value.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(&config, value.to_string()).unwrap();
    removed("chat_template.jinja").fails(3, &["m", "template", "--raw"]);
    removed("tokenizer.json").fails(3, &["m", "tokenizer.json"]);
}

#[test]
fn a_tokenizer_of_another_model_is_named() {
    let world = World::new();
    demo_copy(&world.path("m"));
    let path = world.path("m/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(world.path("m/config.json")).unwrap()).unwrap();
    let vocabulary = config["vocab_size"].take().as_u64().unwrap();
    let most = tokenizer["model"]["vocab"].as_object().unwrap().len() as u64;
    for id in most..=vocabulary {
        let added = json!({"id": id, "content": format!("<more{id}>"), "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": false});
        let there = tokenizer["added_tokens"].as_array_mut().unwrap();
        if there.iter().all(|token| token["id"] != id) {
            there.push(added);
        }
    }
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let text = format!("A word <more{vocabulary}> and another.");
    std::fs::write(world.path("text"), &text).unwrap();
    let words = ["m/tokenizer.json", &vocabulary.to_string(), "vocabulary"];
    world.run(["perplexity", "m", "text"]).fails(3, &words);
    world.run(["run", "m", &text]).fails(3, &words);
    world.run(["run", "m", &text, "--raw"]).fails(3, &words);
}

#[test]
fn raw_refuses_what_only_chats_read() {
    let world = World::new();
    std::fs::write(world.path("t.json"), "[]").unwrap();
    let options: [&[&str]; 5] = [
        &["--system", "Be brief."],
        &["--tools", "t.json"],
        &["--thinking", "on"],
        &["--reasoning-effort", "low"],
        &["--hide-thinking"],
    ];
    let base = ["run", "demo", "Once", "--raw", "--max-tokens", "1"];
    for option in options {
        let ran = world.run(base.iter().chain(option));
        ran.fails(2, &["--raw", option[0]]);
    }
    // A layer below speaks to chats as well.
    std::fs::write(world.path("lamella.toml"), "system = \"Be brief.\"").unwrap();
    world.run(base).ok();
}

#[test]
fn tools_that_declare_nothing_are_refused() {
    let world = World::new();
    let good = json!({"type": "function", "function": {"name": "now"}});
    let bad = [
        json!(1),
        json!({}),
        json!({"function": {}}),
        json!({"function": {"name": ""}}),
    ];
    // A template that reads tools.
    demo_copy(&world.path("m"));
    let template = world.path("m/chat_template.jinja");
    let text = std::fs::read_to_string(&template).unwrap();
    std::fs::write(&template, format!("{{% if tools %}}{{% endif %}}{text}")).unwrap();
    let run = |tools: Value| {
        std::fs::write(world.path("t.json"), tools.to_string()).unwrap();
        world.run([
            "run",
            "m",
            "Hello",
            "--tools",
            "t.json",
            "--max-tokens",
            "1",
        ])
    };
    for tool in bad {
        run(json!([good, tool])).fails(2, &["--tools", "t.json", "index 1"]);
    }
    run(json!([good])).ok();
}

#[test]
fn numbers_out_of_range_are_told_with_the_range() {
    let world = World::new();
    let cases: [(&[&str], &str); 7] = [
        (&["--temperature", "-1"], "at least 0"),
        (&["--top-p", "-0.5"], "above 0"),
        (&["--seed", "-1"], "a whole number below 2^64"),
        (&["--top-k", "-3"], "a whole number"),
        (&["--threads", "0"], "at least 1"),
        (&["-t", "-2"], "at least 1"),
        (&["--draft-tokens", "0"], "from 1 to"),
    ];
    for (option, range) in cases {
        let ran = world.run(["run", "demo", "x"].iter().chain(option));
        ran.fails(2, &[option[1], "must be", range]);
        assert!(!ran.err.contains("-- -"), "{ran:?}");
        assert!(!ran.err.contains("18446744073709551615"), "{ran:?}");
    }
}

#[test]
fn random_seeds_fit_a_configuration_file() {
    let world = World::new();
    for _ in 0..4 {
        let json = world
            .run(["run", "demo", "Hello", "--json", "--max-tokens", "1"])
            .json();
        let seed = json["seed"].as_u64().unwrap();
        assert!(seed < 1 << 63, "{seed}");
        std::fs::write(world.path("seed.toml"), format!("seed = {seed}")).unwrap();
        world.run(["config", "--config", "seed.toml"]).ok();
    }
    let most = u64::MAX.to_string();
    let args = [
        "run",
        "demo",
        "Hello",
        "--json",
        "--max-tokens",
        "1",
        "--seed",
        &most,
    ];
    assert_eq!(world.run(args).json()["seed"], u64::MAX);
}

#[cfg(target_os = "linux")]
#[test]
fn write_errors_name_the_file_that_was_asked_for() {
    let world = World::new();
    let lamella = env!("CARGO_BIN_EXE_lamella");
    // A limit that the logits exceed, first while they are written and then when they are flushed.
    for tokens in ["1,2,3,4,5,6,7,8", "1"] {
        let mut command = std::process::Command::new("sh");
        command
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 1; exec \"$@\"",
                "sh",
                lamella,
            ])
            .args(["exec", "m", "--logits", "a.f32", "--tokens", tokens])
            .current_dir(world.path(""))
            .env("HOME", world.path(""));
        if !world.path("m").exists() {
            demo_copy(&world.path("m"));
        }
        let ran = Ran::of(command.output().unwrap());
        assert!(
            ran.code == Some(1) && ran.err.starts_with("lamella: a.f32: "),
            "{ran:?}"
        );
        assert!(!ran.err.contains(".lamella-"), "{ran:?}");
    }
    let args = ["exec", "demo", "--tokens", "1", "--logits", "none/a.f32"];
    let ran = world.run(args);
    ran.fails(1, &["none/a.f32: "]);
    assert!(!ran.err.contains(".lamella-"), "{ran:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_configuration_file_has_an_end() {
    let world = World::new();
    world
        .run(["config", "--config", "/dev/zero"])
        .fails(2, &["/dev/zero", "regular file"]);
    std::fs::write(world.path("long.toml"), " ".repeat((1 << 20) + 1)).unwrap();
    world
        .run(["config", "--config", "long.toml"])
        .fails(2, &["long.toml", "1048576"]);
    // As a shell's process substitution.
    let ran = world.run_with_input(&["config", "--config", "/dev/stdin"], "top_k = 7\n");
    assert!(ran.ok().contains("top_k = 7"), "{ran:?}");
}

#[test]
fn a_file_too_many_in_the_cache_is_replaced() {
    let world = World::new();
    world.run(["inspect", "demo"]).ok();
    let cache = world.path(".cache/lamella");
    let entry = std::fs::read_dir(&cache).unwrap().next().unwrap().unwrap();
    let stray = entry.path().join("lamella.json");
    std::fs::write(&stray, "{}").unwrap();
    world.run(["inspect", "demo"]).ok();
    assert!(!stray.exists());
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
}
