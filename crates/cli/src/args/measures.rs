//! The command lines of `plan` and `doctor`.

use super::groups::{EngineArgs, MemoryArgs, ThreadsArgs};
use super::values;
use clap::Args;
use std::ops::Range;
use std::path::PathBuf;

/// `lamella plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_HELP)]
pub(crate) struct PlanArgs {
    /// Model directory, or `demo`; of a model that is not there yet, its config.json and the heads
    /// of its weights files or a tensors.json suffice
    pub(crate) model: PathBuf,
    /// Table of the tensors: a JSON list of objects with name, dtype and shape, or the header of a
    /// safetensors file; may be repeated [default: what is in the model directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) tensors: Vec<PathBuf>,
    /// Plan for the container that `convert --encoding` would write, in the encoding asked for
    #[arg(long, requires = "encoding")]
    pub(crate) converted: bool,
    /// Plan for these layers alone, without the ends of the model
    #[arg(long, value_name = "A..B", value_parser = values::layers)]
    pub(crate) layers: Option<Range<usize>>,
    /// Say which machine of this table should hold which layers (TOML, or JSON if the name ends so)
    #[arg(long, value_name = "FILE", conflicts_with = "layers")]
    pub(crate) machines: Option<PathBuf>,
    /// Conversations at a time, each of the whole context
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = values::between::<1, { values::MOST_BATCH }>())]
    pub(crate) sessions: usize,
    /// Tokens of the prompt whose speed is predicted, and behind which is decoded
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = values::between::<1, { values::MOST_TOKENS }>())]
    pub(crate) prompt: usize,
    /// Part of the uses of experts that find them in memory, from 0 to 1 [default: an interval]
    #[arg(long, value_name = "P", value_parser = values::Real::from(0.0).to(1.0))]
    pub(crate) hit_rate: Option<f64>,
    /// Speed of the disk in GB/s [default: measured]
    #[arg(long, value_name = "GB/S", value_parser = values::rate())]
    pub(crate) disk: Option<f64>,
    /// Read bandwidth of the memory in GB/s [default: measured]
    #[arg(long, value_name = "GB/S", value_parser = values::rate())]
    pub(crate) memory_bandwidth: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

const PLAN_HELP: &str = "\
Examples:
  lamella plan olmoe-q4 --memory 2.5G
  lamella plan ~/models/GLM-5.2 --memory 80% --context 16384 --sessions 4
  lamella plan headers-only --encoding q4 --converted --disk 3.5
  lamella plan glm-q4 --layers 0..20 --memory 32G
  lamella plan glm-q4 --machines machines.toml

A machine of the table: name, memory (a size), and as far as it differs from this one cores, disk,
memory_bandwidth and link (GB/s) and latency_ms. The first one holds the ends of the model.

The exit code is 4 if what was asked for does not fit; the plan is printed all the same.";

/// `lamella doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Model directory, or `demo` [default: look at the machine alone]
    pub(crate) model: Option<PathBuf>,
    /// Read everything the model stores, not a sample
    #[arg(long, requires = "model")]
    pub(crate) deep: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR_HELP: &str = "\
Each finding says what was found, why it matters and what to do. `problem` keeps the model from
running or from being right, `warning` makes it slow or fragile, `note` is worth knowing.

Exit codes: 0 no problem (there may be warnings), 3 the model is damaged, 4 too little memory,
1 another problem.";
