//! What comes from strangers or is absurdly large: an error with its code, never an abort.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::models::forge;
use common::{World, fixture, repository};
use serde_json::Value;

#[test]
fn a_claimed_context_allocates_nothing() {
    let world = World::new();
    world
        .run(["convert", &fixture(), "c", "--encoding", "q8"])
        .ok();
    let claim = |context: u64| {
        forge(&world.path("c"), |program| {
            program["dims"]["context"] = context.into();
        });
    };
    for backend in ["cpu", "reference"] {
        let args = ["exec", "c", "--tokens", "1,2", "--backend", backend];
        for absurd in [1 << 60, u64::MAX / 2] {
            claim(absurd);
            world.run(args).fails(3, &["program.json", "context"]);
        }
        // The largest that a program may claim.
        claim((1 << 31) - 1);
        let words = ["not enough memory", "context of 2147483647", "--context"];
        let limited = args.into_iter().chain(["--memory", "1G"]);
        world.run(limited.clone()).fails(4, &words);
        world.run(limited.chain(["--context", "64"])).ok();
        world.run(args.into_iter().chain(["--context", "64"])).ok();
        // The files themselves are sound, and inspection computes nothing.
        world.run(["inspect", "c"]).ok();
    }
}

#[test]
fn a_program_of_no_version_is_refused() {
    let world = World::new();
    world
        .run(["convert", &fixture(), "c", "--encoding", "q8"])
        .ok();
    forge(&world.path("c"), |program| program["version"] = 0.into());
    for command in ["inspect", "verify"] {
        world
            .run([command, "c"])
            .fails(3, &["program.json", "version is 0"]);
    }
}

#[test]
fn a_container_without_its_manifest_says_so() {
    let world = World::new();
    world
        .run(["convert", &fixture(), "c", "--encoding", "q8"])
        .ok();
    std::fs::remove_file(world.path("c/lamella.json")).unwrap();
    for command in ["inspect", "verify"] {
        let ran = world.run([command, "c"]);
        ran.fails(3, &["c: ", "no lamella.json"]);
        assert!(!ran.err.contains("PyTorch"), "{ran:?}");
    }
}

#[test]
fn verify_lists_everything_once() {
    let world = World::new();
    world.run(["convert", "demo", "c", "--encoding", "q8"]).ok();
    let damage = |count: usize| {
        let ran = world.run(["verify", "c"]);
        ran.fails(3, &["c: ", &format!("{count} damaged")]);
        assert_eq!(ran.out.lines().count(), count, "{ran:?}");
        let json = world.run(["verify", "c", "--json"]);
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["damage"].as_array().unwrap().len(), count);
        ran.out
    };
    std::fs::remove_file(world.path("c/tokenizer.json")).unwrap();
    assert!(damage(1).contains("tokenizer.json"));
    let packs = std::fs::read_dir(world.path("c")).unwrap();
    let mut packs: Vec<_> = packs.map(|entry| entry.unwrap().path()).collect();
    packs.retain(|path| path.extension().is_some_and(|e| e == "pack"));
    std::fs::remove_file(&packs[0]).unwrap();
    let list = damage(2);
    assert!(list.contains(packs[0].file_name().unwrap().to_str().unwrap()));
    world.run(["run", "c", "x"]).fails(3, &["no such file"]);
}

#[test]
fn absurd_counts_name_the_option_and_the_limit() {
    let world = World::new();
    let most = u64::MAX.to_string();
    let large = "99999999999";
    let cases: [&[&str]; 7] = [
        &["exec", "demo", "--tokens", "1", "--generate", &most],
        &["exec", "demo", "--tokens", "1", "--generate", large],
        &["bench", "demo", "-n", "0", "-p", &most],
        &["bench", "demo", "-p", "0", "-n", &most],
        &["bench", "demo", "-p", "0", "-n", "4", "-b", large],
        &["bench", "demo", "-p", "0", "-n", "4", "-r", large],
        &["bench", "demo", "-p", "0", "-n", "4", "-r", &most],
    ];
    let names = [
        ("--generate", "16777216"),
        ("--generate", "16777216"),
        ("--prompt", "16777216"),
        ("--decode", "16777216"),
        ("--batch", "65536"),
        ("--repeat", "1000000"),
        ("--repeat", "1000000"),
    ];
    for (args, (option, limit)) in cases.into_iter().zip(names) {
        world.run(args).fails(2, &[option, limit]);
    }
}

#[test]
fn what_the_context_does_not_hold_is_refused_before_computing() {
    let world = World::new();
    let many = vec!["1"; 1025].join(",");
    let text = repository("demo/heldout_text.txt").display().to_string();
    let cases: [(&[&str], &str); 4] = [
        (&["exec", "demo", "--tokens", &many], "--tokens"),
        (&["bench", "demo", "-p", "1025", "-n", "0"], "--prompt"),
        (&["bench", "demo", "-p", "0", "-n", "1025"], "--decode"),
        (
            &["perplexity", "demo", &text, "--window", "99999999"],
            "--window",
        ),
    ];
    for (args, option) in cases {
        world.run(args).fails(2, &[option, "context"]);
    }
    // What fits is given, and what does not is told.
    let args = ["exec", "demo", "--tokens", "1,2", "--context", "5"];
    let ran = world.run(args.into_iter().chain(["--generate", "100"]));
    assert_eq!(ran.ok().trim().split(',').count(), 4, "{ran:?}");
    for word in ["warning", "--generate", "4 of 100"] {
        assert!(ran.err.contains(word), "{ran:?}");
    }
    let json = world.run(args.into_iter().chain(["--generate", "100", "--json"]));
    assert_eq!(json.json()["end"], "context_full");
    let exact = world.run(args.into_iter().chain(["--generate", "4", "--json"]));
    assert_eq!(exact.json()["end"], "complete");
}

#[test]
fn bench_keeps_to_the_memory_limit() {
    let world = World::new();
    let args = [
        "bench", "demo", "-p", "0", "-n", "2", "-r", "1", "-t", "1", "--memory", "100M",
    ];
    // There is room for the model, and none for measuring the memory.
    let ran = world.run(args);
    ran.ok();
    for words in ["read bandwidth is not measured", "the one that was set"] {
        assert!(ran.err.contains(words), "{ran:?}");
    }
    let quiet = world.run(args.into_iter().chain(["--no-bandwidth"]));
    quiet.ok();
    assert!(!quiet.err.contains("bandwidth"), "{quiet:?}");
    let many = args.into_iter().chain(["--no-bandwidth", "-b", "60000"]);
    world.run(many).fails(4, &["--decode 2 --batch 60000"]);
}

#[cfg(unix)]
#[test]
fn streams_without_an_end_and_pipes_do_not_hang() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let world = World::new();
    world
        .run(["exec", "demo", "--tokens", "@/dev/zero"])
        .fails(2, &["--tokens", "/dev/zero", "67108864"]);
    world
        .run(["exec", "demo", "--tokens", "@"])
        .fails(2, &["--tokens", "file"]);
    world
        .run(["exec", "demo", "--tokens", "1", "--layers", "/dev/null"])
        .fails(2, &["--layers", "/dev/null", "not a directory"]);
    for name in ["lock", "journal.new"] {
        let partial = world.path("out.partial");
        std::fs::create_dir(&partial).unwrap();
        let pipe = partial.join(name);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        world
            .run(["convert", &fixture(), "out", "--encoding", "q8"])
            .fails(1, &[name, "not a regular file"]);
        std::fs::remove_dir_all(&partial).unwrap();
    }
}

#[test]
fn source_policies_say_what_is_so() {
    let world = World::new();
    world
        .run(["convert", &fixture(), "c", "--encoding", "q8"])
        .ok();
    let run = |model: &str, encoding: &str, source: &str| {
        let base = ["exec", model, "--tokens", "1", "-q"];
        world.run(
            base.into_iter()
                .chain(["--encoding", encoding, "--source", source]),
        )
    };
    let checkpoint = fixture();
    run(&checkpoint, "q8", "transient").ok();
    run(&checkpoint, "q8", "stored").fails(2, &["q8", "policy `stored`", "`auto` (", "--source)"]);
    run(&checkpoint, "f16", "auto").fails(2, &["f16", "convert --encoding f16"]);
    run("c", "q8", "stored").ok();
    run("c", "q8", "transient").fails(2, &["it is stored", "policy `transient`", "--source)"]);
    run("c", "q4", "auto").fails(2, &["q4", "only q8 is stored", "from the checkpoint"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_named() {
    let world = World::new();
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    for args in [&["version"][..], &["inspect", "demo"], &["--help"]] {
        let mut command = world.command(args);
        let output = command.stdout(full()).output().unwrap();
        common::Ran::of(output).fails(4, &["standard output"]);
    }
}

#[test]
fn errors_of_texts_name_the_model() {
    let world = World::new();
    world.run(["convert", "demo", "m", "--encoding", "q8"]).ok();
    let checkpoint = world.path("m2");
    std::fs::create_dir(&checkpoint).unwrap();
    for entry in std::fs::read_dir(repository("demo/model")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, checkpoint.join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(
        checkpoint.join("generation_config.json"),
        "{\"eos_token_id\": 99999}",
    )
    .unwrap();
    world
        .run(["run", "m2", "x"])
        .fails(3, &["m2: generation_config.json: `eos_token_id`", "99999"]);
    let lines = "/set stop\n/set temperature 1e300\n/set logit_bias 9999=1\n/set temperature 0.5\n\
                 /set temperature default\n/set\nWhat is the capital of Kenya?\n";
    let ran = world.run_with_input(&["run", "m", "--chat"], lines);
    assert!(ran.ok().contains("Nairobi"), "{ran:?}");
    for word in [
        "stop: a value is missing",
        "1e300",
        "9999",
        "temperature = (the model's default)",
    ] {
        assert!(ran.err.contains(word), "{word:?} {ran:?}");
    }
    world
        .run(["run", "m", "x", "--stop", ""])
        .fails(2, &["--stop"]);
}
