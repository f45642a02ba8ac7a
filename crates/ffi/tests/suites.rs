//! The suites in C and C++, compiled with the system's compilers and run.
//!
//! `CC`, `CXX` and `CFLAGS` are respected, and `LAMELLA_RUNNER` is put before each program, so that
//! `docs/embedding.md` can say how to run all of this under valgrind and AddressSanitizer.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{compiler, crate_dir, fixture_names, program, run, succeed, suite};

#[test]
fn the_contract_holds_over_all_fixtures() {
    let said = suite(&["contract.c", "fixtures.c", "fixture_state.c"], &[]);
    assert_eq!(said.lines().count(), 7, "{said}");
}

#[test]
fn every_rule_of_segment_refuses() {
    suite(&["segment_rules.c", "probe.c"], &[]);
}

#[test]
fn every_rule_of_edge_refuses() {
    suite(&["edge_rules.c", "probe.c"], &[]);
}

#[test]
fn threads_share_engines_and_cancel_each_other() {
    suite(&["threads.c", "fixtures.c", "fixture_state.c"], &[]);
}

#[test]
fn a_host_written_from_the_published_facts_works() {
    let sources = [
        "host_from_abi.c",
        "registrars.c",
        "fixtures.c",
        "fixture_state.c",
    ];
    let dir = tempfile::tempdir().unwrap();
    let compile = |standard| {
        let mut call = compiler("CC", "cc", standard);
        program(fixture_names(&mut call), &sources, dir.path())
    };
    compile("c99");
    let host = compile("c11");
    for family in [
        "glm",
        "inkling",
        "kimi",
        "olmoe",
        "qwen36",
        "qwen38",
        "deepseek_v4",
    ] {
        let said = run(host.clone(), &[family, "fixture"]);
        assert!(said.lines().count() >= 2, "{family}: {said}");
    }
}

/// All headers by themselves, for hosts whose C++ is old.
#[test]
fn the_headers_are_cplusplus_of_1998() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("headers.cc");
    let names = [
        "edge_adapters",
        "edge_runtime",
        "lamella",
        "segment_adapters",
        "segment_runtime",
    ];
    let includes = names.map(|name| format!("#include \"{name}.h\"\n"));
    std::fs::write(&source, includes.concat()).unwrap();
    let mut call = compiler("CXX", "c++", "c++98");
    succeed(call.arg("-fsyntax-only").arg(source));
}

#[test]
fn the_headers_are_cplusplus() {
    let dir = tempfile::tempdir().unwrap();
    let mut objects = vec![];
    for name in ["registrars", "fixtures", "fixture_state"] {
        let object = dir.path().join(name).with_extension("o");
        let source = crate_dir().join("tests/c").join(name).with_extension("c");
        succeed(
            fixture_names(&mut compiler("CC", "cc", "c11"))
                .arg("-c")
                .arg(source)
                .arg("-o")
                .arg(&object),
        );
        objects.push(object);
    }
    for standard in ["c++11", "c++20"] {
        let mut call = compiler("CXX", "c++", standard);
        let call = fixture_names(&mut call).args(&objects);
        let built = program(call, &["cpp.cc"], dir.path());
        run(built, &[]);
    }
}

/// The lines that `layout.c` prints for a block, from Rust's own knowledge of it.
macro_rules! block {
    ($lines:ident, $block:ident, $($field:ident),+) => {
        $lines.push(format!("{} {}", stringify!($block), size_of::<$block>()));
        $($lines.push(format!(
            "{}.{} {} {}",
            stringify!($block),
            stringify!($field),
            std::mem::offset_of!($block, $field),
            size_of_field(|block: &$block| &raw const block.$field),
        ));)+
    };
}

macro_rules! values {
    ($lines:ident, $($name:path),+ $(,)?) => {
        $($lines.push(format!(
            "{} {}",
            stringify!($name).rsplit("::").next().unwrap_or_default(),
            $name as u64
        ));)+
    };
}

fn size_of_field<B, F>(_: impl Fn(&B) -> *const F) -> usize {
    size_of::<F>()
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn segment_lines() -> Vec<String> {
    use lamella::segment::abi::*;
    let mut lines = vec![];
    block!(
        lines,
        ColiSegmentCapabilities,
        struct_size,
        abi_version,
        flags,
        engine_id,
        state_schema,
        numeric_class,
        state_dtype,
        state_width,
        max_batch_rows,
        max_context_tokens,
        num_layers,
        reserved_u32,
        reserved_u64
    );
    block!(
        lines,
        ColiSegmentEngineOptions,
        struct_size,
        model_dir,
        layer_begin,
        layer_end,
        context_tokens,
        reserved_u32,
        memory_limit_bytes,
        backend_mask,
        resource_plan,
        resource_plan_size
    );
    block!(
        lines,
        ColiSegmentSessionOptions,
        struct_size,
        context_tokens,
        memory_limit_bytes,
        reserved_u64
    );
    block!(
        lines,
        ColiSegmentRunRequest,
        struct_size,
        rows,
        position,
        token_ids,
        token_count,
        input,
        input_bytes,
        output,
        output_bytes,
        should_cancel,
        cancel_user_data,
        reserved_u64
    );
    block!(
        lines,
        ColiSegmentAdapter,
        struct_size,
        abi_version,
        engine_id,
        engine_open,
        engine_destroy,
        session_create,
        session_destroy,
        session_run,
        session_snapshot,
        session_restore,
        reserved_fn
    );
    values!(
        lines,
        COLI_SEGMENT_ABI_VERSION,
        COLI_SEGMENT_ENGINE_ID_CAP,
        COLI_SEGMENT_STATE_SCHEMA_CAP,
        COLI_SEGMENT_NUMERIC_CLASS_CAP,
        COLI_SEGMENT_CAP_TOKEN_IDS,
        COLI_SEGMENT_CAP_SNAPSHOT,
        COLI_SEGMENT_CAP_RANGE_NATIVE,
        COLI_SEGMENT_CAP_MULTI_SESSION,
        COLI_SEGMENT_CAP_CPU,
        COLI_SEGMENT_CAP_CUDA,
        COLI_SEGMENT_CAP_HIP,
        COLI_SEGMENT_CAP_METAL,
        COLI_SEGMENT_CAP_VULKAN,
        COLI_SEGMENT_CAP_BACKEND_MASK,
        ColiSegmentDType::COLI_SEGMENT_DTYPE_INVALID,
        ColiSegmentDType::COLI_SEGMENT_DTYPE_F32,
        ColiSegmentDType::COLI_SEGMENT_DTYPE_F16,
        ColiSegmentDType::COLI_SEGMENT_DTYPE_BF16
    );
    lines
}

#[expect(clippy::too_many_lines, reason = "one table")]
fn edge_lines() -> Vec<String> {
    use lamella::edge::abi::*;
    let mut lines = vec![];
    block!(
        lines,
        ColiEdgeCapabilities,
        struct_size,
        abi_version,
        flags,
        engine_id,
        state_schema,
        numeric_class,
        tokenizer_class,
        state_dtype,
        state_width,
        vocab_size,
        max_batch_rows,
        max_context_tokens,
        num_layers,
        bos_token_id,
        eos_token_id,
        reserved_u32,
        resident_bytes,
        reserved_u64
    );
    block!(
        lines,
        ColiEdgeEngineOptions,
        struct_size,
        model_dir,
        memory_limit_bytes,
        backend_mask,
        resource_plan,
        resource_plan_size,
        reserved_u64
    );
    block!(
        lines,
        ColiEdgeEmbedRequest,
        struct_size,
        rows,
        token_ids,
        token_count,
        output,
        output_bytes,
        should_cancel,
        cancel_user_data,
        reserved_u64
    );
    block!(
        lines,
        ColiEdgeSelectRequest,
        struct_size,
        rows,
        input,
        input_bytes,
        token_ids,
        token_capacity,
        scores,
        score_capacity,
        should_cancel,
        cancel_user_data,
        reserved_u64
    );
    block!(
        lines,
        ColiEdgeLogitsRequest,
        struct_size,
        rows,
        input,
        input_bytes,
        logits,
        logits_capacity,
        should_cancel,
        cancel_user_data,
        reserved_u64
    );
    block!(
        lines,
        ColiEdgeAdapter,
        struct_size,
        abi_version,
        engine_id,
        engine_open,
        engine_destroy,
        tokenize,
        detokenize,
        embed,
        select,
        logits,
        reserved_fn
    );
    values!(
        lines,
        COLI_EDGE_ABI_VERSION,
        COLI_EDGE_ENGINE_ID_CAP,
        COLI_EDGE_STATE_SCHEMA_CAP,
        COLI_EDGE_NUMERIC_CLASS_CAP,
        COLI_EDGE_TOKENIZER_CLASS_CAP,
        COLI_EDGE_CAP_TOKENIZE,
        COLI_EDGE_CAP_DETOKENIZE,
        COLI_EDGE_CAP_GREEDY,
        COLI_EDGE_CAP_LOGITS,
        COLI_EDGE_CAP_CPU,
        COLI_EDGE_CAP_CUDA,
        COLI_EDGE_CAP_HIP,
        COLI_EDGE_CAP_METAL,
        COLI_EDGE_CAP_VULKAN,
        COLI_EDGE_CAP_BACKEND_MASK,
        ColiEdgeDType::COLI_EDGE_DTYPE_INVALID,
        ColiEdgeDType::COLI_EDGE_DTYPE_F32,
        ColiEdgeDType::COLI_EDGE_DTYPE_F16,
        ColiEdgeDType::COLI_EDGE_DTYPE_BF16
    );
    lines
}

fn statistics_lines() -> Vec<String> {
    use lamella::additions::{LamellaEdgeStatistics, LamellaSegmentStatistics};
    let mut lines = vec![];
    block!(
        lines,
        LamellaSegmentStatistics,
        struct_size,
        reserved_u32,
        weight_bytes,
        workspace_bytes,
        sessions,
        runs,
        rows,
        cancelled,
        failed,
        run_nanoseconds,
        wait_nanoseconds,
        snapshot_bytes_written,
        snapshot_bytes_read,
        expert_count,
        expert_slots,
        expert_uses,
        expert_hits,
        expert_bytes_read,
        expert_wait_nanoseconds
    );
    block!(
        lines,
        LamellaEdgeStatistics,
        struct_size,
        reserved_u32,
        weight_bytes,
        weight_bytes_on_disk,
        workspace_bytes,
        rows_embedded,
        rows_selected,
        rows_of_logits,
        cancelled,
        failed,
        run_nanoseconds,
        wait_nanoseconds
    );
    lines
}

fn code_lines() -> Vec<String> {
    use lamella::lamella::LamellaCode;
    let mut lines = vec![];
    values!(
        lines,
        LamellaCode::LAMELLA_OK,
        LamellaCode::LAMELLA_ARGUMENT,
        LamellaCode::LAMELLA_HANDLE,
        LamellaCode::LAMELLA_NOT_FOUND,
        LamellaCode::LAMELLA_DUPLICATE,
        LamellaCode::LAMELLA_BUSY,
        LamellaCode::LAMELLA_UNSUPPORTED,
        LamellaCode::LAMELLA_BROKEN_ADAPTER,
        LamellaCode::LAMELLA_ADAPTER,
        LamellaCode::LAMELLA_CANCELLED,
        LamellaCode::LAMELLA_MEMORY,
        LamellaCode::LAMELLA_PANIC,
        LamellaCode::LAMELLA_MODEL,
        LamellaCode::LAMELLA_MEMORY_LIMIT,
        LamellaCode::LAMELLA_POSITION,
        LamellaCode::LAMELLA_SNAPSHOT,
        LamellaCode::LAMELLA_NON_FINITE
    );
    lines
}

#[test]
fn c_and_rust_see_the_same_layouts_and_constants() {
    let said = suite(&["layout.c"], &[]);
    let want = [
        segment_lines(),
        edge_lines(),
        statistics_lines(),
        code_lines(),
    ]
    .concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), want);
}
