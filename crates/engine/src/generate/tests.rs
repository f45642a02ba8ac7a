//! Tests of the driver, on scripted sessions.

use super::*;
use std::ops::ControlFlow;

/// A session that plays logits from a script, and remembers what it was asked.
struct Scripted {
    vocabulary: usize,
    context: usize,
    read: Vec<u32>,
    /// Lengths of the prefill calls, then one 0 per step.
    calls: Vec<usize>,
    script: std::vec::IntoIter<Result<Vec<f32>, &'static str>>,
    logits: Vec<f32>,
}

impl Scripted {
    /// Predicts each of `favourites` in turn.
    fn saying(favourites: &[u32]) -> Scripted {
        Scripted::playing(favourites.iter().map(|&id| Ok(one_hot(id))).collect())
    }

    fn playing(script: Vec<Result<Vec<f32>, &'static str>>) -> Scripted {
        Scripted {
            vocabulary: 10,
            context: 100,
            read: Vec::new(),
            calls: Vec::new(),
            script: script.into_iter(),
            logits: Vec::new(),
        }
    }

    fn play(&mut self, tokens: &[u32], call: usize) -> Result<&[f32], &'static str> {
        self.logits = self.script.next().expect("the script has ended")?;
        self.read.extend(tokens);
        self.calls.push(call);
        Ok(&self.logits)
    }
}

fn one_hot(id: u32) -> Vec<f32> {
    (0..10)
        .map(|other| if other == id { 5.0 } else { 0.0 })
        .collect()
}

impl LogitsSession for Scripted {
    type Error = &'static str;

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn position(&self) -> usize {
        self.read.len()
    }

    fn context(&self) -> usize {
        self.context
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], &'static str> {
        self.play(tokens, tokens.len())
    }

    fn step(&mut self, token: u32) -> Result<&[f32], &'static str> {
        self.play(&[token], 0)
    }
}

fn greedy() -> GenerateOptions {
    GenerateOptions {
        sampling: Sampling::greedy(),
        ..GenerateOptions::default()
    }
}

type Outcome = Result<Finish, GenerateError<&'static str>>;

fn run(session: &mut Scripted, prompt: &[u32], options: &GenerateOptions) -> (Outcome, Vec<u32>) {
    let mut emitted = Vec::new();
    let outcome = generate(session, prompt, options, &mut |token| {
        emitted.push(token.id);
        ControlFlow::Continue(())
    });
    (outcome, emitted)
}

#[test]
fn the_stop_token_ends_the_answer_and_is_not_part_of_it() {
    let mut session = Scripted::saying(&[4, 5, 9, 1]);
    let options = GenerateOptions {
        stop_tokens: vec![8, 9],
        ..greedy()
    };
    let (finish, emitted) = run(&mut session, &[1, 2, 3], &options);
    let finish = finish.unwrap();
    assert_eq!(finish.reason, FinishReason::Stop { token: 9 });
    assert_eq!(emitted, [4, 5]);
    assert_eq!(
        (finish.prompt_tokens, finish.generated_tokens, finish.steps),
        (3, 2, 2)
    );
    assert_eq!(session.read, [1, 2, 3, 4, 5]);
    assert_eq!(session.calls, [3, 0, 0]);
}

#[test]
fn a_stop_token_in_the_first_place_gives_an_empty_answer() {
    let mut session = Scripted::saying(&[9]);
    let options = GenerateOptions {
        stop_tokens: vec![9],
        ..greedy()
    };
    let (finish, emitted) = run(&mut session, &[9], &options);
    assert_eq!(finish.unwrap().reason, FinishReason::Stop { token: 9 });
    assert!(emitted.is_empty());
}

#[test]
fn the_last_token_of_the_budget_is_not_stepped() {
    // The script would panic on a step too many.
    let mut session = Scripted::saying(&[4, 5, 6]);
    let (finish, emitted) = run(
        &mut session,
        &[1],
        &GenerateOptions {
            max_tokens: 3,
            ..greedy()
        },
    );
    let finish = finish.unwrap();
    assert_eq!(
        (finish.reason, finish.generated_tokens, finish.steps),
        (FinishReason::Length, 3, 2)
    );
    assert_eq!(emitted, [4, 5, 6]);
    assert_eq!(session.read, [1, 4, 5]);
}

#[test]
fn no_budget_reads_the_prompt_and_emits_nothing() {
    let mut session = Scripted::saying(&[4]);
    let (finish, emitted) = run(
        &mut session,
        &[1, 2],
        &GenerateOptions {
            max_tokens: 0,
            ..greedy()
        },
    );
    assert_eq!(finish.unwrap().reason, FinishReason::Length);
    assert!(emitted.is_empty());
    assert_eq!(session.read, [1, 2]);
}

#[test]
fn prompt_and_answer_fill_the_context_exactly() {
    let mut session = Scripted::saying(&[4, 5]);
    session.context = 7;
    session.read = vec![0, 0];
    let (finish, emitted) = run(&mut session, &[1, 2, 3], &greedy());
    assert_eq!(finish.unwrap().reason, FinishReason::Length);
    assert_eq!(emitted, [4, 5]);
    assert_eq!(session.read.len(), 6);
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_numbers() {
    let mut session = Scripted::saying(&[4]);
    session.context = 4;
    session.read = vec![0, 0];
    let (outcome, _) = run(&mut session, &[1, 2, 3], &greedy());
    let expected = RequestError::PromptTooLong {
        prompt: 3,
        position: 2,
        context: 4,
    };
    assert_eq!(outcome, Err(GenerateError::Request(expected)));
    let text = outcome.unwrap_err().to_string();
    assert!(
        text.contains("3 tokens") && text.contains("holds 4"),
        "{text}"
    );
    // One that just fits leaves no room for an answer.
    let (finish, emitted) = run(&mut session, &[1, 2], &greedy());
    assert_eq!((finish.unwrap().generated_tokens, emitted.len()), (0, 0));
}

#[test]
fn bad_requests_are_refused_before_anything_is_read() {
    let bad_setting = Sampling {
        top_p: 2.0,
        ..Sampling::default()
    };
    let options = GenerateOptions {
        sampling: bad_setting,
        ..greedy()
    };
    let many = GenerateOptions {
        logprobs: Some(Logprobs::MAX_TOP + 1),
        ..greedy()
    };
    for (prompt, options, expected) in [
        (&[][..], &greedy(), "the prompt has no tokens"),
        (
            &[1, 10],
            &greedy(),
            "token 10 of the prompt is outside the vocabulary of 10",
        ),
        (&[1], &options, "top_p is 2"),
        (&[1], &many, "257 alternatives"),
    ] {
        let mut session = Scripted::saying(&[]);
        let (outcome, _) = run(&mut session, prompt, options);
        let text = outcome.unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}");
        assert!(session.calls.is_empty());
    }
}

#[test]
fn the_receiver_can_end_the_answer() {
    let mut session = Scripted::saying(&[4, 5, 6]);
    let mut emitted = Vec::new();
    let finish = generate(&mut session, &[1], &greedy(), &mut |token| {
        emitted.push(token.id);
        if token.id == 5 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .unwrap();
    assert_eq!(
        (finish.reason, finish.generated_tokens),
        (FinishReason::Halted, 2)
    );
    assert_eq!(emitted, [4, 5]);
    assert_eq!(session.read, [1, 4]);
}

#[test]
fn errors_of_the_session_pass_through() {
    let (outcome, emitted) = run(&mut Scripted::playing(vec![Err("broken")]), &[1], &greedy());
    assert_eq!(
        (outcome, emitted),
        (Err(GenerateError::Session("broken")), vec![])
    );
    let mut session = Scripted::playing(vec![Ok(one_hot(4)), Err("cancelled")]);
    let (outcome, emitted) = run(&mut session, &[1], &greedy());
    assert_eq!(
        (outcome, emitted),
        (Err(GenerateError::Session("cancelled")), vec![4])
    );
}

#[test]
fn bad_logits_end_the_answer_with_an_error() {
    let mut bad = one_hot(2);
    bad[7] = f32::NAN;
    let mut session = Scripted::playing(vec![Ok(one_hot(4)), Ok(bad)]);
    let (outcome, emitted) = run(&mut session, &[1], &greedy());
    assert!(matches!(
        outcome,
        Err(GenerateError::Logits(LogitsError::NotFinite { id: 7, value })) if value.is_nan()
    ));
    assert_eq!(emitted, [4]);
}

#[test]
fn penalties_see_prompt_earlier_tokens_and_answer() {
    // Token 4 leads by a little; 5 and 6 follow.
    let row = || Ok(vec![0.0, 0.0, 0.0, 0.0, 3.0, 2.9, 2.8, 0.0, 0.0, 0.0]);
    let sampling = Sampling {
        repetition_penalty: 1.2,
        ..Sampling::greedy()
    };
    let options = GenerateOptions {
        sampling,
        max_tokens: 2,
        ..greedy()
    };
    let answer = |prompt: &[u32], earlier: &[u32]| {
        let mut session = Scripted::playing(vec![row(), row()]);
        let options = GenerateOptions {
            earlier: earlier.to_vec(),
            ..options.clone()
        };
        run(&mut session, prompt, &options).1
    };
    assert_eq!(answer(&[1], &[]), [4, 5]);
    assert_eq!(answer(&[4], &[]), [5, 6]);
    assert_eq!(answer(&[4], &[5]), [6, 4]);
}

#[test]
fn logprobs_are_the_models_own() {
    let row: Vec<f32> = (0..10)
        .map(|id| if id < 4 { 0.0 } else { f32::NEG_INFINITY })
        .collect();
    let mut session = Scripted::playing(vec![Ok(row)]);
    let sampling = Sampling {
        temperature: 0.1,
        top_k: 1,
        logit_bias: vec![(2, 9.0)],
        ..Sampling::default()
    };
    let options = GenerateOptions {
        sampling,
        max_tokens: 1,
        logprobs: Some(3),
        ..GenerateOptions::default()
    };
    let mut seen = 0;
    generate(&mut session, &[1], &options, &mut |token| {
        seen += 1;
        assert_eq!(token.id, 2);
        assert!((token.logprob.unwrap() - 0.25f64.ln()).abs() < 1e-12);
        assert_eq!(
            token.top.iter().map(|t| t.id).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, 1);
}

#[test]
fn sessions_work_behind_a_trait_object() {
    let mut session = Scripted::saying(&[4]);
    let session: &mut dyn LogitsSession<Error = &'static str> = &mut session;
    let options = GenerateOptions {
        max_tokens: 1,
        ..greedy()
    };
    let finish = generate(session, &[1], &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(finish.generated_tokens, 1);
}
