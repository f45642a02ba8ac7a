//! `lamella run`: what prompts are asked for, and models whose text is not in the usual files.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::World;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const QUESTION: &str = "What is the capital of Kenya?";

#[test]
fn switches_that_the_template_does_not_read_are_refused() {
    let world = World::new();
    for (option, value) in [("--thinking", "off"), ("--reasoning-effort", "high")] {
        world
            .run(["run", "demo", QUESTION, option, value])
            .fails(2, &[option, "does not read it"]);
    }
    let ran = world.run(["run", "demo", QUESTION, "--thinking", "maybe"]);
    assert!(
        ran.code == Some(2) && ran.err.contains("on, off"),
        "{ran:?}"
    );
}

#[test]
fn tools_are_declared_to_the_model() {
    let world = World::new();
    let tool = json!([{"type": "function", "function": {"name": "now", "parameters": {}}}]);
    std::fs::write(world.path("tools.json"), tool.to_string()).unwrap();
    std::fs::write(world.path("none.json"), "{}").unwrap();
    std::fs::write(world.path("broken.json"), "[").unwrap();
    let tokens = |tools: &[&str]| {
        let args = ["run", "demo", QUESTION, "--json", "--max-tokens", "1"];
        let json = world.run([&args[..], tools].concat()).json();
        json["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens(&["--tools", "tools.json"]) > tokens(&[]) + 10);
    for (file, code, part) in [
        ("none.json", 2, "not a list"),
        ("broken.json", 2, "EOF"),
        ("absent.json", 1, "No such file"),
    ] {
        world
            .run(["run", "demo", QUESTION, "--tools", file])
            .fails(code, &["--tools", file, part]);
    }
}

/// A small checkpoint of the repository, with text of its own.
fn checkpoint(world: &World, fixture: &str, texts: &[(&str, String)]) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(fixture);
    let to = world.path(fixture);
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    for (name, text) in texts {
        std::fs::write(to.join(name), text).unwrap();
    }
    to
}

/// Every byte as a token of its rank.
fn bytes_as_ranks() -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: usize| char::from(DIGITS[bits % 64]);
    (0..256)
        .map(|byte| format!("{}{}== {byte}\n", digit(byte >> 2), digit(byte << 4)))
        .collect()
}

/// Tokens of a format whose thinking is switched.
const TAGS: [&str; 5] = [
    "[BOS]",
    "<|end_of_msg|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
];
/// Tokens of a format in which thinking has an effort only.
const BLOCKS: [&str; 10] = [
    "<|message_user|>",
    "<|message_model|>",
    "<|message_system|>",
    "<|message_tool|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_invoke_tool_json|>",
    "<|content_xml|>",
    "<|end_message|>",
    "<|content_model_end_sampling|>",
];

/// A model with `tiktoken.model`, whose `tokens` are those of a format in code.
fn model_with_ranks(world: &World, tokens: &[&str]) -> String {
    let named: serde_json::Map<_, _> = (256..)
        .zip(tokens)
        .map(|(id, token)| (format!("{id}"), json!({"content": *token, "special": true})))
        .collect();
    let config = json!({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": named});
    let texts = [
        ("tiktoken.model", bytes_as_ranks()),
        ("tokenizer_config.json", config.to_string()),
    ];
    let model = checkpoint(world, "kimi_k3-101", &texts);
    model.to_str().unwrap().to_owned()
}

#[test]
fn a_model_with_tiktoken_model_chats_in_the_format_of_its_tokens() {
    let world = World::new();
    let model = &*model_with_ranks(&world, &TAGS);
    let tokens = |options: &[&str]| {
        let args = ["run", model, "Hi", "--json", "--max-tokens", "2"];
        let json = world.run([&args[..], options].concat()).json();
        json["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let thinking = tokens(&[]);
    let without = tokens(&["--thinking", "off"]);
    // Without thought the message about its effort is not there.
    assert!(thinking > without + 100, "{thinking} {without}");
    assert_eq!(tokens(&["--reasoning-effort", "none"]), without);
    assert_eq!(tokens(&["--reasoning-effort", "high"]), thinking + 1);
    world
        .run(["run", model, "Hi", "--reasoning-effort", "medium"])
        .fails(2, &["`medium` is unknown"]);
}

/// A refusal names the option that the model has instead, and what it is that lacks the other.
#[test]
fn a_switch_that_a_format_lacks_names_the_one_it_has() {
    let world = World::new();
    let model = &*model_with_ranks(&world, &BLOCKS);
    world.run(["run", model, "Hi", "--thinking", "off"]).fails(
        2,
        &["--thinking", "chat format", "it has --reasoning-effort"],
    );
    let effort = ["--reasoning-effort", "0.5", "--max-tokens", "1"];
    world
        .run([&["run", model, "Hi"], &effort[..]].concat())
        .ok();
    let demo = world.run(["run", "demo", QUESTION, "--thinking", "off"]);
    assert!(demo.err.contains("chat template"), "{demo:?}");
    assert!(!demo.err.contains("it has"), "{demo:?}");
}

/// The demo model calls a tool; the next prompt holds the call as the model wrote it.
#[test]
fn calls_are_told_from_text_and_remembered() {
    let world = World::new();
    let tool = json!([{"type": "function", "function": {"name": "get_weather", "description":
        "Get the weather in a city.", "parameters": {"type": "object", "properties":
        {"city": {"type": "string"}}, "required": ["city"]}}}]);
    std::fs::write(world.path("tools.json"), tool.to_string()).unwrap();
    let question = "I am going to Budapest. How is the weather?";
    let asked = [
        "run",
        "demo",
        "--tools",
        "tools.json",
        "--system",
        "Answer briefly.",
    ];
    let shown = world.run([&asked[..], &[question]].concat());
    assert_eq!(shown.ok(), "[call get_weather {\"city\": \"Budapest\"}]\n");
    let lines = format!("{question}\nThank you.\n");
    let ran = world.run_with_input(&[&asked[..], &["--chat", "--json"]].concat(), lines);
    let answers: Vec<Value> = ran
        .ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let call = json!({"id": null, "type": "function", "incomplete": false, "function":
        {"name": "get_weather", "arguments": "{\"city\": \"Budapest\"}"}});
    assert_eq!(answers[0]["tool_calls"], json!([call]));
    assert_eq!(
        (&answers[0]["text"], &answers[0]["reasoning"]),
        (&json!(""), &json!(""))
    );
    let usage = |answer: usize, key: &str| answers[answer]["usage"][key].as_u64().unwrap();
    // All but the last token of the call was read when it was made.
    assert!(
        usage(1, "cached_tokens") + 1 >= usage(0, "total_tokens"),
        "{answers:?}"
    );
}

/// The prompt opens the thoughts, and the answer ends before they do.
#[test]
fn thoughts_are_marked_or_hidden() {
    let world = World::new();
    let model = model_with_ranks(&world, &TAGS);
    // Nothing but `a` can be said.
    let asked = [
        "run",
        &model,
        "Hi",
        "--max-tokens",
        "4",
        "--logit-bias",
        "97=1000",
    ];
    let json = world.run([&asked[..], &["--json"]].concat()).json();
    assert_eq!(
        (&json["reasoning"], &json["text"]),
        (&json!("aaaa"), &json!(""))
    );
    let shown = world.run(asked);
    assert_eq!(shown.ok(), "[thinking]\naaaa\n[/thinking]\n");
    let hidden = world.run([&asked[..], &["--hide-thinking"]].concat());
    assert_eq!(hidden.ok(), "\n");
    let raw = world.run([&asked[..], &["--raw"]].concat());
    assert_eq!(raw.ok(), "aaaa\n");
    // Stop strings are for the answer, not for thoughts.
    let stop = world
        .run([&asked[..], &["--json", "--stop", "aa"]].concat())
        .json();
    assert_eq!(
        (&stop["reasoning"], &stop["finish_reason"]),
        (&json!("aaaa"), &json!("length"))
    );
}
