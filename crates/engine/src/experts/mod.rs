//! Experts that do not all fit into memory: which of them a cache keeps.
//!
//! A cache has a fixed number of slots for the experts of all layers. Several policies follow what
//! it holds, and shadow caches count what each of them would have held; the one that would have hit
//! most lately decides what leaves. [`Trace`] replays recorded routing against all of them.

mod cache;
mod chooser;
mod lfru;
mod lists;
mod lru;
mod policy;
mod replay;
mod s3fifo;
mod store;

pub use policy::PolicyKind;
pub use replay::{Replayed, Trace};
pub use store::ExpertStatistics;
pub(crate) use store::{Counts, ExpertStore, Layers, Which, expert_operands};

#[cfg(test)]
mod tests;
