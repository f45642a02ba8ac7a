//! Who drafts tokens ahead in a conversation.

use crate::args::{AnswerArgs, Speculate};
use lamella_engine::generate::{PromptLookup, Speculator};
use lamella_engine::{DraftHead, Error, Model, ModelSession};

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

    /// Whether `model` can draft so.
    ///
    /// # Errors
    /// If its heads are asked for and it has none, or was opened without them.
    pub(crate) fn check(self, model: &Model) -> Result<(), Error> {
        match self.who {
            Speculate::Head => DraftHead::new(model).map(|_| ()),
            Speculate::Auto | Speculate::Off | Speculate::Lookup => Ok(()),
        }
    }

    /// What drafts for conversations of `model`; `None` = nobody.
    fn speculator(self, model: &Model) -> Result<Option<Speculator<ModelSession, Error>>, Error> {
        let nobody = Speculator::new(self.tokens);
        Ok(match self.who {
            Speculate::Off => None,
            Speculate::Lookup => Some(nobody.with(PromptLookup::new())),
            Speculate::Head => Some(nobody.with(DraftHead::new(model)?)),
            Speculate::Auto => {
                let lookup = nobody.with(PromptLookup::new());
                Some(match model.draft() {
                    Some(_) => lookup.with(DraftHead::new(model)?),
                    None => lookup,
                })
            }
        })
    }
}

/// The drafters of a conversation, and what they have learnt in it.
#[derive(Default)]
pub(super) struct Drafts {
    made: Option<(Drafting, Speculator<ModelSession, Error>)>,
}

impl Drafts {
    /// Those that `drafting` asks for; new ones if that has changed. `None` = nobody drafts.
    ///
    /// # Errors
    /// As [`Drafting::check`].
    pub(super) fn speculator(
        &mut self,
        drafting: Drafting,
        model: &Model,
    ) -> Result<Option<&mut Speculator<ModelSession, Error>>, Error> {
        if self.made.as_ref().is_none_or(|(made, _)| *made != drafting) {
            let speculator = drafting.speculator(model)?;
            self.made = speculator.map(|speculator| (drafting, speculator));
        }
        Ok(self.made.as_mut().map(|(_, speculator)| speculator))
    }
}
