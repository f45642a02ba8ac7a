//! Experts that do not all fit into memory: which of them a cache keeps.
//!
//! A cache has a fixed number of slots for the experts of all layers. Several policies follow what
//! it holds, and shadow caches count what each of them would have held; the one that would have hit
//! most lately decides what leaves. [`Trace`] replays recorded routing against all of them.

mod cache;
mod chooser;
mod counts;
mod heat;
mod layers;
mod lfru;
mod lists;
mod lru;
mod open;
mod policy;
mod quarantine;
mod reader;
mod records;
mod replay;
mod s3fifo;
mod slots;
mod store;

pub(crate) use counts::Counts;
pub use counts::ExpertStatistics;
pub(crate) use layers::{Layers, Which, expert_operands};
pub(crate) use open::expert_store;
pub use policy::PolicyKind;
pub use quarantine::{Quarantined, quarantined, release};
pub use replay::{Replayed, Trace};
pub(crate) use store::ExpertStore;

#[cfg(test)]
mod tests;
