//! Parsers of single option values.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lamella_engine::{BackendKind, ReadAccess, SourcePolicy, Verify};
use lamella_kernels::Isa;
use lamella_program::Encoding;
use std::ffi::OsStr;

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProgressMode {
    /// Bars on a terminal, otherwise lines.
    #[default]
    Auto,
    /// Bars.
    Bar,
    /// Lines now and then.
    Plain,
    /// JSON lines.
    Json,
    /// Nothing.
    None,
}

/// Who drafts tokens ahead of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Speculate {
    /// Whoever can, where it pays.
    #[default]
    Auto,
    /// Nobody.
    Off,
    /// What followed when the same was last said.
    Lookup,
    /// The model's own draft heads.
    Head,
}

/// A token id and what is added to its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bias {
    /// The token.
    pub(crate) id: u32,
    /// What is added.
    pub(crate) value: f64,
}

/// One of a fixed set of names, so that help and completions list them.
fn named<T: Clone + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).map(move |found| {
        let entry = table.iter().find(|(name, _)| *name == found);
        entry
            .map(|(_, value)| value.clone())
            .expect("clap admits only names of the table")
    })
}

pub(crate) fn encoding() -> impl TypedValueParser<Value = Encoding> {
    named(&[
        ("f32", Encoding::F32),
        ("f16", Encoding::F16),
        ("bf16", Encoding::Bf16),
        ("q8", Encoding::Q8),
        ("q4", Encoding::Q4),
    ])
}

pub(crate) fn backend() -> impl TypedValueParser<Value = BackendKind> {
    named(&[
        ("cpu", BackendKind::Cpu),
        ("reference", BackendKind::Reference),
    ])
}

pub(crate) fn source() -> impl TypedValueParser<Value = SourcePolicy> {
    named(&[
        ("auto", SourcePolicy::Auto),
        ("stored", SourcePolicy::Stored),
        ("transient", SourcePolicy::Transient),
    ])
}

pub(crate) fn reader() -> impl TypedValueParser<Value = ReadAccess> {
    named(&[
        ("uring", ReadAccess::Queued),
        ("direct", ReadAccess::Direct),
        ("buffered", ReadAccess::Buffered),
    ])
}

pub(crate) fn verify() -> impl TypedValueParser<Value = Verify> {
    named(&[
        ("first", Verify::First),
        ("always", Verify::Always),
        ("never", Verify::Never),
    ])
}

pub(crate) fn isa() -> impl TypedValueParser<Value = Isa> {
    PossibleValuesParser::new(Isa::ALL.map(Isa::name))
        .map(|name| Isa::from_name(&name).expect("clap admits only these names"))
}

/// The names of [`Speculate`].
const SPECULATE: &[(&str, Speculate)] = &[
    ("auto", Speculate::Auto),
    ("off", Speculate::Off),
    ("lookup", Speculate::Lookup),
    ("head", Speculate::Head),
];

pub(crate) fn speculate() -> impl TypedValueParser<Value = Speculate> {
    named(SPECULATE)
}

impl Speculate {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        let named = SPECULATE.iter().find(|(_, value)| *value == self);
        named.map_or("", |(name, _)| name)
    }
}

pub(crate) fn switch() -> impl TypedValueParser<Value = bool> {
    named(&[("on", true), ("off", false)])
}

pub(crate) fn progress() -> impl TypedValueParser<Value = ProgressMode> {
    named(&[
        ("auto", ProgressMode::Auto),
        ("bar", ProgressMode::Bar),
        ("plain", ProgressMode::Plain),
        ("json", ProgressMode::Json),
        ("none", ProgressMode::None),
    ])
}

/// A whole number in a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    least: u64,
    most: u64,
}

impl Whole {
    /// All of them.
    pub(crate) const ANY: Whole = Whole {
        least: 0,
        most: u64::MAX,
    };

    fn description(self) -> String {
        match (self.least, self.most) {
            (0, u64::MAX) => "a whole number below 2^64".to_owned(),
            (least, u64::MAX) => format!("a whole number of at least {least}"),
            (least, most) => format!("a whole number from {least} to {most}"),
        }
    }
}

impl TypedValueParser for Whole {
    type Value = u64;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<u64, clap::Error> {
        let text = value.to_string_lossy();
        match text.parse() {
            Ok(number) if (self.least..=self.most).contains(&number) => Ok(number),
            _ => Err(invalid(command, arg, &text, &self.description())),
        }
    }
}

/// A count of at least `LEAST`.
pub(crate) fn at_least<const LEAST: u64>() -> impl TypedValueParser<Value = usize> {
    let whole = Whole {
        least: LEAST,
        ..Whole::ANY
    };
    whole.try_map(usize::try_from)
}

/// More tokens than any context holds; what is beyond cannot be meant and must not be allocated.
pub(crate) const MOST_TOKENS: u64 = 1 << 24;
/// Most conversations in one step.
pub(crate) const MOST_BATCH: u64 = 1 << 16;
/// Most repetitions of a measurement.
pub(crate) const MOST_REPETITIONS: u64 = 1_000_000;

/// A count of `LEAST` to `MOST`.
pub(crate) fn between<const LEAST: u64, const MOST: u64>() -> impl TypedValueParser<Value = usize> {
    let whole = Whole {
        least: LEAST,
        most: MOST,
    };
    whole.try_map(usize::try_from)
}

/// A number of tokens, or none.
pub(crate) fn tokens() -> impl TypedValueParser<Value = usize> {
    between::<0, MOST_TOKENS>()
}

/// Largest number that sampling takes.
pub(crate) const MOST: f64 = 1e6;

/// A finite number in a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real {
    low: f64,
    low_is_allowed: bool,
    high: f64,
}

impl Real {
    pub(crate) fn any() -> Real {
        Real {
            low: f64::MIN,
            low_is_allowed: true,
            high: f64::MAX,
        }
    }

    pub(crate) fn from(low: f64) -> Real {
        Real { low, ..Real::any() }
    }

    pub(crate) fn above(low: f64) -> Real {
        Real {
            low,
            low_is_allowed: false,
            ..Real::any()
        }
    }

    pub(crate) fn to(self, high: f64) -> Real {
        Real { high, ..self }
    }

    fn contains(self, value: f64) -> bool {
        let above = value > self.low || (self.low_is_allowed && value == self.low);
        above && value <= self.high
    }

    fn description(self) -> String {
        let low = match (self.low == f64::MIN, self.low_is_allowed) {
            (true, _) => String::new(),
            (false, true) => format!(" of at least {}", self.low),
            (false, false) => format!(" above {}", self.low),
        };
        let high = if self.high == f64::MAX {
            String::new()
        } else {
            format!(", at most {}", self.high)
        };
        format!("a number{low}{high}")
    }
}

impl TypedValueParser for Real {
    type Value = f64;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<f64, clap::Error> {
        let text = value.to_string_lossy();
        match text.parse::<f64>() {
            Ok(number) if self.contains(number) => Ok(number),
            _ => Err(invalid(command, arg, &text, &self.description())),
        }
    }
}

fn invalid(
    command: &clap::Command,
    arg: Option<&clap::Arg>,
    value: &str,
    wanted: &str,
) -> clap::Error {
    let name = arg.map_or_else(|| "value".to_owned(), ToString::to_string);
    let message = format!("invalid value '{value}' for '{name}': it must be {wanted}");
    let mut error = clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command);
    error.insert(ContextKind::InvalidArg, ContextValue::String(name));
    error
}

/// Bytes, with an optional K, M, G or T (optionally followed by B or iB), powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" if unit != "ib" && unit != "i" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("unknown unit {unit:?}; use K, M, G or T")),
    };
    let number: f64 = digits
        .trim()
        .parse()
        .map_err(|_| "it must be a size like 12G".to_owned())?;
    let bytes = number * f64::from(1u32 << shift.min(20)) * f64::from(1u32 << (shift.max(20) - 20));
    if !(1.0..=9e18).contains(&bytes) {
        return Err("it must be a size like 12G".to_owned());
    }
    Ok(bytes as u64)
}

/// Most memory to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Memory {
    /// What is free.
    Auto,
    /// This part of what is free.
    Part(f64),
    /// Bytes.
    Bytes(u64),
}

/// A size, a part of what is free in percent, or `auto`.
pub(crate) fn memory(text: &str) -> Result<Memory, String> {
    if text == "auto" {
        return Ok(Memory::Auto);
    }
    let Some(percent) = text.strip_suffix('%') else {
        return size(text).map(Memory::Bytes);
    };
    match percent.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Memory::Part(percent / 100.0)),
        _ => Err("it must be above 0 % and at most 100 %, or a size like 12G, or auto".to_owned()),
    }
}

/// Layers of a model, `A..B`: from A on, without B.
pub(crate) fn layers(text: &str) -> Result<std::ops::Range<usize>, String> {
    let range = text.split_once("..").and_then(|(from, to)| {
        let range = from.trim().parse().ok()?..to.trim().parse().ok()?;
        (range.start < range.end).then_some(range)
    });
    range.ok_or_else(|| "it must be A..B, the first layer and the one behind the last".to_owned())
}

/// Gigabytes a second, in bytes.
pub(crate) fn rate() -> impl TypedValueParser<Value = f64> {
    Real::above(0.0).to(1e6).map(|gigabytes| gigabytes * 1e9)
}

/// `ID=V`.
pub(crate) fn bias(text: &str) -> Result<Bias, String> {
    let wanted = || "it must be ID=V, a token id and a number".to_owned();
    let (id, value) = text.split_once('=').ok_or_else(wanted)?;
    let bias = Bias {
        id: id.trim().parse().map_err(|_| wanted())?,
        value: value.trim().parse().map_err(|_| wanted())?,
    };
    if bias.value.is_nan() {
        Err(wanted())
    } else {
        Ok(bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        let good = [
            ("0.5k", 512),
            ("1", 1),
            ("12G", 12 << 30),
            ("3MiB", 3 << 20),
            ("2tb", 2 << 40),
            ("1024b", 1024),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "-1", "G", "1x", "1ib", "nan", "inf", "1e30", "1 2"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_a_size_a_part_or_what_is_free() {
        assert_eq!(memory("auto"), Ok(Memory::Auto));
        assert_eq!(memory("50%"), Ok(Memory::Part(0.5)));
        assert_eq!(memory("12.5 %"), Ok(Memory::Part(0.125)));
        assert_eq!(memory("2G"), Ok(Memory::Bytes(2 << 30)));
        for text in ["", "%", "0%", "101%", "-5%", "nan%", "Auto", "half"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn layers_are_a_range() {
        assert_eq!(layers("0..16"), Ok(0..16));
        assert_eq!(layers("3 .. 4"), Ok(3..4));
        for text in ["", "3", "3..3", "4..3", "a..b", "..4", "1..", "1...3"] {
            assert!(layers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn biases_are_an_id_and_a_number() {
        assert_eq!(bias("7=-1.5"), Ok(Bias { id: 7, value: -1.5 }));
        assert_eq!(bias("7=-inf").map(|b| b.value), Ok(f64::NEG_INFINITY));
        for text in ["", "7", "=1", "-1=1", "7=x", "7=nan"] {
            assert!(bias(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_hold_their_ends() {
        assert!(Real::from(0.0).contains(0.0) && !Real::above(0.0).contains(0.0));
        assert!(Real::above(0.0).to(1.0).contains(1.0) && !Real::any().contains(f64::NAN));
        assert!(!Real::any().contains(f64::INFINITY));
        assert_eq!(
            Real::above(0.0).to(1.0).description(),
            "a number above 0, at most 1"
        );
    }
}
