//! How a model is opened.

use lamella_kernels::Isa;
use lamella_program::{Encoding, Part};
use std::path::PathBuf;

/// Where the bytes of a wanted encoding may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePolicy {
    /// Stored packs where they exist, otherwise made at load.
    #[default]
    Auto,
    /// Stored packs only: make nothing at load.
    Stored,
    /// Always made at load from the canonical operand, ignoring stored packs.
    Transient,
}

/// Which backend computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// The kernels, on the best instruction set of the processor.
    #[default]
    Cpu,
    /// Plain loops in f32: slow, and the oracle of the kernels.
    Reference,
}

impl BackendKind {
    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Cpu => "cpu",
            BackendKind::Reference => "reference",
        }
    }
}

/// How experts that are not in memory are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAccess {
    /// Past the page cache of the system, which then holds nothing twice, through queues of the
    /// kernel's (io_uring on Linux).
    Queued,
    /// Past the page cache, by one read after the other.
    Direct,
    /// Through the page cache.
    #[default]
    Buffered,
}

impl ReadAccess {
    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReadAccess::Queued => "uring",
            ReadAccess::Direct => "direct",
            ReadAccess::Buffered => "buffered",
        }
    }
}

/// When the bytes of an expert are compared with their digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// When they are first read; later, with a sum that is quicker than the digest.
    #[default]
    First,
    /// Whenever they are read.
    Always,
    /// Never.
    Never,
}

/// How to open a model.
#[derive(Clone, Debug)]
pub struct Options {
    /// Encoding of the large operands; `None` takes what the model stores first (a checkpoint's
    /// own type).
    pub want: Option<Encoding>,
    /// Where a wanted encoding may come from.
    pub source: SourcePolicy,
    /// Who computes.
    pub backend: BackendKind,
    /// Threads; `None` = all processors this process may use.
    pub threads: Option<usize>,
    /// Instruction set; `None` = the best one.
    pub isa: Option<Isa>,
    /// Bytes the model and its sessions may take; `None` = what the machine or container has.
    pub memory_limit: Option<u64>,
    /// Bytes within the limit that the caller takes itself, beside the model.
    pub reserved: u64,
    /// Longest context of a session; `None` = the model's own.
    pub context: Option<usize>,
    /// Rows computed together; longer steps run in pieces of this size. Changes speed and
    /// workspace, never results.
    pub step_rows: usize,
    /// Whether the draft heads are loaded, to guess tokens ahead
    /// ([`Model::draft_step`](crate::Model::draft_step)).
    pub draft: bool,
    /// Whether routed experts that do not fit into memory may stay on disk, to be read when a step
    /// needs them; otherwise such a model is refused.
    pub experts_on_disk: bool,
    /// How those are read; `None` = past the page cache, unless memory beyond the limit has room
    /// there for all of them, or the files cannot be read so.
    pub expert_access: Option<ReadAccess>,
    /// When those are checked.
    pub expert_verify: Verify,
    /// Whether those are read before a step asks for them, as far as they can be foreseen.
    pub expert_ahead: bool,
    /// Directories with copies of the container, on other disks, from which experts are read too.
    pub mirrors: Vec<PathBuf>,
    /// Directory in which is kept what experts of which model are much used, so that the next run
    /// begins with them; `None` keeps nothing.
    pub heat: Option<PathBuf>,
    /// Directory in which is listed what experts of which model were found damaged
    /// ([`quarantined`](crate::quarantined)); `None` lists nothing.
    pub quarantine: Option<PathBuf>,
    /// Of the experts that fit into memory, so many percent are the hottest ones of the last runs,
    /// and stay.
    pub pin: u8,
    /// Which part of the model this node runs; nothing of the others is read.
    pub part: Part,
}

/// Rows computed together unless told otherwise.
pub const DEFAULT_STEP_ROWS: usize = 512;

impl Default for Options {
    fn default() -> Options {
        Options {
            want: None,
            source: SourcePolicy::Auto,
            backend: BackendKind::Cpu,
            threads: None,
            isa: None,
            memory_limit: None,
            reserved: 0,
            context: None,
            step_rows: DEFAULT_STEP_ROWS,
            draft: false,
            experts_on_disk: true,
            expert_access: None,
            expert_verify: Verify::First,
            expert_ahead: true,
            mirrors: Vec::new(),
            heat: None,
            quarantine: None,
            pin: 0,
            part: Part::Whole,
        }
    }
}
