//! The draft heads: whole layers with their joints, numbered on behind the last layer.

use super::config::Kind;
use super::{Lowering, plain};
use lamella_program::OperandId;
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};

impl Lowering<'_> {
    /// The draft heads, which share `head` with the model.
    pub(super) fn draft(&mut self, head: OperandId) -> Option<Draft> {
        let drafts = self.config.drafts();
        let first = drafts.start;
        let depths: Vec<DraftDepth> = drafts
            .map(|index| {
                let name = format!("draft.{}", index - first);
                self.depth(&name, &format!("model.layers.{index}"), head)
            })
            .collect();
        (!depths.is_empty()).then_some(Draft {
            reads: DraftReads::Normed,
            depths,
            recycles: true,
        })
    }

    fn depth(&mut self, name: &str, tensor: &str, head: OperandId) -> DraftDepth {
        let c = self.config;
        let projection = self.table.linear(
            &format!("{name}.join.projection"),
            format!("{tensor}.eh_proj.weight"),
            [c.hidden, 2 * c.hidden],
        );
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.{source}"));
            self.norm(&name, &source, c.hidden, c.eps)
        };
        let join = Join {
            embedding_norm: norm("join.embedding_norm", "enorm"),
            hidden_norm_scope: HiddenNormScope::Stream,
            hidden_norm: norm("join.hidden_norm", "hnorm"),
            map: JoinMap::Concatenate {
                embedding_first: true,
                projection,
            },
        };
        let last = norm("final_norm", "shared_head.norm");
        let kind = Kind {
            sparse: true,
            selects: true,
        };
        DraftDepth {
            join,
            layer: self.layer(name, tensor, kind),
            exit: plain::exit(last, head, c.vocabulary),
        }
    }
}
