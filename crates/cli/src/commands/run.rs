//! `lamella run`: one answer, or a chat.

use crate::args::{AnswerArgs, RunArgs, SamplingArgs};
use crate::chat::{
    Answer, Asked, ChatSettings, Conversation, Display, Drafting, End, Lines, OnEvent, Voice, chat,
    prompt_options,
};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::model::{self, Place};
use crate::progress;
use crate::settings;
use crate::terminal::{self, Terminal};
use anyhow::Context;
use lamella_engine::generate::Sampler;
use lamella_engine::{ExpertStatistics, Model, ModelSession};
use lamella_text::{Bundle, ChatOptions, StopStrings, ToolCall};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;

pub(crate) fn run(
    args: &RunArgs,
    terminal: &Terminal,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let prompt = prompt(args)?;
    let place = Place::of(&args.model)?;
    let options = settings::conversing(&args.engine, args.memory.memory, args.threads.threads);
    let who = args.answer.speculate.unwrap_or_default();
    let usable = |bundle: &Bundle| match bundle.chat() {
        _ if args.raw => Ok(()),
        Ok(chat) => prompt_options(&args.answer, chat).map(|_| ()),
        Err(error) => {
            Err(model::text_error(place.path(), error)).context("use --raw to continue plain text")
        }
    };
    let (model, bundle) = model::open_with_text(&place, &options, who, usable, terminal)?;
    let lines = if prompt.is_none() {
        Some(Lines::stdin(interrupt)?)
    } else {
        None
    };
    interrupt.poll()?;
    let chunk = args.engine.chunk.unwrap_or(0);
    let session = ModelSession::new(Arc::clone(&model), chunk, interrupt.cancel())?;
    let mut conversation = Conversation::new(bundle, session, args.answer.system.as_deref());
    let mut voice = Printer {
        model: &model,
        terminal,
        json: args.json,
        hides_thinking: args.hide_thinking,
        interrupt,
    };
    match (prompt, lines) {
        (Some(prompt), _) => voice.once(&mut conversation, args, &prompt),
        (None, Some(mut lines)) => {
            let mut settings = ChatSettings {
                answer: args.answer.clone(),
                sampling: args.sampling.clone(),
            };
            if matches!(lines, Lines::Terminal { .. }) {
                terminal.note(&greeting(&model, args));
            }
            chat(
                &mut conversation,
                &mut settings,
                &mut lines,
                &mut voice,
                interrupt,
                terminal,
            )
        }
        (None, None) => Ok(()),
    }
}

fn greeting(model: &Model, args: &RunArgs) -> String {
    let encodings: Vec<_> = model.report().encodings.keys().copied().collect();
    format!(
        "{}: {} ({}), context {}. /help lists the commands.",
        args.model.display(),
        terminal::plain(&model.program().family),
        encodings.join(", "),
        model.report().context,
    )
}

/// The prompt of a one-shot answer; `None` means chat.
fn prompt(args: &RunArgs) -> anyhow::Result<Option<String>> {
    match args.prompt.as_deref() {
        Some("-") => read_stdin().map(Some),
        Some(text) => Ok(Some(text.to_owned())),
        None if args.chat && args.raw => Err(Failure::usage(
            "--chat and --raw exclude each other; --help explains",
        )),
        None if args.chat => Ok(None),
        None if !io::stdin().is_terminal() => read_stdin().map(Some),
        None if args.raw => Err(Failure::usage("--raw needs a prompt; --help explains")),
        None => Ok(None),
    }
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .context("standard input")?;
    // One line end is the shell's, not the person's.
    let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
    if text.trim().is_empty() {
        return Err(Failure::usage("standard input holds no prompt"));
    }
    Ok(text)
}

fn asked(
    conversation: &Conversation,
    answer: &AnswerArgs,
    sampling: &SamplingArgs,
) -> anyhow::Result<Asked> {
    let prompt = match conversation.bundle().chat() {
        Ok(chat) => prompt_options(answer, chat)?,
        // A model that does not chat is asked for nothing.
        Err(_) => ChatOptions::prompt(),
    };
    let bundle = conversation.bundle();
    let model_limit = bundle.generation.max_new_tokens.map(|n| n as usize);
    let stop = StopStrings::new(&answer.stop).map_err(|e| Failure::usage(e.to_string()))?;
    Ok(Asked {
        max_tokens: answer.max_tokens.or(model_limit),
        stop,
        sampling: settings::sampling(sampling, &bundle.generation, bundle.tokenizer.vocabulary()),
        seed: settings::seed(sampling),
        drafting: Drafting::of(answer),
        prompt,
    })
}

/// Prints answers: as they come, or as JSON when they are complete.
struct Printer<'a> {
    model: &'a Model,
    terminal: &'a Terminal,
    json: bool,
    hides_thinking: bool,
    interrupt: &'a Interrupt,
}

impl Printer<'_> {
    fn once(
        &self,
        conversation: &mut Conversation,
        args: &RunArgs,
        prompt: &str,
    ) -> anyhow::Result<()> {
        let mut wanted = args.answer.clone();
        if args.raw {
            // A lower layer may give what only chats read; typed, it is refused.
            (wanted.thinking, wanted.reasoning_effort, wanted.tools) = (None, None, None);
        }
        let asked = asked(conversation, &wanted, &args.sampling)?;
        let before = self.model.experts();
        let answer = self.shown(|tell| {
            if args.raw {
                return conversation.continue_text(prompt, &asked, tell);
            }
            conversation.say(prompt);
            conversation.answer(&asked, tell)
        })?;
        self.finish(&answer, before)?;
        if answer.end == End::Interrupted {
            Err(Failure::interrupted())
        } else {
            Ok(())
        }
    }

    /// Shows what `answer` tells, and ends it.
    fn shown(
        &self,
        answer: impl FnOnce(OnEvent<'_>) -> anyhow::Result<Answer>,
    ) -> anyhow::Result<Answer> {
        if self.json {
            return answer(&mut |_| Ok(()));
        }
        let dims = io::stdout().is_terminal();
        let mut display = Display::new(dims, self.hides_thinking);
        let given = answer(&mut |event| terminal::write(&display.shown(event)))?;
        terminal::write(&display.end())?;
        Ok(given)
    }

    /// Ends an answer; `before` are the counts of experts when it began.
    fn finish(&self, answer: &Answer, before: Option<ExpertStatistics>) -> anyhow::Result<()> {
        let experts = self.model.experts().zip(before);
        let experts = experts.map(|(now, before)| now.since(&before));
        if self.json {
            return terminal::print_json(&self.to_json(answer, experts));
        }
        self.terminal.note(&summary(answer, experts));
        Ok(())
    }

    fn to_json(&self, answer: &Answer, experts: Option<ExpertStatistics>) -> serde_json::Value {
        let read = answer.prompt_tokens - answer.cached_tokens;
        json!({
            "text": answer.said.content,
            "reasoning": answer.said.reasoning,
            "tool_calls": answer.said.calls.iter().map(call).collect::<Vec<_>>(),
            "ids": answer.ids,
            "finish_reason": answer.end.name(),
            "seed": answer.seed,
            "usage": {
                "prompt_tokens": answer.prompt_tokens,
                "cached_tokens": answer.cached_tokens,
                "completion_tokens": answer.ids.len(),
                "total_tokens": answer.prompt_tokens + answer.ids.len(),
            },
            "timings": {
                "open_ms": terminal::milliseconds(self.model.report().open_time),
                "prompt_ms": terminal::milliseconds(answer.prompt_time),
                "prompt_per_second": terminal::rate(read, answer.prompt_time),
                "decode_ms": terminal::milliseconds(answer.decode_time),
                "decode_per_second": terminal::rate(answer.decoded_tokens, answer.decode_time),
            },
            "speculation": answer.speculation.map(|stats| json!({
                "drafted": stats.drafted,
                "accepted": stats.accepted,
                "passes": stats.passes,
                "mean_accepted": stats.mean_accepted(),
                "read_again": stats.read_again,
            })),
            "experts": experts.map(|counts| terminal::experts_json(&counts)),
        })
    }
}

impl Voice for Printer<'_> {
    fn answer(
        &mut self,
        conversation: &mut Conversation,
        settings: &ChatSettings,
    ) -> anyhow::Result<()> {
        let asked = asked(conversation, &settings.answer, &settings.sampling)?;
        let before = self.model.experts();
        let answer = self.shown(|tell| conversation.answer(&asked, tell))?;
        self.interrupt.reset();
        self.finish(&answer, before)
    }

    fn failed(&self, message: &str) -> anyhow::Result<()> {
        if self.json {
            return terminal::print_json(&json!({"error": message}));
        }
        Ok(())
    }

    fn check(&self, conversation: &Conversation, settings: &ChatSettings) -> anyhow::Result<()> {
        let asked = asked(conversation, &settings.answer, &settings.sampling)?;
        asked.drafting.check(self.model)?;
        Sampler::new(asked.sampling, self.model.vocabulary(), 0, 0)
            .map(|_| ())
            .map_err(|e| Failure::usage(e.to_string()))
    }
}

/// A call in the OpenAI shape, and whether it is whole.
fn call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        "incomplete": call.incomplete,
    })
}

/// The line under an answer.
fn summary(answer: &Answer, experts: Option<ExpertStatistics>) -> String {
    let read = answer.prompt_tokens - answer.cached_tokens;
    let cached = match answer.cached_tokens {
        0 => String::new(),
        cached => format!(" (+{cached} kept)"),
    };
    let drafts = match answer.speculation {
        Some(stats) if stats.drafted > 0 => {
            format!(", {} of {} drafts right", stats.accepted, stats.drafted)
        }
        _ => String::new(),
    };
    let experts = experts.map_or(String::new(), |counts| {
        format!(
            ", {} of experts in memory, {} read",
            terminal::percent(counts.hits, counts.uses),
            progress::bytes(counts.bytes_read)
        )
    });
    format!(
        "[prompt {read} tokens{cached}{}, answer {} tokens{}{drafts}{experts}, {}]",
        terminal::speed(read, answer.prompt_time),
        answer.ids.len(),
        terminal::speed(answer.decoded_tokens, answer.decode_time),
        answer.end.name(),
    )
}
