//! What `set` stores: plain data of bounded depth.
//!
//! A loop can wrap a namespace's attribute in a list a million times, or put a namespace into
//! itself, and printing, comparing or dropping such a value recurses as deep. Copying what is
//! stored, with a limit, rules both out; it also resolves lazy values, whose depth does not show.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// What copying one item costs, in fuel: about ten template instructions' time.
const ITEM_FUEL: u64 = 10;
/// Deepest value stored. JSON from outside is at most 128 deep.
const MAX_DEPTH: usize = 160;

/// The value of `{% set name = value %}`.
pub(super) fn stored(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if is(value, "Namespace") {
        Ok(value.clone())
    } else {
        copy(state, value, 0)
    }
}

/// The value of `{% set namespace.name = value %}`.
pub(super) fn attached(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    copy(state, value, 0)
}

fn copy(state: &State<'_, '_>, value: &Value, depth: usize) -> Result<Value, Error> {
    let refuse = |detail: String| Err(Error::new(ErrorKind::InvalidOperation, detail));
    if depth > MAX_DEPTH {
        return refuse(format!(
            "a value nested deeper than {MAX_DEPTH} cannot be stored"
        ));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                state.consume_fuel(ITEM_FUEL)?;
                items.push(copy(state, &item, depth + 1)?);
            }
            match value.downcast_object_ref::<Tuple>() {
                Some(_) => Ok(Value::from(Tuple::from(items))),
                None => Ok(Value::from(items)),
            }
        }
        ValueKind::Map if is(value, "Namespace") => {
            refuse("a namespace cannot be stored inside another value".into())
        }
        ValueKind::Map if is(value, "Macro") || is(value, "Loop") => Ok(value.clone()),
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                state.consume_fuel(ITEM_FUEL)?;
                pairs.push((key.clone(), copy(state, &value.get_item(&key)?, depth + 1)?));
            }
            Ok(Value::from_pairs(pairs))
        }
        _ => Ok(value.clone()),
    }
}

/// Whether a value is one of minijinja's own objects, whose types are private.
fn is(value: &Value, name: &str) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().rsplit("::").next() == Some(name))
}
