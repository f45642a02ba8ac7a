//! Configuration keys of rotary positions. The type of a rotation is read here for every family: it
//! says what the other keys mean, so of a type that is not known none of them is looked at.

use crate::config::{ConfigReader, Domain, Rejected, shown};

/// Names that the type of a rotation goes by.
const KINDS: [&str; 2] = ["rope_type", "type"];
/// What some types of a rotation keep outside of its object.
const BESIDE: &[&str] = &["original_max_position_embeddings"];
/// The type that scales nothing.
const PLAIN: &[&str] = &["default"];

/// What a configuration says about plain rotary positions.
pub(crate) struct RopeKeys {
    /// Base of the frequencies.
    pub(crate) theta: f64,
    /// Share of the channels that rotate, where the configuration says.
    pub(crate) partial: Option<f64>,
    /// Whether the share could not be used; there is a defect then.
    pub(crate) partial_rejected: bool,
}

/// The type of the rotation under `key`, and the object to read on from; `None` where the key is
/// absent or null. A type that is not among `supported` is one defect, whatever stands beside it.
pub(crate) fn object_of_kind<'c>(
    c: &mut ConfigReader<'c>,
    key: &str,
    supported: &[&str],
) -> Result<Option<(ConfigReader<'c>, Option<&'c str>)>, Rejected> {
    let Some(mut rope) = c.object(key)? else {
        return Ok(None);
    };
    match read_kind(&mut rope, supported) {
        Ok(kind) => Ok(Some((rope, kind))),
        Err(rejected) => {
            rope.ignore_all();
            c.absorb(rope);
            c.ignore(BESIDE);
            Err(rejected)
        }
    }
}

fn read_kind<'c>(
    rope: &mut ConfigReader<'c>,
    supported: &[&str],
) -> Result<Option<&'c str>, Rejected> {
    let mut found = None;
    for key in KINDS {
        let Some(kind) = rope.optional_text(key)? else {
            continue;
        };
        if !supported.contains(&kind) {
            let kind = shown(&kind.into());
            let message = match supported {
                [] => format!("is {kind}, but no type can be used here"),
                known => format!("is {kind}, but only {} can be used", listed(known)),
            };
            return Err(rope.refuse(key, message));
        }
        if found.is_some_and(|other| other != kind) {
            let message = format!("is {}, but {} is another", shown(&kind.into()), KINDS[0]);
            return Err(rope.refuse(key, message));
        }
        found = Some(kind);
    }
    Ok(found)
}

fn listed(words: &[&str]) -> String {
    let words = words.iter().map(|&word| shown(&word.into()));
    words.collect::<Vec<_>>().join(" and ")
}

/// Reads the rope keys, which stand at the top level or in `rope_parameters` as newer exporters
/// write them. `inert` are keys of that object that change nothing. A value that cannot be used
/// leaves a defect and a stand-in: it shapes no tensor.
pub(crate) fn read_rope(c: &mut ConfigReader<'_>, inert: &[&str]) -> RopeKeys {
    let unscaled = refuse_scaling(c);
    let mut theta = c.optional_number("rope_theta", Domain::Base);
    let mut partial = c.optional_number("partial_rotary_factor", Domain::Share);
    let nested = object_of_kind(c, "rope_parameters", PLAIN);
    let readable = nested.is_ok() && unscaled.is_ok();
    if let Ok(Some((mut rope, _))) = nested {
        let inner = [
            rope.optional_number("rope_theta", Domain::Base),
            rope.optional_number("partial_rotary_factor", Domain::Share),
        ];
        rope.ignore(inert);
        c.absorb(rope);
        let [inner_theta, inner_partial] = inner;
        theta = agreed(c, "rope_theta", theta, inner_theta);
        partial = agreed(c, "partial_rotary_factor", partial, inner_partial);
    }
    if let (Ok(None), true) = (theta, readable) {
        theta = c.number("rope_theta", Domain::Base).map(Some);
    }
    RopeKeys {
        theta: theta.unwrap_or(None).unwrap_or(10_000.0),
        partial: partial.unwrap_or(None),
        partial_rejected: partial.is_err() || !readable,
    }
}

/// `rope_scaling`, which may only say that nothing is scaled.
fn refuse_scaling(c: &mut ConfigReader<'_>) -> Result<(), Rejected> {
    let key = "rope_scaling";
    match object_of_kind(c, key, PLAIN)? {
        None => Ok(()),
        Some((scaling, Some(_))) => {
            c.absorb(scaling);
            Ok(())
        }
        Some((_, None)) => Err(c.refuse(key, "has no type, and only \"default\" can be used")),
    }
}

/// Refuses rotary positions in a family in which nothing rotates.
pub(crate) fn refuse_rope(c: &mut ConfigReader<'_>) {
    let message = "can only be null, as nothing rotates in this family";
    if c.present("rope_theta").is_some() {
        let _ = c.refuse("rope_theta", message);
    }
    for key in ["rope_parameters", "rope_scaling"] {
        if let Ok(Some(_)) = object_of_kind(c, key, PLAIN) {
            let _ = c.refuse(key, message);
        }
    }
}

fn agreed(
    c: &mut ConfigReader<'_>,
    key: &str,
    top: Result<Option<f64>, Rejected>,
    nested: Result<Option<f64>, Rejected>,
) -> Result<Option<f64>, Rejected> {
    match (top?, nested?) {
        (Some(a), Some(b)) if a != b => {
            Err(c.reject(key, format!("is {a}, but rope_parameters.{key} is {b}")))
        }
        (a, b) => Ok(a.or(b)),
    }
}
