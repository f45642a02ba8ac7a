//! A prepared model, shared by all its conversations.

use crate::backend::{Backend, cpu, reference};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::experts::{Counts, ExpertStatistics, ExpertStore, expert_store};
use crate::identity::numeric_class;
use crate::ledger::Ledger;
use crate::memory::{MemoryLimit, check_stacks};
use crate::need::{Fit, fit};
use crate::options::{BackendKind, Options};
use crate::plan::active_bytes;
use crate::profile::{Profile, TimeSource};
use crate::state::Session;
use crate::step::{self, Entry, Observer, Span, StepContext, StepScratch};
use crate::weights::{self, Choice, Layout, OpenProgress};
use lamella_container::{Lower, Store};
use lamella_families::LowerError;
use lamella_kernels::Isa;
use lamella_program::{Defect, Encoding, OperandId, Part, Program, TensorInfo, state};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A model opened on a checkpoint directory or a container.
///
/// Prepared once and shared: conversations are [`Session`]s, work is done by [`Model::step`].
/// Steps of one model run one after another; put conversations into one step to run them together.
pub struct Model {
    pub(crate) program: Arc<Program>,
    store: Arc<Store>,
    pub(crate) executor: Mutex<Executor>,
    pub(crate) experts: Option<Arc<Counts>>,
    /// What conversations take their memory from, where the model is open as a whole.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Bytes of the memory limit that are not in it.
    pub(crate) fixed_bytes: u64,
    step_rows: usize,
    pub(crate) context: usize,
    pub(crate) part: Part,
    report: Report,
    pub(crate) identity: Arc<()>,
    pub(crate) numeric_class: String,
    /// Operands in memory, in their order.
    pub(crate) held: Vec<OperandId>,
    /// Digest of the files they come from, once it was asked for.
    pub(crate) digest: Mutex<Option<[u8; 32]>>,
    /// Identities of the draft heads.
    pub(crate) depths: Vec<Arc<()>>,
}

pub(crate) struct Executor {
    pub(crate) backend: Box<dyn Backend>,
    scratch: StepScratch,
}

/// What was opened, and how.
#[derive(Clone, Debug)]
pub struct Report {
    /// Who computes.
    pub backend: BackendKind,
    /// Instruction set of the kernels; `None` for the reference backend.
    pub isa: Option<Isa>,
    /// Threads.
    pub threads: usize,
    /// Bytes of weights in memory.
    pub resident_bytes: u64,
    /// Bytes of weights that stay on disk, of which a few rows at a time are in memory.
    pub streamed_bytes: u64,
    /// Bytes of working buffers.
    pub workspace_bytes: u64,
    /// Bytes of state a token costs.
    pub state_bytes_per_token: u64,
    /// Bytes of state a token costs in the draft heads; 0 where they are not loaded.
    pub draft_state_bytes_per_token: u64,
    /// Longest context of a session.
    pub context: usize,
    /// Bytes of weights that decoding one token reads.
    pub active_bytes: u64,
    /// Elements held per encoding.
    pub encodings: BTreeMap<&'static str, u64>,
    /// Time to open.
    pub open_time: Duration,
}

impl Model {
    /// Opens a checkpoint directory as it is, or a container.
    ///
    /// # Errors
    /// Everything that keeps the model from running, before any of it runs: unreadable or damaged
    /// files, defects of the program, encodings that cannot be had, too little memory.
    pub fn open(
        path: &Path,
        options: &Options,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Arc<Model>, Error> {
        Model::open_lowered(path, options, &lower, progress)
    }

    /// [`open`](Model::open) with another lowering of checkpoint directories than the built-in
    /// one. Containers carry their program, and `lower` is not asked.
    ///
    /// # Errors
    /// As [`open`](Model::open).
    pub fn open_lowered(
        path: &Path,
        options: &Options,
        lower: &Lower<'_>,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Arc<Model>, Error> {
        Model::open_store(Store::open(path, lower)?, options, progress)
    }

    /// [`open`](Model::open) for files that were opened and looked at already.
    ///
    /// # Errors
    /// As [`open`](Model::open).
    pub fn open_store(
        store: Store,
        options: &Options,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Arc<Model>, Error> {
        let start = Instant::now();
        let Opening {
            program,
            context,
            shape,
        } = Opening::of(store.program(), options)?;
        let (program, threads, isa) = (Arc::new(program), shape.threads, shape.isa);
        let fit = fit(&store, &program, options, shape)?;
        let (store, choices) = (Arc::new(store), &fit.choices);
        weights::check_tables(&store, choices)?;
        let ledger = (options.part == Part::Whole).then(|| Ledger::new(fit.room));
        let (backend, experts) = prepare(
            (&store, &program, &fit),
            (options, shape),
            ledger.as_ref(),
            progress,
        )?;
        let report = Report {
            backend: options.backend,
            isa: (options.backend == BackendKind::Cpu).then_some(isa),
            threads,
            resident_bytes: backend.resident_bytes(),
            streamed_bytes: weights::streamed_bytes(&program, choices),
            workspace_bytes: fit.workspace,
            state_bytes_per_token: state::part_bytes_per_token(&program, &options.part) as u64,
            draft_state_bytes_per_token: state::draft_bytes_per_token(&program) as u64,
            context,
            encodings: elements_by_encoding(&program, choices),
            active_bytes: active_bytes(&program, choices, options.backend)?.all(),
            open_time: start.elapsed(),
        };
        let scratch = StepScratch::new(&program, &options.part, options.step_rows)?;
        let depths = program.depths().iter().map(|_| Arc::new(())).collect();
        let numeric_class = numeric_class(&program, choices, options.backend);
        Ok(Arc::new(Model {
            program,
            store,
            executor: Mutex::new(Executor { backend, scratch }),
            experts,
            ledger,
            fixed_bytes: fit.fixed,
            step_rows: options.step_rows,
            context,
            part: options.part.clone(),
            report,
            identity: Arc::new(()),
            numeric_class,
            held: held_operands(choices),
            digest: Mutex::new(None),
            depths,
        }))
    }

    /// The program that runs: without its draft, unless [`Options::draft`] asks for it.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The files it came from, for tokenizer and template.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What was opened, and how.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Number of logits.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.program.exit.logits
    }

    /// An empty conversation.
    #[must_use]
    pub fn session(&self) -> Session {
        Session::new(
            Arc::clone(&self.identity),
            &self.program,
            &self.part,
            self.context,
            self.report.backend,
        )
        .charged(self.ledger.as_ref())
    }

    /// Has steps count their time by operator, or (`None`) no longer. The reference backend never
    /// does.
    pub fn set_profiling(&self, source: Option<TimeSource>) {
        let mut executor = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(clock) = executor.backend.clock() {
            clock.set(source);
        }
    }

    /// What was counted since the last call of this.
    #[must_use]
    pub fn take_profile(&self) -> Profile {
        let mut executor = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = executor.backend.clock();
        clock.map(|clock| clock.take()).unwrap_or_default()
    }

    /// What was counted of experts that do not all fit into memory; `None` if all are there.
    #[must_use]
    pub fn experts(&self) -> Option<ExpertStatistics> {
        self.experts.as_ref().map(|counts| counts.statistics())
    }

    /// Runs all spans in one pass: all of it or, on failure or cancellation, nothing of it.
    ///
    /// # Errors
    /// See [`Error`]; every session is then as it was.
    pub fn step(&self, spans: &mut [Span<'_>], cancel: &Cancel) -> Result<(), Error> {
        self.run(spans, cancel, None, Entry::Tokens, &mut [])
    }

    /// [`step`](Model::step), showing the stream after each layer to `observer`.
    ///
    /// # Errors
    /// As [`step`](Model::step), and whatever the observer returns.
    pub fn step_observed(
        &self,
        spans: &mut [Span<'_>],
        cancel: &Cancel,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        self.run(spans, cancel, Some(observer), Entry::Tokens, &mut [])
    }

    pub(crate) fn run<'o>(
        &self,
        spans: &mut [Span<'_>],
        cancel: &Cancel,
        observer: Option<&'o mut (dyn Observer + 'o)>,
        entry: Entry<'_>,
        rows: &mut [&'o mut [f32]],
    ) -> Result<(), Error> {
        let identity = match entry {
            Entry::Draft(depth, _) => &self.depths[depth],
            _ => &self.identity,
        };
        if self.part != Part::Whole && !matches!(entry, Entry::Rows(..)) {
            return Err(self.lacks("all"));
        }
        if spans.iter().any(|s| !s.session.belongs_to(identity)) {
            return Err(Error::ForeignSession);
        }
        let mut executor = self.executor();
        let Executor { backend, scratch } = &mut *executor;
        let context = StepContext {
            program: &self.program,
            step_rows: self.step_rows,
            cancel,
            observer,
            entry,
            rows,
        };
        step::run(backend.as_mut(), scratch, spans, context)
    }

    /// Rows computed together: [`Options::step_rows`] of the opening.
    #[must_use]
    pub fn rows_together(&self) -> usize {
        self.step_rows
    }

    pub(crate) fn executor(&self) -> MutexGuard<'_, Executor> {
        // A panic inside a step leaves only workspace behind, which the next step overwrites.
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lowering as [`Store::open`] wants it: faults before the family is known become defects of the
/// configuration.
///
/// # Errors
/// Every defect of the checkpoint.
pub fn lower(config: &str, tensors: &[TensorInfo]) -> Result<Program, Vec<Defect>> {
    lamella_families::lower(config, tensors).map_err(|error| {
        let (key, message) = match error {
            LowerError::Defects(defects) => return defects,
            LowerError::NotJson {
                line,
                column,
                message,
            } => (format!("line {line}, column {column}"), message),
            LowerError::MissingModelType => (
                "model_type".to_owned(),
                "missing, so the model family is unknown".to_owned(),
            ),
            LowerError::UnknownModelType { found, known } => (
                "model_type".to_owned(),
                format!(
                    "{found:?} is not a family this Lamella knows ({})",
                    known.join(", ")
                ),
            ),
            other => ("model_type".to_owned(), other.to_string()),
        };
        vec![Defect::ConfigValue { key, message }]
    })
}

pub(crate) fn setting(name: &'static str, message: &str) -> Error {
    Error::Setting {
        name,
        message: message.to_owned(),
    }
}

/// What is known of an opening before a byte of the weights is read.
pub(crate) struct Opening {
    /// The program as it is executed.
    pub(crate) program: Program,
    /// Longest context of a session.
    pub(crate) context: usize,
    /// What the buffers are made for.
    pub(crate) shape: cpu::Shape,
}

impl Opening {
    /// Opens `program` as `options` say.
    ///
    /// # Errors
    /// If there is no such part, draft, context, instruction set or number of threads.
    pub(crate) fn of(program: &Program, options: &Options) -> Result<Opening, Error> {
        let program = opened_program(program, options)?;
        check_part(&program, options)?;
        let context = resolve_context(&program, options)?;
        if options.step_rows == 0 {
            return Err(setting("step rows", "must be at least 1"));
        }
        let shape = cpu::Shape {
            step_rows: options.step_rows,
            // The ends look at no other row.
            context: match options.part {
                Part::Ends => 1,
                _ => context,
            },
            threads: resolve_threads(options)?,
            isa: resolve_isa(options)?,
        };
        Ok(Opening {
            program,
            context,
            shape,
        })
    }
}

/// The program as it is executed: without its draft unless `options` ask for it.
fn opened_program(program: &Program, options: &Options) -> Result<Program, Error> {
    let mut program = program.clone();
    if !options.draft {
        program.draft = None;
    } else if program.draft.is_none() {
        return Err(Error::NoDraft {
            reason: "the model has none; if its checkpoint has some and this is an older \
                     container, convert it again",
        });
    }
    Ok(program)
}

/// Who computes, and what is counted of experts that do not all fit.
type Prepared = (Box<dyn Backend>, Option<Arc<Counts>>);

/// Loads the operands into the backend that computes with them.
fn prepare(
    (store, program, fit): (&Arc<Store>, &Arc<Program>, &Fit),
    (options, shape): (&Options, cpu::Shape),
    ledger: Option<&Arc<Ledger>>,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Prepared, Error> {
    let (program, choices) = (Arc::clone(program), &fit.choices);
    Ok(match options.backend {
        BackendKind::Cpu => {
            check_stacks(shape.threads)?;
            let loaded = weights::load_all(store, choices, shape.threads, progress)?;
            weights::check_streamed(store, choices)?;
            let experts = expert_store((store, &program, fit), options, shape.threads, ledger)?;
            let counts = experts.as_ref().map(ExpertStore::counts);
            let store = Arc::clone(store);
            let cpu = cpu::Cpu::new(program, store, &options.part, loaded, experts, shape)?;
            (Box::new(cpu), counts)
        }
        BackendKind::Reference => {
            let reference = reference::Reference::prepare(store, program, choices)?;
            (Box::new(reference), None)
        }
    })
}

/// A part has to be one of this program, and drafts need the whole of it.
fn check_part(program: &Program, options: &Options) -> Result<(), Error> {
    let layers = program.layers.len();
    match &options.part {
        Part::Layers(range) if range.is_empty() || range.end > layers => Err(setting(
            "layers",
            &format!(
                "{}..{} is no range of the {layers} layers there are",
                range.start, range.end
            ),
        )),
        part if *part != Part::Whole && options.draft => Err(setting(
            "draft",
            "draft heads run beside the whole model, not beside a part of it",
        )),
        _ => Ok(()),
    }
}

/// The context of sessions. A model may claim any; what could not hold the scores of a single
/// token is refused here, before anything is made for it.
fn resolve_context(program: &Program, options: &Options) -> Result<usize, Error> {
    let most = program.dims.context;
    let context = match options.context {
        None => most,
        Some(asked) if asked == 0 || asked > most => {
            return Err(setting(
                "context",
                &format!("must be 1 to {most}, the most this model was made for"),
            ));
        }
        Some(asked) => asked,
    };
    let scores = match options.part {
        Part::Ends => 0,
        _ => (context as u64).saturating_mul(4),
    };
    let limit = MemoryLimit::resolve(options.memory_limit);
    if scores > limit.bytes.max(1 << 30) {
        return Err(Error::Memory {
            sum: format!(
                "a context of {context} tokens, whose attention scores alone take {scores} bytes \
                 for each token"
            ),
            limit: limit.bytes,
            origin: limit.origin,
            advice: "If the model is sound, a shorter context opens it".to_owned(),
        });
    }
    Ok(context)
}

/// Threads that load and compute; the reference backend has one.
fn resolve_threads(options: &Options) -> Result<usize, Error> {
    match options.threads {
        None | Some(1..=1024) if options.backend == BackendKind::Reference => Ok(1),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
        Some(threads @ 1..=1024) => Ok(threads),
        Some(_) => Err(setting("threads", "must be 1 to 1024")),
    }
}

fn resolve_isa(options: &Options) -> Result<Isa, Error> {
    match options.isa {
        None => Ok(Isa::detect()),
        Some(isa) if isa.is_available() => Ok(isa),
        Some(isa) => Err(Error::Isa {
            isa: isa.name().to_owned(),
            available: available_isas(),
        }),
    }
}

fn available_isas() -> String {
    let names = Isa::ALL
        .iter()
        .filter(|isa| isa.is_available())
        .map(|isa| isa.name());
    names.collect::<Vec<_>>().join(", ")
}

fn held_operands(choices: &[Choice]) -> Vec<OperandId> {
    let ids = (0..).map(OperandId).zip(choices);
    let held = ids.filter(|(_, choice)| choice.layout != Layout::Absent);
    held.map(|(id, _)| id).collect()
}

pub(crate) fn elements_by_encoding(
    program: &Program,
    choices: &[Choice],
) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    let held = program.operands.iter().zip(choices);
    for (operand, choice) in held.filter(|(_, choice)| choice.layout != Layout::Absent) {
        let encoding: Encoding = choice.resident;
        *sums.entry(encoding.name()).or_insert(0) += operand.elements() as u64;
    }
    sums
}
