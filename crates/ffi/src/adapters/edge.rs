//! The Edge adapter: the two ends of a model of one family.

use super::conversation::{add, add_time};
use super::host::{Question, Questions};
use super::turn::Turns;
use super::words::Words;
use super::{check_backends, facts, number, open_files, plan, put, room, schema};
use crate::boundary::enter;
use crate::checks;
use crate::edge::Engine;
use crate::edge::abi::{
    COLI_EDGE_ABI_VERSION, COLI_EDGE_CAP_CPU, COLI_EDGE_CAP_DETOKENIZE, COLI_EDGE_CAP_GREEDY,
    COLI_EDGE_CAP_LOGITS, COLI_EDGE_CAP_TOKENIZE, ColiEdgeAdapter, ColiEdgeCapabilities,
    ColiEdgeDType, ColiEdgeEmbedRequest, ColiEdgeEngineOptions, ColiEdgeLogitsRequest,
    ColiEdgeSelectRequest,
};
use crate::edge::exports::coli_edge_adapter_register;
use crate::lamella::LamellaCode;
use crate::report::{self, Refused, Report};
use lamella_engine::{Cancel, Error, Model, Options, Part};
use lamella_families::FAMILY_IDS;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Rows in hand at a time: what they take is part of the engine's limit.
const ROWS: usize = 32;

/// An adapter for C to keep.
struct Table(ColiEdgeAdapter);

// SAFETY: it is constant, and points to functions and a constant text.
unsafe impl Sync for Table {}

/// One for each family.
static ADAPTERS: [Table; FAMILY_IDS.len()] = [
    table::<0>(),
    table::<1>(),
    table::<2>(),
    table::<3>(),
    table::<4>(),
    table::<5>(),
    table::<6>(),
];

const fn table<const FAMILY: usize>() -> Table {
    Table(ColiEdgeAdapter {
        struct_size: size_of::<ColiEdgeAdapter>() as u32,
        abi_version: COLI_EDGE_ABI_VERSION,
        engine_id: FAMILY_IDS[FAMILY].as_ptr(),
        engine_open: Some(engine_open::<FAMILY>),
        engine_destroy: Some(engine_destroy),
        tokenize: Some(tokenize),
        detokenize: Some(detokenize),
        embed: Some(embed),
        select: Some(select),
        logits: Some(logits),
        reserved_fn: [None; 7],
    })
}

/// Registers the adapter of family number `family`: 0, or -1 if its id is taken.
pub(super) fn register(family: usize) -> c_int {
    // SAFETY: the table lives and never changes.
    unsafe { coli_edge_adapter_register(&raw const ADAPTERS[family].0) }
}

/// What was done with the ends of a model since they were opened.
#[derive(Default)]
pub(crate) struct EdgeCounts {
    pub(crate) rows_embedded: AtomicU64,
    pub(crate) rows_selected: AtomicU64,
    pub(crate) rows_of_logits: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) run_nanoseconds: AtomicU64,
    pub(crate) wait_nanoseconds: AtomicU64,
}

/// The ends of a model.
pub(crate) struct Ends {
    model: Arc<Model>,
    words: Words,
    /// Calls that have rows in hand, one at a time.
    turns: Turns,
    pub(crate) counts: EdgeCounts,
}

impl Ends {
    /// The ends behind an engine, if its adapter is one of ours.
    pub(crate) fn of(engine: &Engine) -> Option<&Ends> {
        let ours = |table: &Table| std::ptr::eq(&raw const table.0, engine.registered);
        // SAFETY: `engine_open` of ours made it, and the engine keeps it.
        ADAPTERS
            .iter()
            .any(ours)
            .then(|| unsafe { Ends::at(engine.implementation) })
    }

    /// # Safety
    /// `engine` came from [`engine_open`] and lives during `'a`.
    unsafe fn at<'a>(engine: *mut c_void) -> &'a Ends {
        // SAFETY: the caller's contract.
        unsafe { &*engine.cast::<Ends>() }
    }

    /// What a host may know about them.
    pub(crate) fn facts(&self) -> serde_json::Value {
        let mut facts = facts(&self.model);
        facts["vocab_size"] = self.model.vocabulary().into();
        facts["tokenizer_class"] = self.words.class.as_str().into();
        facts["tokenizer_file"] = self.words.tokenizer.file().into();
        facts
    }

    /// # Safety
    /// `options` has a text or NULL as `model_dir`, and the bytes of its plan.
    unsafe fn open(
        report: &Report,
        family: usize,
        options: &ColiEdgeEngineOptions,
    ) -> Result<Ends, Refused> {
        check_backends(report, options.backend_mask, COLI_EDGE_CAP_CPU)?;
        let mut how = Options {
            part: Part::Ends,
            memory_limit: Some(options.memory_limit_bytes).filter(|&bytes| bytes != 0),
            ..Options::default()
        };
        let (given, size) = (options.resource_plan, options.resource_plan_size);
        // SAFETY: the caller's contract.
        unsafe { plan::read(report, given, size, &mut how) }?;
        // SAFETY: the caller's contract.
        let store = unsafe { open_files(report, options.model_dir, family) }?;
        let words = Words::load(report, &store)?;
        let program = store.program();
        let row = program.row_width().saturating_add(program.exit.logits);
        how.reserved = (row as u64).saturating_mul((ROWS * size_of::<f32>()) as u64);
        how.step_rows = ROWS;
        let model = Model::open_store(store, &how, &mut |_| {});
        Ok(Ends {
            model: model.map_err(|error| report.engine(&error))?,
            words,
            turns: Turns::default(),
            counts: EdgeCounts::default(),
        })
    }

    fn describe(
        &self,
        report: &Report,
        family: usize,
        said: &mut ColiEdgeCapabilities,
    ) -> Result<(), Refused> {
        let (program, opened) = (self.model.program(), self.model.report());
        said.struct_size = size_of::<ColiEdgeCapabilities>() as u32;
        said.abi_version = COLI_EDGE_ABI_VERSION;
        said.flags = COLI_EDGE_CAP_TOKENIZE
            | COLI_EDGE_CAP_DETOKENIZE
            | COLI_EDGE_CAP_GREEDY
            | COLI_EDGE_CAP_LOGITS
            | COLI_EDGE_CAP_CPU;
        put(
            report,
            &mut said.engine_id,
            &FAMILY_IDS[family].to_string_lossy(),
        )?;
        put(report, &mut said.state_schema, &schema(&self.model))?;
        put(report, &mut said.numeric_class, self.model.numeric_class())?;
        put(report, &mut said.tokenizer_class, &self.words.class)?;
        said.state_dtype = ColiEdgeDType::COLI_EDGE_DTYPE_F32 as u32;
        said.state_width = number(report, "state_width", program.row_width())?;
        said.vocab_size = number(report, "vocab_size", self.model.vocabulary())?;
        said.max_context_tokens = u32::try_from(program.dims.context).unwrap_or(u32::MAX);
        said.num_layers = number(report, "num_layers", program.layers.len())?;
        let id = |id: Option<u32>| id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1);
        said.bos_token_id = id(self.words.first);
        said.eos_token_id = id(self.words.last);
        said.resident_bytes = opened.resident_bytes + opened.workspace_bytes;
        Ok(())
    }

    /// Works with rows in hand when it is the call's turn, and counts what came of it: `rows` as
    /// `done`.
    ///
    /// # Safety
    /// The callback may be called with its data until the call has ended.
    unsafe fn in_turn(
        &self,
        report: &Report,
        question: Question,
        (done, rows): (&AtomicU64, u32),
        work: impl FnOnce(&Cancel) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let questions = unsafe { Questions::new(vec![question]) };
        let (counts, waiting) = (&self.counts, Instant::now());
        let turn = self.turns.take(report, &questions)?;
        let start = Instant::now();
        let result = match &turn {
            Some(_) => work(&questions.while_computing()),
            None => Err(report.engine(&Error::Cancelled)),
        };
        drop(turn);
        add_time(&counts.wait_nanoseconds, start - waiting);
        add_time(&counts.run_nanoseconds, start.elapsed());
        match &result {
            Ok(()) => add(done, u64::from(rows)),
            Err(Refused) if report::last().0 == LamellaCode::LAMELLA_CANCELLED => {
                add(&counts.cancelled, 1);
            }
            Err(Refused) => add(&counts.failed, 1),
        }
        result
    }

    /// The model of which these are the ends.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    fn width(&self) -> usize {
        self.model.program().row_width()
    }
}

/// Some rows of a host: first, end, and where the values begin.
struct Input {
    from: *const u8,
    rows: usize,
    width: usize,
}

impl Input {
    fn bytes(&self) -> usize {
        (self.rows * size_of::<f32>()).saturating_mul(self.width)
    }

    /// The rows in hands of [`ROWS`], with the number of the first of each.
    ///
    /// # Safety
    /// `from` has as many rows.
    unsafe fn each(
        &self,
        report: &Report,
        mut work: impl FnMut(usize, &[f32]) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let most = self.rows.min(ROWS) * self.width;
        let mut hand: Vec<f32> = room(report, most)?;
        for first in (0..self.rows).step_by(ROWS) {
            let values = (self.rows - first).min(ROWS) * self.width;
            let bytes = values * size_of::<f32>();
            hand.clear();
            hand.resize(values, 0.0);
            // SAFETY: so many bytes of both are there, and any bits make a number. What a host
            // gives need not be aligned.
            unsafe {
                let from = self.from.add(first * self.width * size_of::<f32>());
                std::ptr::copy_nonoverlapping(from, hand.as_mut_ptr().cast(), bytes);
            }
            work(first, &hand)?;
        }
        Ok(())
    }
}

unsafe extern "C-unwind" fn engine_open<const FAMILY: usize>(
    engine: *mut *mut c_void,
    capabilities: *mut ColiEdgeCapabilities,
    options: *const ColiEdgeEngineOptions,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the interface promises an adapter pointers to what they are called.
    unsafe {
        enter(error, error_size, |report| {
            let ends = Ends::open(report, FAMILY, &*options)?;
            ends.describe(report, FAMILY, &mut *capabilities)?;
            engine.write(Box::into_raw(Box::new(ends)).cast());
            Ok(())
        })
    }
}

unsafe extern "C-unwind" fn engine_destroy(engine: *mut c_void) {
    if !engine.is_null() {
        // SAFETY: `engine_open` made it by `Box::into_raw`, and it is used no more.
        drop(unsafe { Box::from_raw(engine.cast::<Ends>()) });
    }
}

unsafe extern "C-unwind" fn tokenize(
    engine: *mut c_void,
    text: *const c_char,
    text_bytes: usize,
    token_ids: *mut i32,
    capacity: usize,
    count: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the interface promises an adapter pointers to what they are called, and has checked
    // the arguments.
    unsafe {
        enter(error, error_size, |report| {
            let ends = Ends::at(engine);
            let text = checks::values(report, "text", text.cast::<u8>(), text_bytes)?;
            let ids = ends.words.tokenize(report, text, ends.model.vocabulary())?;
            if capacity > 0 {
                checks::room(report, "token_capacity", capacity, ids.len() as u128)?;
                for (at, &id) in ids.iter().enumerate() {
                    // Ids of a vocabulary that C counts.
                    token_ids.add(at).write(id as i32);
                }
            }
            count.write(ids.len());
            Ok(())
        })
    }
}

unsafe extern "C-unwind" fn detokenize(
    engine: *mut c_void,
    token_ids: *const i32,
    count: usize,
    text: *mut c_char,
    capacity: usize,
    text_bytes: *mut usize,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `tokenize`.
    unsafe {
        enter(error, error_size, |report| {
            let ends = Ends::at(engine);
            let ids = checks::values(report, "token_ids", token_ids, count)?;
            let mut length = 0usize;
            ends.words.detokenize(ids, |piece| {
                // What does not fit is counted, for the text of the refusal.
                if piece.len() < capacity.saturating_sub(length) {
                    let to = text.add(length).cast();
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
                }
                length = length.saturating_add(piece.len());
            });
            if capacity > 0 {
                checks::room(report, "text_capacity", capacity, length as u128 + 1)?;
                text.add(length).write(0);
            }
            text_bytes.write(length);
            Ok(())
        })
    }
}

unsafe extern "C-unwind" fn embed(
    engine: *mut c_void,
    request: *const ColiEdgeEmbedRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `tokenize`.
    unsafe {
        enter(error, error_size, |report| {
            let (ends, request) = (Ends::at(engine), &*request);
            let ids = checks::values(report, "token_ids", request.token_ids, request.token_count)?;
            let bytes = ids.len().saturating_mul(ends.width() * size_of::<f32>());
            let read = ("token_ids", ids.as_ptr().cast(), size_of_val(ids));
            checks::apart(report, ("output", request.output.cast(), bytes), read)?;
            let question = (request.should_cancel, request.cancel_user_data);
            let done = (&ends.counts.rows_embedded, request.rows);
            ends.in_turn(report, question, done, |cancel| {
                let most = ids.len().min(ROWS);
                let mut rows: Vec<f32> = room(report, most * ends.width())?;
                let mut tokens: Vec<u32> = room(report, most)?;
                let mut output = request.output.cast::<u8>();
                for ids in ids.chunks(ROWS) {
                    rows.clear();
                    tokens.clear();
                    tokens.extend(ids.iter().map(|&id| id.cast_unsigned()));
                    let made = ends.model.embed(&tokens, &mut rows, cancel);
                    made.map_err(|error| report.engine(&error))?;
                    let bytes = size_of_val(&*rows);
                    std::ptr::copy_nonoverlapping(rows.as_ptr().cast(), output, bytes);
                    output = output.add(bytes);
                }
                Ok(())
            })
        })
    }
}

unsafe extern "C-unwind" fn select(
    engine: *mut c_void,
    request: *const ColiEdgeSelectRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `tokenize`.
    unsafe {
        enter(error, error_size, |report| {
            let (ends, request) = (Ends::at(engine), &*request);
            let question = (request.should_cancel, request.cancel_user_data);
            let input = Input {
                from: request.input.cast(),
                rows: request.rows as usize,
                width: ends.width(),
            };
            let bytes = input.rows.saturating_mul(size_of::<i32>());
            let read = ("input", input.from, input.bytes());
            checks::apart(report, ("token_ids", request.token_ids.cast(), bytes), read)?;
            checks::apart(report, ("scores", request.scores.cast(), bytes), read)?;
            let done = (&ends.counts.rows_selected, request.rows);
            ends.in_turn(report, question, done, |cancel| {
                let mut selected: Vec<(u32, f32)> = room(report, ROWS)?;
                input.each(report, |first, rows| {
                    selected.clear();
                    let made = ends.model.select(rows, &mut selected, cancel);
                    made.map_err(|error| report.engine(&error))?;
                    for (row, &(id, score)) in (first..).zip(&selected) {
                        request.token_ids.add(row).write(id.cast_signed());
                        if !request.scores.is_null() {
                            request.scores.add(row).write(score);
                        }
                    }
                    Ok(())
                })
            })
        })
    }
}

unsafe extern "C-unwind" fn logits(
    engine: *mut c_void,
    request: *const ColiEdgeLogitsRequest,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: as for `tokenize`.
    unsafe {
        enter(error, error_size, |report| {
            let (ends, request) = (Ends::at(engine), &*request);
            let question = (request.should_cancel, request.cancel_user_data);
            let input = Input {
                from: request.input.cast(),
                rows: request.rows as usize,
                width: ends.width(),
            };
            let vocabulary = ends.model.vocabulary();
            let bytes = (input.rows * size_of::<f32>()).saturating_mul(vocabulary);
            let read = ("input", input.from, input.bytes());
            checks::apart(report, ("logits", request.logits.cast(), bytes), read)?;
            let done = (&ends.counts.rows_of_logits, request.rows);
            ends.in_turn(report, question, done, |cancel| {
                let mut out: Vec<f32> = room(report, input.rows.min(ROWS) * vocabulary)?;
                input.each(report, |first, rows| {
                    out.clear();
                    let made = ends.model.logits(rows, &mut out, cancel);
                    made.map_err(|error| report.engine(&error))?;
                    let to = request.logits.add(first * vocabulary);
                    std::ptr::copy_nonoverlapping(out.as_ptr(), to, out.len());
                    Ok(())
                })
            })
        })
    }
}
