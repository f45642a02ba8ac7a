//! `--speculate` and `--draft-tokens`: the same answers, whoever drafts.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::World;
use serde_json::Value;

const REPEAT: &str = "Repeat after me: the red fox sings the red fox sings";

fn ask(world: &World, more: &[&str]) -> Value {
    let args = ["run", "demo", "--json"].iter().chain(more);
    world.run(args).json()
}

#[test]
fn drafts_never_change_an_answer() {
    let world = World::new();
    let requests: [&[&str]; 4] = [
        &[REPEAT],
        &["Count from 3 to 47."],
        &["Tell me a story.", "--temperature", "1.5", "--seed", "3"],
        &[
            "--raw",
            "one two one two one two",
            "--max-tokens",
            "60",
            "--logit-bias",
            "0=-inf,2=-inf",
        ],
    ];
    for request in requests {
        let with = |more: &[&str]| ask(&world, &[request, more].concat());
        let plain = with(&["--speculate", "off"]);
        assert_eq!(plain["speculation"], Value::Null);
        for more in [
            &[][..],
            &["--speculate", "auto"],
            &["--speculate", "lookup"],
            &["--speculate", "lookup", "--draft-tokens", "1"],
            &["--speculate", "lookup", "--draft-tokens", "32"],
        ] {
            let drafted = with(more);
            for key in ["text", "ids", "finish_reason", "usage"] {
                assert_eq!(drafted[key], plain[key], "{more:?} {request:?}");
            }
            let count = |key: &str| drafted["speculation"][key].as_u64().unwrap();
            assert!(count("accepted") <= count("drafted"), "{drafted}");
            assert!(count("passes") <= count("drafted"), "{drafted}");
        }
    }
}

#[test]
fn a_chat_drafts_and_remembers() {
    let world = World::new();
    let lines = format!(
        "{REPEAT}\n{REPEAT}\n/set speculate head\n/set speculate off\nWhat is the capital of \
         Kenya?\n"
    );
    let run = |more: &[&str]| {
        let args = [&["run", "demo", "--chat", "--json"], more].concat();
        let ran = world.run_with_input(&args, &lines);
        let answers: Vec<Value> = ran
            .ok()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        answers
    };
    let (plain, drafted) = (
        run(&["--speculate", "off"]),
        run(&["--speculate", "lookup"]),
    );
    assert_eq!((plain.len(), drafted.len()), (3, 3));
    for (a, b) in plain.iter().zip(&drafted) {
        assert_eq!((&a["ids"], &a["usage"]), (&b["ids"], &b["usage"]));
    }
    // The demo model has no draft head; the setting is refused and the chat goes on.
    assert!(drafted[0]["speculation"].is_object());
    assert!(drafted[2]["speculation"].is_null(), "it was switched off");
}

#[test]
fn the_settings_have_one_name_everywhere() {
    let world = World::new();
    let mut command = world.command(["run", "demo", "--json", "Spell the word river."]);
    command.env("LAMELLA_SPECULATE", "off");
    let by_variable = common::Ran::of(command.output().unwrap()).json();
    assert_eq!(by_variable["speculation"], Value::Null);
    std::fs::write(
        world.path("lamella.toml"),
        "speculate = \"off\"\ndraft_tokens = 3\n",
    )
    .unwrap();
    let by_file = ask(&world, &["Spell the word river."]);
    assert_eq!(by_file["speculation"], Value::Null);
    let typed = ask(&world, &["Spell the word river.", "--speculate", "lookup"]);
    assert!(typed["speculation"].is_object());
    let cases: [(&[&str], &[&str]); 4] = [
        (
            &["--speculate", "head"],
            &["no draft head", "the model has none"],
        ),
        (
            &["--speculate", "always"],
            &["--speculate", "always", "lookup"],
        ),
        (
            &["--draft-tokens", "0"],
            &["--draft-tokens", "from 1 to 32"],
        ),
        (
            &["--draft-tokens", "33"],
            &["--draft-tokens", "from 1 to 32"],
        ),
    ];
    for (more, words) in cases {
        let args = ["run", "demo", "hi"].iter().chain(more);
        world.run(args).fails(2, words);
    }
}
