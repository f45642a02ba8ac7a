//! Rotary positions: which channels turn, and the two sets of frequencies.

use crate::config::{ConfigReader, Domain, MAX_CONTEXT, MAX_WIDTH, Rejected};
use crate::rope_keys::object_of_kind;
use lamella_program::block::{Rope, RopePairing, RopePlace, Yarn};

/// The two rotations of a model.
pub(super) struct Rotation {
    /// Of layers that only have a window.
    pub(super) window: Rope,
    /// Of layers with compressed entries: queries, keys, entries and the indexer alike.
    pub(super) compressed: Rope,
}

/// What one place in the configuration says about a rotation; `None` where it does not.
#[derive(Default)]
struct Keys {
    theta: Option<f64>,
    partial: Option<f64>,
    yarn: Option<Yarn>,
}

/// Reads the rotations. `heads` are the sizes of the heads that rotate, the main one first.
pub(super) fn read_rotation(
    c: &mut ConfigReader<'_>,
    heads: Result<[usize; 2], Rejected>,
) -> Result<Rotation, Rejected> {
    let theta = c.optional_number("rope_theta", Domain::Base);
    let compressed_theta = c.optional_number("compress_rope_theta", Domain::Base);
    let dims = c.optional_count("qk_rope_head_dim", MAX_WIDTH);
    let partial = c.optional_number("partial_rotary_factor", Domain::Share);
    // Without it compressed entries rotate with `compress_rope_theta` as it is. The vendor's code
    // (`original_seq_len` is 0 unless it is given) and transformers (`rope_type` is "default")
    // agree on that; a release that extends its context says so here.
    let scaling = match object_of_kind(c, "rope_scaling", &["yarn"]) {
        Ok(Some((mut scaling, kind))) => {
            let yarn = match kind {
                Some(_) => read_yarn(&mut scaling),
                None => Err(untyped(&mut scaling, "type")),
            };
            c.absorb(scaling);
            yarn.map(Some)
        }
        other => other.map(|_| None),
    };
    let nested = read_nested(c);
    let (main, inner) = nested?;
    let theta = agreed(c, "rope_theta", "main.rope_theta", theta?, main.theta);
    let compressed_theta = agreed(
        c,
        "compress_rope_theta",
        "compress.rope_theta",
        compressed_theta?,
        inner.theta,
    );
    let dims = read_dims(c, dims?, [partial?, main.partial, inner.partial], heads?)?;
    let yarn = match (scaling?, inner.yarn) {
        (Some(a), Some(b)) if a != b => {
            return Err(c.reject("rope_scaling", "contradicts rope_parameters.compress"));
        }
        (a, b) => a.or(b),
    };
    let rope = |theta, yarn| Rope {
        theta,
        dims,
        place: RopePlace::Last,
        pairing: RopePairing::Adjacent,
        yarn,
    };
    Ok(Rotation {
        window: rope(theta?, None),
        compressed: rope(compressed_theta?, yarn),
    })
}

/// `rope_parameters`, the spelling of transformers.
fn read_nested(c: &mut ConfigReader<'_>) -> Result<(Keys, Keys), Rejected> {
    // Types belong to the two rotations, not to both.
    let Some((mut both, _)) = object_of_kind(c, "rope_parameters", &[])? else {
        return Ok((Keys::default(), Keys::default()));
    };
    let main = read_set(&mut both, "main", &["default"]);
    let compressed = read_set(&mut both, "compress", &["default", "yarn"]);
    c.absorb(both);
    Ok((main?, compressed?))
}

fn read_set(both: &mut ConfigReader<'_>, key: &str, kinds: &[&str]) -> Result<Keys, Rejected> {
    let Some((mut set, kind)) = object_of_kind(both, key, kinds)? else {
        return Err(both.missing(key));
    };
    let theta = set.number("rope_theta", Domain::Base);
    let partial = set.optional_number("partial_rotary_factor", Domain::Share);
    let yarn = match kind {
        None => Err(untyped(&mut set, "rope_type")),
        Some("yarn") => read_yarn(&mut set).map(Some),
        Some(_) => Ok(None),
    };
    both.absorb(set);
    Ok(Keys {
        theta: Some(theta?),
        partial: partial?,
        yarn: yarn?,
    })
}

/// Without the type of a rotation its other keys mean nothing.
fn untyped(rope: &mut ConfigReader<'_>, key: &str) -> Rejected {
    rope.ignore_all();
    rope.missing(key)
}

/// YaRN; cosines and scores are not scaled.
fn read_yarn(c: &mut ConfigReader<'_>) -> Result<Yarn, Rejected> {
    let factor = c.number("factor", Domain::Factor);
    let original_context = c.count("original_max_position_embeddings", MAX_CONTEXT);
    let beta_fast = c.number("beta_fast", Domain::Factor);
    let beta_slow = c.number("beta_slow", Domain::Factor);
    let attention = c.optional_number("attention_factor", Domain::Factor);
    if attention?.is_some_and(|factor| factor != 1.0) {
        return Err(c.reject("attention_factor", "is not 1, the only factor there is"));
    }
    let (factor, beta_fast, beta_slow) = (factor?, beta_fast?, beta_slow?);
    if factor < 1.0 {
        return Err(c.reject("factor", format!("is {factor}, but contexts only grow")));
    }
    if beta_fast <= beta_slow {
        let message = format!("is {beta_fast}, not above beta_slow, which is {beta_slow}");
        return Err(c.reject("beta_fast", message));
    }
    Ok(Yarn {
        factor,
        original_context: original_context?,
        beta_fast,
        beta_slow,
    })
}

/// One base of frequencies, from whichever place has it.
fn agreed(
    c: &mut ConfigReader<'_>,
    key: &str,
    other: &str,
    top: Option<f64>,
    nested: Option<f64>,
) -> Result<f64, Rejected> {
    let theta = match (top, nested) {
        (Some(a), Some(b)) if a != b => {
            return Err(c.reject(key, format!("is {a}, but rope_parameters.{other} is {b}")));
        }
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => c.number(key, Domain::Base)?,
    };
    if theta <= 1.0 {
        let message = format!("is {theta}, but the base of the frequencies is above 1");
        return Err(c.reject(key, message));
    }
    Ok(theta)
}

/// Channels that rotate, as a number or as a share of the head.
fn read_dims(
    c: &mut ConfigReader<'_>,
    dims: Option<usize>,
    shares: [Option<f64>; 3],
    [head_dim, index_dim]: [usize; 2],
) -> Result<usize, Rejected> {
    let key = match dims {
        Some(_) => "qk_rope_head_dim",
        None => "partial_rotary_factor",
    };
    let mut found = dims;
    for share in shares.into_iter().flatten() {
        let exact = share * head_dim as f64;
        let channels = exact.round();
        if share > 1.0 || (exact - channels).abs() > 1e-6 {
            let message = format!("{share} of {head_dim} channels is not a number of channels");
            return Err(c.reject("partial_rotary_factor", message));
        }
        let channels = channels as usize;
        if *found.get_or_insert(channels) != channels {
            let message = format!("{share} of {head_dim} channels contradicts {key}");
            return Err(c.reject("partial_rotary_factor", message));
        }
    }
    let Some(dims) = found else {
        return c.count("qk_rope_head_dim", MAX_WIDTH);
    };
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim.min(index_dim) {
        let message = format!(
            "{dims} channels cannot rotate in pairs in heads of {head_dim} and {index_dim}"
        );
        return Err(c.reject(key, message));
    }
    Ok(dims)
}
