//! Edge, version 2: tokenizer, embedding, final transform and head.

pub mod abi;
mod engine;
pub mod exports;

pub(crate) use engine::Engine;
