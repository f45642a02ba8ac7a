//! Who drafts tokens ahead in a conversation.

use crate::args::{AnswerArgs, Speculate};
use lamella_engine::generate::{PromptLookup, Speculator};
use lamella_engine::{Error, ModelSession};

/// Tokens drafted at once unless told otherwise.
const DRAFT_TOKENS: usize = 8;

/// Who drafts, and how much at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drafting {
    who: Speculate,
    tokens: usize,
}

impl Drafting {
    /// As asked for.
    pub(crate) fn of(answer: &AnswerArgs) -> Drafting {
        Drafting {
            who: answer.speculate.unwrap_or_default(),
            tokens: answer.draft_tokens.unwrap_or(DRAFT_TOKENS),
        }
    }
}

/// The drafters of a conversation, and what they have learnt in it.
#[derive(Default)]
pub(super) struct Drafts {
    made: Option<(Drafting, Speculator<ModelSession, Error>)>,
}

impl Drafts {
    /// Those that `drafting` asks for; new ones if that has changed. `None` = nobody drafts.
    pub(super) fn speculator(
        &mut self,
        drafting: Drafting,
    ) -> Option<&mut Speculator<ModelSession, Error>> {
        if self.made.as_ref().is_none_or(|(made, _)| *made != drafting) {
            let speculator = Speculator::new(drafting.tokens);
            self.made = match drafting.who {
                Speculate::Off => None,
                Speculate::Auto | Speculate::Lookup => {
                    Some((drafting, speculator.with(PromptLookup::new())))
                }
            };
        }
        self.made.as_mut().map(|(_, speculator)| speculator)
    }
}
