//! The draft heads: what the configuration says of them, in both spellings, and their lowering.
//!
//! Each is used once, on a row that the one before it wrote, and is a dense layer of the model's
//! kind. It is given the normed embedding, as the model itself is.

use super::Lowering;
use super::config::Kind;
use crate::config::{ConfigReader, MAX_LAYERS, Rejected};
use crate::sources::Sources;
use lamella_program::draft::{Draft, DraftDepth, DraftReads, HiddenNormScope, Join, JoinMap};
use lamella_program::program::Exit;
use serde_json::json;

/// Start of the names of their tensors.
const PREFIX: &str = "model.mtp.";

/// The draft heads that the checkpoint has.
#[derive(Default)]
pub(super) struct Drafts {
    /// For each of them whether it sees only a window.
    pub(super) local: Vec<bool>,
    /// Whether what one passes on to the next is normed.
    pub(super) chained: bool,
}

/// What one spelling says of them.
pub(super) struct Keys {
    count: Option<usize>,
    local: Option<Vec<usize>>,
    chained: Option<bool>,
}

impl Keys {
    fn read(c: &mut ConfigReader<'_>, names: [&str; 3]) -> Result<Keys, Rejected> {
        let [count, local, chained] = names;
        let count = c.optional_whole(count, MAX_LAYERS);
        let local = c.optional_wholes(local, MAX_LAYERS, MAX_LAYERS);
        let chained = c.optional_flag(chained);
        Ok(Keys {
            count: count?,
            local: local?,
            chained: chained?,
        })
    }
}

/// Names of the keys in the published spelling, beside the text model.
const PUBLISHED: [&str; 3] = [
    "num_nextn_predict_layers",
    "local_layer_ids",
    "chain_hidden_post_norm",
];
/// The same in re-exports, inside the text model.
const OTHER: [&str; 3] = [
    "num_mtp_layers",
    "mtp_local_layer_ids",
    "chain_hidden_post_norm",
];

/// Reads what the published spelling says.
pub(super) fn read_published(c: &mut ConfigReader<'_>) -> Result<Option<Keys>, Rejected> {
    let Some(mut drafts) = c.object("mtp_config")? else {
        return Ok(None);
    };
    let keys = Keys::read(&mut drafts, PUBLISHED);
    c.absorb(drafts);
    keys.map(Some)
}

/// Reads what re-exports say inside the text model, and settles on one.
pub(super) fn settle(
    c: &mut ConfigReader<'_>,
    text: &mut ConfigReader<'_>,
    published: Result<Option<Keys>, Rejected>,
    sources: &Sources<'_>,
) -> Result<Drafts, Rejected> {
    text.require_if_present("mtp_hidden_states_first", &json!(true));
    let other = Keys::read(text, OTHER);
    let (published, other) = (published?, other?);
    let beside = published.is_some();
    let published = published.unwrap_or(Keys {
        count: None,
        local: None,
        chained: None,
    });
    let count = agreed(text, 0, published.count, other.count)?;
    let local = agreed(text, 1, published.local, other.local)?;
    let chained = agreed(text, 2, published.chained, other.chained)?;
    if sources.names(|name| name.starts_with(PREFIX)).is_empty() {
        return Ok(Drafts::default());
    }
    if !beside && count.is_none() && local.is_none() {
        return Err(c.missing("mtp_config"));
    }
    // The key is that of the spelling which the file has.
    let mut reject = |key: usize, message: &str| match beside {
        true => c.reject(&format!("mtp_config.{}", PUBLISHED[key]), message),
        false => text.reject(OTHER[key], message),
    };
    let (Some(count), Some(local)) = (count, local) else {
        let key = usize::from(count.is_some());
        return Err(reject(
            key,
            "is missing or null, and the draft heads need it",
        ));
    };
    if let Some(id) = local.iter().find(|&&id| id >= count) {
        let message = format!("names draft head {id} of {count}");
        return Err(reject(1, &message));
    }
    Ok(Drafts {
        local: (0..count).map(|id| local.contains(&id)).collect(),
        chained: chained.unwrap_or(false),
    })
}

/// The value of whichever spelling has it.
fn agreed<T: PartialEq>(
    text: &mut ConfigReader<'_>,
    key: usize,
    published: Option<T>,
    other: Option<T>,
) -> Result<Option<T>, Rejected> {
    match (published, other) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("says something else than mtp_config.{}", PUBLISHED[key]);
            Err(text.reject(OTHER[key], message))
        }
        (a, b) => Ok(a.or(b)),
    }
}

impl Lowering<'_> {
    /// The draft heads; `exit` is the model's.
    pub(super) fn draft(&mut self, exit: &Exit) -> Option<Draft> {
        let c = self.config;
        if c.drafts.local.is_empty() {
            return None;
        }
        let chain = c.drafts.chained;
        let name = "draft.chain_norm";
        let norm = chain.then(|| self.norm(name, &format!("{PREFIX}chain_norm"), c.hidden));
        let exit = Exit {
            norm,
            ..exit.clone()
        };
        let depths = c.drafts.local.iter().enumerate();
        Some(Draft {
            reads: DraftReads::Normed,
            depths: depths
                .map(|(index, &local)| self.depth(index, local, &exit))
                .collect(),
            recycles: false,
        })
    }

    fn depth(&mut self, index: usize, local: bool, exit: &Exit) -> DraftDepth {
        let hidden = self.config.hidden;
        let (name, tensor) = (format!("draft.{index}"), format!("{PREFIX}layers.{index}"));
        let projection = self.b.linear(
            &format!("{name}.join.projection"),
            format!("{tensor}.input_proj.weight"),
            [hidden, 2 * hidden],
        );
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.join.{end}"), format!("{tensor}.{source}"));
            self.norm(&name, &source, hidden)
        };
        let join = Join {
            embedding_norm: norm("embedding_norm", "embed_norm"),
            hidden_norm_scope: HiddenNormScope::Stream,
            hidden_norm: norm("hidden_norm", "hidden_norm"),
            map: JoinMap::Concatenate {
                embedding_first: false,
                projection,
            },
        };
        let kind = Kind { local, dense: true };
        DraftDepth {
            join,
            layer: self.layer(&name, &format!("{tensor}.transformer_block"), kind),
            exit: exit.clone(),
        }
    }
}
