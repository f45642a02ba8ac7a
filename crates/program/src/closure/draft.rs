//! Draft heads: how they join a row and a token, and that their layers fit the main model's.

use super::checker::{Checker, Size};
use crate::draft::{DraftReads, HiddenNormScope, Join, JoinMap};
use crate::operand::OperandId;
use crate::part::Part;
use crate::program::Program;
use std::collections::HashSet;

/// Most depths: more than anybody has trained.
const MAX_DEPTHS: usize = 64;

/// The operands that the program uses. All of them, unless it was made from another by leaving out
/// the draft.
#[must_use]
pub fn used_operands(program: &Program) -> HashSet<OperandId> {
    let mut checker = Checker::new(program);
    checker.main();
    checker.draft();
    checker.used
}

/// The operands that `part` of the program uses.
#[must_use]
pub fn part_operands(program: &Program, part: &Part) -> HashSet<OperandId> {
    let mut checker = Checker::new(program);
    match part {
        Part::Whole => return used_operands(program),
        Part::Layers(range) => {
            checker.ngram_embeddings(range.clone());
            checker.layers(range.clone());
        }
        Part::Ends => {
            checker.entry();
            checker.exit("exit", &program.exit);
        }
    }
    checker.used
}

/// The operands that only the draft uses.
#[must_use]
pub fn draft_operands(program: &Program) -> HashSet<OperandId> {
    let mut main = Checker::new(program);
    main.main();
    &used_operands(program) - &main.used
}

impl Checker<'_> {
    pub(super) fn draft(&mut self) {
        let program = self.program;
        let Some(draft) = &program.draft else {
            return;
        };
        let count = draft.depths.len();
        if !(1..=MAX_DEPTHS).contains(&count) {
            self.geometry("draft", format!("{count} depths, needs 1 to {MAX_DEPTHS}"));
        }
        let streams = self.stream_count();
        if streams.is_none() && !program.layers.is_empty() {
            let message = "a draft has no streams to enter";
            self.geometry("draft", message.to_owned());
        }
        if draft.reads == DraftReads::Normed && streams.is_some_and(|n| n != 1) {
            let message = "it reads one normed vector where there are several streams";
            self.geometry("draft", message.to_owned());
        }
        for (index, depth) in draft.depths.iter().enumerate() {
            let place = format!("draft.{index}");
            self.join(&format!("{place}.join"), &depth.join, streams);
            // Nothing before it selects for it: it runs alone.
            self.selection = false;
            self.same_streams(&place, &depth.layer);
            self.layer(&place, &depth.layer);
            let place = format!("{place}.exit");
            self.exit(&place, &depth.exit);
            let (own, main) = (depth.exit.logits, program.exit.logits);
            if own != main {
                self.geometry(&place, format!("{own} logits, but the model has {main}"));
            }
        }
    }

    fn join(&mut self, place: &str, join: &Join, streams: Size) {
        let hidden = self.hidden();
        let normed = match join.hidden_norm_scope {
            HiddenNormScope::Stream => hidden,
            HiddenNormScope::Joint => self.width(place, streams),
        };
        self.norm(place, &join.embedding_norm, hidden);
        self.norm(place, &join.hidden_norm, normed);
        match &join.map {
            JoinMap::Concatenate { projection, .. } => {
                if streams.is_some_and(|n| n != 1) {
                    let message = "it concatenates one row where there are several streams";
                    self.geometry(place, message.to_owned());
                }
                let both = self.times(place, ("halves", 2), ("hidden size", hidden));
                self.linear(place, projection, hidden, both);
            }
            JoinMap::Add {
                embedding,
                hidden: row,
            } => {
                self.linear(place, embedding, hidden, hidden);
                self.linear(place, row, hidden, hidden);
            }
        }
    }
}
