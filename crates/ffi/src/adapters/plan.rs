//! The `resource_plan` of our adapters: a JSON object of settings.

use crate::checks;
use crate::report::{Refused, Report};
use lamella_engine::Options;
use serde_json::Value;
use std::ffi::c_void;

/// Reads `{"threads": 4, "encoding": "q4"}` into `options`. NULL changes nothing, and so does a key
/// that is not there; one that nobody knows is refused.
///
/// # Safety
/// `plan` is NULL or `size` readable bytes.
pub(super) unsafe fn read(
    report: &Report,
    plan: *const c_void,
    size: usize,
    options: &mut Options,
) -> Result<(), Refused> {
    if plan.is_null() {
        return match size {
            0 => Ok(()),
            _ => Err(report.argument(format_args!("resource_plan is NULL, its size is {size}"))),
        };
    }
    // SAFETY: the caller's contract.
    let bytes = unsafe { checks::values(report, "resource_plan", plan.cast::<u8>(), size) }?;
    let parsed: serde_json::Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|error| report.argument(format_args!("resource_plan is no JSON: {error}")))?;
    for (key, value) in &parsed {
        let known = match key.as_str() {
            "threads" => value.as_u64().map(|threads| {
                options.threads = Some(usize::try_from(threads).unwrap_or(usize::MAX));
            }),
            "encoding" => value
                .as_str()
                .and_then(lamella_program::Encoding::from_name)
                .map(|encoding| options.want = Some(encoding)),
            _ => None,
        };
        if known.is_none() {
            return Err(report.argument(format_args!(
                "resource_plan: {key:.40} cannot be {value:.40}; threads (a number) and encoding \
                 (a name, as q4) can be set"
            )));
        }
    }
    Ok(())
}
