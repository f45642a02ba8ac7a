//! Tensors in codes. Which ones are is decided tensor by tensor; the configuration says only how.

use crate::common::{block_fp8, read_block_fp8};
use crate::config::{ConfigReader, Rejected};
use crate::sources::Sources;
use lamella_program::operand::Coding;
use serde_json::json;

/// The end of the name of the n-gram tables, before their parts and scales.
const TABLE: &str = ".ngram_embedding.";
/// The element type of FP8 codes, and of the scales of FP4.
const FP8: &str = "F8_E4M3";
/// The element type of pairs of FP4 codes.
const FP4: &str = "U8";
/// Codes of a block of an MX format, along a row.
const MX_BLOCK: usize = 32;

/// How a checkpoint stores tensors in codes.
pub(super) enum Codes {
    /// There are none.
    Plain,
    /// FP8 with a scale a block; FP8 n-gram tables with one scale.
    Fp8 {
        /// Sides of a block.
        block: [usize; 2],
    },
    /// What ModelOpt writes: NVFP4, and MXFP8 where a tensor is FP8.
    ModelOpt,
}

impl Codes {
    /// Reads `quantization_config`, where the checkpoint has one.
    pub(super) fn read(c: &mut ConfigReader<'_>, sources: &Sources<'_>) -> Result<Codes, Rejected> {
        let mut q = c.object("quantization_config")?;
        let method = q.as_mut().map(|q| q.optional_text("quant_method"));
        let (Some(mut q), Some(Ok(Some("modelopt")))) = (q, method) else {
            let block = read_block_fp8(c, sources)?;
            if block.is_none() {
                needs_no_model_opt(c, sources)?;
            }
            return Ok(block.map_or(Codes::Plain, |block| Codes::Fp8 { block }));
        };
        let algorithm = match q.optional_text("quant_algo") {
            Ok(Some("NVFP4" | "MIXED_PRECISION")) => Ok(Codes::ModelOpt),
            Ok(_) => {
                let known = "\"NVFP4\" and \"MIXED_PRECISION\"";
                Err(q.refuse("quant_algo", format!("is not known here, only {known} are")))
            }
            Err(rejected) => Err(rejected),
        };
        q.require_if_present("group_size", &json!(16));
        // Which modules were converted (each tensor says so itself), how inputs and the cache were
        // rounded when the checkpoint was served, and who wrote it.
        q.ignore(&[
            "config_groups",
            "exclude_modules",
            "ignore",
            "kv_cache_quant_algo",
            "kv_cache_scheme",
            "producer",
            "quantized_layers",
        ]);
        c.absorb(q);
        algorithm
    }

    /// How the elements of a tensor stand for numbers. It is in codes where its type or its scales
    /// say so, and the closure check names what is missing of the two.
    pub(super) fn coding(&self, sources: &Sources<'_>, tensor: &str) -> Option<Coding> {
        if let Some((layer, _)) = tensor.split_once(TABLE) {
            return self.table(sources, tensor, &format!("{layer}{TABLE}"));
        }
        match self {
            Codes::Plain => None,
            Codes::Fp8 { block } => block_fp8(sources, Some(*block))(tensor),
            Codes::ModelOpt => model_opt(sources, tensor),
        }
    }

    /// A part of an n-gram table.
    fn table(&self, sources: &Sources<'_>, tensor: &str, table: &str) -> Option<Coding> {
        let dtype = sources.dtype(tensor);
        match self {
            Codes::Plain => None,
            Codes::Fp8 { .. } => {
                let scale = format!("{table}weight_scale");
                let scaled = || sources.has(&scale) && sources.takes_scales(tensor, &[FP8]);
                let in_codes = dtype == Some(FP8) || scaled();
                in_codes.then_some(Coding::TensorFp8 { scale })
            }
            Codes::ModelOpt => {
                let global = format!("{table}weight_scale_2");
                let scale = format!("{tensor}_scale");
                let in_codes = sources.takes_both(tensor, [&scale, &global], &[FP4]);
                in_codes.then_some(Coding::Nvfp4 { scale, global })
            }
        }
    }
}

/// Refuses tensors in FP4 where nothing says that ModelOpt wrote them: each would be a defect.
fn needs_no_model_opt(c: &mut ConfigReader<'_>, sources: &Sources<'_>) -> Result<(), Rejected> {
    let scaled = |name: &str| sources.has(&format!("{name}_scale_2"));
    let coded = |name: &str| scaled(name) && sources.takes_scales(name, &[FP4]);
    match sources.names(coded).first() {
        None => Ok(()),
        Some(name) => {
            let message = format!("is missing, and {name} is in codes");
            Err(c.refuse("quantization_config", message))
        }
    }
}

/// The scales tell FP4 from MXFP8 and from numbers: those of FP4 are E4M3 and have outer ones.
fn model_opt(sources: &Sources<'_>, tensor: &str) -> Option<Coding> {
    let (scale, global) = (format!("{tensor}_scale"), format!("{tensor}_scale_2"));
    if !sources.takes_scales(tensor, &[FP4, FP8]) {
        return None;
    }
    let fp4 = sources.dtype(tensor) == Some(FP4) && sources.dtype(&scale) == Some(FP8);
    if fp4 || sources.has(&global) {
        return Some(Coding::Nvfp4 { scale, global });
    }
    let in_codes = sources.dtype(tensor) == Some(FP8) || sources.has(&scale);
    let block = [1, MX_BLOCK];
    in_codes.then_some(Coding::BlockFp8 { scale, block })
}

/// Whether `name` is one of the scales of inputs that ModelOpt leaves beside NVFP4 tensors.
pub(super) fn is_input_scale(sources: &Sources<'_>, name: &str) -> bool {
    name.strip_suffix(".input_scale").is_some_and(|stem| {
        let weight = format!("{stem}.weight");
        sources.dtype(&weight) == Some(FP4) || sources.has(&format!("{weight}_scale_2"))
    })
}
