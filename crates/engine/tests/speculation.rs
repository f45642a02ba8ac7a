//! Generation with drafts gives what plain decode gives, on every fixture and on the trained model:
//! tokens, log-probabilities, finish, and the bits of whatever is read afterwards.

mod common;

use common::{bits, open, reference_sequence, repository};
use lamella_engine::generate::{
    Drafter, Finish, FinishReason, GenerateError, GenerateOptions, LogitsSession, Outlook,
    PromptLookup, Sampling, SpeculationStats, Speculator, generate, generate_speculating,
};
use lamella_engine::{Cancel, Error, Model, ModelSession, Options};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A checkpoint and ids to begin with.
struct Case {
    name: String,
    model: Arc<Model>,
    prompt: Vec<u32>,
}

/// Every fixture, and the trained model with words that repeat.
fn cases() -> Vec<Case> {
    let mut all = vec![Case {
        name: "demo".to_owned(),
        model: open_quietly(&repository("demo/model")),
        prompt: vec![1, 393, 201, 320, 448, 393, 201],
    }];
    let fixtures = std::fs::read_dir(repository("fixtures")).expect("fixtures");
    let dirs = fixtures.map(|entry| entry.expect("an entry").path());
    for dir in dirs.filter(|dir| dir.join("config.json").is_file()) {
        let prompt = reference_sequence(&dir)[..20].to_vec();
        all.push(Case {
            name: dir.display().to_string(),
            model: open_quietly(&dir),
            prompt,
        });
    }
    assert!(all.len() >= 17, "the fixtures are there");
    all
}

fn open_quietly(dir: &Path) -> Arc<Model> {
    let options = Options {
        threads: Some(2),
        ..Options::default()
    };
    open(dir, &options)
}

type Drafts = Speculator<ModelSession, Error>;

/// Drafts from what plain decode gave, each token changed where `wrong` says so.
struct Script {
    truth: Vec<u32>,
    wrong: fn(place: usize) -> bool,
    /// Raised before the draft that reaches this place.
    cancel: Option<(usize, Cancel)>,
}

impl Drafter<ModelSession, Error> for Script {
    fn outlook(&mut self, _: &[u32], most: usize) -> Option<Outlook> {
        Some(Outlook {
            grade: 0,
            tokens: most,
        })
    }

    fn draft(
        &mut self,
        _: &mut ModelSession,
        history: &[u32],
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let end = history.len() + count;
        for place in history.len()..end {
            let token = self.truth.get(place).copied().unwrap_or(0);
            out.push(token ^ u32::from((self.wrong)(place)));
        }
        match &self.cancel {
            Some((place, cancel)) if end >= *place => cancel.cancel(),
            _ => {}
        }
        Ok(())
    }
}

/// Right, wrong, and mixed in two ways.
const WRONG: [fn(usize) -> bool; 4] = [
    |_| false,
    |_| true,
    |place| place % 3 == 0,
    |place| place.wrapping_mul(0x9e37_79b9) >> 13 & 1 == 0,
];

/// What a receiver sees, and the bits of what the session says next.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<(u32, Option<u64>)>,
    reason: FinishReason,
    counts: (usize, usize, usize),
    position: usize,
    next: Vec<u32>,
}

fn answer(
    case: &Case,
    options: &GenerateOptions,
    halt: usize,
    drafts: Option<Drafts>,
) -> (Answer, SpeculationStats) {
    let model = Arc::clone(&case.model);
    let mut session = ModelSession::new(model, 0, Cancel::new()).expect("a session");
    let mut tokens = Vec::new();
    let mut receive = |token: lamella_engine::generate::Token<'_>| {
        tokens.push((token.id, token.logprob.map(f64::to_bits)));
        match tokens.len() >= halt {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let (session_mut, prompt) = (&mut session, &case.prompt);
    let finish: Finish = match drafts {
        None => generate(session_mut, prompt, options, &mut receive),
        Some(mut s) => generate_speculating(session_mut, prompt, options, &mut s, &mut receive),
    }
    .expect("an answer");
    let position = session.position();
    // Half of the time what is pending is settled alone, otherwise with what comes next.
    if tokens.len() % 2 == 0 {
        session.settle().expect("settling");
        assert_eq!(session.session().position(), position);
    }
    let next = bits(session.prefill(&case.prompt[..2]).expect("more"));
    let counts = (
        finish.prompt_tokens,
        finish.generated_tokens,
        finish.decoded_tokens,
    );
    let answer = Answer {
        tokens,
        reason: finish.reason,
        counts,
        position,
        next,
    };
    (answer, finish.speculation)
}

fn truth(case: &Case, answer: &Answer) -> Vec<u32> {
    let said = answer.tokens.iter().map(|t| t.0);
    case.prompt.iter().copied().chain(said).collect()
}

fn scripted(truth: &[u32], wrong: fn(usize) -> bool, most: usize) -> Drafts {
    let script = Script {
        truth: truth.to_vec(),
        wrong,
        cancel: None,
    };
    Drafts::new(most).with(script).always()
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: Sampling::greedy(),
        logprobs: Some(0),
        ..GenerateOptions::default()
    }
}

fn sampled(max_tokens: usize) -> GenerateOptions {
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.97,
        repetition_penalty: 1.1,
        frequency_penalty: 0.3,
        presence_penalty: 0.1,
        logit_bias: vec![(3, 1.5), (7, -2.0)],
        ..Sampling::default()
    };
    GenerateOptions {
        sampling,
        seed: 5,
        ..greedy(max_tokens)
    }
}

#[test]
fn drafts_of_every_length_change_nothing() {
    for case in &cases() {
        for (options, lengths) in [(greedy(20), 1..=5), (sampled(20), 3..=4)] {
            let (expected, _) = answer(case, &options, usize::MAX, None);
            let truth = truth(case, &expected);
            for most in lengths {
                for (kind, wrong) in WRONG.into_iter().enumerate() {
                    let drafts = scripted(&truth, wrong, most);
                    let (got, stats) = answer(case, &options, usize::MAX, Some(drafts));
                    assert!(got == expected, "{} {most} {kind}", case.name);
                    match kind {
                        0 => assert_eq!(stats.acceptance(), Some(1.0), "{}", case.name),
                        1 => assert_eq!(stats.accepted, 0, "{}", case.name),
                        _ => assert!(stats.drafted > stats.accepted, "{}", case.name),
                    }
                }
                let drafts = Drafts::new(most).with(PromptLookup::new()).always();
                let (got, _) = answer(case, &options, usize::MAX, Some(drafts));
                assert!(got == expected, "{} lookup {most}", case.name);
            }
        }
    }
}

#[test]
fn priced_lookup_changes_nothing() {
    for case in &cases() {
        let (expected, _) = answer(case, &greedy(60), usize::MAX, None);
        let drafts = Drafts::new(8).with(PromptLookup::new());
        let (got, _) = answer(case, &greedy(60), usize::MAX, Some(drafts));
        assert!(got == expected, "{}", case.name);
    }
}

#[test]
fn an_answer_that_ends_inside_a_draft_ends_as_without() {
    for case in &cases() {
        let (long, _) = answer(case, &greedy(20), usize::MAX, None);
        let truth = truth(case, &long);
        // The first stop token that is not among those before it.
        let ids: Vec<u32> = long.tokens.iter().map(|t| t.0).collect();
        let place = (2..20).rev().find(|&i| !ids[..i].contains(&ids[i]));
        let stop = GenerateOptions {
            stop_tokens: place.map(|place| ids[place]).into_iter().collect(),
            ..greedy(20)
        };
        let ends = [
            (greedy(1), usize::MAX),
            (greedy(6), usize::MAX),
            (greedy(20), 6),
            (greedy(20), 1),
            (stop, usize::MAX),
        ];
        for (options, halt) in ends {
            let (expected, _) = answer(case, &options, halt, None);
            for wrong in WRONG {
                let drafts = scripted(&truth, wrong, 4);
                let (got, _) = answer(case, &options, halt, Some(drafts));
                assert!(got == expected, "{} {options:?} {halt}", case.name);
            }
        }
    }
}

#[test]
fn the_end_of_the_context_may_lie_inside_a_draft() {
    for dir in ["fixtures/olmoe-101", "fixtures/qwen36-101"] {
        let dir = repository(dir);
        let options = Options {
            threads: Some(2),
            context: Some(36),
            ..Options::default()
        };
        let case = Case {
            name: dir.display().to_string(),
            model: open(&dir, &options),
            prompt: reference_sequence(&dir)[..20].to_vec(),
        };
        let run = |drafts: Option<Drafts>| {
            let model = Arc::clone(&case.model);
            let mut session = ModelSession::new(model, 0, Cancel::new()).expect("a session");
            let mut ids = Vec::new();
            let mut receive = |token: lamella_engine::generate::Token<'_>| {
                ids.push(token.id);
                ControlFlow::Continue(())
            };
            let (options, prompt) = (greedy(usize::MAX), &case.prompt);
            let finish = match drafts {
                None => generate(&mut session, prompt, &options, &mut receive),
                Some(mut s) => {
                    generate_speculating(&mut session, prompt, &options, &mut s, &mut receive)
                }
            }
            .expect("an answer");
            (finish.reason, ids, session.position())
        };
        let expected = run(None);
        assert_eq!((expected.0, expected.2), (FinishReason::Length, 35));
        let truth = [&case.prompt[..], &expected.1].concat();
        for wrong in WRONG {
            assert_eq!(run(Some(scripted(&truth, wrong, 5))), expected);
        }
    }
}

#[test]
fn a_cancelled_verification_loses_nothing() {
    for case in &cases() {
        let options = greedy(20);
        let (expected, _) = answer(case, &options, usize::MAX, None);
        let truth = truth(case, &expected);
        for behind in [2, 7, 11] {
            let place = case.prompt.len() + behind;
            let cancel = Cancel::new();
            let script = Script {
                truth: truth.clone(),
                wrong: WRONG[2],
                cancel: Some((place, cancel.clone())),
            };
            let mut drafts = Drafts::new(3).with(script).always();
            let model = Arc::clone(&case.model);
            let mut session = ModelSession::new(model, 0, cancel.clone()).expect("a session");
            let mut emitted = Vec::new();
            let result = generate_speculating(
                &mut session,
                &case.prompt,
                &options,
                &mut drafts,
                &mut |token| {
                    emitted.push(token.id);
                    ControlFlow::Continue(())
                },
            );
            let cancelled = GenerateError::Session(Error::Cancelled);
            assert_eq!(
                format!("{result:?}"),
                format!("{:?}", Err::<Finish, _>(cancelled))
            );
            let read = case.prompt.len() + emitted.len() - 1;
            assert_eq!(session.position(), read, "{}", case.name);
            assert_eq!(emitted[..], truth[case.prompt.len()..][..emitted.len()]);
            // What is left is read as if nothing had happened.
            cancel.reset();
            session
                .prefill(&truth[read..truth.len() - 1])
                .expect("the rest");
            let next = bits(session.prefill(&case.prompt[..2]).expect("more"));
            assert!(next == expected.next, "{} {place}", case.name);
        }
    }
}

#[test]
fn a_conversation_goes_back_while_tokens_are_pending() {
    let dir = repository("fixtures/qwen36-101");
    let case = Case {
        name: dir.display().to_string(),
        model: open_quietly(&dir),
        prompt: reference_sequence(&dir)[..20].to_vec(),
    };
    let options = greedy(20);
    let (expected, _) = answer(&case, &options, usize::MAX, None);
    let truth = truth(&case, &expected);
    let mut session =
        ModelSession::new(Arc::clone(&case.model), 0, Cancel::new()).expect("a session");
    let mut drafts = scripted(&truth, |_| true, 3);
    let mut count = 0;
    let mut receive = |_: lamella_engine::generate::Token<'_>| {
        count += 1;
        match count {
            6 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    generate_speculating(
        &mut session,
        &case.prompt,
        &options,
        &mut drafts,
        &mut receive,
    )
    .expect("an answer");
    let (known, position) = (session.session().position(), session.position());
    assert!(
        known < position,
        "recurrent state lags behind a wrong draft"
    );
    // Pending tokens are dropped one by one, state only as a whole.
    assert_eq!(session.rewind(position), position);
    assert_eq!(session.rewind(known), known);
    let mut plain = case.model.session();
    let mut out = Vec::new();
    for tokens in [&truth[..known], &[4, 2]] {
        let span = lamella_engine::Span {
            session: &mut plain,
            tokens,
            logits: lamella_engine::Logits::Last,
            out: &mut out,
        };
        case.model.step(&mut [span], &Cancel::new()).expect("step");
    }
    assert_eq!(bits(session.prefill(&[4, 2]).expect("more")), bits(&out));
    assert_eq!(session.rewind(3), 0);
}
