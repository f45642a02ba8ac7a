//! Bytes at rest.
//!
//! [`Store`] is what the engine reads from: a Hugging Face checkpoint directory as it came
//! ([`checkpoint`], [`safetensors`]), or a Lamella container (docs/container-format.md;
//! [`manifest`], [`table`]). [`convert()`] makes the second from the first, [`verify()`] checks it,
//! [`inspect()`] describes it. [`encode`], [`quantise()`] and [`decode`] are the encodings.
//!
//! Files are hostile input: lengths are checked before they are believed, nothing is allocated on
//! the word of a file beyond the file's own size, and no name leads out of its directory.

pub mod checkpoint;
mod codec;
mod coded;
mod constants;
mod container;
pub mod convert;
mod disk;
mod error;
mod expert;
pub mod float;
mod inspect;
pub mod manifest;
mod outline;
mod quantise;
#[cfg(target_os = "linux")]
mod queue;
#[cfg(not(target_os = "linux"))]
#[path = "no_queue.rs"]
mod queue;
pub mod safetensors;
pub mod shard_index;
mod source;
mod store;
pub mod table;
mod verify;
mod workers;

pub use checkpoint::Checkpoint;
pub use codec::{CodecError, decode, encode, quantise};
pub use container::parse_program;
pub use convert::{
    ConvertError, ConvertOptions, ConvertReport, Keep, Progress, convert, human_bytes,
};
pub use disk::{DIRECT_ALIGN, MAX_TEXT_BYTES};
pub use error::Error;
pub use expert::{Access, ExpertBank, ExpertLayout, expert_banks, expert_layout};
pub use inspect::{StoredBytes, Summary, inspect};
pub use manifest::FORMAT_VERSION;
pub use outline::{Outline, Stored, TENSORS_FILE};
pub use queue::ReadQueue;
pub use store::{Lower, Record, Store, TEXT_FILES};
pub use verify::{Extent, VerifyReport, verify, verify_extent};
pub use workers::gather;
