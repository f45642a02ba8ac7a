//! A conversation with a model: answers, and the loop that reads messages from a person.

mod conversation;
mod display;
mod drafts;
mod input;
mod lines;
mod slash;
mod switches;
mod writing;

pub(crate) use conversation::{Answer, Asked, Conversation, End};
pub(crate) use display::Display;
pub(crate) use drafts::Drafting;
pub(crate) use lines::Lines;
pub(crate) use switches::prompt_options;
pub(crate) use writing::OnEvent;

use crate::args::{AnswerArgs, SamplingArgs};
use crate::failure;
use crate::interrupt::Interrupt;
use crate::terminal::Terminal;
use input::Message;
use slash::{Slash, parse};

/// Settings that can change while chatting.
#[derive(Clone, Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
pub(crate) struct ChatSettings {
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

const HELP: &str = "\
/help            this list
/system TEXT     change the system message and start again; without TEXT: remove it
/set             show the settings; /set NAME VALUE changes one, as in lamella.toml;
                 /set NAME default goes back to the model's own
/undo            take back the last message and its answer
/clear           start a new conversation
/exit            leave (also Ctrl-D, or Ctrl-C twice)
A line that ends with \\ goes on in the next one. Between two lines of \"\"\" everything is one
message. Ctrl-C stops an answer.";

/// What the loop does with an exchange; the caller prints.
pub(crate) trait Voice {
    /// Answers the conversation as it stands.
    ///
    /// # Errors
    /// Whatever keeps the answer from being given.
    fn answer(
        &mut self,
        conversation: &mut Conversation,
        settings: &ChatSettings,
    ) -> anyhow::Result<()>;

    /// Tells the program that reads along that no answer came, for `message`. A person is told on
    /// standard error.
    ///
    /// # Errors
    /// If the output breaks.
    fn failed(&self, message: &str) -> anyhow::Result<()>;

    /// Whether answers can be given under `settings`.
    ///
    /// # Errors
    /// What keeps every answer from being given.
    fn check(&self, conversation: &Conversation, settings: &ChatSettings) -> anyhow::Result<()>;
}

/// Reads messages and answers them until the person leaves.
///
/// # Errors
/// If the input or the output breaks; a failed answer is told and the chat goes on.
pub(crate) fn chat(
    conversation: &mut Conversation,
    settings: &mut ChatSettings,
    lines: &mut Lines,
    voice: &mut dyn Voice,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    voice.check(conversation, settings)?;
    let mut leaving = false;
    loop {
        let message = match input::message(lines)? {
            Message::Text(text) => text,
            Message::Abandoned => continue,
            Message::Garbled => {
                terminal.error("standard input: not UTF-8; what was typed so far is dropped");
                continue;
            }
            Message::End => return Ok(()),
            Message::Interrupted if leaving => return Ok(()),
            Message::Interrupted => {
                terminal.note("Ctrl-C again, Ctrl-D or /exit leaves.");
                leaving = true;
                continue;
            }
        };
        leaving = false;
        interrupt.reset();
        match parse(&message) {
            Slash::Exit => return Ok(()),
            Slash::Message(text) if text.trim().is_empty() => {}
            Slash::Message(text) => {
                lines.remember(&message);
                conversation.say(text);
                if let Err(error) = voice.answer(conversation, settings) {
                    conversation.undo();
                    tolerate(error, voice, terminal)?;
                }
            }
            other => {
                lines.remember(&message);
                command(other, conversation, settings, voice, terminal);
            }
        }
    }
}

/// A broken output ends the chat, everything else is only told.
fn tolerate(error: anyhow::Error, voice: &dyn Voice, terminal: &Terminal) -> anyhow::Result<()> {
    if error.chain().any(|cause| cause.is::<std::io::Error>()) {
        return Err(error);
    }
    let line = failure::one_line(&format!("{error:#}"));
    terminal.error(&line);
    voice.failed(&line)
}

fn command(
    command: Slash<'_>,
    conversation: &mut Conversation,
    settings: &mut ChatSettings,
    voice: &dyn Voice,
    terminal: &Terminal,
) {
    match command {
        Slash::Help => terminal.note(HELP),
        Slash::Clear => {
            conversation.clear();
            terminal.note("A new conversation.");
        }
        Slash::Undo if conversation.undo() => terminal.note("Taken back."),
        Slash::Undo => terminal.note("There is nothing to take back."),
        Slash::System(text) => {
            settings.answer.system = text.map(str::to_owned);
            conversation.set_system(text);
            terminal.note("A new conversation.");
        }
        Slash::ShowSettings => terminal.note(&slash::describe(settings)),
        Slash::Set(name, value) => match set(settings, name, value, conversation, voice) {
            Ok(()) => {
                if slash::is_system(name) {
                    conversation.set_system(settings.answer.system.as_deref());
                }
                terminal.note(&format!("{name} = {value}"));
            }
            Err(message) => terminal.error(&failure::one_line(&message)),
        },
        Slash::Unknown(word) => {
            terminal.error(&format!("{word} is no command; /help lists them."));
        }
        // Both are answered before a command is carried out.
        Slash::Exit | Slash::Message(_) => {}
    }
}

/// Changes a setting, unless no answer could be given with it.
fn set(
    settings: &mut ChatSettings,
    name: &str,
    value: &str,
    conversation: &Conversation,
    voice: &dyn Voice,
) -> Result<(), String> {
    let mut changed = settings.clone();
    slash::set(&mut changed, name, value)?;
    let usable = voice.check(conversation, &changed);
    usable.map_err(|error| format!("{error:#}"))?;
    *settings = changed;
    Ok(())
}
