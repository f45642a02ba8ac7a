//! `lamella run`: answers, chat, interruption.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{Ran, World};
use serde_json::Value;

const QUESTION: &str = "What is the capital of Kenya?";
const ANSWER: &str = "The capital of Kenya is Nairobi.";

#[test]
fn one_question_one_answer() {
    let world = World::new();
    let ran = world.run(["run", "demo", QUESTION]);
    assert_eq!(ran.ok(), format!("{ANSWER}\n"));
    assert!(
        ran.err.contains("tok/s") && ran.err.contains("stop"),
        "{ran:?}"
    );
    // A directory called demo changes nothing.
    std::fs::create_dir(world.path("demo")).unwrap();
    std::fs::write(world.path("demo/config.json"), "{}").unwrap();
    assert_eq!(
        world.run(["run", "demo", QUESTION, "--quiet"]).ok(),
        format!("{ANSWER}\n")
    );
    for directory in ["./demo", "demo/"] {
        world.run(["run", directory, QUESTION]).fails(3, &["demo"]);
    }
    let piped = world.run_with_input(&["run", "demo", "-q"], format!("{QUESTION}\n"));
    assert_eq!(
        (piped.ok(), piped.err.as_str()),
        (format!("{ANSWER}\n").as_str(), "")
    );
    world
        .run_with_input(&["run", "demo"], "\n")
        .fails(2, &["no prompt"]);
}

#[test]
fn json_has_text_ids_usage_and_timings() {
    let world = World::new();
    let json = world.run(["run", "demo", QUESTION, "--json"]).json();
    assert_eq!(json["text"], ANSWER);
    assert_eq!(json["finish_reason"], "stop");
    let count = |key: &str| json["usage"][key].as_u64().unwrap();
    assert_eq!(
        json["ids"].as_array().unwrap().len() as u64,
        count("completion_tokens")
    );
    assert_eq!(
        count("total_tokens"),
        count("prompt_tokens") + count("completion_tokens")
    );
    assert_eq!(count("cached_tokens"), 0);
    for key in [
        "open_ms",
        "prompt_ms",
        "prompt_per_second",
        "decode_ms",
        "decode_per_second",
    ] {
        assert!(json["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn answers_end_where_they_are_told_to() {
    let world = World::new();
    let ask = |more: &[&str]| {
        let mut args = vec!["run", "demo", QUESTION, "--json"];
        args.extend(more);
        world.run(args).json()
    };
    let short = ask(&["--max-tokens", "2"]);
    assert_eq!(
        (
            &short["finish_reason"],
            short["ids"].as_array().unwrap().len()
        ),
        (&"length".into(), 2)
    );
    let stopped = ask(&["--stop", "Nairobi"]);
    assert_eq!(stopped["text"], "The capital of Kenya is ");
    assert_eq!(stopped["finish_reason"], "stop_string");
    let seeded = |seed: &str| ask(&["--temperature", "3", "--seed", seed, "--max-tokens", "20"]);
    assert_eq!(seeded("1")["ids"], seeded("1")["ids"]);
    assert_ne!(seeded("1")["ids"], seeded("2")["ids"]);
    let banned = ask(&["--logit-bias", "320=-inf", "--max-tokens", "1"]);
    assert_ne!(banned["ids"][0], 320);
    world
        .run(["run", "demo", "x", "--logit-bias", "5000=1"])
        .fails(2, &["5000"]);
    let raw = world.run([
        "run",
        "demo",
        "--raw",
        "-q",
        "--max-tokens",
        "8",
        "Once upon a time",
    ]);
    assert!(raw.ok().trim().len() > 3, "{raw:?}");
}

#[test]
fn a_prompt_beyond_the_context_says_both_numbers() {
    let world = World::new();
    let long = "word ".repeat(2000);
    world.run(["run", "demo", &long]).fails(2, &["1024"]);
}

/// The JSON lines of a chat through a pipe.
fn chat(world: &World, args: &[&str], lines: &str) -> (Vec<Value>, String) {
    let mut all = vec!["run", "demo", "--chat", "--json"];
    all.extend(args);
    let Ran { code, out, err } = world.run_with_input(&all, lines);
    assert_eq!(code, Some(0), "{err}");
    (
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        err,
    )
}

#[test]
fn a_chat_remembers_and_reads_nothing_twice() {
    let world = World::new();
    let lines = "My name is Tovika.\nWhat is my name?\n";
    let (answers, _) = chat(&world, &[], lines);
    assert_eq!(answers.len(), 2);
    assert!(
        answers[1]["text"].as_str().unwrap().contains("Tovika"),
        "{answers:?}"
    );
    let usage = |key: &str| answers[1]["usage"][key].as_u64().unwrap();
    assert!(usage("cached_tokens") > 10 && usage("cached_tokens") < usage("prompt_tokens"));
    // The same conversation read in one piece gives the same answer, bit for bit.
    let (chunked, _) = chat(&world, &["--chunk", "3"], lines);
    assert_eq!(chunked[1]["ids"], answers[1]["ids"]);
}

#[test]
fn commands_of_a_chat() {
    let world = World::new();
    let lines = "/help\nMy name is Tovika.\n/undo\nWhat is the capital \\\nof Kenya?\n/clear\n\
                 /set max_tokens 2\n/set\n/nonsense\n/set top_k many\n\"\"\"\nWhat is the capital \
                 of Peru?\n\"\"\"\n/system Answer briefly.\n/exit\nnever read\n";
    let (answers, err) = chat(&world, &[], lines);
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert_eq!(answers[2]["ids"].as_array().unwrap().len(), 2);
    for text in [
        "/undo",
        "Taken back.",
        "max_tokens = 2",
        "/nonsense is no command",
        "top_k",
    ] {
        assert!(err.contains(text), "{text:?} is not in {err}");
    }
}

#[cfg(unix)]
mod interruption {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Stdio};

    fn start(world: &World, args: &[&str]) -> Child {
        let mut command = world.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn interrupt(child: &Child) {
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
    }

    /// A long answer: no stop token can be chosen.
    const ENDLESS: [&str; 6] = [
        "--logit-bias",
        "0=-inf,2=-inf",
        "--backend",
        "reference",
        "--max-tokens",
        "900",
    ];

    #[test]
    fn a_single_answer_ends_with_code_130() {
        let world = World::new();
        let mut args = vec!["run", "demo", "Tell me a story about a fox named Lucy."];
        args.extend(ENDLESS);
        let mut child = start(&world, &args);
        let mut first = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        interrupt(&child);
        let ran = Ran::of(child.wait_with_output().unwrap());
        ran.fails(130, &["interrupted"]);
        assert!(ran.out.ends_with('\n'), "the line is ended");
    }

    #[test]
    fn a_chat_goes_on_after_a_stopped_answer() {
        let world = World::new();
        let mut args = vec!["run", "demo", "--chat"];
        args.extend(ENDLESS);
        let mut child = start(&world, &args);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdin
            .write_all(b"Tell me a story about a fox named Lucy.\n")
            .unwrap();
        let mut first = [0];
        stdout.read_exact(&mut first).unwrap();
        interrupt(&child);
        let mut rest = String::new();
        stdout.read_line(&mut rest).unwrap();
        stdin
            .write_all(b"/set max_tokens 7\nWhat is the capital of Kenya?\n")
            .unwrap();
        drop(stdin);
        rest.clear();
        stdout.read_to_string(&mut rest).unwrap();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains("interrupted]"), "{ran:?}");
        assert!(
            rest.contains("Nairobi") || !rest.trim().is_empty(),
            "{rest}"
        );
    }
}

#[test]
fn a_failed_turn_is_told_to_the_quiet_and_in_json() {
    let world = World::new();
    let input = format!(
        "{}\n/nothing\n/set top_k x\n{QUESTION}\n",
        "word ".repeat(3000)
    );
    let ran = world.run_with_input(&["run", "demo", "--chat", "-q"], &input);
    assert_eq!(ran.ok(), format!("{ANSWER}\n"));
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    for (line, word) in lines.iter().zip(["context", "/nothing", "top_k"]) {
        assert!(
            line.starts_with("lamella: ") && line.contains(word),
            "{ran:?}"
        );
    }
    let ran = world.run_with_input(&["run", "demo", "--chat", "-q", "--json"], &input);
    let objects: Vec<Value> = ran
        .ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 2, "{ran:?}");
    assert!(
        objects[0]["error"].as_str().unwrap().contains("context"),
        "{ran:?}"
    );
    assert_eq!(objects[1]["text"], ANSWER);
}
