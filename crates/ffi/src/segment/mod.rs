//! Segment, version 1: a contiguous range of layers behind one call.

pub mod abi;
mod engine;
pub mod exports;
mod session;

pub(crate) use engine::Engine;
pub(crate) use session::Session;
