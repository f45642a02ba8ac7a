//! How much memory a conversation takes, and its limit.

use super::{Item, LayerState, Session};
use crate::error::Error;
use lamella_container::human_bytes;
use lamella_kernels::PAGE;
use lamella_program::state::{StateShape, history, layer_state};
use lamella_program::{Part, Program};

/// Bytes a page of `width` values a row takes, and its place in the list of pages, which may move
/// to one of twice the size.
fn page_bytes(width: usize) -> u64 {
    (width as u64)
        .saturating_mul(4 * PAGE as u64)
        .saturating_add(3 * size_of::<super::Page>() as u64)
}

/// Most bytes that a session of `part` holds while it reads up to `context` tokens, at most `rows`
/// of them in one step: all that it allocates, pages and second copies and lists.
pub(crate) fn session_bytes(program: &Program, part: &Part, context: usize, rows: usize) -> u64 {
    let layers = part.layers(program);
    let items = layers.flat_map(|index| layer_state(program, index));
    let state = items.map(|item| item_bytes(&item.shape, context, rows));
    let history = history(program) as u64;
    let lists = program.layers.len() as u64 * size_of::<LayerState>() as u64;
    // The newest ids and those before the last step, each with room for as many again.
    let ids = history.saturating_mul(4 * size_of::<u32>() as u64);
    state.fold(lists.saturating_add(ids), u64::saturating_add)
}

/// Most bytes that the first tokens of a conversation, and of its drafts, take: a page of every
/// item, and what does not grow.
pub(crate) fn first_bytes(program: &Program) -> u64 {
    let layers = 0..program.every_layer().count();
    let items = layers.flat_map(|index| layer_state(program, index));
    let state = items.map(|item| item_bytes(&item.shape, PAGE, PAGE));
    state.fold(0, u64::saturating_add)
}

fn item_bytes(shape: &StateShape, context: usize, rows: usize) -> u64 {
    let paged = |width: usize, per: usize, keep: Option<usize>| {
        let all = (context / per.max(1)).div_ceil(PAGE);
        let pages = match keep {
            None => all,
            // What a step finds, what it adds, a page more at either end, and two spare ones.
            Some(keep) => all.min((keep + rows).div_ceil(PAGE).saturating_add(5)),
        };
        page_bytes(width).saturating_mul(pages as u64)
    };
    let fixed = |values: usize| (values as u64).saturating_mul(2 * size_of::<f32>() as u64);
    let own = match *shape {
        StateShape::Rows { width } => paged(width, 1, None),
        StateShape::Window { rows, width } => paged(width, 1, Some(rows)),
        StateShape::Compressed {
            ratio,
            width,
            raw_width,
            raw_rows,
        } => paged(width, ratio, None).saturating_add(fixed(raw_width.saturating_mul(raw_rows))),
        ref other => fixed(other.fixed_bytes() / 4),
    };
    own.saturating_add(size_of::<Item>() as u64)
}

impl Session {
    /// Refuses to hold more than its limit with `added` more bytes.
    pub(super) fn check_limit(&self, added: u64) -> Result<(), Error> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let held = self.state_bytes();
        let need = held.saturating_add(added);
        if need <= limit {
            return Ok(());
        }
        Err(Error::Memory {
            sum: format!(
                "state {held} + {added} more = {need} bytes ({})",
                human_bytes(need)
            ),
            limit,
            origin: "the session's limit".to_owned(),
            advice:
                "Old and new state are there at once. Restore into a new session, after ending \
                     this one if there is no room for both, or give it a larger limit"
                    .to_owned(),
        })
    }
}
