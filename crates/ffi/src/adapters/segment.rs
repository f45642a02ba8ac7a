//! The Segment adapter: a layer range of a model of one family.

use super::conversation::{Counts, session_snapshot};
use super::conversation::{session_create, session_destroy, session_restore, session_run};
use super::turn::Turns;
use super::{check_backends, facts, number, open_files, plan, put, schema};
use crate::boundary::enter;
use crate::report::{Refused, Report};
use crate::segment::Engine;
use crate::segment::abi::{
    COLI_SEGMENT_ABI_VERSION, COLI_SEGMENT_CAP_CPU, COLI_SEGMENT_CAP_MULTI_SESSION,
    COLI_SEGMENT_CAP_RANGE_NATIVE, COLI_SEGMENT_CAP_SNAPSHOT, COLI_SEGMENT_CAP_TOKEN_IDS,
    ColiSegmentAdapter, ColiSegmentCapabilities, ColiSegmentDType, ColiSegmentEngineOptions,
};
use crate::segment::exports::coli_segment_adapter_register;
use lamella_engine::{Model, Options, Part};
use lamella_families::FAMILY_IDS;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// An adapter for C to keep.
struct Table(ColiSegmentAdapter);

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
    Table(ColiSegmentAdapter {
        struct_size: size_of::<ColiSegmentAdapter>() as u32,
        abi_version: COLI_SEGMENT_ABI_VERSION,
        engine_id: FAMILY_IDS[FAMILY].as_ptr(),
        engine_open: Some(engine_open::<FAMILY>),
        engine_destroy: Some(engine_destroy),
        session_create: Some(session_create),
        session_destroy: Some(session_destroy),
        session_run: Some(session_run),
        session_snapshot: Some(session_snapshot),
        session_restore: Some(session_restore),
        reserved_fn: [None; 8],
    })
}

/// Registers the adapter of family number `family`: 0, or -1 if its id is taken.
pub(super) fn register(family: usize) -> c_int {
    // SAFETY: the table lives and never changes.
    unsafe { coli_segment_adapter_register(&raw const ADAPTERS[family].0) }
}

/// A layer range, and what was done in it.
pub(crate) struct Range {
    pub(super) model: Arc<Model>,
    pub(super) turns: Turns,
    pub(crate) counts: Counts,
}

impl Range {
    /// The range behind an engine, if its adapter is one of ours.
    pub(crate) fn of(engine: &Engine) -> Option<&Range> {
        let ours = |table: &Table| std::ptr::eq(&raw const table.0, engine.registered);
        let range = engine.implementation.cast::<Range>();
        // SAFETY: `engine_open` of ours made it, and the engine keeps it.
        ADAPTERS.iter().any(ours).then(|| unsafe { &*range })
    }

    /// The model of which the range is a part.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// What a host may know about it.
    pub(crate) fn facts(&self) -> serde_json::Value {
        let layers = self.model.part().layers(self.model.program());
        let mut facts = facts(&self.model);
        facts["layer_begin"] = layers.start.into();
        facts["layer_end"] = layers.end.into();
        facts["max_batch_rows"] = self.model.rows_together().into();
        let context = self.model.report().context;
        facts["session_bytes"] = self.model.session_bytes(context).into();
        facts
    }

    /// # Safety
    /// `options` has a text or NULL as `model_dir`, and the bytes of its plan.
    unsafe fn open(
        report: &Report,
        family: usize,
        options: &ColiSegmentEngineOptions,
    ) -> Result<Range, Refused> {
        check_backends(report, options.backend_mask, COLI_SEGMENT_CAP_CPU)?;
        let layers = options.layer_begin as usize..options.layer_end as usize;
        let mut how = Options {
            part: Part::Layers(layers),
            context: Some(options.context_tokens as usize),
            memory_limit: Some(options.memory_limit_bytes).filter(|&bytes| bytes != 0),
            ..Options::default()
        };
        let (given, size) = (options.resource_plan, options.resource_plan_size);
        // SAFETY: the caller's contract.
        unsafe { plan::read(report, given, size, &mut how) }?;
        // SAFETY: the caller's contract.
        let store = unsafe { open_files(report, options.model_dir, family) }?;
        let model = Model::open_store(store, &how, &mut |_| {});
        Ok(Range {
            model: model.map_err(|error| report.engine(&error))?,
            turns: Turns::default(),
            counts: Counts::default(),
        })
    }

    fn describe(
        &self,
        report: &Report,
        family: usize,
        said: &mut ColiSegmentCapabilities,
    ) -> Result<(), Refused> {
        let program = self.model.program();
        said.struct_size = size_of::<ColiSegmentCapabilities>() as u32;
        said.abi_version = COLI_SEGMENT_ABI_VERSION;
        said.flags = COLI_SEGMENT_CAP_SNAPSHOT
            | COLI_SEGMENT_CAP_RANGE_NATIVE
            | COLI_SEGMENT_CAP_MULTI_SESSION
            | COLI_SEGMENT_CAP_CPU;
        if program.boundary.needs_token_ids {
            said.flags |= COLI_SEGMENT_CAP_TOKEN_IDS;
        }
        put(
            report,
            &mut said.engine_id,
            &FAMILY_IDS[family].to_string_lossy(),
        )?;
        put(report, &mut said.state_schema, &schema(&self.model))?;
        put(report, &mut said.numeric_class, self.model.numeric_class())?;
        said.state_dtype = ColiSegmentDType::COLI_SEGMENT_DTYPE_F32 as u32;
        said.state_width = number(report, "state_width", program.row_width())?;
        said.max_batch_rows = number(report, "max_batch_rows", self.model.rows_together())?;
        said.max_context_tokens = u32::try_from(program.dims.context).unwrap_or(u32::MAX);
        said.num_layers = number(report, "num_layers", program.layers.len())?;
        Ok(())
    }
}

unsafe extern "C-unwind" fn engine_open<const FAMILY: usize>(
    engine: *mut *mut c_void,
    capabilities: *mut ColiSegmentCapabilities,
    options: *const ColiSegmentEngineOptions,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    // SAFETY: the interface promises an adapter pointers to what they are called.
    unsafe {
        enter(error, error_size, |report| {
            let range = Range::open(report, FAMILY, &*options)?;
            range.describe(report, FAMILY, &mut *capabilities)?;
            engine.write(Arc::into_raw(Arc::new(range)).cast_mut().cast());
            Ok(())
        })
    }
}

unsafe extern "C-unwind" fn engine_destroy(engine: *mut c_void) {
    if !engine.is_null() {
        // SAFETY: `engine_open` made it by `Arc::into_raw`, and it is used no more.
        drop(unsafe { Arc::from_raw(engine.cast::<Range>()) });
    }
}
