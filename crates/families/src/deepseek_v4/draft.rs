//! The draft heads: layers that only have a window, whose tensors are numbered apart.

use super::Lowering;
use super::config::Config;
use super::schedule::{Compression, Plan};
use crate::common::{self, numbered};
use crate::sources::Sources;
use lamella_program::OperandId;
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};
use lamella_program::program::UnusedComponent;

/// What some exports repeat in a draft head.
const COPIES: &[&str] = &["emb.tok_emb.weight", "emb.weight", "head.weight"];

/// What the draft heads repeat of the model.
pub(super) fn copies(sources: &Sources<'_>, config: &Config) -> Vec<UnusedComponent> {
    let shape = [config.vocabulary, config.hidden];
    let copied = common::copies(sources, &shape, |name| {
        let draft = numbered(name, "mtp.").filter(|(head, _)| *head < config.drafts);
        draft.is_some_and(|(_, end)| COPIES.contains(&end))
    });
    copied.into_iter().collect()
}

impl Lowering<'_> {
    /// The draft heads, which share `head` with the model.
    pub(super) fn draft(&mut self, head: OperandId) -> Option<Draft> {
        let depths: Vec<DraftDepth> = (0..self.config.drafts)
            .map(|index| self.depth(&format!("draft.{index}"), &format!("mtp.{index}"), head))
            .collect();
        (!depths.is_empty()).then_some(Draft {
            reads: DraftReads::Streams,
            depths,
            recycles: true,
        })
    }

    fn depth(&mut self, name: &str, tensor: &str, head: OperandId) -> DraftDepth {
        let hidden = self.config.hidden;
        let mut linear = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.join.{end}"), format!("{tensor}.{source}"));
            self.linear(&name, &source, [hidden, hidden])
        };
        let map = JoinMap::Add {
            embedding: linear("embedding", "e_proj"),
            hidden: linear("hidden", "h_proj"),
        };
        let mut norm = |end: &str, source: &str| {
            let source = format!("{tensor}.{source}.weight");
            self.norm(&format!("{name}.{end}"), source, hidden)
        };
        let join = Join {
            embedding_norm: norm("join.embedding_norm", "enorm"),
            hidden_norm_scope: HiddenNormScope::Stream,
            hidden_norm: norm("join.hidden_norm", "hnorm"),
            map,
        };
        let last = norm("final_norm", "norm");
        let reduction = self.reduction(
            &format!("{name}.exit.streams"),
            &format!("{tensor}.hc_head"),
        );
        let plan = Plan {
            compression: Compression::Window,
            hashed: false,
        };
        DraftDepth {
            join,
            layer: self.layer(name, tensor, plan),
            exit: self.exit(reduction, last, head),
        }
    }
}
