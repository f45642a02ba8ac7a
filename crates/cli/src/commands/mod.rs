//! One file per command.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod ops;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod run;
mod tokens;
pub(crate) mod trace;
pub(crate) mod verify;
pub(crate) mod version;

/// The name of a role as it is written in files.
fn role_name(role: lamella_program::Role) -> String {
    let name = serde_json::to_value(role).ok();
    name.as_ref()
        .and_then(|v| v.as_str())
        .unwrap_or("other")
        .to_owned()
}
