//! The opened ends of a model: what their adapter promised, and the checks of what is asked.

use super::abi::{
    COLI_EDGE_ABI_VERSION, COLI_EDGE_CAP_DETOKENIZE, COLI_EDGE_CAP_GREEDY, COLI_EDGE_CAP_LOGITS,
    COLI_EDGE_CAP_TOKENIZE, ColiEdgeAdapter, ColiEdgeCapabilities, ColiEdgeEmbedRequest,
    ColiEdgeEngineOptions, ColiEdgeLogitsRequest, ColiEdgeSelectRequest,
};
use crate::boundary::{call_adapter, destroy};
use crate::checks::{self, Said};
use crate::lamella::LamellaCode;
use crate::registry::{EDGE_ADAPTERS, Id};
use crate::report::{Refused, Report};
use std::ffi::{c_char, c_int, c_void};

/// An engine of an adapter. Dropping it destroys it there.
pub(crate) struct Engine {
    id: Id,
    /// The adapter as it was when the engine was opened.
    adapter: ColiEdgeAdapter,
    /// Where the adapter is registered.
    pub(crate) registered: *const ColiEdgeAdapter,
    pub(crate) implementation: *mut c_void,
    pub(crate) capabilities: ColiEdgeCapabilities,
}

// SAFETY: the raw pointers are the adapter's and are handed to nobody else; an adapter answers
// for calls on one engine from several threads, as the interface demands.
unsafe impl Send for Engine {}
// SAFETY: as above; everything else is constant.
unsafe impl Sync for Engine {}

/// Text that becomes ids.
pub(crate) struct Tokenize {
    pub(crate) text: *const c_char,
    pub(crate) text_bytes: usize,
    pub(crate) ids: *mut i32,
    pub(crate) capacity: usize,
    pub(crate) count: *mut usize,
}

/// Ids that become text.
pub(crate) struct Detokenize {
    pub(crate) ids: *const i32,
    pub(crate) count: usize,
    pub(crate) text: *mut c_char,
    pub(crate) capacity: usize,
    pub(crate) bytes: *mut usize,
}

impl Engine {
    /// Opens the ends of a model with the adapter that `id` names, and checks what the adapter
    /// says about them.
    ///
    /// # Safety
    /// The pointers are what `coli_edge_engine_open` asks for.
    pub(crate) unsafe fn open(
        report: &Report,
        id: *const c_char,
        options: *const ColiEdgeEngineOptions,
    ) -> Result<Engine, Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, options) }?;
        // SAFETY: the caller's contract.
        unsafe { checks::text(report, known.model_dir, "model_dir") }?;
        // SAFETY: the caller's contract.
        let (id, registered) = unsafe { EDGE_ADAPTERS.look_up(report, id) }?;
        // SAFETY: registered adapters live, and were checked.
        let adapter = unsafe { *registered };
        let Some(open) = adapter.engine_open else {
            return Err(checks::refuse_null(report, "engine_open"));
        };
        let mut implementation = std::ptr::null_mut();
        let mut capabilities = blank();
        call_adapter(report, id.as_str(), "opening", |error, size| {
            // SAFETY: the adapter gets what the interface promises it, and the host's options.
            unsafe { open(&mut implementation, &mut capabilities, options, error, size) }
        })?;
        // From here on, dropping the engine destroys it.
        let engine = Engine {
            id,
            adapter,
            registered,
            implementation,
            capabilities,
        };
        match engine.fault() {
            None => Ok(engine),
            Some(fault) => Err(engine.broken(report, fault)),
        }
    }

    /// What is wrong with the capabilities.
    fn fault(&self) -> Option<&'static str> {
        let said = &self.capabilities;
        let common = Said {
            struct_size: [said.struct_size as usize, size_of_val(said)],
            abi_version: [said.abi_version, COLI_EDGE_ABI_VERSION],
            engine_id: &said.engine_id,
            id: self.id.as_str(),
            state_schema: &said.state_schema,
            numeric_class: &said.numeric_class,
            state_dtype: said.state_dtype,
            state_width: said.state_width,
            num_layers: said.num_layers,
        };
        let own = [
            (
                !said.tokenizer_class.contains(&0),
                "tokenizer_class has no end",
            ),
            (said.vocab_size == 0, "vocab_size is 0"),
        ];
        let found = common.fault().or_else(|| checks::first(&own));
        found.or_else(|| self.flag_fault())
    }

    /// Which flag contradicts the callbacks.
    fn flag_fault(&self) -> Option<&'static str> {
        let adapter = &self.adapter;
        let texts = adapter.tokenize.is_some() && adapter.detokenize.is_some();
        let flags = [
            (
                COLI_EDGE_CAP_TOKENIZE,
                texts,
                "the flag TOKENIZE and the callbacks contradict each other",
            ),
            (
                COLI_EDGE_CAP_DETOKENIZE,
                texts,
                "the flag DETOKENIZE and the callbacks contradict each other",
            ),
            (
                COLI_EDGE_CAP_GREEDY,
                adapter.select.is_some(),
                "the flag GREEDY and the callback contradict each other",
            ),
            (
                COLI_EDGE_CAP_LOGITS,
                adapter.logits.is_some(),
                "the flag LOGITS and the callback contradict each other",
            ),
        ];
        let said = self.capabilities.flags;
        let wrong = flags
            .iter()
            .find(|(flag, there, _)| (said & flag != 0) != *there);
        wrong.map(|(_, _, fault)| *fault)
    }

    /// Text to ids.
    ///
    /// # Safety
    /// The pointers are what `coli_edge_tokenize` asks for.
    pub(crate) unsafe fn tokenize(&self, report: &Report, of: &Tokenize) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe { checks::start_out(report, of.count, 0, "token_count") }?;
        if of.text_bytes > 0 {
            checks::not_null(report, of.text, "text")?;
        }
        checks::addressable::<u8>(report, "text", of.text_bytes)?;
        checks::optional(report, "token_ids", of.ids, of.capacity)?;
        let Some(tokenize) = self.adapter.tokenize else {
            return Err(self.unsupported(report, "tokenizer"));
        };
        self.call(report, "tokenizing", |engine, e, n| {
            // SAFETY: the engine is the adapter's own, and the arguments were checked.
            unsafe {
                tokenize(
                    engine,
                    of.text,
                    of.text_bytes,
                    of.ids,
                    of.capacity,
                    of.count,
                    e,
                    n,
                )
            }
        })?;
        // SAFETY: the caller's contract.
        let count = unsafe { of.count.read() };
        if of.capacity > 0 && count > of.capacity {
            return Err(self.broken(report, "it says it wrote more ids than fit"));
        }
        Ok(())
    }

    /// Ids to text.
    ///
    /// # Safety
    /// The pointers are what `coli_edge_detokenize` asks for.
    pub(crate) unsafe fn detokenize(
        &self,
        report: &Report,
        of: &Detokenize,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe { checks::start_out(report, of.bytes, 0, "text_bytes") }?;
        checks::not_null(report, of.ids, "token_ids")?;
        checks::aligned(report, of.ids, "token_ids")?;
        if of.count == 0 {
            return Err(report.argument(format_args!("token_count is 0")));
        }
        checks::optional(report, "text", of.text, of.capacity)?;
        let Some(detokenize) = self.adapter.detokenize else {
            return Err(self.unsupported(report, "tokenizer"));
        };
        // SAFETY: the caller's contract.
        unsafe { self.check_ids(report, of.ids, of.count) }?;
        self.call(report, "detokenizing", |engine, e, n| {
            // SAFETY: the engine is the adapter's own, and the arguments were checked.
            unsafe {
                detokenize(
                    engine,
                    of.ids,
                    of.count,
                    of.text,
                    of.capacity,
                    of.bytes,
                    e,
                    n,
                )
            }
        })?;
        // SAFETY: the caller's contract.
        let bytes = unsafe { of.bytes.read() };
        if of.capacity > 0 {
            if bytes >= of.capacity {
                return Err(self.broken(report, "it says it wrote more text than fits"));
            }
            // SAFETY: below the capacity.
            unsafe { of.text.add(bytes).write(0) };
        }
        Ok(())
    }

    /// Ids to rows.
    ///
    /// # Safety
    /// `request` is NULL or as long as it says; its buffers are as long as they say.
    pub(crate) unsafe fn embed(
        &self,
        report: &Report,
        request: *const ColiEdgeEmbedRequest,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, request) }?;
        let geometry = self.geometry(report, known.rows)?;
        checks::not_null(report, known.token_ids, "token_ids")?;
        checks::aligned(report, known.token_ids, "token_ids")?;
        let (rows, count) = (known.rows, known.token_count);
        if count != rows as usize {
            return Err(report.argument(format_args!("{count} token ids came with {rows} rows")));
        }
        checks::not_null(report, known.output, "output")?;
        checks::activations(report, "output", known.output_bytes, geometry)?;
        // SAFETY: the caller's contract.
        unsafe { self.check_ids(report, known.token_ids, count) }?;
        // SAFETY: the host's callback with its own data.
        unsafe { checks::cancelled(report, known.should_cancel, known.cancel_user_data) }?;
        let Some(embed) = self.adapter.embed else {
            return Err(checks::refuse_null(report, "embed"));
        };
        self.call(report, "embedding", |engine, error, size| {
            // SAFETY: the engine is the adapter's own, and the request was checked.
            unsafe { embed(engine, request, error, size) }
        })
    }

    /// Rows to the most likely ids.
    ///
    /// # Safety
    /// As [`Engine::embed`].
    pub(crate) unsafe fn select(
        &self,
        report: &Report,
        request: *const ColiEdgeSelectRequest,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, request) }?;
        let Some(select) = self.adapter.select else {
            return Err(self.unsupported(report, "selection"));
        };
        let geometry = self.geometry(report, known.rows)?;
        checks::not_null(report, known.input, "input")?;
        checks::activations(report, "input", known.input_bytes, geometry)?;
        checks::not_null(report, known.token_ids, "token_ids")?;
        checks::aligned(report, known.token_ids, "token_ids")?;
        let rows = known.rows as usize;
        checks::room(report, "token_capacity", known.token_capacity, rows as u128)?;
        checks::optional(report, "scores", known.scores, known.score_capacity)?;
        if known.score_capacity > 0 {
            checks::room(report, "score_capacity", known.score_capacity, rows as u128)?;
        }
        // SAFETY: the host's callback with its own data.
        unsafe { checks::cancelled(report, known.should_cancel, known.cancel_user_data) }?;
        self.call(report, "selecting", |engine, error, size| {
            // SAFETY: the engine is the adapter's own, and the request was checked.
            unsafe { select(engine, request, error, size) }
        })
    }

    /// Rows to logits.
    ///
    /// # Safety
    /// As [`Engine::embed`].
    pub(crate) unsafe fn logits(
        &self,
        report: &Report,
        request: *const ColiEdgeLogitsRequest,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let known = unsafe { checks::block(report, request) }?;
        let Some(logits) = self.adapter.logits else {
            return Err(self.unsupported(report, "logits"));
        };
        let geometry = self.geometry(report, known.rows)?;
        checks::not_null(report, known.input, "input")?;
        checks::activations(report, "input", known.input_bytes, geometry)?;
        checks::not_null(report, known.logits, "logits")?;
        checks::aligned(report, known.logits, "logits")?;
        let want = u128::from(known.rows) * u128::from(self.capabilities.vocab_size);
        checks::room(report, "logits_capacity", known.logits_capacity, want)?;
        // SAFETY: the host's callback with its own data.
        unsafe { checks::cancelled(report, known.should_cancel, known.cancel_user_data) }?;
        self.call(report, "computing logits", |engine, error, size| {
            // SAFETY: the engine is the adapter's own, and the request was checked.
            unsafe { logits(engine, request, error, size) }
        })
    }

    /// Rows, width and dtype of a request's activations.
    fn geometry(&self, report: &Report, rows: u32) -> Result<(u32, u32, u32), Refused> {
        let said = &self.capabilities;
        checks::rows(report, rows, said.max_batch_rows)?;
        Ok((rows, said.state_width, said.state_dtype))
    }

    /// # Safety
    /// `ids` is aligned and has `count` ids.
    unsafe fn check_ids(
        &self,
        report: &Report,
        ids: *const i32,
        count: usize,
    ) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        let ids = unsafe { checks::values(report, "token_ids", ids, count) }?;
        checks::ids(report, ids, self.capabilities.vocab_size)
    }

    fn call(
        &self,
        report: &Report,
        deed: &str,
        call: impl FnOnce(*mut c_void, *mut c_char, usize) -> c_int,
    ) -> Result<(), Refused> {
        call_adapter(report, self.id.as_str(), deed, |error, size| {
            call(self.implementation, error, size)
        })
    }

    fn unsupported(&self, report: &Report, what: &str) -> Refused {
        let id = self.id.as_str();
        let reason = format_args!("adapter {id} has no {what}");
        report.refuse(LamellaCode::LAMELLA_UNSUPPORTED, reason)
    }

    fn broken(&self, report: &Report, fault: &str) -> Refused {
        let id = self.id.as_str();
        let reason = format_args!("adapter {id} is broken: {fault}");
        report.refuse(LamellaCode::LAMELLA_BROKEN_ADAPTER, reason)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(destroy_engine) = self.adapter.engine_destroy {
            // SAFETY: the adapter made it, and it is used no more.
            destroy(|| unsafe { destroy_engine(self.implementation) });
        }
    }
}

/// Capabilities for an adapter to fill in.
fn blank() -> ColiEdgeCapabilities {
    ColiEdgeCapabilities {
        struct_size: size_of::<ColiEdgeCapabilities>() as u32,
        abi_version: COLI_EDGE_ABI_VERSION,
        flags: 0,
        engine_id: [0; _],
        state_schema: [0; _],
        numeric_class: [0; _],
        tokenizer_class: [0; _],
        state_dtype: 0,
        state_width: 0,
        vocab_size: 0,
        max_batch_rows: 0,
        max_context_tokens: 0,
        num_layers: 0,
        bos_token_id: -1,
        eos_token_id: -1,
        reserved_u32: [0; _],
        resident_bytes: 0,
        reserved_u64: [0; _],
    }
}
