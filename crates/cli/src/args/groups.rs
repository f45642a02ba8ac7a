//! Groups of options that several commands share. Exactly these are mirrored by `LAMELLA_*` and
//! `lamella.toml`: the configuration derives its keys from here.

use super::values::{self, Bias, Memory, ProgressMode, Speculate};
use clap::Args;
use lamella_engine::generate::MOST_DRAFTS;
use lamella_engine::{BackendKind, ReadAccess, SourcePolicy, Verify};
use lamella_kernels::Isa;
use lamella_program::Encoding;
use std::path::PathBuf;

/// How a model is opened.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Who computes; reference is plain loops, slow, the oracle of the other [default: cpu]
    #[arg(long, value_name = "NAME", value_parser = values::backend())]
    pub(crate) backend: Option<BackendKind>,
    /// Encoding of the large matrices [default: as stored]
    #[arg(long, value_name = "ENCODING", value_parser = values::encoding())]
    pub(crate) encoding: Option<Encoding>,
    /// Where that encoding comes from: stored makes nothing at load, transient ignores stored
    /// packs [default: auto]
    #[arg(long, value_name = "POLICY", value_parser = values::source())]
    pub(crate) source: Option<SourcePolicy>,
    /// Instruction set of the kernels [default: the best here]
    #[arg(long, value_name = "NAME", value_parser = values::isa())]
    pub(crate) isa: Option<Isa>,
    /// How experts that do not fit into memory are read: direct is past the system's page cache,
    /// uring is that through the kernel's io_uring [default: uring where it can be, else direct;
    /// buffered where memory has room for them in the page cache]
    #[arg(long, value_name = "HOW", value_parser = values::reader())]
    pub(crate) reader: Option<ReadAccess>,
    /// A copy of the container on another disk, read too where experts do not fit into memory; may
    /// be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) mirror: Vec<PathBuf>,
    /// When what is read of them is checked against its digest; first is then followed
    /// by a quicker check [default: first]
    #[arg(long, value_name = "WHEN", value_parser = values::verify())]
    pub(crate) verify: Option<Verify>,
    /// Read experts before they are asked for, where they can be foreseen; never changes an answer
    /// [default: on]
    #[arg(long, value_name = "SWITCH", value_parser = values::switch())]
    pub(crate) prefetch: Option<bool>,
    /// Remember which experts are much used, and begin the next run with them, where not all fit
    /// into memory [default: on for run, off elsewhere]
    #[arg(long, value_name = "SWITCH", value_parser = values::switch())]
    pub(crate) heat: Option<bool>,
    /// Of the experts that fit, so many percent are the hottest of the last runs, and stay
    /// [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = values::between::<0, 90>())]
    pub(crate) pin: Option<usize>,
    /// Longest conversation, in tokens [default: the model's own]
    #[arg(long, value_name = "N", value_parser = values::at_least::<1>())]
    pub(crate) context: Option<usize>,
    /// Prompt tokens per step, 0 = all at once [default: 0]
    #[arg(long, value_name = "N", value_parser = values::at_least::<0>())]
    pub(crate) chunk: Option<usize>,
}

/// How much memory.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct MemoryArgs {
    /// Most memory to use: bytes, or with K, M, G or T (powers of 1024), or a part of what is free
    /// in %, or auto, which is what is free [default: auto]
    #[arg(long, value_name = "SIZE", value_parser = values::memory)]
    pub(crate) memory: Option<Memory>,
}

/// How many threads.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct ThreadsArgs {
    /// Threads [default: all processors]
    #[arg(short = 't', long, value_name = "N", value_parser = values::at_least::<1>())]
    pub(crate) threads: Option<usize>,
}

/// How the next token is chosen.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 = greedy; higher is more random
    #[arg(long, value_name = "T", value_parser = values::Real::from(0.0).to(values::MOST))]
    pub(crate) temperature: Option<f64>,
    /// Keep the N likeliest tokens, 0 = all
    #[arg(long, value_name = "N", value_parser = values::at_least::<0>())]
    pub(crate) top_k: Option<usize>,
    /// Keep the likeliest tokens that make up this probability
    #[arg(long, value_name = "P", value_parser = values::Real::above(0.0).to(1.0))]
    pub(crate) top_p: Option<f64>,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P", value_parser = values::Real::from(0.0).to(1.0))]
    pub(crate) min_p: Option<f64>,
    /// Divide the logits of tokens already seen by this (1 = off)
    #[arg(long, value_name = "X")]
    #[arg(value_parser = values::Real::from(1.0 / values::MOST).to(values::MOST))]
    pub(crate) repetition_penalty: Option<f64>,
    /// Subtract this for every time a token was generated
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    #[arg(value_parser = values::Real::from(-values::MOST).to(values::MOST))]
    pub(crate) frequency_penalty: Option<f64>,
    /// Subtract this once if a token was generated
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    #[arg(value_parser = values::Real::from(-values::MOST).to(values::MOST))]
    pub(crate) presence_penalty: Option<f64>,
    /// Add V to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID=V", value_delimiter = ',', value_parser = values::bias)]
    pub(crate) logit_bias: Vec<Bias>,
    /// Seed of the random numbers [default: a new one each time]
    #[arg(long, value_name = "N", value_parser = values::Whole::ANY)]
    pub(crate) seed: Option<u64>,
}

/// What an answer may be.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Answer")]
pub(crate) struct AnswerArgs {
    /// Most tokens of an answer [default: what the context holds]
    #[arg(long, value_name = "N", value_parser = values::at_least::<1>())]
    pub(crate) max_tokens: Option<usize>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    /// The system message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Whether the model thinks before it answers [default: the model's]
    #[arg(long, value_name = "SWITCH", value_parser = values::switch())]
    pub(crate) thinking: Option<bool>,
    /// How hard it thinks, in the words the model knows [default: the model's]
    #[arg(long, value_name = "LEVEL")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) reasoning_effort: Option<String>,
    /// Tools the model may call: a JSON list in the OpenAI shape
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// Draft tokens ahead and check them together, where that pays; never changes an answer. lookup
    /// drafts what followed when the same was last said, head asks the model's own draft heads,
    /// auto takes what there is [default: auto]
    #[arg(long, value_name = "WHO", value_parser = values::speculate())]
    pub(crate) speculate: Option<Speculate>,
    /// Most tokens drafted at once [default: 8]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = values::between::<1, { MOST_DRAFTS as u64 }>())]
    pub(crate) draft_tokens: Option<usize>,
}

/// What is told on standard error.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Say nothing but results and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Progress of long work [default: bars on a terminal, otherwise lines]
    #[arg(long, global = true, value_name = "MODE", value_parser = values::progress())]
    pub(crate) progress: Option<ProgressMode>,
}
