//! The demo model against its reference values: every prompt of the evaluation set, perplexity,
//! tokenizer, continuations. One open per variant; what differs from run to run is only the
//! encoding and the backend.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{read_json, repository};
use lamella_engine::generate::{
    FinishReason, GenerateOptions, LogitsSession, Logprobs, Sampling, generate,
};
use lamella_engine::{BackendKind, Cancel, Logits, Model, ModelSession, Options, Span};
use lamella_program::Encoding;
use lamella_text::{Bundle, ChatOptions, messages_from_json};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;

fn open(backend: BackendKind, want: Option<Encoding>) -> Arc<Model> {
    let options = Options {
        backend,
        want,
        ..Options::default()
    };
    Model::open(&repository("demo/model"), &options, &mut |_| {}).unwrap()
}

fn bundle(model: &Model) -> Bundle {
    Bundle::load(&|name| model.store().read_text(name).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// Number of evaluation prompts answered exactly as the reference does.
fn equal_answers(model: &Arc<Model>) -> usize {
    let bundle = bundle(model);
    let text = std::fs::read_to_string(repository("demo/eval.jsonl")).unwrap();
    let cases = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    cases
        .filter(|case| answer(model, &bundle, case) == ids(&case["expected_ids"]))
        .count()
}

/// The greedy answer with its stop token, as the reference lists it.
fn answer(model: &Arc<Model>, bundle: &Bundle, case: &Value) -> Vec<u32> {
    let messages = messages_from_json(case["messages"].clone()).unwrap();
    let tools = case["tools"].as_array().cloned();
    let options = ChatOptions {
        tools,
        ..ChatOptions::prompt()
    };
    let prompt = bundle.encode_chat(&messages, &options).unwrap();
    assert_eq!(
        prompt,
        ids(&case["prompt_ids"]),
        "template or tokenizer, case {}",
        case["id"]
    );
    let options = GenerateOptions {
        max_tokens: case["max_new_tokens"].as_u64().unwrap() as usize,
        stop_tokens: bundle.stop_ids().to_vec(),
        sampling: Sampling::greedy(),
        ..GenerateOptions::default()
    };
    greedy(model, &prompt, &options)
}

fn greedy(model: &Arc<Model>, prompt: &[u32], options: &GenerateOptions) -> Vec<u32> {
    let mut session = ModelSession::new(Arc::clone(model), 0, Cancel::new()).unwrap();
    let mut out = Vec::new();
    let finish = generate(&mut session, prompt, options, &mut |token| {
        out.push(token.id);
        ControlFlow::Continue(())
    });
    if let FinishReason::Stop { token } = finish.unwrap().reason {
        out.push(token);
    }
    out
}

/// Mean negative log-likelihood of the held-out text as `reference.json` defines it, and the
/// largest deviation of a single token from the reference's.
fn mean_nll(model: &Model) -> (f64, f64) {
    let reference = &read_json("demo/reference.json")["perplexity"];
    let text = std::fs::read_to_string(repository("demo/heldout_text.txt")).unwrap();
    let tokens = bundle(model).tokenizer.encode(&text, false).unwrap();
    assert_eq!(tokens.len() as u64, reference["tokens"].as_u64().unwrap());
    let window = reference["window"].as_u64().unwrap() as usize;
    let (mut session, mut out) = (model.session(), Vec::new());
    let mut logprobs = Logprobs::new(0);
    let (mut sum, mut count, mut worst) = (0.0, 0, 0f64);
    let listed = reference["windows"].as_array().unwrap();
    for (window, listed) in tokens.chunks(window).zip(listed) {
        session.truncate(0).unwrap();
        let (tokens, logits) = (&window[..window.len() - 1], Logits::All);
        let span = Span {
            session: &mut session,
            tokens,
            logits,
            out: &mut out,
        };
        model.step(&mut [span], &Cancel::new()).unwrap();
        let rows = out.chunks_exact(model.vocabulary()).zip(&window[1..]);
        for ((row, &target), listed) in rows.zip(listed["nll"].as_array().unwrap()) {
            let nll = -logprobs.of(row, target).0;
            worst = worst.max((nll - listed.as_f64().unwrap()).abs());
            (sum, count) = (sum + nll, count + 1);
        }
    }
    assert_eq!(count, reference["scored"].as_u64().unwrap());
    (sum / count as f64, worst)
}

/// Relative deviation of the perplexity from the reference's, in per cent.
fn perplexity_deviation(model: &Model) -> f64 {
    let reference = read_json("demo/reference.json")["perplexity"]["perplexity"]
        .as_f64()
        .unwrap();
    let (mean, worst) = mean_nll(model);
    let deviation = (mean.exp() / reference - 1.0).abs() * 100.0;
    println!(
        "perplexity {:.6}, off by {deviation:.4} %, worst token {worst:.5}",
        mean.exp()
    );
    deviation
}

#[test]
fn canonical_on_the_kernels() {
    let model = open(BackendKind::Cpu, None);
    assert_eq!(equal_answers(&model), 200);
    assert!(perplexity_deviation(&model) < 0.01);
}

#[test]
fn canonical_on_the_reference() {
    let model = open(BackendKind::Reference, None);
    assert_eq!(equal_answers(&model), 200);
    assert!(perplexity_deviation(&model) < 0.01);
}

#[test]
fn eight_bits() {
    let model = open(BackendKind::Cpu, Some(Encoding::Q8));
    let equal = equal_answers(&model);
    println!("q8: {equal} of 200");
    assert!(equal >= 196, "{equal}");
    assert!(perplexity_deviation(&model) < 0.5);
}

#[test]
fn four_bits_are_reported_and_not_absurd() {
    let model = open(BackendKind::Cpu, Some(Encoding::Q4));
    let equal = equal_answers(&model);
    println!("q4: {equal} of 200");
    assert!(equal > 100, "{equal}");
    assert!(perplexity_deviation(&model) < 20.0);
}

#[test]
fn tokenizer_strings() {
    let model = open(BackendKind::Reference, None);
    let tokenizer = bundle(&model).tokenizer;
    for case in read_json("demo/reference.json")["tokenizer"]
        .as_array()
        .unwrap()
    {
        let text = case["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode(text, false).unwrap(),
            ids(&case["ids"]),
            "{text:?}"
        );
        assert_eq!(
            tokenizer.decode(&ids(&case["ids"]), true),
            case["decoded"].as_str().unwrap()
        );
    }
}

#[test]
fn continuations_and_first_logits() {
    let model = open(BackendKind::Cpu, None);
    for case in read_json("demo/reference.json")["continuations"]
        .as_array()
        .unwrap()
    {
        let (prompt, expected) = (ids(&case["prompt_ids"]), ids(&case["ids"]));
        let options = GenerateOptions {
            max_tokens: expected.len(),
            sampling: Sampling::greedy(),
            ..GenerateOptions::default()
        };
        assert_eq!(
            greedy(&model, &prompt, &options),
            expected,
            "{}",
            case["prompt"]
        );
        let mut session = ModelSession::new(Arc::clone(&model), 0, Cancel::new()).unwrap();
        let logits = session.prefill(&prompt).unwrap();
        let first = &case["first_logits"];
        let values = first["values"].as_array().unwrap();
        assert_eq!(values.len(), 10);
        let most = values[0].as_f64().unwrap();
        for (id, value) in ids(&first["ids"]).into_iter().zip(values) {
            let error = f64::from(logits[id as usize]) - value.as_f64().unwrap();
            // The reference's values are rounded to five places.
            assert!(error.abs() < 1e-5 * most.abs() + 5e-6, "{id}: {error}");
        }
    }
}
