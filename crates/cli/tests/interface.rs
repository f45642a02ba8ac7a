//! What scripts rely on: help, exit codes, configuration, one line of error.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, fixture};

#[test]
fn help_teaches_every_command() {
    let world = World::new();
    let help = world.run(["--help"]);
    let commands = [
        "run",
        "convert",
        "inspect",
        "verify",
        "ops",
        "exec",
        "perplexity",
        "bench",
        "trace",
    ];
    for command in commands
        .into_iter()
        .chain(["config", "completions", "man", "version"])
    {
        assert!(
            help.ok().contains(&format!("  {command} ")),
            "{command} is not in the help"
        );
        assert!(
            world
                .run([command, "--help"])
                .ok()
                .contains("Usage: lamella"),
            "{command}"
        );
    }
    for text in ["Exit codes:", "Examples:", "LAMELLA_MAX_TOKENS", "./demo"] {
        assert!(help.ok().contains(text), "{text}");
    }
    assert!(world.run(["--version"]).ok().starts_with("lamella 0."));
    let nothing = world.run::<&str>([]);
    nothing.fails(2, &["a command is needed"]);
    assert!(nothing.err.contains("Usage: lamella"));
}

#[test]
fn wrong_usage_is_one_line_and_code_2() {
    let world = World::new();
    let cases: [(&[&str], &[&str]); 7] = [
        (&["run"], &["<MODEL>", "--help"]),
        (&["dance"], &["dance"]),
        (
            &["run", "demo", "hi", "--max-token", "1"],
            &["--max-token", "--max-tokens"],
        ),
        (
            &["run", "demo", "hi", "--top-p", "2"],
            &["--top-p", "at most 1"],
        ),
        (&["exec", "demo", "--tokens", "1,x"], &["\"x\"", "index 1"]),
        (
            &["exec", "demo", "--tokens", "2048"],
            &["2048", "vocabulary"],
        ),
        (
            &["run", "demo", "hi", "--context", "99999"],
            &["context", "1024"],
        ),
    ];
    for (args, words) in cases {
        let ran = world.run(args);
        ran.fails(2, words);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(ran.out.is_empty());
    }
}

#[test]
fn configuration_errors_name_the_key() {
    let world = World::new();
    std::fs::write(world.path("lamella.toml"), "max_token = 3\n").unwrap();
    let ran = world.run(["run", "demo", "hi"]);
    ran.fails(
        2,
        &["lamella.toml", "max_token", "did you mean max_tokens?"],
    );
    std::fs::write(world.path("lamella.toml"), "top_k = 5\n").unwrap();
    let mut command = world.command(["config"]);
    let ran = common::Ran::of(command.env("LAMELLA_SEEED", "1").output().unwrap());
    ran.fails(2, &["LAMELLA_SEEED", "LAMELLA_SEED"]);
    let mut command = world.command(["config", "--seed", "7"]);
    let ran = common::Ran::of(command.env("LAMELLA_TEMPERATURE", "0.5").output().unwrap());
    let text = ran.ok();
    for line in ["top_k = 5  # lamella.toml", "seed = 7  # flag"] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
    assert!(text.contains("# LAMELLA_TEMPERATURE"), "{text}");
    // What it prints is a configuration again.
    std::fs::write(world.path("again.toml"), text).unwrap();
    let again = world
        .run(["config", "--config", "again.toml", "--json"])
        .json();
    assert_eq!(again["top_k"]["values"][0], "5");
    assert_eq!(again["temperature"]["values"][0], "0.5");
    assert_eq!(again["stop"]["origin"], "default");
}

#[test]
fn failures_have_their_codes() {
    let world = World::new();
    world
        .run(["inspect", "nowhere"])
        .fails(1, &["nowhere", "no such file or directory"]);
    std::fs::create_dir(world.path("empty")).unwrap();
    world
        .run(["inspect", "empty"])
        .fails(3, &["empty", "config.json"]);
    let memory = ["exec", &fixture(), "--tokens", "1", "--memory", "1K"];
    world
        .run(memory)
        .fails(4, &["not enough memory", "1024", "--memory"]);
    world
        .run(["exec", &fixture(), "--tokens", "@gone"])
        .fails(2, &["gone"]);
    let no_tokenizer = world.run(["run", &fixture(), "hi"]);
    no_tokenizer.fails(3, &["tokenizer.json", "missing"]);
}

#[test]
fn defects_are_all_listed_with_code_3() {
    let world = World::new();
    let dir = world.path("broken");
    std::fs::create_dir(&dir).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{}/{file}", fixture()), dir.join(file)).unwrap();
    }
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let changed = config.replacen('{', "{\"mystery_key\": 3, \"other_key\": 1.5,", 1);
    std::fs::write(dir.join("config.json"), changed).unwrap();
    let ran = world.run(["ops", "broken"]);
    ran.fails(3, &["2 defects"]);
    assert!(
        ran.out.contains("mystery_key") && ran.out.contains("other_key"),
        "{ran:?}"
    );
    let json = world.run(["ops", "broken", "--json"]);
    assert_eq!(json.code, Some(3));
    let value: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value["defects"].as_array().map(Vec::len), Some(2));
    world
        .run(["exec", "broken", "--tokens", "1"])
        .fails(3, &["mystery_key"]);
}

#[test]
fn the_program_is_printed_in_its_own_words() {
    let world = World::new();
    let text = world.run(["ops", "demo"]);
    for word in [
        "layer 0 to 3",
        "Routed",
        "top_k: 2",
        "layers.0.",
        "no defects",
        "bf16",
    ] {
        assert!(text.ok().contains(word), "{word:?} is not in {}", text.out);
    }
    let json = world.run(["ops", "demo", "--json"]).json();
    assert_eq!(json["program"]["family"], "olmoe");
    assert_eq!(json["program"]["layers"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let world = World::new();
    let mut command = world.command(["ops", "demo", "--json"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let ran = common::Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn completions_pages_and_versions() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            world
                .run(["completions", shell])
                .ok()
                .contains("perplexity"),
            "{shell}"
        );
    }
    assert!(world.run(["man"]).ok().contains(".TH lamella 1"));
    world.run(["man", "pages"]).ok();
    let page = std::fs::read_to_string(world.path("pages/lamella-run.1")).unwrap();
    assert!(page.contains("max") && page.contains("Examples"));
    let version = world.run(["version", "--json"]).json();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(
        version["families"]
            .as_array()
            .unwrap()
            .contains(&"olmoe".into())
    );
    assert!(world.run(["version"]).ok().starts_with("lamella "));
}
