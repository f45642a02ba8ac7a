//! What several families share: tensors in codes, gated units, experts in both published layouts,
//! what draft heads may repeat.

use crate::config::{ConfigReader, MAX_WIDTH, Rejected};
use crate::operands::Operands;
use crate::sources::{Sources, coded};
use lamella_program::block::{GatedActivation, GatedUnit, Linear};
use lamella_program::operand::Coding;
use lamella_program::program::UnusedComponent;
use lamella_program::{Defect, OperandId, Program, Role, Slice};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The key that says how weights are in codes.
const QUANTISATION: &str = "quantization_config";
/// The key of the part that describes the language model.
const TEXT: &str = "text_config";
/// The element type of codes in FP8.
const FP8: &str = "F8_E4M3";
/// What the name of a tensor in codes ends in once more for its scales.
const BLOCK_SCALES: &str = "_scale_inv";
/// Most experts in all layers together that are believed.
pub(crate) const MAX_ALL_EXPERTS: usize = 1 << 17;
/// Ends of the names of stacked experts.
const STACKED: [&str; 2] = ["gate_up_proj", "down_proj"];
/// Ends of the names of a gated unit.
const UNIT: [&str; 3] = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];

/// An operand table under construction, fed from a tensor table whose matrices may be codes.
pub(crate) struct Builder<'a> {
    pub(crate) sources: &'a Sources<'a>,
    pub(crate) operands: Operands,
    coding: CodingOf<'a>,
}

/// How the elements of a tensor stand for numbers, by its name.
type CodingOf<'a> = Box<dyn Fn(&str) -> Option<Coding> + 'a>;

impl<'a> Builder<'a> {
    /// `coding` says how the elements of a tensor stand for numbers.
    pub(crate) fn new(
        sources: &'a Sources<'a>,
        coding: impl Fn(&str) -> Option<Coding> + 'a,
    ) -> Self {
        Builder {
            sources,
            operands: Operands::default(),
            coding: Box::new(coding),
        }
    }

    /// All of a tensor of `shape` numbers.
    pub(crate) fn slice(&self, tensor: String, shape: &[usize]) -> Slice {
        let coding = (self.coding)(&tensor);
        coded(tensor, shape, coding)
    }

    /// `rows` rows from `start` on of a tensor of `shape` numbers.
    pub(crate) fn rows(&self, tensor: &str, shape: &[usize], start: usize, rows: usize) -> Slice {
        Slice {
            start,
            rows,
            ..self.slice(tensor.to_owned(), shape)
        }
    }

    /// A matrix `[rows, cols]` that is a whole tensor.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        role: Role,
        tensor: String,
        shape: [usize; 2],
    ) -> OperandId {
        let parts = vec![vec![self.slice(tensor, &shape)]];
        self.operands.parts(name, role, &shape, parts)
    }

    /// A linear map `[rows, cols]` that is a whole tensor, without bias.
    pub(crate) fn linear(&mut self, name: &str, tensor: String, shape: [usize; 2]) -> Linear {
        Linear {
            weight: self.matrix(name, Role::Linear, tensor, shape),
            bias: None,
        }
    }

    /// The same kept as precise as a router: a few rows that weigh what is chosen, or steer whole
    /// streams. Releases in codes leave them as they were trained, and they cost next to nothing.
    pub(crate) fn precise(&mut self, name: &str, tensor: String, shape: [usize; 2]) -> Linear {
        Linear {
            weight: self.matrix(name, Role::Router, tensor, shape),
            bias: None,
        }
    }

    /// A dense unit: `gate_proj`, `up_proj` and `down_proj` under the name `tensor`.
    pub(crate) fn unit(
        &mut self,
        name: &str,
        tensor: &str,
        [width, hidden]: [usize; 2],
    ) -> GatedUnit {
        let mut matrix = |operand: &str, end: &str, shape| {
            let (name, tensor) = (format!("{name}.{operand}"), format!("{tensor}.{end}"));
            self.matrix(&name, Role::Linear, tensor, shape)
        };
        silu_unit(
            matrix("gate", UNIT[0], [width, hidden]),
            matrix("up", UNIT[1], [width, hidden]),
            matrix("down", UNIT[2], [hidden, width]),
            width,
        )
    }

    /// Rows that stand in several places of one tensor of `source` numbers, `rows` in all; `cuts`
    /// are the first row of each place and how many it has.
    ///
    /// A tensor that is absent or has another shape is a defect that the closure check names; it is
    /// then claimed in one piece, so that no number of the configuration alone decides how many
    /// slices are built.
    pub(crate) fn cuts(
        &self,
        tensor: &str,
        source: &[usize],
        rows: usize,
        cuts: impl Iterator<Item = [usize; 2]>,
    ) -> Vec<Slice> {
        let whole = self.slice(tensor.to_owned(), source);
        let usable = self.sources.shape(tensor) == Some(&whole.tensor_shape);
        let cut = |[start, rows]: [usize; 2]| Slice {
            start,
            rows,
            ..whole.clone()
        };
        match usable {
            true => cuts.map(cut).collect(),
            false => vec![cut([0, rows])],
        }
    }

    /// The experts of one layer under the name `tensor`: three tensors an expert, or two stacked
    /// ones, `[experts, 2 * width, hidden]` (the gate's rows first) and `[experts, hidden, width]`.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        tensor: &str,
        [experts, width, hidden]: [usize; 3],
    ) -> GatedUnit {
        let [gate_up, down] = STACKED.map(|end| format!("{tensor}.{end}"));
        let stacked = self.sources.has(&gate_up) || self.sources.has(&down);
        let single = |expert: usize, end: &str, shape: [usize; 2]| {
            self.slice(format!("{tensor}.{expert}.{end}"), &shape)
        };
        let pair = [experts, 2 * width, hidden];
        let gate_part = |e: usize| match stacked {
            true => self.rows(&gate_up, &pair, 2 * e * width, width),
            false => single(e, UNIT[0], [width, hidden]),
        };
        let up_part = |e: usize| match stacked {
            true => self.rows(&gate_up, &pair, (2 * e + 1) * width, width),
            false => single(e, UNIT[1], [width, hidden]),
        };
        let inner = [experts, width, hidden];
        let outer = [experts, hidden, width];
        let down_part = |e: usize| match stacked {
            true => self.rows(&down, &outer, e * hidden, hidden),
            false => single(e, UNIT[2], [hidden, width]),
        };
        let list = |part: &dyn Fn(usize) -> Slice| -> Vec<Vec<Slice>> {
            (0..experts).map(|expert| vec![part(expert)]).collect()
        };
        let lists = [list(&gate_part), list(&up_part), list(&down_part)];
        let [gate, up, down] = lists;
        let mut add = |end: &str, shape: [usize; 3], parts| {
            let name = format!("{name}.{end}");
            self.operands.parts(&name, Role::Expert, &shape, parts)
        };
        silu_unit(
            add("gate", inner, gate),
            add("up", inner, up),
            add("down", outer, down),
            width,
        )
    }

    /// The experts of one layer, one tensor for each matrix: `source` gives the name of the `w1`
    /// (gate), `w3` (up) or `w2` (down) of an expert.
    pub(crate) fn numbered_experts(
        &mut self,
        name: &str,
        source: impl Fn(usize, &str) -> String,
        [experts, width, hidden]: [usize; 3],
    ) -> GatedUnit {
        let mut stack = |end: &str, matrix: &str, [rows, cols]: [usize; 2]| {
            let part = |expert| vec![self.slice(source(expert, matrix), &[rows, cols])];
            let parts = (0..experts).map(part).collect();
            let (name, shape) = (format!("{name}.{end}"), [experts, rows, cols]);
            self.operands.parts(&name, Role::Expert, &shape, parts)
        };
        silu_unit(
            stack("gate", "w1", [width, hidden]),
            stack("up", "w3", [width, hidden]),
            stack("down", "w2", [hidden, width]),
            width,
        )
    }
}

fn silu_unit(gate: OperandId, up: OperandId, down: OperandId, width: usize) -> GatedUnit {
    GatedUnit {
        gate,
        up,
        down,
        width,
        activation: GatedActivation::Silu,
        output_gate: None,
        output_scale: None,
    }
}

/// The coding of tensors in FP8 with a scale a block, for a checkpoint whose configuration gives
/// the block. Each tensor is judged by itself: it is in codes where its type or its scales say so,
/// and the closure check names what is missing of the two.
pub(crate) fn block_fp8<'a>(
    sources: &'a Sources<'a>,
    block: Option<[usize; 2]>,
) -> impl Fn(&str) -> Option<Coding> + 'a {
    move |tensor| {
        let scale = format!("{tensor}{BLOCK_SCALES}");
        let scaled = || sources.has(&scale) && sources.takes_scales(tensor, &[FP8]);
        let in_codes = sources.dtype(tensor) == Some(FP8) || scaled();
        match block {
            Some(block) if in_codes => Some(Coding::BlockFp8 { scale, block }),
            _ => None,
        }
    }
}

/// Reads `quantization_config`, where the checkpoint has one: rows and columns of an FP8 block.
///
/// Where it has none, but tensors in FP8, that is one defect: without it each of them would be one.
pub(crate) fn read_block_fp8(
    c: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<Option<[usize; 2]>, Rejected> {
    let Some(mut q) = c.object(QUANTISATION)? else {
        needs_no_blocks(c, sources, |name| Some(format!("{name}{BLOCK_SCALES}")))?;
        return Ok(None);
    };
    if let Err(rejected) = q.require_kind("quant_method", &json!("fp8")) {
        c.absorb(q);
        return Err(rejected);
    }
    q.require_if_present("fmt", &json!("e4m3"));
    // How inputs were rounded when the checkpoint was served; the weights are the same numbers.
    q.require_if_present("activation_scheme", &json!("dynamic"));
    // Each tensor's own type says whether it was converted.
    q.ignore(&["modules_to_convert", "modules_to_not_convert"]);
    let block = q.optional_wholes("weight_block_size", MAX_WIDTH, 2);
    let block = match block {
        Err(rejected) => Err(rejected),
        Ok(Some(sides)) if sides.len() == 2 && !sides.contains(&0) => Ok([sides[0], sides[1]]),
        Ok(_) => Err(q.refuse("weight_block_size", "is not the two sides of a block")),
    };
    c.absorb(q);
    Ok(Some(block?))
}

/// The key that says that weights are in codes, where a configuration has it and no weight of its
/// program is: of any family, whatever the method. It belongs to other tensors then.
pub(crate) fn codes_of_none(values: &Map<String, Value>, program: &Program) -> Option<Defect> {
    let place = |map: &Map<String, Value>, before: &str| {
        let there = map.get(QUANTISATION).is_some_and(|value| !value.is_null());
        there.then(|| format!("{before}{QUANTISATION}"))
    };
    let inner = || place(values.get(TEXT)?.as_object()?, &format!("{TEXT}."));
    let key = place(values, "").or_else(inner)?;
    let mut slices = program
        .operands
        .iter()
        .flat_map(|o| o.parts.iter().flatten());
    if slices.any(|slice| slice.coding.is_some()) {
        return None;
    }
    let message = "is there, but all weights are plain numbers: leave it out, or take the tensors \
                   that it was written for";
    let message = message.to_owned();
    Some(Defect::ConfigValue { key, message })
}

/// Refuses tensors in FP8 with scales where `quantization_config` is missing; `scale_of` names the
/// scales of a tensor. One without scales has a wrong type, which the closure check names.
pub(crate) fn needs_no_blocks(
    c: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
    scale_of: impl Fn(&str) -> Option<String>,
) -> Result<(), Rejected> {
    let scaled = |name: &str| {
        let scale = || scale_of(name).is_some_and(|scale| sources.has(&scale));
        sources.dtype(name) == Some(FP8) && scale()
    };
    match sources.names(scaled).first() {
        None => Ok(()),
        Some(name) => {
            let message = format!("is missing, and {name} needs the size of its blocks");
            Err(c.refuse(QUANTISATION, message))
        }
    }
}

/// [`check_mixed_size`] where every layer has experts.
pub(crate) fn check_size(
    c: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
    layers: usize,
    beside: usize,
    experts: (&str, usize),
) -> Result<(), Rejected> {
    check_mixed_size(c, sources, [layers, layers], beside, experts)
}

/// Refuses a configuration that is far larger than the checkpoint, before anything of that size is
/// built. A few missing tensors are the closure check's to name.
///
/// `sparse` of the `layers` have as many experts each as the key says that is named; `beside` is
/// how many tensors a layer has beside those.
pub(crate) fn check_mixed_size(
    c: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
    [layers, sparse]: [usize; 2],
    beside: usize,
    (key, experts): (&str, usize),
) -> Result<(), Rejected> {
    let stacked = !sources
        .names(|name| name.ends_with(".experts.down_proj"))
        .is_empty();
    let mixture = if stacked { 2 } else { 3 * experts };
    let most = 4 * sources.len() + 4096;
    let beside = layers.saturating_mul(beside);
    let needed = beside.saturating_add(sparse.saturating_mul(mixture));
    let (key, message) = if beside > most {
        let message = format!("{layers} layers need {beside} tensors");
        ("num_hidden_layers", message)
    } else if needed > most || sparse.saturating_mul(experts) > MAX_ALL_EXPERTS {
        let message = format!("{experts} experts in {sparse} layers need {needed} tensors");
        (key, message)
    } else {
        return Ok(());
    };
    let there = sources.len();
    Err(c.reject(key, format!("{message}, and the checkpoint has {there}")))
}

/// A list with one of two words a layer; `true` is the second one.
pub(crate) fn choices(
    c: &mut ConfigReader<'_>,
    key: &str,
    words: &[&str],
    [no, yes]: [&str; 2],
    count: usize,
) -> Result<Vec<bool>, Rejected> {
    c.note_words(key, &[no, yes]);
    if words.len() != count {
        let message = format!("has {} entries for {count} layers", words.len());
        return Err(c.reject(key, message));
    }
    if words.iter().any(|&word| word != no && word != yes) {
        let message = format!("may only say {no:?} and {yes:?}");
        return Err(c.reject(key, message));
    }
    Ok(words.iter().map(|&word| word == yes).collect())
}

/// The first number that stands in a list before.
pub(crate) fn named_twice(ids: &[usize]) -> Option<usize> {
    let mut seen = HashSet::new();
    ids.iter().copied().find(|id| !seen.insert(*id))
}

/// What two keys say of each layer, the second one a list of all layers. Where both are there they
/// have to agree.
pub(crate) fn settled<T: PartialEq>(
    c: &mut ConfigReader<'_>,
    [key, list]: [&str; 2],
    said: Option<Vec<T>>,
    listed: Option<Vec<T>>,
) -> Result<Vec<T>, Rejected> {
    let (said, listed) = match (said, listed) {
        (Some(said), Some(listed)) => (said, listed),
        (Some(one), None) | (None, Some(one)) => return Ok(one),
        (None, None) => return Err(c.reject(key, format!("is missing, and so is {list}"))),
    };
    match said.iter().zip(&listed).position(|(a, b)| a != b) {
        None => Ok(listed),
        Some(layer) => {
            let message = format!("says something else of layer {layer} than {list}");
            Err(c.reject(key, message))
        }
    }
}

/// The part of a configuration that describes the language model, where it has one. `always` is
/// whether the family keeps it apart in every file; in others it may be the whole.
pub(crate) fn language_model<'c>(
    c: &mut ConfigReader<'c>,
    always: bool,
) -> Result<Option<ConfigReader<'c>>, Rejected> {
    let part = c.model(TEXT)?;
    let whole = ["hidden_size", "num_hidden_layers", "vocab_size"];
    if part.is_none() && (always || !whole.iter().any(|key| c.has(key))) {
        c.ignore_all();
        return Err(c.missing(TEXT));
    }
    Ok(part)
}

/// Refuses tokens that end a text and that the vocabulary has not.
pub(crate) fn check_ends<E>(c: &mut ConfigReader<'_>, vocabulary: Result<usize, E>) {
    let key = "eos_token_id";
    let (Ok(Some(ids)), Ok(vocabulary)) = (c.optional_tokens(key), vocabulary) else {
        return;
    };
    if let Some(id) = ids.into_iter().find(|&id| id >= vocabulary) {
        let _ = no_such_token(c, key, id, vocabulary);
    }
}

/// Records that a token is not in the vocabulary.
pub(crate) fn no_such_token(
    c: &mut ConfigReader<'_>,
    key: &str,
    id: usize,
    vocabulary: usize,
) -> Rejected {
    let message = format!("is {id}, but the vocabulary has {vocabulary} tokens");
    c.reject(key, message)
}

/// How many of the `announced` draft heads are lowered: all of them where the checkpoint has any
/// tensor that `belongs` to one, so that one that is missing is named; none where it ships none.
pub(crate) fn draft_depths(
    sources: &Sources<'_>,
    announced: usize,
    belongs: impl Fn(&str) -> bool,
) -> usize {
    match sources.names(belongs).is_empty() {
        true => 0,
        false => announced,
    }
}

/// Copies of the embedding and the head, which have this shape, that some exports give a draft
/// head.
pub(crate) fn copies(
    sources: &Sources<'_>,
    shape: &[usize],
    belongs: impl Fn(&str) -> bool,
) -> Option<UnusedComponent> {
    let name = "copies of embedding and head in the draft heads";
    let reason = "those of the model are the same";
    let copied = |name: &str| belongs(name) && sources.shape(name) == Some(shape);
    component(name, reason, sources.names(copied))
}

/// A part of the checkpoint that is not executed; `None` where it has no tensors.
pub(crate) fn component(name: &str, reason: &str, tensors: Vec<String>) -> Option<UnusedComponent> {
    (!tensors.is_empty()).then(|| UnusedComponent {
        name: name.to_owned(),
        reason: reason.to_owned(),
        tensors,
    })
}

/// The number after `prefix` and what follows its dot: `layers.3.norm` behind `layers.` is
/// `(3, "norm")`.
pub(crate) fn numbered<'n>(name: &'n str, prefix: &str) -> Option<(usize, &'n str)> {
    let (digits, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let index: usize = digits.parse().ok()?;
    (index.to_string() == digits).then_some((index, rest))
}
