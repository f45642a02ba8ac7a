//! Generation with the drafts of the model's own heads: the tokens of plain decode, and heads that
//! know after any detour what they know after a straight reading.

mod common;

use common::{bits, open, reference_sequence, repository};
use lamella_engine::generate::{
    Drafter, Finish, GenerateOptions, LogitsSession, PromptLookup, Sampling, Speculator, generate,
    generate_speculating,
};
use lamella_engine::{Cancel, DraftHead, Error, Model, ModelSession, Options};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Fixtures that carry draft heads.
fn fixtures() -> Vec<(String, Arc<Model>, Vec<u32>)> {
    let all = std::fs::read_dir(repository("fixtures")).expect("fixtures");
    let dirs = all.map(|entry| entry.expect("an entry").path());
    let with_heads = |dir: &Path| {
        let options = Options {
            threads: Some(2),
            draft: true,
            ..Options::default()
        };
        match Model::open(dir, &options, &mut |_| {}) {
            Ok(model) => Some(model),
            Err(Error::NoDraft { .. }) => None,
            Err(error) => panic!("{}: {error}", dir.display()),
        }
    };
    let found: Vec<_> = dirs
        .filter(|dir| dir.join("config.json").is_file())
        .filter_map(|dir| {
            let model = with_heads(&dir)?;
            let prompt = reference_sequence(&dir)[..20].to_vec();
            Some((dir.display().to_string(), model, prompt))
        })
        .collect();
    assert!(found.len() >= 5, "fixtures with heads: {}", found.len());
    found
}

fn session(model: &Arc<Model>, chunk: usize) -> ModelSession {
    ModelSession::new(Arc::clone(model), chunk, Cancel::new()).expect("a session")
}

fn options(sampling: Sampling) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 24,
        sampling,
        seed: 3,
        ..GenerateOptions::default()
    }
}

type Drafts = Speculator<ModelSession, Error>;

/// Tokens of an answer, and how it ended; it is halted after `halt` tokens.
fn answer(
    session: &mut ModelSession,
    prompt: &[u32],
    options: &GenerateOptions,
    halt: usize,
    drafts: Option<&mut Drafts>,
) -> (Vec<u32>, Finish) {
    let mut ids = Vec::new();
    let mut receive = |token: lamella_engine::generate::Token<'_>| {
        ids.push(token.id);
        match ids.len() >= halt {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let finish = match drafts {
        None => generate(session, prompt, options, &mut receive),
        Some(drafts) => generate_speculating(session, prompt, options, drafts, &mut receive),
    };
    (ids, finish.expect("an answer"))
}

/// What the heads guess after `tokens`, of which the session has read all but the last.
fn guesses(session: &mut ModelSession, tokens: &[u32]) -> Vec<u32> {
    let mut head = DraftHead::new(session.model()).expect("heads");
    let most = head.outlook(tokens, 5).expect("an outlook").tokens;
    let mut out = Vec::new();
    head.draft(session, tokens, most, &mut out).expect("drafts");
    assert_eq!(out.len(), most);
    out
}

#[test]
fn drafts_of_the_heads_change_nothing() {
    let warm = Sampling {
        temperature: 0.8,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        ..Sampling::default()
    };
    for (name, model, prompt) in &fixtures() {
        for sampling in [Sampling::greedy(), warm.clone()] {
            let options = options(sampling);
            let mut plain = session(model, 0);
            let (expected, finish) = answer(&mut plain, prompt, &options, 99, None);
            let next = bits(plain.prefill(&prompt[..3]).expect("more"));
            for most in 1..=5 {
                let head = DraftHead::new(model).expect("heads");
                let mut drafts = Drafts::new(most).with(head).always();
                let mut session = session(model, 7);
                let (got, with) = answer(&mut session, prompt, &options, 99, Some(&mut drafts));
                assert_eq!(got, expected, "{name} {most}");
                assert_eq!(
                    (with.reason, with.decoded_tokens),
                    (finish.reason, finish.decoded_tokens)
                );
                assert!(with.speculation.drafted > 0, "{name} {most}");
                let after = bits(session.prefill(&prompt[..3]).expect("more"));
                assert!(after == next, "{name} {most}");
            }
            let head = DraftHead::new(model).expect("heads");
            let mut drafts = Drafts::new(4).with(PromptLookup::new()).with(head);
            let got = answer(
                &mut session(model, 0),
                prompt,
                &options,
                99,
                Some(&mut drafts),
            );
            assert_eq!(got.0, expected, "{name} priced");
        }
    }
}

#[test]
fn heads_know_after_a_detour_what_they_know_after_a_straight_reading() {
    for (name, model, prompt) in &fixtures() {
        let options = options(Sampling::greedy());
        // Right and wrong drafts, plain decode and another conversation's drafts, then a stop.
        for (most, halt) in [(1, 9), (3, 10), (5, 12), (0, 8)] {
            let head = DraftHead::new(model).expect("heads");
            let mut drafts = Drafts::new(most)
                .with(PromptLookup::new())
                .with(head)
                .always();
            let mut detour = session(model, 3);
            let (said, _) = answer(&mut detour, prompt, &options, halt, Some(&mut drafts));
            let tokens = [&prompt[..], &said].concat();
            let mut straight = session(model, 0);
            straight
                .prefill(&tokens[..tokens.len() - 1])
                .expect("reading");
            let expected = guesses(&mut straight, &tokens);
            assert_eq!(guesses(&mut detour, &tokens), expected, "{name} {most}");
        }
    }
}

#[test]
fn heads_follow_a_conversation_that_goes_back() {
    for (name, model, prompt) in &fixtures() {
        let mut session = session(model, 0);
        let other: Vec<u32> = prompt.iter().rev().copied().collect();
        session.prefill(prompt).expect("reading");
        let _ = guesses(&mut session, &[&prompt[..], &[4]].concat());
        let kept = session.rewind(12);
        assert!(kept == 11 || kept == 0, "{name} {kept}");
        // The token behind what was kept is read again.
        let tokens = [&prompt[..kept + 1], &other].concat();
        session.prefill(&tokens[kept..]).expect("reading on");
        let mut straight = self::session(model, 0);
        straight.prefill(&tokens).expect("reading");
        let all = [&tokens[..], &[5]].concat();
        let expected = guesses(&mut straight, &all);
        assert_eq!(guesses(&mut session, &all), expected, "{name}");
    }
}

#[test]
fn a_model_without_heads_says_so() {
    let dir = repository("fixtures/olmoe-101");
    let model = open(&dir, &Options::default());
    assert!(matches!(DraftHead::new(&model), Err(Error::NoDraft { .. })));
}
