//! Snapshots whose digests are right and whose content cannot be: refused, and the session is as it
//! was. The format is written out here once more, so that a change of it shows.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use lamella::adapters::segment_registrars as registrars;
use lamella::lamella::{LamellaCode, lamella_last_error_code};
use lamella::segment::abi::*;
use lamella::segment::exports::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use twox_hash::XxHash3_128;

/// Bytes of a digest, and of payload before each.
const DIGEST: usize = 16;
const CHUNK: usize = 1 << 20;

/// Offsets in the header.
const LENGTH: usize = 12;
const MODEL: usize = 16;
const LAYER_BEGIN: usize = 48;
const CONTEXT: usize = 56;
const POSITION: usize = 64;
const PAYLOAD: usize = 72;
const SCHEMA: usize = 80;
const RECENT: usize = 88;
const TEXTS: usize = 92;

/// Hidden size of the fixture of the family whose rows carry positions.
const GLM_HIDDEN: usize = 64;

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Makes all digests of a stream right again. Its payload is what its header says, or all there is.
fn seal(stream: &mut [u8]) {
    let header = number(stream, LENGTH);
    let digest = XxHash3_128::oneshot(&stream[..header - DIGEST]).to_le_bytes();
    stream[header - DIGEST..header].copy_from_slice(&digest);
    let mut all = XxHash3_128::default();
    all.write(&digest);
    let mut at = header;
    let end = stream.len() - DIGEST;
    for index in 0.. {
        let chunk = CHUNK.min((end - at).saturating_sub(DIGEST));
        if chunk == 0 {
            break;
        }
        let mut hash = XxHash3_128::with_seed(index);
        hash.write(&stream[at..at + chunk]);
        let digest = hash.finish_128().to_le_bytes();
        stream[at + chunk..at + chunk + DIGEST].copy_from_slice(&digest);
        all.write(&digest);
        at += chunk + DIGEST;
    }
    stream[end..].copy_from_slice(&all.finish_128().to_le_bytes());
}

unsafe extern "C-unwind" fn grow(user: *mut c_void, data: *const c_void, size: usize) -> c_int {
    // SAFETY: the tests pass a list, and the library so many bytes.
    unsafe {
        let list = &mut *user.cast::<Vec<u8>>();
        list.extend_from_slice(std::slice::from_raw_parts(data.cast(), size));
    }
    0
}

unsafe extern "C-unwind" fn take(user: *mut c_void, data: *mut c_void, size: usize) -> c_int {
    // SAFETY: the tests pass a slice, and the library room for so many bytes.
    unsafe {
        let rest = &mut *user.cast::<&[u8]>();
        let Some((now, later)) = rest.split_at_checked(size) else {
            return 1;
        };
        std::ptr::copy_nonoverlapping(now.as_ptr(), data.cast(), size);
        *rest = later;
    }
    0
}

/// A session in the first layers of a fixture.
struct Held {
    engine: *mut ColiSegmentEngine,
    session: *mut ColiSegmentSession,
    capabilities: ColiSegmentCapabilities,
}

fn succeed(call: impl FnOnce(*mut c_char, usize) -> c_int) {
    let mut text = [0u8; 512];
    let code = call(text.as_mut_ptr().cast(), text.len());
    assert_eq!(code, 0, "{:?}", CStr::from_bytes_until_nul(&text));
}

impl Held {
    fn open(family: &str, fixture: &str) -> Held {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fixtures")
            .join(fixture);
        let dir = CString::new(dir.to_str().unwrap()).unwrap();
        let family = CString::new(family).unwrap();
        // SAFETY: blocks of C may be zero; everything handed over lives through its call.
        unsafe {
            let mut options: ColiSegmentEngineOptions = std::mem::zeroed();
            options.struct_size = size_of_val(&options) as u32;
            options.model_dir = dir.as_ptr();
            options.layer_end = 3;
            options.context_tokens = 64;
            let mut engine = std::ptr::null_mut();
            succeed(|e, n| coli_segment_engine_open(family.as_ptr(), &options, &mut engine, e, n));
            let mut capabilities: ColiSegmentCapabilities = std::mem::zeroed();
            capabilities.struct_size = size_of_val(&capabilities) as u32;
            succeed(|e, n| coli_segment_engine_capabilities(engine, &mut capabilities, e, n));
            let mut options: ColiSegmentSessionOptions = std::mem::zeroed();
            options.struct_size = size_of_val(&options) as u32;
            options.context_tokens = 64;
            let mut session = std::ptr::null_mut();
            succeed(|e, n| coli_segment_session_create(engine, &options, &mut session, e, n));
            Held {
                engine,
                session,
                capabilities,
            }
        }
    }

    /// Runs `rows` rows from `position` on. A row says that it selects everything where positions
    /// are part of it.
    fn feed(&self, position: u64, rows: usize) {
        let ids: Vec<i32> = (0..rows as i32).map(|id| id + 3).collect();
        let width = self.capabilities.state_width as usize;
        let mut values: Vec<f32> = (0..rows * width).map(|i| (i % 7) as f32 / 4.0).collect();
        // Behind its streams such a row has the number of its positions: -1 is all of them.
        if let Some(streams) = self.streams() {
            for row in values.chunks_exact_mut(width) {
                row[streams..].fill(0.0);
                row[streams] = -1.0;
            }
        }
        // SAFETY: as in `open`.
        unsafe {
            let mut request: ColiSegmentRunRequest = std::mem::zeroed();
            request.struct_size = size_of_val(&request) as u32;
            request.rows = rows as u32;
            request.position = position;
            request.token_ids = ids.as_ptr();
            request.token_count = rows;
            request.input = values.as_ptr().cast();
            request.output = values.as_mut_ptr().cast();
            request.input_bytes = size_of_val(&*values);
            request.output_bytes = request.input_bytes;
            succeed(|e, n| coli_segment_run(self.session, &request, e, n));
        }
    }

    /// Numbers of a row before the positions that it carries, where it does.
    fn streams(&self) -> Option<usize> {
        self.schema().starts_with("glm").then_some(GLM_HIDDEN)
    }

    fn schema(&self) -> String {
        // SAFETY: the library ends its texts.
        let text = unsafe { CStr::from_ptr(self.capabilities.state_schema.as_ptr()) };
        text.to_str().unwrap().to_owned()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut stream: Vec<u8> = vec![];
        let list = (&raw mut stream).cast();
        // SAFETY: the list lives through the call.
        succeed(|e, n| unsafe { coli_segment_snapshot(self.session, Some(grow), list, e, n) });
        stream
    }

    fn restore(&self, stream: &[u8]) -> c_int {
        let mut rest = stream;
        let user = (&raw mut rest).cast();
        // SAFETY: the slice lives through the call.
        unsafe { coli_segment_restore(self.session, Some(take), user, std::ptr::null_mut(), 0) }
    }

    /// A stream that `change` has spoilt is refused, and the session is as it was.
    fn refuses(&self, stream: &[u8], what: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let before = self.snapshot();
        let mut forged = stream.to_vec();
        change(&mut forged);
        seal(&mut forged);
        let family = self.schema();
        assert_eq!(self.restore(&forged), -1, "{family}: {what}");
        assert_eq!(
            lamella_last_error_code(),
            LamellaCode::LAMELLA_SNAPSHOT,
            "{family}: {what}"
        );
        assert!(self.snapshot() == before, "{family}: {what}");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        coli_segment_session_destroy(self.session);
        // SAFETY: the engine has no session any more.
        succeed(|e, n| unsafe { coli_segment_engine_close(self.engine, e, n) });
    }
}

fn put(stream: &mut [u8], at: usize, value: u64) {
    stream[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn forgeries(held: &Held, stream: &[u8]) {
    let header = number(stream, LENGTH);
    held.refuses(stream, "another model", |s| s[MODEL] ^= 1);
    held.refuses(stream, "another range", |s| s[LAYER_BEGIN] += 1);
    held.refuses(stream, "another schema", |s| s[TEXTS] ^= 1);
    let class = TEXTS + number(stream, SCHEMA);
    held.refuses(stream, "another class", |s| s[class] ^= 1);
    held.refuses(stream, "a position beyond its context", |s| {
        put(s, CONTEXT, 8)
    });
    held.refuses(stream, "a position beyond the session", |s| {
        put(s, POSITION, 65);
        put(s, CONTEXT, 65);
    });
    held.refuses(stream, "no position", |s| put(s, POSITION, u64::MAX));
    held.refuses(stream, "payload without end", |s| put(s, PAYLOAD, u64::MAX));
    held.refuses(stream, "no payload", |s| put(s, PAYLOAD, 0));
    held.refuses(stream, "state that is no number", |s| {
        s[header..header + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let recent = number(stream, RECENT);
    if recent > 0 {
        let ids = header - DIGEST - 4 * recent;
        held.refuses(stream, "an id that is none", |s| {
            s[ids..ids + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        });
        held.refuses(stream, "a history that is too short", |s| {
            s.drain(ids..ids + 4);
            s[RECENT..RECENT + 4].copy_from_slice(&(recent as u32 - 1).to_le_bytes());
            s[LENGTH..LENGTH + 4].copy_from_slice(&(header as u32 - 4).to_le_bytes());
        });
        held.refuses(stream, "a history at its beginning", |s| {
            put(s, POSITION, 1)
        });
    }
}

#[test]
fn snapshots_that_make_no_sense_are_refused() {
    let families = [
        (
            registrars::coli_deepseek_v4_segment_adapter_register as extern "C" fn() -> c_int,
            "deepseek_v4",
            "deepseek_v4-101",
        ),
        (
            registrars::coli_glm_segment_adapter_register,
            "glm",
            "glm-101",
        ),
        (
            registrars::coli_inkling_segment_adapter_register,
            "inkling",
            "inkling-101",
        ),
        (
            registrars::coli_kimi_segment_adapter_register,
            "kimi",
            "kimi_k3-101",
        ),
        (
            registrars::coli_olmoe_segment_adapter_register,
            "olmoe",
            "olmoe-101",
        ),
        (
            registrars::coli_qwen36_segment_adapter_register,
            "qwen36",
            "qwen36-101",
        ),
        (
            registrars::coli_qwen38_segment_adapter_register,
            "qwen38",
            "qwen38-111",
        ),
    ];
    let mut histories = 0;
    for (register, family, fixture) in families {
        assert_eq!(register(), 0);
        let (source, held) = (Held::open(family, fixture), Held::open(family, fixture));
        source.feed(0, 9);
        held.feed(0, 4);
        let mut stream = source.snapshot();
        let written = stream.clone();
        seal(&mut stream);
        assert!(stream == written, "{family}: the format is another one");
        forgeries(&held, &stream);
        histories += number(&stream, RECENT);
        assert_eq!(held.restore(&stream), 0, "{family}");
        assert!(held.snapshot() == stream, "{family}");
    }
    assert!(histories > 0, "no family here remembers token ids");
}
