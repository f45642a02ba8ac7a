//! Execution of programs: prepared models, conversations, steps, generation.
//!
//! [`Model::open`] prepares once and is shared; a [`Session`] is one conversation's state;
//! [`Model::step`] runs a batch of spans from any number of sessions through the layers in one
//! pass. [`generate`] drives one conversation token by token. The engine knows no HTTP, no C and
//! no terminal.

mod backend;
pub mod cancel;
mod cgroup;
pub mod continuation;
mod draft;
mod draft_heads;
pub mod error;
pub mod experts;
pub mod generate;
mod identity;
mod ledger;
pub mod memory;
pub mod model;
mod model_session;
mod need;
pub mod options;
mod part;
pub mod plan;
pub mod profile;
pub mod state;
pub mod step;
mod weights;

pub use cancel::Cancel;
pub use continuation::{StateRef, StateSession};
pub use draft_heads::DraftHead;
pub use error::Error;
pub use experts::{ExpertStatistics, Quarantined, quarantined, release};
pub use lamella_program::Part;
pub use model::{Model, Report, lower};
pub use model_session::ModelSession;
pub use options::{BackendKind, Options, ReadAccess, SourcePolicy, Verify};
pub use part::{RowSpan, RowsInPlace};
pub use profile::{Operator, Profile, TimeSource};
pub use state::snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use state::{Checkpoint, RowState, Session, StateRows};
pub use step::{Logits, Observer, Routing, Span};
pub use weights::OpenProgress;
