//! Tests of generation with drafts, on a session that computes its logits from what it has read.

use super::super::{
    Finish, FinishReason, GenerateError, GenerateOptions, Sampling, TokenLogprob, generate,
    generate_speculating,
};
use super::*;
use std::ops::ControlFlow;

const VOCABULARY: usize = 12;

/// A language of its own: the next token depends on the last three.
#[derive(Clone, Default)]
struct Language {
    read: Vec<u32>,
    context: usize,
    logits: Vec<f32>,
    /// A token after which nothing can be computed.
    poison: Option<u32>,
    /// Calls that may still succeed.
    calls: Option<usize>,
    /// Rows of every pass.
    passes: Vec<usize>,
}

impl Language {
    fn new() -> Language {
        Language {
            context: 400,
            ..Language::default()
        }
    }

    /// Reads all or nothing; logits after the last `rows` tokens.
    fn pass(&mut self, tokens: &[u32], rows: usize) -> Result<(), &'static str> {
        if let Some(calls) = &mut self.calls {
            *calls = calls.checked_sub(1).ok_or("cancelled")?;
        }
        if tokens.iter().any(|&t| Some(t) == self.poison) {
            return Err("poisoned");
        }
        assert!(self.read.len() + tokens.len() <= self.context, "too long");
        self.read.extend(tokens);
        self.passes.push(tokens.len());
        self.logits.clear();
        for end in self.read.len() + 1 - rows..=self.read.len() {
            self.logits.extend(logits_after(&self.read[..end]));
        }
        Ok(())
    }
}

fn logits_after(tokens: &[u32]) -> impl Iterator<Item = f32> + use<> {
    let last = tokens.iter().rev().take(3);
    let state = last.fold(17u64, |state, &token| {
        (state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (0..VOCABULARY as u64).map(move |id| {
        let mixed = (state ^ id << 7).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 40) as f32 / (1u64 << 22) as f32
    })
}

impl LogitsSession for Language {
    type Error = &'static str;

    fn vocabulary(&self) -> usize {
        VOCABULARY
    }

    fn position(&self) -> usize {
        self.read.len()
    }

    fn context(&self) -> usize {
        self.context
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], &'static str> {
        self.pass(tokens, 1)?;
        Ok(&self.logits)
    }

    fn step(&mut self, token: u32) -> Result<&[f32], &'static str> {
        self.pass(&[token], 1)?;
        Ok(&self.logits)
    }
}

impl SpeculativeSession for Language {
    fn verify(&mut self, tokens: &[u32]) -> Result<(), &'static str> {
        self.pass(tokens, tokens.len())
    }

    fn verified(&self) -> &[f32] {
        &self.logits
    }

    fn keep(&mut self, count: usize) -> Result<(), &'static str> {
        let wrong = self.logits.len() / VOCABULARY - count;
        self.read.truncate(self.read.len() - wrong);
        Ok(())
    }
}

/// Drafts from what plain decode gave, each token changed where `wrong` says so.
struct Script {
    /// All tokens of the conversation.
    truth: Vec<u32>,
    wrong: fn(place: usize) -> bool,
}

impl<S> Drafter<S, &'static str> for Script {
    fn outlook(&mut self, _: &[u32], most: usize) -> Option<Outlook> {
        Some(Outlook {
            grade: 0,
            tokens: most,
        })
    }

    fn draft(
        &mut self,
        _: &mut S,
        history: &[u32],
        count: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), &'static str> {
        for place in history.len()..history.len() + count {
            // Beyond what plain decode gave anything may be proposed, ids that do not exist too.
            let token = self.truth.get(place).copied().unwrap_or(place as u32);
            let wrong = (self.wrong)(place);
            out.push(if wrong {
                (token + 1) % VOCABULARY as u32
            } else {
                token
            });
        }
        Ok(())
    }
}

/// All that a receiver sees of an answer.
#[derive(Debug, PartialEq)]
struct Seen {
    tokens: Vec<(u32, Option<u64>, Vec<TokenLogprob>)>,
    finish: Result<Finish, GenerateError<&'static str>>,
    read: Vec<u32>,
}

impl Seen {
    /// What must be equal with and without drafts.
    fn essence(mut self) -> Seen {
        if let Ok(finish) = &mut self.finish {
            finish.steps = 0;
            finish.prompt_time = Duration::ZERO;
            finish.decode_time = Duration::ZERO;
            finish.speculation = SpeculationStats::default();
        }
        self
    }
}

type Speculating = Speculator<Language, &'static str>;

/// Answers; `halt` = tokens after which the receiver has enough.
fn answer(
    session: &mut Language,
    prompt: &[u32],
    options: &GenerateOptions,
    halt: usize,
    speculator: Option<&mut Speculating>,
) -> Seen {
    let mut tokens = Vec::new();
    let mut receive = |token: super::super::Token<'_>| {
        let logprob = token.logprob.map(f64::to_bits);
        tokens.push((token.id, logprob, token.top.to_vec()));
        match tokens.len() >= halt {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let finish = match speculator {
        None => generate(session, prompt, options, &mut receive),
        Some(s) => generate_speculating(session, prompt, options, s, &mut receive),
    };
    Seen {
        tokens,
        finish,
        read: session.read.clone(),
    }
}

fn sampled() -> Sampling {
    Sampling {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        logit_bias: vec![(3, 0.7)],
        ..Sampling::default()
    }
}

/// Requests that end in every way.
fn requests() -> Vec<(GenerateOptions, usize)> {
    let mut all = Vec::new();
    for sampling in [Sampling::greedy(), sampled()] {
        for (max_tokens, stop_tokens, halt) in [
            (40, vec![], usize::MAX),
            (1, vec![], usize::MAX),
            (7, vec![], usize::MAX),
            (60, vec![5], usize::MAX),
            (60, vec![9, 2], usize::MAX),
            (40, vec![], 6),
            (40, vec![], 1),
            (usize::MAX, vec![], usize::MAX),
        ] {
            let options = GenerateOptions {
                max_tokens,
                stop_tokens,
                sampling: sampling.clone(),
                seed: 11,
                logprobs: Some(3),
                earlier: vec![1, 2],
                ..GenerateOptions::default()
            };
            all.push((options, halt));
        }
    }
    all
}

/// A session that has read something, so that its context ends soon.
fn begun() -> Language {
    let mut session = Language::new();
    session.context = 80;
    session.read = vec![1, 2];
    session
}

const PROMPT: [u32; 6] = [4, 7, 1, 4, 7, 0];

/// Whether the draft at a place is wrong.
const WRONG: [fn(usize) -> bool; 5] = [
    |_| false,
    |_| true,
    |place| place % 3 == 0,
    |place| place % 5 != 0,
    |place| place.wrapping_mul(0x9e37_79b9) >> 13 & 1 == 0,
];

#[test]
fn any_drafts_of_any_length_change_nothing() {
    for (options, halt) in requests() {
        let mut plain = begun();
        let expected = answer(&mut plain, &PROMPT, &options, halt, None).essence();
        let said = expected.tokens.iter().map(|t| t.0);
        let truth: Vec<u32> = [1, 2].into_iter().chain(PROMPT).chain(said).collect();
        // The conversation goes on without drafts.
        let again = answer(&mut plain, &[8], &options, 5, None).essence();
        for most in 1..=5 {
            for wrong in WRONG {
                let truth = truth.clone();
                let mut drafts = Speculating::new(most)
                    .with(Script { truth, wrong })
                    .always();
                let mut session = begun();
                let got = answer(&mut session, &PROMPT, &options, halt, Some(&mut drafts));
                assert_eq!(got.essence(), expected, "{most} {options:?} {halt}");
                let got = answer(&mut session, &[8], &options, 5, None);
                assert_eq!(got.essence(), again, "{most} {options:?} {halt}");
            }
            let mut drafts = Speculating::new(most).with(PromptLookup::new()).always();
            let got = answer(&mut begun(), &PROMPT, &options, halt, Some(&mut drafts));
            assert_eq!(got.essence(), expected, "lookup {most} {options:?} {halt}");
        }
    }
}

#[test]
fn priced_drafts_change_nothing_either() {
    for (options, halt) in requests() {
        let expected = answer(&mut begun(), &PROMPT, &options, halt, None).essence();
        let mut drafts = Speculating::new(8).with(PromptLookup::new());
        for _ in 0..3 {
            let got = answer(&mut begun(), &PROMPT, &options, halt, Some(&mut drafts));
            assert_eq!(got.essence(), expected);
        }
    }
}

#[test]
fn right_drafts_save_passes_and_are_counted() {
    let options = GenerateOptions {
        max_tokens: 41,
        sampling: Sampling::greedy(),
        ..GenerateOptions::default()
    };
    let plain = answer(&mut Language::new(), &PROMPT, &options, 99, None);
    let truth = [
        &PROMPT[..],
        &plain.tokens.iter().map(|t| t.0).collect::<Vec<_>>(),
    ]
    .concat();
    let play = |wrong| {
        let truth = truth.clone();
        let mut drafts = Speculating::new(4).with(Script { truth, wrong }).always();
        let mut session = Language::new();
        let seen = answer(&mut session, &PROMPT, &options, 99, Some(&mut drafts));
        (seen.finish.unwrap(), session.passes)
    };
    let (finish, passes) = play(|_| false);
    assert_eq!(passes, [6, 5, 5, 5, 5, 5, 5, 5, 5]);
    assert_eq!((finish.steps, finish.decoded_tokens), (8, 40));
    let stats = finish.speculation;
    assert_eq!((stats.drafted, stats.accepted, stats.passes), (32, 32, 8));
    assert_eq!(
        (stats.acceptance(), stats.mean_accepted()),
        (Some(1.0), Some(4.0))
    );
    let (finish, passes) = play(|_| true);
    assert_eq!((finish.steps, finish.decoded_tokens), (40, 40));
    let stats = finish.speculation;
    assert_eq!(
        (stats.drafted, stats.accepted),
        (passes.iter().sum::<usize>() - 46, 0)
    );
    assert_eq!(
        (stats.acceptance(), stats.mean_accepted()),
        (Some(0.0), Some(0.0))
    );
    let none = plain.finish.unwrap().speculation;
    assert_eq!(
        (none, none.acceptance()),
        (SpeculationStats::default(), None)
    );
}

#[test]
fn a_call_cancelled_anywhere_leaves_what_was_emitted() {
    let (options, _) = requests().remove(0);
    let plain = answer(&mut begun(), &PROMPT, &options, 99, None);
    let truth: Vec<u32> = [1, 2]
        .into_iter()
        .chain(PROMPT)
        .chain(plain.tokens.iter().map(|t| t.0))
        .collect();
    for calls in 0..14 {
        let truth = truth.clone();
        let mut drafts = Speculating::new(3)
            .with(Script {
                truth: truth.clone(),
                wrong: WRONG[2],
            })
            .always();
        let mut session = begun();
        session.calls = Some(calls);
        let seen = answer(&mut session, &PROMPT, &options, 99, Some(&mut drafts));
        assert_eq!(seen.finish, Err(GenerateError::Session("cancelled")));
        assert_eq!(seen.tokens[..], plain.tokens[..seen.tokens.len()]);
        // All but the last emitted token is read, as without drafts.
        let expected = match calls {
            0 => 2,
            _ => 2 + PROMPT.len() + seen.tokens.len() - 1,
        };
        assert_eq!(session.read, truth[..expected], "{calls}");
    }
}

#[test]
fn a_draft_that_cannot_be_computed_is_dropped() {
    let (mut options, _) = requests().remove(0);
    options.sampling.logit_bias = vec![(6, f64::NEG_INFINITY)];
    let expected = answer(&mut begun(), &PROMPT, &options, 99, None).essence();
    let mut session = begun();
    session.poison = Some(6);
    let truth = vec![6; 80];
    let wrong = WRONG[0];
    let mut drafts = Speculating::new(3).with(Script { truth, wrong }).always();
    let got = answer(&mut session, &PROMPT, &options, 99, Some(&mut drafts));
    let stats = got.finish.as_ref().unwrap().speculation;
    assert_eq!((stats.drafted, stats.passes), (0, 0));
    assert_eq!(got.essence(), expected);
}

#[test]
fn bad_logits_behind_a_right_draft_end_the_answer_as_without() {
    /// A session whose logits break at one place.
    struct Broken(Language);
    impl LogitsSession for Broken {
        type Error = &'static str;
        fn vocabulary(&self) -> usize {
            VOCABULARY
        }
        fn position(&self) -> usize {
            self.0.position()
        }
        fn context(&self) -> usize {
            self.0.context()
        }
        fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], &'static str> {
            self.0.prefill(tokens)
        }
        fn step(&mut self, token: u32) -> Result<&[f32], &'static str> {
            self.verify(&[token])?;
            Ok(&self.0.logits)
        }
    }
    impl SpeculativeSession for Broken {
        fn verify(&mut self, tokens: &[u32]) -> Result<(), &'static str> {
            self.0.verify(tokens)?;
            let first = self.0.read.len() - tokens.len() + 1;
            if let Some(row) = 16usize.checked_sub(first).filter(|&row| row < tokens.len()) {
                self.0.logits[row * VOCABULARY] = f32::NAN;
            }
            Ok(())
        }
        fn verified(&self) -> &[f32] {
            self.0.verified()
        }
        fn keep(&mut self, count: usize) -> Result<(), &'static str> {
            self.0.keep(count)
        }
    }
    let (options, _) = requests().remove(0);
    let mut count = 0;
    let mut receive = |_: super::super::Token<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    let mut plain = Broken(begun());
    let expected = generate(&mut plain, &PROMPT, &options, &mut receive).map(|_| ());
    assert!(matches!(expected, Err(GenerateError::Logits(_))));
    let truth = [&plain.0.read[..], &[0; 9]].concat();
    let mut drafts = Speculator::<Broken, &'static str>::new(4)
        .with(Script {
            truth,
            wrong: |_| false,
        })
        .always();
    let mut session = Broken(begun());
    let got = generate_speculating(&mut session, &PROMPT, &options, &mut drafts, &mut receive);
    assert_eq!(format!("{:?}", got.map(|_| ())), format!("{expected:?}"));
    assert_eq!(session.0.read, plain.0.read);
    assert_eq!(count, 2 * (16 - 8), "tokens before the bad row");
}

#[test]
fn of_two_drafters_the_better_one_wins() {
    let options = GenerateOptions {
        max_tokens: 300,
        sampling: Sampling::greedy(),
        ..GenerateOptions::default()
    };
    let plain = answer(&mut Language::new(), &PROMPT, &options, 999, None);
    assert_eq!(plain.finish.as_ref().unwrap().reason, FinishReason::Length);
    let truth = [
        &PROMPT[..],
        &plain.tokens.iter().map(|t| t.0).collect::<Vec<_>>(),
    ]
    .concat();
    let script = |wrong| Script {
        truth: truth.clone(),
        wrong,
    };
    // Passes are judged by the time they take, which a busy machine may spoil once.
    let best = (0..5).map(|_| {
        let mut drafts = Speculating::new(4)
            .with(script(|_| true))
            .with(script(|_| false))
            .always();
        let mut session = Language::new();
        let seen = answer(&mut session, &PROMPT, &options, 999, Some(&mut drafts));
        seen.finish.unwrap().speculation.acceptance().unwrap()
    });
    let best = best.fold(0.0, f64::max);
    assert!(best > 0.9, "{best}");
}
