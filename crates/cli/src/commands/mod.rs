//! One file per command.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod exec;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod ops;
pub(crate) mod perplexity;
pub(crate) mod run;
pub(crate) mod verify;
pub(crate) mod version;
