//! Drives one conversation from prompt to finish, with and without drafts.

use super::speculate::{Outcome, Plan};
use super::{
    Advance, GenerateError, GenerateOptions, Generation, LogitsError, LogitsSession,
    SpeculationStats, SpeculativeSession, Speculator, Token,
};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose a stop token.
    Stop {
        /// Which one.
        token: u32,
    },
    /// The token budget or the context is used up.
    Length,
    /// The receiver of the tokens asked for no more.
    Halted,
}

/// How an answer ended and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens emitted.
    pub generated_tokens: usize,
    /// Tokens of the answer that the session has read; with `decode_time` this is the decode
    /// speed.
    pub decoded_tokens: usize,
    /// Passes through the model that this took; without drafts, one a token.
    pub steps: usize,
    /// Time to read the prompt.
    pub prompt_time: Duration,
    /// Time from there to the end, the receiver's included.
    pub decode_time: Duration,
    /// What became of drafts; all zero without.
    pub speculation: SpeculationStats,
}

/// Receives each token of an answer and may end it.
type OnToken<'a> = dyn FnMut(Token<'_>) -> ControlFlow<()> + 'a;

/// Reads `prompt` and generates an answer, handing each token to `on_token`, which may end it.
///
/// Afterwards the session has read the prompt and every emitted token, except the last one where
/// the answer ended by [`FinishReason::Length`] or [`FinishReason::Halted`]. With no room or budget
/// for even one token the prompt is read all the same.
///
/// # Errors
/// [`GenerateError`]: the request is refused before anything is read, or the session or its logits
/// fail on the way.
pub fn generate<S: LogitsSession + ?Sized>(
    session: &mut S,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: &mut OnToken<'_>,
) -> Result<Finish, GenerateError<S::Error>> {
    let generation = prepare(session, prompt, options)?;
    drive(&mut Single(session), generation, prompt, on_token)
}

/// Generates an answer from `logits`, those after the last token that `session` has read. What it
/// has read belongs into [`GenerateOptions::earlier`], for the repetition penalty.
///
/// Afterwards the session is as after [`generate`].
///
/// # Errors
/// As [`generate`].
pub fn continue_session<S: LogitsSession + ?Sized>(
    session: &mut S,
    logits: &[f32],
    options: &GenerateOptions,
    on_token: &mut OnToken<'_>,
) -> Result<Finish, GenerateError<S::Error>> {
    let (vocabulary, context) = (session.vocabulary(), session.context());
    let mut generation = Generation::after(options, &[], vocabulary, session.position(), context)?;
    let answer = Answer::begin(&generation, 0);
    let rows = Rows {
        logits,
        drafts: &[],
    };
    let run = choose(&mut generation, &rows, on_token);
    answer.go_on(&mut Single(session), generation, run, on_token)
}

/// [`generate`] with the drafts of `speculator`: the same tokens, log-probabilities, finish and
/// session afterwards, sooner where drafts are right often enough.
///
/// # Errors
/// As [`generate`], and what a drafter reports.
pub fn generate_speculating<S: SpeculativeSession + ?Sized>(
    session: &mut S,
    prompt: &[u32],
    options: &GenerateOptions,
    speculator: &mut Speculator<S, S::Error>,
    on_token: &mut OnToken<'_>,
) -> Result<Finish, GenerateError<S::Error>> {
    let generation = prepare(session, prompt, options)?;
    speculator.begin();
    let mut reader = Speculating {
        session,
        speculator,
        history: [&options.earlier, prompt].concat(),
        stop_tokens: &options.stop_tokens,
        tokens: Vec::new(),
        plan: None,
        pending: 0,
        pass_time: Duration::ZERO,
        draft_time: Duration::ZERO,
        stats: SpeculationStats::default(),
    };
    drive(&mut reader, generation, prompt, on_token)
}

fn prepare<S: LogitsSession + ?Sized>(
    session: &S,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<Generation, GenerateError<S::Error>> {
    let (vocabulary, context) = (session.vocabulary(), session.context());
    Ok(Generation::new(
        options,
        prompt,
        vocabulary,
        session.position(),
        context,
    )?)
}

/// How a session is read: token by token, or with drafts.
trait Reader {
    type Error;

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Self::Error>;

    /// Reads `token`, and drafts after it if that seems worth it, of which at most `room - 1` can
    /// be of use.
    fn read(&mut self, token: u32, room: usize) -> Result<Rows<'_>, Self::Error>;

    /// Takes back what was read beyond `run`, the outcome of the last [`read`](Self::read).
    fn keep(&mut self, run: &Run) -> Result<(), Self::Error>;

    fn stats(&self) -> SpeculationStats;
}

/// Logits after a token and after each of the drafts that follow it.
struct Rows<'a> {
    /// `[1 + drafts, vocabulary]`.
    logits: &'a [f32],
    drafts: &'a [u32],
}

/// Tokens chosen from the rows of one pass.
struct Run {
    /// Rows that were chosen from: so many of the pass's tokens are part of the conversation.
    rows: usize,
    /// Drafts that were right, from the first on.
    accepted: usize,
    then: Then,
}

enum Then {
    /// This token is to be read next.
    Read(u32),
    End(FinishReason),
    Fail(LogitsError),
}

fn drive<R: Reader>(
    reader: &mut R,
    mut generation: Generation,
    prompt: &[u32],
    on_token: &mut OnToken<'_>,
) -> Result<Finish, GenerateError<R::Error>> {
    let mut answer = Answer::begin(&generation, prompt.len());
    let logits = reader.prefill(prompt).map_err(GenerateError::Session)?;
    answer.prompt_time = answer.start.elapsed();
    let rows = Rows {
        logits,
        drafts: &[],
    };
    let run = choose(&mut generation, &rows, on_token);
    answer.go_on(reader, generation, run, on_token)
}

/// What is counted of an answer.
struct Answer {
    budget: usize,
    start: Instant,
    prompt_tokens: usize,
    prompt_time: Duration,
}

impl Answer {
    fn begin(generation: &Generation, prompt_tokens: usize) -> Answer {
        Answer {
            budget: generation.remaining(),
            start: Instant::now(),
            prompt_tokens,
            prompt_time: Duration::ZERO,
        }
    }

    /// Reads and chooses from `run`, the first, to the end of the answer.
    fn go_on<R: Reader>(
        &self,
        reader: &mut R,
        mut generation: Generation,
        mut run: Run,
        on_token: &mut OnToken<'_>,
    ) -> Result<Finish, GenerateError<R::Error>> {
        let (mut steps, mut decoded_tokens) = (0, 0);
        let reason = loop {
            let token = match run.then {
                Then::Read(token) => token,
                Then::End(reason) => break reason,
                Then::Fail(error) => return Err(error.into()),
            };
            let rows = reader.read(token, generation.remaining());
            run = choose(
                &mut generation,
                &rows.map_err(GenerateError::Session)?,
                on_token,
            );
            reader.keep(&run).map_err(GenerateError::Session)?;
            steps += 1;
            decoded_tokens += run.rows;
        };
        Ok(Finish {
            reason,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.budget - generation.remaining(),
            decoded_tokens,
            steps,
            prompt_time: self.prompt_time,
            decode_time: self.start.elapsed() - self.prompt_time,
            speculation: reader.stats(),
        })
    }
}

/// Chooses a token from each row in turn, as long as it is the draft that the next row follows.
fn choose(generation: &mut Generation, rows: &Rows<'_>, on_token: &mut OnToken<'_>) -> Run {
    let vocabulary = rows.logits.len() / (rows.drafts.len() + 1);
    let mut accepted = 0;
    let run = |rows, accepted, then| Run {
        rows,
        accepted,
        then,
    };
    if generation.is_finished() {
        return run(1, 0, Then::End(FinishReason::Length));
    }
    loop {
        let row = accepted;
        let logits = &rows.logits[row * vocabulary..][..vocabulary];
        let (id, halted) = match generation.advance(logits) {
            Err(error) => return run(row + 1, accepted, Then::Fail(error)),
            Ok(Advance::Stop(token)) => {
                let reason = FinishReason::Stop { token };
                return run(row + 1, accepted, Then::End(reason));
            }
            Ok(Advance::Token(token)) => (token.id, on_token(token).is_break()),
        };
        let right = rows.drafts.get(row) == Some(&id);
        accepted += usize::from(right);
        if halted {
            return run(row + 1, accepted, Then::End(FinishReason::Halted));
        }
        if generation.is_finished() {
            return run(row + 1, accepted, Then::End(FinishReason::Length));
        }
        if !right {
            return run(row + 1, accepted, Then::Read(id));
        }
    }
}

/// One token a pass.
struct Single<'a, S: ?Sized>(&'a mut S);

impl<S: LogitsSession + ?Sized> Reader for Single<'_, S> {
    type Error = S::Error;

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], S::Error> {
        self.0.prefill(tokens)
    }

    fn read(&mut self, token: u32, _: usize) -> Result<Rows<'_>, S::Error> {
        let logits = self.0.step(token)?;
        Ok(Rows {
            logits,
            drafts: &[],
        })
    }

    fn keep(&mut self, _: &Run) -> Result<(), S::Error> {
        Ok(())
    }

    fn stats(&self) -> SpeculationStats {
        SpeculationStats::default()
    }
}

/// Drafts where they pay.
struct Speculating<'a, S: SpeculativeSession + ?Sized> {
    session: &'a mut S,
    speculator: &'a mut Speculator<S, S::Error>,
    /// Every token before those of the running pass.
    history: Vec<u32>,
    stop_tokens: &'a [u32],
    /// The running pass: one chosen token, then drafts.
    tokens: Vec<u32>,
    plan: Option<Plan>,
    /// Tokens that the running pass read again.
    pending: usize,
    pass_time: Duration,
    draft_time: Duration,
    stats: SpeculationStats,
}

impl<S: SpeculativeSession + ?Sized> Speculating<'_, S> {
    /// Puts drafts behind the one token there is.
    fn draft(&mut self, room: usize) -> Result<(), S::Error> {
        let start = Instant::now();
        self.history.extend_from_slice(&self.tokens);
        let again = self.session.reads_again();
        self.pending = self.session.pending();
        let plan = self
            .speculator
            .plan(&self.history, room, self.pending, again);
        if let Some(plan) = plan {
            let (session, tokens) = (&mut *self.session, &mut self.tokens);
            self.speculator
                .draft(plan, session, &self.history, tokens)?;
        }
        self.plan = plan;
        self.history.pop();
        // What follows a stop token is not read in any case, nor is it.
        let vocabulary = self.session.vocabulary();
        let useless = |id: &u32| self.stop_tokens.contains(id) || *id as usize >= vocabulary;
        let drafts = &self.tokens[1..];
        let useful = drafts.iter().position(useless).unwrap_or(drafts.len());
        self.tokens.truncate(1 + useful.min(room.saturating_sub(1)));
        self.draft_time = start.elapsed();
        Ok(())
    }
}

impl<S: SpeculativeSession + ?Sized> Reader for Speculating<'_, S> {
    type Error = S::Error;

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], S::Error> {
        self.session.prefill(tokens)
    }

    fn read(&mut self, token: u32, room: usize) -> Result<Rows<'_>, S::Error> {
        self.tokens.clear();
        self.tokens.push(token);
        self.draft(room)?;
        let mut start = Instant::now();
        let mut result = self.session.verify(&self.tokens);
        if result.is_err() && self.tokens.len() > 1 {
            // A wrong draft may lead where nothing can be computed; the answer itself may not.
            self.tokens.truncate(1);
            start = Instant::now();
            result = self.session.verify(&self.tokens);
        }
        result?;
        self.pass_time = start.elapsed();
        Ok(Rows {
            logits: self.session.verified(),
            drafts: &self.tokens[1..],
        })
    }

    fn keep(&mut self, run: &Run) -> Result<(), S::Error> {
        self.session.keep(run.rows)?;
        self.history.extend_from_slice(&self.tokens[..run.rows]);
        let drafted = self.tokens.len() - 1;
        // A run that the receiver or the budget ended leaves the rest of the draft unjudged.
        let wrong = run.rows > run.accepted && run.accepted < drafted;
        let outcome = Outcome {
            rows: self.tokens.len() + self.pending,
            time: self.pass_time,
            draft_time: self.draft_time,
            drafted,
            accepted: run.accepted,
            judged: run.accepted + usize::from(wrong),
        };
        self.speculator.learn(self.plan.take(), &outcome);
        self.stats.drafted += drafted;
        self.stats.accepted += run.accepted;
        self.stats.passes += usize::from(drafted > 0);
        self.stats.read_again += self.pending;
        Ok(())
    }

    fn stats(&self) -> SpeculationStats {
        self.stats
    }
}
