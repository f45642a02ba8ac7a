//! `lamella trace`: what is recorded, and what caches make of it.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, fixture, least_memory};
use std::fs;

/// Lines of a trace: layer, experts.
fn rows(text: &str) -> Vec<(usize, Vec<u32>)> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut numbers = line.split(' ').map(|n| n.parse::<u32>().unwrap());
            (numbers.next().unwrap() as usize, numbers.collect())
        })
        .collect()
}

#[test]
fn a_recorded_trace_replays() {
    let world = World::new();
    let prompt = "1,393,201,7,9";
    let record = [
        "trace", "record", "demo", "t", "--tokens", prompt, "-n", "6",
    ];
    let json = world
        .run(record.iter().chain(&["--json", "--temperature", "0"]))
        .json();
    assert_eq!(
        (&json["tokens"], &json["prompt_tokens"]),
        (&11.into(), &5.into())
    );
    // Greedily it goes the way that `exec` does.
    let exec = world.run([
        "exec",
        "demo",
        "--tokens",
        prompt,
        "--generate",
        "6",
        "--json",
    ]);
    assert_eq!(json["ids"], exec.json()["ids"]);
    let text = fs::read_to_string(world.path("t")).unwrap();
    let rows = rows(&text);
    let layers = json["layers"].as_u64().unwrap() as usize;
    assert_eq!((layers, rows.len()), (4, 4 * 11));
    // The prompt is one step, layer by layer; then a token is.
    let order: Vec<usize> = (0..layers).flat_map(|layer| [layer; 5]).collect();
    let order = order.into_iter().chain((0..6).flat_map(|_| 0..layers));
    assert!(order.eq(rows.iter().map(|row| row.0)), "{text}");
    for (_, experts) in &rows {
        assert_eq!(experts.len(), 2);
        assert!(experts[0] < experts[1] && experts[1] < 16, "{text}");
    }
    let replayed = world
        .run(["trace", "replay", "t", "--slots", "64", "--json"])
        .json();
    let online = &replayed["caches"][0]["policies"]["online"];
    assert_eq!(online["tokens"], 11);
    let uses = online["uses"].as_u64().unwrap();
    assert!(
        (4 * (2 + 6 * 2)..=4 * (10 + 6 * 2)).contains(&uses),
        "{uses}"
    );
}

#[test]
fn routing_does_not_depend_on_what_is_in_memory() {
    let world = World::new();
    let least = least_memory(&world, 256).to_string();
    fs::write(world.path("text"), "What is the capital of Kenya?").unwrap();
    let record = |out: &str, seed: &str, more: &[&str]| {
        let args = ["trace", "record", "demo", out, "text", "--generate", "12"];
        let sampled = ["--context", "256", "--temperature", "0.9", "--seed", seed];
        world.run(args.iter().chain(&sampled).chain(more)).ok();
        fs::read_to_string(world.path(out)).unwrap()
    };
    let all = record("all", "7", &[]);
    for more in [
        &["--memory", &*least][..],
        &[
            "--memory",
            &least,
            "--prefetch",
            "off",
            "--reader",
            "buffered",
        ],
    ] {
        assert_eq!(record("few", "7", more), all, "{more:?}");
    }
    // In chunks each token still has the experts it had; only the steps are shorter.
    let by_layer = |text: &str| {
        let mut rows = rows(text);
        rows.sort_by_key(|row| row.0);
        rows
    };
    let chunked = record("chunks", "7", &["--chunk", "3"]);
    assert!(chunked != all && by_layer(&chunked) == by_layer(&all));
    // Another seed goes elsewhere.
    assert_ne!(record("other", "8", &[]), all);
}

#[test]
fn what_cannot_be_recorded_is_refused() {
    let world = World::new();
    let record = |more: &[&str]| world.run(["trace", "record", "demo", "t"].iter().chain(more));
    assert_eq!(record(&[]).code, Some(2), "neither text nor tokens");
    assert_eq!(record(&["text", "--tokens", "1"]).code, Some(2), "both");
    record(&["gone.txt"]).fails(1, &["gone.txt"]);
    record(&["--tokens", "1,x"]).fails(2, &["\"x\" at index 1"]);
    record(&["--tokens", "999999"]).fails(2, &["999999"]);
    record(&["--tokens", "1", "-n", "16777216"]).fails(2, &["--generate", "context"]);
    record(&["--tokens", "1", "--backend", "reference"]).fails(2, &["reference"]);
    record(&["--tokens", "1", "--memory", "1K"]).fails(4, &["memory"]);
    record(&["--tokens", "1", "--logit-bias", "999999=1"]).fails(2, &["999999"]);
    world
        .run_with_input(&["trace", "record", "demo", "t", "-"], [0xff])
        .fails(2, &["UTF-8"]);
    let nowhere = ["trace", "record", "demo", "no/where", "--tokens", "1"];
    world.run(nowhere).fails(1, &["no/where"]);
    // Nothing is left of any of them.
    assert!(!world.path("t").exists());
    // Nobody writes prompts for this model, and no tokenizer is needed for ids.
    world
        .run([
            "trace",
            "record",
            &fixture(),
            "t",
            "--tokens",
            "1,2",
            "-n",
            "0",
        ])
        .ok();
    let text = fs::read_to_string(world.path("t")).unwrap();
    assert!(rows(&text).len() >= 2, "{text}");
}
