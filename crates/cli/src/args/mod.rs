//! What was typed: the command line as clap sees it. Nothing here touches the machine.

mod groups;
mod measures;
mod values;

pub(crate) use groups::{
    AnswerArgs, EngineArgs, MemoryArgs, OutputArgs, SamplingArgs, ThreadsArgs,
};
pub(crate) use measures::{DoctorArgs, PlanArgs};
pub(crate) use values::{Memory, ProgressMode, Speculate, size};

use clap::{Args, Parser, Subcommand};
use lamella_program::Encoding;
use std::path::PathBuf;

const LONG_ABOUT: &str = "\
Lamella runs mixture-of-experts language models on the CPU, from a Hugging Face checkpoint \
directory as it is, or from a container converted to 8 or 4 bits.

MODEL is a directory, or the word `demo`: a tiny trained model that is part of this program. \
(A directory called demo is meant by ./demo.)";

const AFTER_HELP: &str = "\
Examples:
  lamella run demo \"What is the capital of Kenya?\"
  lamella run demo                                   chat
  lamella convert ~/models/OLMoE-1B-7B olmoe-q4 --encoding q4
  lamella run olmoe-q4 --max-tokens 200 --temperature 0.7
  lamella bench olmoe-q4 -p 512 -n 64 -t 1,2

Settings:
  Engine, sampling, answer and output options can also be set by environment variables and in
  lamella.toml, under the same name: --max-tokens is LAMELLA_MAX_TOKENS and max_tokens.
  A flag wins over the environment, the environment over ./lamella.toml, that over the user's
  lamella.toml. `lamella config` prints what is in effect and where it comes from.

Exit codes:
  0 success   1 failure   2 wrong usage or configuration   3 the model is damaged or has defects
  4 not enough memory, disk space or threads   130 interrupted";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "lamella",
    version,
    about = "Runs mixture-of-experts language models"
)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Read this configuration file and no other (also LAMELLA_CONFIG)
    #[arg(long, value_name = "FILE", global = true, help_heading = "Output")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or chat
    Run(Box<RunArgs>),
    /// Convert a checkpoint to a container
    Convert(ConvertArgs),
    /// Describe a model: sizes, encodings, files
    Inspect(ModelArgs),
    /// Check every digest of a container, or every file of a checkpoint
    Verify(ModelArgs),
    /// Print the program of a model, its operands and every defect
    Ops(ModelArgs),
    /// Run token ids through a model: logits, layers, greedy continuation
    Exec(ExecArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Measure prompt and decode speed
    Bench(BenchArgs),
    /// Say what of a model fits where, and how fast it will be, before it is opened
    Plan(Box<PlanArgs>),
    /// Look for what keeps this machine, or a model on it, from running well
    Doctor(DoctorArgs),
    /// Record which experts a model chooses, and replay it against caches of several sizes
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Print the effective configuration and where each value comes from
    Config(ConfigArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them into a directory
    Man(ManArgs),
    /// Print versions and what this machine offers
    Version(JsonArgs),
}

/// `lamella run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// The prompt; `-` reads it from standard input. Without one: chat on a terminal, otherwise
    /// standard input is the prompt
    pub(crate) prompt: Option<String>,
    /// Chat even if standard input is not a terminal: one message a line
    #[arg(long, conflicts_with = "prompt")]
    pub(crate) chat: bool,
    /// Continue the prompt as plain text, without the model's chat template
    #[arg(long, conflicts_with_all = ["system", "tools", "thinking", "reasoning_effort"])]
    #[arg(conflicts_with = "hide_thinking")]
    pub(crate) raw: bool,
    /// Print one JSON object per answer: text, reasoning, calls, ids, finish reason, usage, timings
    #[arg(long)]
    pub(crate) json: bool,
    /// Do not show what the model thinks before it answers
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

const RUN_HELP: &str = "\
Examples:
  lamella run demo \"What is the capital of Kenya?\"
  lamella run demo --system \"Answer briefly.\"        chat; /help lists its commands
  echo \"Count from 3 to 9.\" | lamella run demo
  lamella run demo --raw --max-tokens 40 \"Once upon a time\"
  lamella run ~/models/OLMoE-1B-7B-Instruct --encoding q8 --temperature 0.7 --top-p 0.9

The answer goes to standard output, everything else to standard error. Sampling settings that
are not given come from the model's generation_config.json; without one, decoding is greedy.
Ctrl-C stops the answer; a chat goes on.";

/// `lamella convert`.
#[derive(Debug, Args)]
#[command(after_help = CONVERT_HELP)]
pub(crate) struct ConvertArgs {
    /// Checkpoint directory to read, or `demo`
    #[arg(value_name = "MODEL")]
    pub(crate) checkpoint: PathBuf,
    /// Container directory to write
    pub(crate) out: PathBuf,
    /// Encoding of the large matrices; several (q4,bf16) are stored side by side
    #[arg(
        id = "target",
        long = "encoding",
        value_name = "ENCODING,…",
        required = true
    )]
    #[arg(value_delimiter = ',', value_parser = values::encoding())]
    pub(crate) encodings: Vec<Encoding>,
    /// Encoding of the routed experts [default: as --encoding]
    #[arg(long, value_name = "ENCODING", value_parser = values::encoding())]
    pub(crate) experts: Option<Encoding>,
    /// Encoding of the output head [default: as --encoding, but at least 8 bits]
    #[arg(long, value_name = "ENCODING", value_parser = values::encoding())]
    pub(crate) head: Option<Encoding>,
    /// Encoding of the token embedding [default: as --encoding, but at least 8 bits]
    #[arg(long, value_name = "ENCODING", value_parser = values::encoding())]
    pub(crate) embedding: Option<Encoding>,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

const CONVERT_HELP: &str = "\
Examples:
  lamella convert ~/models/OLMoE-1B-7B olmoe-q4 --encoding q4
  lamella convert demo demo-q8 --encoding q8 && lamella run demo-q8 \"Spell the word river.\"

An interrupted conversion leaves nothing that opens; the same command resumes it.";

/// `inspect`, `verify` and `ops`.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lamella exec`.
#[derive(Debug, Args)]
#[command(after_help = EXEC_HELP)]
pub(crate) struct ExecArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// Token ids: 1,2,3 or @FILE (ids separated by commas or white space)
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) tokens: String,
    /// Continue greedily by this many tokens, whatever they are [default: 1, or 0 with --logits or
    /// --layers]
    #[arg(long, value_name = "N", value_parser = values::tokens())]
    pub(crate) generate: Option<usize>,
    /// Write the logits after every given token: little-endian f32 [positions, vocabulary]
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,
    /// Write the stream after each layer, layer-NNN.f32 [positions, width], and manifest.json last
    #[arg(long, value_name = "DIR", conflicts_with_all = ["generate", "chunk"])]
    pub(crate) layers: Option<PathBuf>,
    /// Continue an interrupted --layers run after its last complete layer
    #[arg(long, requires = "layers")]
    pub(crate) resume: bool,
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

const EXEC_HELP: &str = "\
Examples:
  lamella exec demo --tokens 1,393,201 --generate 8
  lamella exec model --tokens @ids.txt --logits a.f32 --backend reference
  lamella exec model --tokens @ids.txt --layers states && ls states

The bits of the output do not depend on --chunk, --threads or --isa.";

/// `lamella perplexity`.
#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// UTF-8 text; `-` reads standard input
    pub(crate) file: PathBuf,
    /// Tokens per window; every window is scored alone, its first token is not scored
    #[arg(long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = values::at_least::<2>())]
    pub(crate) window: usize,
    /// Print JSON, with the negative log-likelihood of every scored token
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

/// `lamella bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// Prompt lengths to measure; 0 = none
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "N,…",
        value_delimiter = ','
    )]
    #[arg(default_value = "512", value_parser = values::tokens())]
    pub(crate) prompt: Vec<usize>,
    /// Numbers of tokens to decode from an empty context; 0 = none
    #[arg(
        short = 'n',
        long = "decode",
        value_name = "N,…",
        value_delimiter = ','
    )]
    #[arg(default_value = "64", value_parser = values::tokens())]
    pub(crate) decode: Vec<usize>,
    /// Conversations decoded together
    #[arg(short = 'b', long = "batch", value_name = "N,…", value_delimiter = ',')]
    #[arg(default_value = "1")]
    #[arg(value_parser = values::between::<1, { values::MOST_BATCH }>())]
    pub(crate) batch: Vec<usize>,
    /// Threads [default: all processors]
    #[arg(short = 't', long = "threads", id = "threads", value_name = "N,…")]
    #[arg(value_delimiter = ',', value_parser = values::at_least::<1>())]
    pub(crate) threads: Vec<usize>,
    /// Most memory to use, as for `run`; several are measured one after the other [default: auto]
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        help_heading = "Engine"
    )]
    #[arg(value_parser = values::memory)]
    pub(crate) memory: Vec<Memory>,
    /// Draw speed and share of experts found in memory against memory
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Repetitions of each measurement, after one that is not counted
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = values::between::<1, { values::MOST_REPETITIONS }>())]
    pub(crate) repeat: usize,
    /// Do not measure the read bandwidth of the memory
    #[arg(long)]
    pub(crate) no_bandwidth: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

const BENCH_HELP: &str = "\
Examples:
  lamella bench demo
  lamella bench olmoe-q4 -p 512 -n 64 -b 1,16 -t 1,2 -r 5
  lamella bench olmoe-q4 --memory 1500M,2500M,4G --svg memory.svg

Token ids are random, the same in every run. `pp512` reads a prompt of 512 tokens, `tg64` decodes
64 tokens one by one, `tg64x16` does so for 16 conversations together (the rate is their sum).
The last column of a decode line is the rate times the bytes of the weights a token uses, as a
share of the read bandwidth measured in the same run with as many threads; it is left out where
memory has no room for measuring it. Of several memory limits those that do not suffice are told
with the reason; the exit code is 4 if none does.";

/// `lamella trace`.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Write down which experts a model chooses
    Record(Box<RecordArgs>),
    /// How often caches of several sizes would have held the expert that was needed
    Replay(ReplayArgs),
}

/// `lamella trace record`.
#[derive(Debug, Args)]
#[command(after_help = RECORD_HELP)]
pub(crate) struct RecordArgs {
    /// Model directory, or `demo`
    pub(crate) model: PathBuf,
    /// File to write the trace to
    pub(crate) out: PathBuf,
    /// UTF-8 text that the model reads as it stands; `-` reads standard input
    #[arg(required_unless_present = "tokens", conflicts_with = "tokens")]
    pub(crate) text: Option<PathBuf>,
    /// Token ids instead of a text: 1,2,3 or @FILE (ids separated by commas or white space)
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) tokens: Option<String>,
    /// Decode this many tokens after those, whatever they are
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = values::tokens())]
    pub(crate) generate: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

const RECORD_HELP: &str = "\
Examples:
  lamella trace record demo hours.trace opening-hours.txt --generate 200
  echo \"Once upon a time\" | lamella trace record olmoe-q4 story.trace - --temperature 0.8
  lamella trace record demo ids.trace --tokens 1,393,201 && lamella trace replay ids.trace

Every token that is read has a line for each layer with experts. Which experts are chosen does not
depend on how many of them are in memory. Sampling is that of `lamella run`.";

/// `lamella trace replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_HELP)]
pub(crate) struct ReplayArgs {
    /// The trace; `LAYER EXPERT…` on a line for each layer and row, step after step
    pub(crate) file: PathBuf,
    /// Experts in memory, of all layers together [default: some eighths of all]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const REPLAY_HELP: &str = "\
Lines of one layer that follow each other are the rows of one step; a layer that is not above the
one before begins the next step, and so does an empty line. `online` follows whichever policy would
have done best lately; `belady` knows what comes and is the bound of them all.";

/// `lamella config`: every setting, so that flags can be tried.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
}

/// `lamella completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// `lamella man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to write lamella.1, lamella-run.1, … [default: print lamella.1]
    pub(crate) dir: Option<PathBuf>,
}

/// Commands whose only option is the form of their output.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_may_be_separated_by_commas() {
        let cli = Cli::try_parse_from(["lamella", "bench", "m", "-p", "1,2", "-t", "1,3"]).unwrap();
        let Command::Bench(args) = cli.command else {
            panic!("bench")
        };
        assert_eq!((args.prompt, args.threads), (vec![1, 2], vec![1, 3]));
        assert_eq!((args.decode, args.batch), (vec![64], vec![1]));
    }

    #[test]
    fn layers_cannot_be_combined_with_what_needs_state() {
        let base = ["lamella", "exec", "m", "--tokens", "1", "--layers", "d"];
        for extra in [["--generate", "1"], ["--chunk", "2"]] {
            let error = Cli::try_parse_from(base.iter().chain(&extra)).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict);
        }
        assert!(Cli::try_parse_from(base).is_ok());
    }
}
