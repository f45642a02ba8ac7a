//! The suites in C and C++, compiled with the system's compilers and run.
//!
//! `CC`, `CXX` and `CFLAGS` are respected, and `LAMELLA_RUNNER` is put before each program, so that
//! `docs/embedding.md` can say how to run all of this under valgrind and AddressSanitizer.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What every source must pass without a word.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];
/// What a static library of Rust needs.
#[cfg(target_os = "linux")]
const SYSTEM: &[&str] = &["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lrt", "-lutil"];
#[cfg(not(target_os = "linux"))]
const SYSTEM: &[&str] = &["-lpthread", "-lm"];

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the libraries that this test is built with.
fn library_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

fn words(variable: &str) -> Vec<String> {
    let words = std::env::var(variable).unwrap_or_default();
    words.split_whitespace().map(str::to_owned).collect()
}

/// A compiler with what is common to all calls.
fn compiler(variable: &str, default: &str, standard: &str) -> Command {
    let mut call = words(variable);
    if call.is_empty() {
        call.push(default.to_owned());
    }
    let mut command = Command::new(&call[0]);
    command
        .args(&call[1..])
        .args(STRICT)
        .arg(format!("-std={standard}"));
    command
        .arg("-I")
        .arg(crate_dir().join("include"))
        .args(words("CFLAGS"));
    command
}

fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// The program made of `sources`, linked with the static library.
fn program(compiler: &mut Command, sources: &[&str], into: &Path) -> OsString {
    let path = into.join(sources[0]).with_extension("out");
    let sources = sources
        .iter()
        .map(|name| crate_dir().join("tests/c").join(name));
    let library = library_dir().join("liblamella.a");
    assert!(library.exists(), "cargo left no {}", library.display());
    succeed(
        compiler
            .args(sources)
            .arg(library)
            .args(SYSTEM)
            .arg("-o")
            .arg(&path),
    );
    path.into_os_string()
}

/// Runs a program, under `LAMELLA_RUNNER` if there is one.
fn run(program: OsString, arguments: &[&str]) -> String {
    let mut call: Vec<OsString> = words("LAMELLA_RUNNER")
        .into_iter()
        .map(OsString::from)
        .collect();
    call.push(program);
    let output = succeed(Command::new(&call[0]).args(&call[1..]).args(arguments));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Compiles as C99 and as C11, and runs what C11 made.
fn suite(sources: &[&str], arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    program(&mut compiler("CC", "cc", "c99"), sources, dir.path());
    let built = program(&mut compiler("CC", "cc", "c11"), sources, dir.path());
    run(built, arguments)
}

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
    program(&mut compiler("CC", "cc", "c99"), &sources, dir.path());
    let host = program(&mut compiler("CC", "cc", "c11"), &sources, dir.path());
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

/// The example needs a model to say something; on a fixture it babbles, two answers for two lines.
#[test]
fn the_example_host_chats() {
    let dir = tempfile::tempdir().unwrap();
    let example = dir.path().join("host.o");
    let source = crate_dir().join("../../examples/host.c");
    succeed(
        compiler("CC", "cc", "c99")
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(&example),
    );
    let sources = ["registrars.c", "fixtures.c", "fixture_state.c"];
    let host = program(
        compiler("CC", "cc", "c99").arg(example),
        &sources,
        dir.path(),
    );
    let lines = dir.path().join("lines");
    std::fs::write(&lines, "hello\nyou\n").unwrap();
    let mut call = Command::new(host);
    call.arg("fixture")
        .stdin(std::fs::File::open(lines).unwrap());
    let said = succeed(&mut call).stdout;
    assert!(said.iter().filter(|&&byte| byte == b'\n').count() >= 2);
}

#[test]
fn the_headers_are_cplusplus() {
    let dir = tempfile::tempdir().unwrap();
    let mut objects = vec![];
    for name in ["registrars", "fixtures", "fixture_state"] {
        let object = dir.path().join(name).with_extension("o");
        let source = crate_dir().join("tests/c").join(name).with_extension("c");
        succeed(
            compiler("CC", "cc", "c11")
                .arg("-c")
                .arg(source)
                .arg("-o")
                .arg(&object),
        );
        objects.push(object);
    }
    for standard in ["c++11", "c++20"] {
        let mut call = compiler("CXX", "c++", standard);
        let built = program(call.args(&objects), &["cpp.cc"], dir.path());
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
        LamellaCode::LAMELLA_PANIC
    );
    lines
}

#[test]
fn c_and_rust_see_the_same_layouts_and_constants() {
    let said = suite(&["layout.c"], &[]);
    let want = [segment_lines(), edge_lines(), code_lines()].concat();
    assert_eq!(said.lines().collect::<Vec<_>>(), want);
}
