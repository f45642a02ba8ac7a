//! `lamella plan`: what it says fits is what opens.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{World, fixture};
use serde_json::{Value, json};
use std::path::Path;

/// Speeds are told, so that nothing but products is measured.
const TOLD: [&str; 5] = ["--disk", "2", "--memory-bandwidth", "20", "-q"];

fn plan(world: &World, args: &[&str]) -> Value {
    let args = ["plan", "--json"].iter().chain(args).chain(&TOLD);
    world.run(args).json()
}

fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{path} is no number in {value}"))
}

fn real(value: &Value, path: &str) -> f64 {
    let found = value.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{path} is no number in {value}"))
}

#[test]
fn a_plan_has_a_version_and_its_parts() {
    let world = World::new();
    let plan = plan(&world, &["demo", "--context", "256", "-t", "2"]);
    assert_eq!(number(&plan, "/version"), 1);
    assert_eq!(number(&plan, "/machine/threads"), 2);
    assert_eq!(real(&plan, "/machine/disk/per_second"), 2e9);
    assert_eq!(real(&plan, "/machine/memory/per_second"), 2e10);
    assert_eq!(plan["machine"]["disk"]["origin"], "given");
    assert!(real(&plan, "/machine/decode/per_second") > 0.0);
    assert!(real(&plan, "/machine/products/per_second") > 0.0);
    // The demo model by hand: 4 layers of 16 experts, 2 used, each of 3 maps of 64 times 128.
    let model = &plan["model"];
    let counts = ["layers", "expert_layers", "experts_per_layer", "experts"];
    let counts = counts.map(|name| number(model, &format!("/{name}")));
    assert_eq!(counts, [4, 4, 16, 64]);
    assert_eq!(number(model, "/experts_per_token"), 8);
    assert_eq!(number(model, "/expert_bytes"), 2 * 3 * 64 * 128);
    assert_eq!(number(model, "/active_expert_bytes"), 8 * 2 * 3 * 64 * 128);
    assert_eq!(number(model, "/boundary_bytes"), 4 * 128);
    let placement = &plan["placement"];
    assert_eq!(
        (&placement["opens"], &placement["fits"]),
        (&true.into(), &true.into())
    );
    assert_eq!(number(placement, "/slots"), 0);
    assert_eq!(number(placement, "/context"), 256);
    let predicted = &plan["predicted"];
    assert_eq!(
        number(predicted, "/peak_bytes"),
        number(placement, "/peak_bytes")
    );
    assert_eq!(real(predicted, "/hit_rate/low"), 1.0);
    assert_eq!(real(predicted, "/bytes_read_per_token/high"), 0.0);
    for path in [
        "/cold/prompt",
        "/warm/prompt",
        "/cold/decode/low",
        "/warm/decode/expected",
    ] {
        assert!(real(predicted, path) > 0.0, "{path}");
    }
    assert!(number(predicted, "/safe_sessions") > 1);
    assert!(plan["advice"].is_array());
    let text = world.run(["plan", "demo", "--context", "256"].iter().chain(&TOLD));
    for word in [
        "memory limit",
        "fits",
        "least limit",
        "peak memory",
        "decode, cold",
    ] {
        assert!(
            text.ok().contains(word),
            "{word:?} is missing in {}",
            text.out
        );
    }
}

/// What a run with a limit says.
fn opens(world: &World, model: &str, memory: u64, more: &[&str]) -> common::Ran {
    let memory = memory.to_string();
    let args = ["exec", model, "--tokens", "1", "--memory", &memory];
    world.run(args.iter().chain(more))
}

#[test]
fn the_least_limit_opens_and_one_byte_less_does_not() {
    let world = World::new();
    world
        .run(["convert", "demo", "small", "--encoding", "q8", "-q"])
        .ok();
    let fixture = fixture();
    for (model, more) in [
        ("demo", &["--context", "64"][..]),
        (
            "demo",
            &["--context", "1024", "--encoding", "q4", "-t", "2"],
        ),
        ("small", &["--context", "256", "-t", "1"]),
        (&fixture, &["--context", "32"]),
    ] {
        let args = [&[model], more].concat();
        let least = number(&plan(&world, &args), "/placement/least_bytes");
        opens(&world, model, least, more).ok();
        let refused = opens(&world, model, least - 1, more);
        refused.fails(4, &[&format!(" = {least} bytes")]);
        // The plan for that limit says so too, and is printed all the same.
        let less = (least - 1).to_string();
        let args = [&["plan"], &args[..], &["--memory", &less, "--json"], &TOLD].concat();
        let ran = world.run(&args);
        ran.fails(4, &["does not open", &format!(" = {least} bytes")]);
        let printed: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(printed["placement"]["opens"], false);
        let advice = printed["advice"].as_array().unwrap();
        assert!(advice.iter().any(|a| a["change"] == "memory"), "{advice:?}");
    }
}

#[test]
fn the_cache_that_is_planned_is_the_one_that_opens() {
    let world = World::new();
    let all = plan(&world, &["demo", "--context", "64"]);
    let bench = |more: &[&str]| {
        let args = [
            "bench",
            "demo",
            "--json",
            "-p",
            "0",
            "-n",
            "4",
            "-r",
            "1",
            "--no-bandwidth",
        ];
        world.run(args.iter().chain(more)).json()
    };
    let resident = |json: &Value| number(json, "/model/resident_bytes");
    let open = bench(&["--context", "64"]);
    assert_eq!(resident(&open), number(&all, "/placement/resident_bytes"));
    let active = number(&all, "/model/active_dense_bytes");
    let active = active + number(&all, "/model/active_expert_bytes");
    assert_eq!(number(&open, "/tests/0/active_bytes"), active);
    // With room for some of the experts.
    let least = number(&all, "/placement/least_bytes");
    let some = (least + 20 * number(&all, "/model/expert_bytes")).to_string();
    let more = ["--context", "64", "--memory", &some];
    let planned = plan(&world, &[&["demo"], &more[..]].concat());
    let slots = number(&planned, "/placement/slots");
    assert!((2..64).contains(&slots), "{planned}");
    let open = bench(&more);
    let found = number(&open, "/tests/0/experts/slots");
    let first = number(&planned, "/placement/slots_at_first");
    assert!(
        (slots..=first).contains(&found),
        "{found} are there, {slots} to {first} planned"
    );
    assert!(number(&planned, "/predicted/peak_bytes") <= some.parse().unwrap());
    let rate = |name: &str| real(&planned, &format!("/predicted/hit_rate/{name}"));
    assert!(rate("low") < rate("expected") && rate("expected") <= rate("high"));
    let read = |name: &str| real(&planned, &format!("/predicted/bytes_read_per_token/{name}"));
    assert!(0.0 < read("low") && read("low") < read("high"));
    // What is known of the routing takes the place of the interval.
    let known = plan(
        &world,
        &[&["demo", "--hit-rate", "0.5"], &more[..]].concat(),
    );
    let bytes = real(&known, "/predicted/bytes_read_per_token/expected");
    assert_eq!(
        bytes,
        4.0 * number(&known, "/model/expert_stored_bytes") as f64
    );
}

#[test]
fn more_conversations_take_more() {
    let world = World::new();
    let one = plan(&world, &["demo", "--context", "512"]);
    let ten = plan(&world, &["demo", "--context", "512", "--sessions", "10"]);
    let state = |plan: &Value| number(plan, "/placement/state_bytes");
    assert_eq!(state(&ten), 10 * state(&one));
    // Buffers while loading may take more than the first conversation.
    let running = |plan: &Value| {
        let running = number(plan, "/placement/workspace_bytes") + state(plan);
        running.max(number(plan, "/placement/loading_bytes"))
    };
    let more = number(&ten, "/placement/peak_bytes") - number(&one, "/placement/peak_bytes");
    assert_eq!(more, running(&ten) - running(&one));
    let limit = number(&ten, "/placement/least_for_sessions_bytes") - 1;
    let limit = limit.to_string();
    let args = [
        "plan",
        "demo",
        "--context",
        "512",
        "--sessions",
        "10",
        "--memory",
        &limit,
    ];
    world
        .run(args.iter().chain(&TOLD))
        .fails(4, &["opens, but 10 conversations of 512 tokens need"]);
}

#[test]
fn a_part_of_what_is_free_is_a_limit() {
    let world = World::new();
    let half = plan(&world, &["demo", "--memory", "50%"]);
    let whole = plan(&world, &["demo", "--memory", "auto"]);
    let bytes = |plan: &Value| number(plan, "/machine/memory_bytes") as f64;
    // Others take and give back memory meanwhile.
    let share = bytes(&half) / bytes(&whole);
    assert!((0.3..0.7).contains(&share), "{share}");
    for wrong in ["0%", "200%", "many"] {
        world.run(["plan", "demo", "--memory", wrong]).fails_with(2);
    }
}

#[test]
fn layers_are_planned_by_themselves() {
    let world = World::new();
    let whole = plan(&world, &["demo", "--context", "64"]);
    let two = plan(&world, &["demo", "--context", "64", "--layers", "1..3"]);
    assert_eq!(number(&two, "/model/expert_layers"), 2);
    assert_eq!(number(&two, "/model/experts"), 32);
    let experts = |plan: &Value| number(plan, "/model/experts_bytes");
    assert_eq!(2 * experts(&two), experts(&whole));
    let dense = |plan: &Value| number(plan, "/model/dense_bytes");
    // Embedding and head are not among them.
    assert!(dense(&two) < dense(&whole) - 2 * 2048 * 128 * 2);
    world
        .run(["plan", "demo", "--layers", "2..9"])
        .fails(2, &["layers", "2..9", "4 layers"]);
    world.run(["plan", "demo", "--layers", "3"]).fails_with(2);
}

/// Three machines of which the first takes the ends and no more than a layer.
fn machines(world: &World, name: &str, text: &str) -> String {
    let path = world.path(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn layers_are_dealt_to_machines() {
    let world = World::new();
    let part = |args: &[&str]| plan(&world, &[&["demo", "--context", "64"], args].concat());
    let two = number(
        &part(&["--layers", "0..2"]),
        "/placement/least_for_sessions_bytes",
    );
    let whole = number(&part(&[]), "/placement/least_for_sessions_bytes");
    let table = |memory: u64| {
        let line = |name: &str| format!("[[machine]]\nname = \"{name}\"\nmemory = {memory}\n");
        ["a", "b", "c"].map(line).concat()
    };
    let roomy = machines(&world, "roomy.toml", &table(8 * whole));
    let chain = part(&["--machines", &roomy]);
    assert_eq!(number(&chain, "/version"), 1);
    let stages = chain["chain"]["stages"].as_array().unwrap();
    // One conversation is soonest done where no row has to travel.
    assert_eq!(stages.len(), 3);
    assert_eq!(
        (&stages[0]["name"], &stages[0]["layers"]),
        (&"a".into(), &json!([0, 4]))
    );
    assert_eq!(number(&chain, "/chain/wire_bytes_per_token"), 0);
    // Several are, where all machines work.
    let busy = part(&["--machines", &roomy, "--sessions", "3"]);
    assert_eq!(busy["chain"]["goal"], "slowest");
    let held = |chain: &Value| -> Vec<(u64, u64)> {
        let stages = chain["chain"]["stages"].as_array().unwrap().clone();
        let range = |s: Value| (number(&s, "/layers/0"), number(&s, "/layers/1"));
        let all = stages.into_iter().map(range);
        all.filter(|(from, to)| from < to).collect()
    };
    assert!(held(&busy).len() >= 2, "{busy}");
    let rate = |chain: &Value| real(chain, "/chain/busy_decode");
    assert!(rate(&busy) > rate(&chain), "{busy}");
    assert!(
        real(&chain, "/chain/decode") > real(&busy, "/chain/decode"),
        "{busy}"
    );
    // Where none has room for all, the layers follow one another and every one is somewhere.
    let json = format!(
        r#"{{"machine": [{{"name": "a", "memory": {}}},
            {{"name": "b", "memory": "{}", "link": 0.1}},
            {{"name": "c", "memory": {two}, "disk": 3, "cores": 1}}]}}"#,
        whole / 10 * 9,
        two
    );
    let tight = machines(&world, "tight.json", &json);
    let chain = part(&["--machines", &tight]);
    let ranges = held(&chain);
    assert!(ranges.len() >= 2, "{chain}");
    assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (0, 4));
    assert!(ranges.windows(2).all(|w| w[0].1 == w[1].0), "{chain}");
    assert!(number(&chain, "/chain/wire_bytes_per_token") >= 2 * 4 * 128);
    let args = ["plan", "demo", "--context", "64", "--machines", &tight];
    let text = world.run(args.iter().chain(&TOLD));
    assert!(text.ok().contains("sent for a token"), "{}", text.out);
    // Where they have no room together, the sum says so.
    let small = machines(&world, "small.toml", &table(100_000));
    let args = ["plan", "demo", "--context", "64", "--machines", &small];
    world
        .run(args.iter().chain(&TOLD))
        .fails(4, &["find no place", &format!("at least {whole} bytes")]);
}

#[test]
fn a_bad_table_of_machines_names_file_and_field() {
    let world = World::new();
    let cases = [
        (
            "a.toml",
            "[[machine]]\nname = \"x\"\nmemory = \"lots\"\n",
            "memory",
        ),
        (
            "b.toml",
            "[[machine]]\nname = \"x\"\nmemory = \"1G\"\nspeed = 3\n",
            "speed",
        ),
        ("c.toml", "[[machine]]\nmemory = \"1G\"\n", "name"),
        (
            "d.toml",
            "[[machine]]\nname = \"x\"\nmemory = \"1G\"\ndisk = -1\n",
            "disk",
        ),
        (
            "e.json",
            r#"{"machine": [{"name": "x", "memory": 5, "cores": 0}]}"#,
            "cores",
        ),
        ("f.json", r#"{"machines": []}"#, "machines"),
    ];
    for (name, text, field) in cases {
        let file = machines(&world, name, text);
        let args = ["plan", "demo", "--machines", &file];
        world.run(args.iter().chain(&TOLD)).fails(2, &[name, field]);
    }
    let none = machines(&world, "g.json", r#"{"machine": []}"#);
    let args = ["plan", "demo", "--machines", &none];
    world
        .run(args.iter().chain(&TOLD))
        .fails(2, &["machines", "1 to"]);
    world
        .run(["plan", "demo", "--machines", "gone.toml"])
        .fails(1, &["gone.toml"]);
}

/// The header of the fixture's weights, eight bytes of length and all.
fn head(fixture: &str) -> Vec<u8> {
    let bytes = std::fs::read(Path::new(fixture).join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[..8 + length].to_vec()
}

#[test]
fn a_model_is_planned_before_it_is_downloaded() {
    let world = World::new();
    let fixture = fixture();
    let context = ["--context", "32"];
    let there = plan(&world, &[&[fixture.as_str()], &context[..]].concat());
    let config = Path::new(&fixture).join("config.json");
    let bare = |name: &str, file: &str, bytes: &[u8]| {
        let dir = world.path(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(&config, dir.join("config.json")).unwrap();
        std::fs::write(dir.join(file), bytes).unwrap();
        dir.display().to_string()
    };
    let head = head(&fixture);
    let header: Value = serde_json::from_slice(&head[8..]).unwrap();
    let entries = header.as_object().unwrap().iter();
    let lines = entries.filter(|(name, _)| *name != "__metadata__").map(
        |(name, entry)| json!({"name": name, "dtype": entry["dtype"], "shape": entry["shape"]}),
    );
    let list = json!(lines.collect::<Vec<_>>()).to_string();
    let cut = bare("cut", "model.safetensors", &head);
    let listed = bare("listed", "tensors.json", list.as_bytes());
    let headed = bare("headed", "tensors.json", &head[8..]);
    let elsewhere = bare("elsewhere", "README", b"");
    let file = world.path("table.json");
    std::fs::write(&file, list).unwrap();
    let file = file.display().to_string();
    for args in [
        vec![cut.as_str()],
        vec![&listed],
        vec![&headed],
        vec![&elsewhere, "--tensors", &file],
    ] {
        let bare = plan(&world, &[&args[..], &context[..]].concat());
        assert_eq!(bare["model"], there["model"], "{args:?}");
        let least = |plan: &Value| number(plan, "/placement/least_bytes");
        assert_eq!(least(&bare), least(&there), "{args:?}");
    }
    // The container that a conversion would write.
    world
        .run(["convert", &fixture, "made", "--encoding", "q4", "-q"])
        .ok();
    let made = plan(&world, &["made", "--context", "32"]);
    let more = ["--converted", "--encoding", "q4", "--context", "32"];
    let told = plan(&world, &[&[listed.as_str()], &more[..]].concat());
    assert_eq!(told["model"], made["model"]);
    assert_eq!(
        told["placement"]["least_bytes"],
        made["placement"]["least_bytes"]
    );
    // It cannot be run, and the disk is measured where it would lie.
    world.run(["exec", &listed, "--tokens", "1"]).fails(3, &[]);
    let measured = world
        .run(["plan", &cut, "--json", "-q", "--context", "32"])
        .json();
    let origin = measured["machine"]["disk"]["origin"].as_str().unwrap();
    assert!(origin.contains("current directory"), "{origin}");
    let left: Vec<_> = std::fs::read_dir(world.path(".")).unwrap().collect();
    let hidden = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with(".lamella");
    assert!(!left.iter().any(|e| hidden(e.as_ref().unwrap())));
}

#[test]
fn a_bad_table_of_tensors_names_file_and_tensor() {
    let world = World::new();
    let config = Path::new(&fixture()).join("config.json");
    let dir = world.path("model");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(config, dir.join("config.json")).unwrap();
    let table = |text: &str| std::fs::write(dir.join("tensors.json"), text).unwrap();
    let cases = [
        ("[{\"name\": \"a\", \"dtype\": \"BF16\"}]", "shape"),
        (
            "[{\"name\": \"a\", \"dtype\": \"B16\", \"shape\": [2]}]",
            "B16",
        ),
        (
            "[{\"name\": \"a\", \"dtype\": \"F32\", \"shape\": [18446744073709551615, 9]}]",
            "shape",
        ),
        (
            "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 9]}}",
            "9 bytes",
        ),
        (
            "[{\"name\": \"a\", \"dtype\": \"F32\", \"shape\": [1], \"x\": 1}]",
            "`x`",
        ),
        ("[{", "tensors.json"),
        ("", "tensors.json"),
    ];
    for (text, word) in cases {
        table(text);
        let args = ["plan", "model"];
        world
            .run(args.iter().chain(&TOLD))
            .fails(3, &["tensors.json", word]);
    }
    let twice = "{\"name\": \"a\", \"dtype\": \"F32\", \"shape\": [1]}";
    table(&format!("[{twice}, {twice}]"));
    world
        .run(["plan", "model"].iter().chain(&TOLD))
        .fails(3, &["tensors.json", "tensor a"]);
    // Defects of the program are told as for a checkpoint.
    table(&format!("[{twice}]"));
    world
        .run(["plan", "model"].iter().chain(&TOLD))
        .fails(3, &["defects"]);
}
