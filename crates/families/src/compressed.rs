//! `quantization_config` as compressed-tensors writes it: which linear maps are stored in codes,
//! and in which.
//!
//! A group has targets and a format, and a list names what is left alone. Both hold names of
//! modules, patterns behind `re:` that match from the start of a name, or the class `Linear`, which
//! is every linear map. The names that a map goes by are the family's to say.

use crate::config::{ConfigReader, MAX_WIDTH, Rejected, shown};
use regex::{Regex, RegexBuilder};
use serde_json::json;
use std::collections::HashSet;

/// E2M1 codes with an E8M0 scale for 32 of them.
pub(crate) const MXFP4: &str = "mxfp4-pack-quantized";
/// E2M1 codes with an E4M3 scale for 16 of them and a divisor for all.
pub(crate) const NVFP4: &str = "nvfp4-pack-quantized";
/// E4M3 codes with a scale for a block or a row.
pub(crate) const FP8: &str = "float-quantized";
/// Each group has a format of its own.
const MIXED: &str = "mixed-precision";
/// Most names in a list that are believed.
const MAX_NAMES: usize = 1 << 20;
/// Most patterns in a list that are believed: each costs time for every map.
const MAX_PATTERNS: usize = 64;
/// Bytes that a pattern may take once it is prepared.
const MAX_PATTERN_BYTES: usize = 1 << 18;

/// The codes that a linear map is stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// [`MXFP4`].
    Mxfp4,
    /// [`NVFP4`].
    Nvfp4,
    /// [`FP8`].
    Fp8 {
        /// Rows and columns that share a scale; a row has one where there is none.
        block: Option<[usize; 2]>,
    },
}

/// Which linear maps are in which codes.
pub(crate) struct Scheme {
    groups: Vec<(Names, Format)>,
    ignored: Names,
}

impl Scheme {
    /// Reads the object but for `quant_method`. Its formats have to be among `known`.
    pub(crate) fn read(q: &mut ConfigReader<'_>, known: &[&str]) -> Result<Scheme, Rejected> {
        q.require_if_present("quantization_status", &json!("compressed"));
        q.require_if_present("kv_cache_scheme", &json!(null));
        // Weights left out, and weights that were rotated, are not expressed.
        for key in ["sparsity_config", "transform_config"] {
            q.require_if_present(key, &json!({}));
        }
        // A statistic, and who wrote it.
        q.ignore(&["global_compression_ratio", "version"]);
        let format = read_format(q, known);
        let ignored = Names::read(q, "ignore");
        let groups = match q.object("config_groups") {
            Ok(Some(mut groups)) => {
                let read = read_groups(&mut groups, format?, known);
                q.absorb(groups);
                read
            }
            other => other.map(|_| Vec::new()),
        };
        Ok(Scheme {
            groups: groups?,
            ignored: ignored?,
        })
    }

    /// The codes of a linear map that goes by these names; `None` where it is left alone.
    pub(crate) fn format(&self, names: &[String]) -> Option<Format> {
        if self.ignores(names) {
            return None;
        }
        let group = self.groups.iter().find(|(targets, _)| targets.cover(names));
        group.map(|(_, format)| *format)
    }

    /// Records that a linear map is stored in codes though it is to be left alone. `place` is the
    /// path to the object with its dot, seen from `c`.
    pub(crate) fn refuse_codes(
        &self,
        c: &mut ConfigReader<'_>,
        place: &str,
        map: &str,
        names: &[String],
    ) -> Rejected {
        let (list, covers) = match self.ignores(names) {
            true => ("ignore", "covers"),
            false => ("config_groups", "cover no"),
        };
        let message = format!("{covers} {map}, which is stored in codes");
        c.refuse(&format!("{place}{list}"), message)
    }

    /// Whether the list of what is left alone covers a map that goes by these names.
    fn ignores(&self, names: &[String]) -> bool {
        self.ignored.cover(names)
    }
}

/// The format of all groups; `None` where each has its own.
fn read_format<'c>(q: &mut ConfigReader<'c>, known: &[&str]) -> Result<Option<&'c str>, Rejected> {
    match q.optional_text("format")? {
        Some(format) if known.contains(&format) => Ok(Some(format)),
        Some(MIXED) => Ok(None),
        Some(other) => Err(unknown_format(q, other, known)),
        None => Err(q.refuse("format", "is missing, and this method needs it")),
    }
}

fn unknown_format(q: &mut ConfigReader<'_>, format: &str, known: &[&str]) -> Rejected {
    let message = format!(
        "is {}, but only {} can be used",
        shown(&format.into()),
        known.join(" and ")
    );
    q.refuse("format", message)
}

fn read_groups(
    groups: &mut ConfigReader<'_>,
    format: Option<&str>,
    known: &[&str],
) -> Result<Vec<(Names, Format)>, Rejected> {
    let mut read = Vec::new();
    if !groups.only_objects() {
        // What else there is has not been read, which is told in the end.
        read.push(Err(Rejected));
    }
    for key in groups.keys_of_objects() {
        let Some(mut group) = groups.object(key)? else {
            continue;
        };
        let one = read_group(&mut group, format, known);
        groups.absorb(group);
        read.push(one);
    }
    read.into_iter().collect()
}

fn read_group(
    group: &mut ConfigReader<'_>,
    format: Option<&str>,
    known: &[&str],
) -> Result<(Names, Format), Rejected> {
    group.require_if_present("output_activations", &json!(null));
    // Of a format that is not known, these are not looked at.
    group.ignore(&["input_activations", "weights"]);
    let targets = Names::read(group, "targets");
    let format = match group.optional_text("format")?.or(format) {
        Some(format) if known.contains(&format) => format,
        Some(other) => return Err(unknown_format(group, other, known)),
        None => return Err(group.refuse("format", "is missing, and mixed groups need it")),
    };
    // In the others, how inputs were rounded when the model was served; the weights are the same
    // numbers.
    if format == MXFP4 {
        group.require_if_present("input_activations", &json!(null));
    }
    let Some(mut weights) = group.object("weights")? else {
        return Err(group.refuse("weights", "is missing, and a group needs it"));
    };
    let read = read_weights(&mut weights, format);
    group.absorb(weights);
    Ok((targets?, read?))
}

fn read_weights(w: &mut ConfigReader<'_>, format: &str) -> Result<Format, Rejected> {
    w.require("type", &json!("float"));
    w.require_if_present("symmetric", &json!(true));
    w.require_if_present("dynamic", &json!(false));
    w.require_if_present("actorder", &json!(null));
    // How the scales were found, and the type of zero points, which a symmetric code has not.
    w.ignore(&["observer", "observer_kwargs", "zp_dtype"]);
    let mut four_bits = |group: usize, strategy: &str, scale: &str| {
        w.require("num_bits", &json!(4));
        w.require("group_size", &json!(group));
        w.require_if_present("strategy", &json!(strategy));
        w.require_if_present("scale_dtype", &json!(scale));
        w.require_if_present("block_structure", &json!(null));
    };
    match format {
        MXFP4 => {
            four_bits(32, "group", "torch.uint8");
            Ok(Format::Mxfp4)
        }
        NVFP4 => {
            four_bits(16, "tensor_group", "torch.float8_e4m3fn");
            Ok(Format::Nvfp4)
        }
        _ => read_fp8(w),
    }
}

fn read_fp8(w: &mut ConfigReader<'_>) -> Result<Format, Rejected> {
    w.require("num_bits", &json!(8));
    w.require_if_present("group_size", &json!(null));
    // The scales say it themselves.
    w.ignore(&["scale_dtype"]);
    let sides = w.optional_wholes("block_structure", MAX_WIDTH, 2);
    let strategy = w.optional_text("strategy");
    let block = match (strategy?, sides?.as_deref()) {
        (Some("block"), Some(&[rows, cols])) if rows > 0 && cols > 0 => Some([rows, cols]),
        (Some("channel"), None) => None,
        (Some("block"), _) => {
            return Err(w.refuse("block_structure", "is not the two sides of a block"));
        }
        _ => {
            let message = "is neither \"block\" nor \"channel\", which are known here";
            return Err(w.refuse("strategy", message));
        }
    };
    Ok(Format::Fp8 { block })
}

/// Names and patterns of linear maps.
#[derive(Default)]
struct Names {
    exact: HashSet<String>,
    patterns: Vec<Regex>,
    /// The class of all linear maps is named.
    every: bool,
}

impl Names {
    fn read(c: &mut ConfigReader<'_>, key: &str) -> Result<Names, Rejected> {
        let mut names = Names::default();
        for name in c.optional_texts(key, MAX_NAMES)?.unwrap_or_default() {
            let Some(pattern) = name.strip_prefix("re:") else {
                names.every |= name == "Linear";
                names.exact.insert(name.to_owned());
                continue;
            };
            let prepared = RegexBuilder::new(&format!("^(?:{pattern})"))
                .size_limit(MAX_PATTERN_BYTES)
                .build();
            match prepared {
                Ok(pattern) => names.patterns.push(pattern),
                Err(_) => {
                    let message = format!("has a pattern {} that cannot be read", {
                        shown(&name.into())
                    });
                    return Err(c.refuse(key, message));
                }
            }
        }
        match names.patterns.len() > MAX_PATTERNS {
            true => Err(c.refuse(key, format!("has more than {MAX_PATTERNS} patterns"))),
            false => Ok(names),
        }
    }

    /// Whether a linear map that goes by these names is meant.
    fn cover(&self, names: &[String]) -> bool {
        let named = |name: &String| {
            self.exact.contains(name) || self.patterns.iter().any(|p| p.is_match(name))
        };
        !names.is_empty() && (self.every || names.iter().any(named))
    }
}
