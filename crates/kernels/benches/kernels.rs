//! Timings beside the limits of the machine: `cargo bench -p lamella-kernels [-- FILTER [ISA]]`.
//!
//! Medians of several repeats. `GB/s` counts weight (or key and value) bytes, `GOPS` counts two
//! operations a multiply-add.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

use std::sync::Mutex;
use std::time::Instant;

use lamella_kernels::{
    Epilogue, IndexQueries, Input, Isa, Kernels, KvPages, KvRows, KvShape, Matrix, NormWeight,
    PAGE, Pool, QuantisedRows, Query, RowQuery, Rows, Scores, SharedRows, packed_bytes,
};
use lamella_program::Encoding;
use lamella_program::block::GatedActivation;

/// Median seconds of a call.
fn time(mut f: impl FnMut()) -> f64 {
    f();
    let mut samples = Vec::new();
    let begin = Instant::now();
    while samples.len() < 5 || (begin.elapsed().as_secs_f64() < 0.15 && samples.len() < 2000) {
        let start = Instant::now();
        f();
        samples.push(start.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Zeroed memory in huge pages where the system has them.
fn huge(bytes: usize) -> Vec<u8> {
    let memory = vec![0u8; bytes];
    #[cfg(target_os = "linux")]
    {
        let page = 2 << 20;
        let skip = memory.as_ptr().align_offset(page);
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: whole pages inside an allocation of this function's; the advice keeps contents.
        let _ = unsafe {
            let start = memory.as_ptr().add(skip).cast_mut().cast();
            rustix::mm::madvise(start, (bytes - skip) / page * page, advice)
        };
    }
    memory
}

/// MiB of weights, more than any cache holds.
const BIG: usize = 1024;

struct Bench {
    filter: String,
    kernels: Kernels,
    pool: Pool,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn pool(&self) {
        if !self.wants("pool") {
            return;
        }
        let empty = time(|| (0..1000).for_each(|_| self.pool.run(self.pool.threads(), &|_, _| {})));
        println!(
            "pool: empty run {:.3} us, {} threads",
            empty * 1e3,
            self.pool.threads()
        );
        let together = std::sync::atomic::AtomicUsize::new(0);
        let meet = time(|| {
            for _ in 0..1000 {
                together.store(0, std::sync::atomic::Ordering::SeqCst);
                self.pool.run(self.pool.threads(), &|_, _| {
                    together.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    while together.load(std::sync::atomic::Ordering::SeqCst) < self.pool.threads() {
                        std::hint::spin_loop();
                    }
                });
            }
        });
        println!("pool: run in which all threads meet {:.3} us", meet * 1e3);
    }

    fn bandwidth(&self, data: &[u8]) -> f64 {
        let part = data.len() / 64;
        let seconds = time(|| {
            self.pool.run(64, &|task, _| {
                std::hint::black_box(self.kernels.read(&data[task * part..][..part], 1));
            });
        });
        data.len() as f64 / seconds / 1e9
    }

    /// One product with all threads, tasks of a few row blocks.
    fn product(&self, matrix: &Matrix<'_>, input: Input<'_>, tokens: usize, out: &mut [f32]) {
        let view = SharedRows::new(out, matrix.rows, matrix.rows);
        let (blocks, step) = (matrix.blocks(), if tokens > 1 { 4 } else { 8 });
        self.pool.run(blocks.div_ceil(step), &|task, _| {
            let part = task * step..blocks.min(task * step + step);
            let rows = Rows::First(tokens);
            // SAFETY: tasks write different blocks.
            unsafe {
                self.kernels
                    .matmul(matrix, part, input, rows, &view, rows, Epilogue::Store);
            }
        });
    }

    fn matmul(&self, encoding: Encoding, big: &[u8]) {
        let (rows, cols) = (2048, 2048);
        let bytes = packed_bytes(encoding, rows, cols).unwrap();
        let copies = big.len() / bytes;
        for tokens in [1, 2, 3, 4, 8, 16, 32, 128, 512] {
            let name = format!("{encoding} x{tokens}");
            if !self.wants(&name) {
                continue;
            }
            let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 31) as f32 - 15.0).collect();
            let mut quantised = QuantisedRows::default();
            quantised.quantise(&self.kernels, &x, tokens, cols, cols);
            let input = match encoding.is_compiled() {
                true => Input::Quantised(&quantised),
                false => Input::F32 {
                    x: &x,
                    stride: cols,
                },
            };
            let mut out = vec![0.0; tokens * rows];
            let mut copy = 0;
            let seconds = time(|| {
                let data = &big[copy * bytes..][..bytes];
                copy = (copy + 1) % copies;
                self.product(
                    &Matrix {
                        encoding,
                        rows,
                        cols,
                        data,
                    },
                    input,
                    tokens,
                    &mut out,
                );
            });
            let gops = 2.0 * (rows * cols * tokens) as f64 / seconds / 1e9;
            let gbs = bytes as f64 / seconds / 1e9;
            let read = if tokens == 1 {
                self.bandwidth(big)
            } else {
                0.0
            };
            println!("{name:10} {gbs:8.1} GB/s {gops:8.1} GOPS  (read loop {read:.1} GB/s)");
        }
    }

    /// The two products of many experts, as the engine cuts them, for `tokens` rows of each.
    fn experts(&self, encoding: Encoding, tokens: usize, big: &[u8]) {
        let name = format!("experts {encoding} x{tokens}");
        if !self.wants(&name) {
            return;
        }
        let (hidden, width) = (2048, 1024);
        let bytes = packed_bytes(encoding, hidden, width).unwrap();
        let bytes = bytes.max(packed_bytes(encoding, width, hidden).unwrap());
        let experts = big.len() / bytes / 3;
        let matrix = |index: usize, rows: usize, cols: usize| Matrix {
            encoding,
            rows,
            cols,
            data: &big[index * bytes..][..bytes],
        };
        let x: Vec<f32> = (0..tokens * hidden)
            .map(|i| (i % 31) as f32 - 15.0)
            .collect();
        let mut wide = QuantisedRows::default();
        wide.quantise(&self.kernels, &x, tokens, hidden, hidden);
        let mut narrow = QuantisedRows::default();
        narrow.quantise(&self.kernels, &x, tokens, width, width);
        let plain = |stride: usize| Input::F32 { x: &x, stride };
        let (wide, narrow) = match encoding.is_compiled() {
            true => (Input::Quantised(&wide), Input::Quantised(&narrow)),
            false => (plain(hidden), plain(width)),
        };
        let rows = Rows::First(tokens);
        let mut inner = vec![0.0; experts * tokens * width];
        let inner = SharedRows::new(&mut inner, width, width);
        let silu = GatedActivation::Silu;
        let gated = time(|| {
            self.pool.run(experts, &|e, _| {
                let (gate, up) = (matrix(e, width, hidden), matrix(experts + e, width, hidden));
                let out = inner.from_row(e * tokens);
                // SAFETY: each task writes rows of its own.
                unsafe {
                    self.kernels
                        .gated(&gate, &up, 0..gate.blocks(), wide, rows, &out, silu)
                };
            });
        });
        let mut out = vec![0.0; tokens * hidden];
        let out = SharedRows::new(&mut out, hidden, hidden);
        let weights = vec![0.5; tokens];
        let down = time(|| {
            self.pool.run(8, &|task, _| {
                for e in 0..experts {
                    let down = matrix(2 * experts + e, hidden, width);
                    let (blocks, add) = (task * 16..task * 16 + 16, Epilogue::AddScaled(&weights));
                    // SAFETY: each task writes the columns of its own blocks.
                    unsafe {
                        self.kernels
                            .matmul(&down, blocks, narrow, rows, &out, rows, add)
                    };
                }
            });
        });
        let rate = |count: usize, seconds: f64| (count * bytes) as f64 / seconds / 1e9;
        println!(
            "{name}: gate and up {:.1} GB/s, down {:.1} GB/s",
            rate(2 * experts, gated),
            rate(experts, down)
        );
    }

    /// One block from the first-level cache, one thread: the rate of the inner loop.
    fn hot(&self, encoding: Encoding, big: &[u8]) {
        if !self.wants("hot") {
            return;
        }
        let (rows, cols) = (48, 512);
        let matrix = Matrix {
            encoding,
            rows,
            cols,
            data: big,
        };
        for tokens in [1, 2, 4, 8, 32] {
            let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 31) as f32 - 15.0).collect();
            let mut quantised = QuantisedRows::default();
            quantised.quantise(&self.kernels, &x, tokens, cols, cols);
            let input = match encoding.is_compiled() {
                true => Input::Quantised(&quantised),
                false => Input::F32 {
                    x: &x,
                    stride: cols,
                },
            };
            let mut out = vec![0.0; tokens * rows];
            let view = SharedRows::new(&mut out, rows, rows);
            let all = Rows::First(tokens);
            let seconds = time(|| {
                for _ in 0..100 {
                    // SAFETY: one thread.
                    unsafe {
                        self.kernels
                            .matmul(&matrix, 0..3, input, all, &view, all, Epilogue::Store);
                    }
                }
            });
            let gops = 200.0 * (rows * cols * tokens) as f64 / seconds / 1e9;
            println!("hot {encoding} x{tokens}: {gops:.1} GOPS, one thread");
        }
    }

    fn small(&self) {
        if !self.wants("small") {
            return;
        }
        let n = 2048;
        let x: Vec<f32> = (0..n).map(|i| (i % 37) as f32 * 0.1 - 1.8).collect();
        let mut y = x.clone();
        let report = |name: &str, seconds: f64| {
            println!("small: {name} of {n}: {:.2} us", seconds * 1e6);
        };
        let k = &self.kernels;
        let w = NormWeight::Plain(&x);
        report("rms norm", time(|| k.rms_norm(&x, w, 1e-5, &mut y)));
        report("softmax", time(|| k.softmax(&mut y)));
        report("add", time(|| k.add(&mut y, &x)));
        let ones = vec![1.0; n];
        y.fill(0.5);
        report("mul", time(|| k.mul(&mut y, &ones)));
        report(
            "silu",
            time(|| {
                y.copy_from_slice(&x);
                k.silu(&mut y);
            }),
        );
        let mut q = QuantisedRows::with_capacity(1, n);
        report("quantise", time(|| q.quantise(k, &x, 1, n, n)));
        report(
            "argmax",
            time(|| {
                std::hint::black_box(k.argmax(&x));
            }),
        );
    }

    fn attention(&self, positions: usize, queries: usize) {
        let name = format!("attention {queries} queries {positions} positions");
        if !self.wants(&name) {
            return;
        }
        struct Pages<'a>(&'a [f32], &'a [f32], usize);
        impl KvPages for Pages<'_> {
            fn keys(&self, page: usize) -> &[f32] {
                &self.0[page * self.2..][..self.2]
            }
            fn values(&self, page: usize) -> &[f32] {
                &self.1[page * self.2..][..self.2]
            }
        }
        let shape = KvShape {
            heads: 16,
            key_dim: 128,
            value_dim: 128,
        };
        let pages = positions.div_ceil(PAGE);
        let len = shape.key_page_len();
        let layers = ((256 << 20) / (pages * len * 8)).clamp(1, 16);
        let mut memory = huge(layers * pages * len * 8 + 64);
        memory.fill(0x3c);
        // SAFETY: any bytes are floats.
        let (_, floats, _) = unsafe { memory.align_to::<f32>() };
        let cache: Vec<Pages<'_>> = floats
            .chunks_exact(2 * pages * len)
            .map(|layer| Pages(&layer[..pages * len], &layer[pages * len..], len))
            .collect();
        let q = vec![0.01; 128];
        let len = KvShape::attend_scratch(positions);
        let scratch: Vec<_> = (0..self.pool.threads())
            .map(|_| Mutex::new(vec![0.0; len]))
            .collect();
        let mut layer = 0;
        let mut out = vec![0.0; shape.heads * queries * 128];
        let seconds = time(|| {
            layer = (layer + 1) % layers;
            let view = SharedRows::new(&mut out, 128, 128);
            self.pool.run(shape.heads, &|head, worker| {
                for first in (0..queries).step_by(16) {
                    let n = 16.min(queries - first);
                    let mut block: Vec<Query<'_>> = (0..n)
                        .map(|i| Query {
                            vector: &q,
                            visible: 0..positions - queries + first + i + 1,
                            // SAFETY: each row is used once.
                            out: unsafe { view.slice_mut(head * queries + first + i, 0..128) },
                        })
                        .collect();
                    let mut scratch = scratch[worker].lock().unwrap();
                    let pages = &cache[layer];
                    self.kernels
                        .attend(&shape, head, 0.1, pages, &mut block, &mut scratch);
                }
            });
        });
        let bytes = (positions * 16 * 128 * 8) as f64;
        let seen = (queries * (2 * positions - queries + 1) / 2) as f64;
        println!(
            "{name}: {:.1} us, {:.1} GB/s of cache, {:.1} GFLOPS",
            seconds * 1e6,
            bytes / seconds / 1e9,
            seen * 16.0 * 128.0 * 4.0 / seconds / 1e9
        );
    }
}

/// Rows of keys whose first channels are the values.
struct Latent<'a>(&'a [f32], usize, usize);

impl KvRows for Latent<'_> {
    fn key(&self, i: usize) -> &[f32] {
        &self.0[i * self.1..][..self.1]
    }
    fn value(&self, i: usize) -> &[f32] {
        &self.0[i * self.1..][..self.2]
    }
}

impl Bench {
    /// Attention over rows that all heads share, and the scores of selection, one thread.
    fn listed(&self, [count, key_dim, value_dim, heads]: [usize; 4]) {
        let name = format!("rows {count} of {key_dim}, {heads} heads");
        if !self.wants(&name) {
            return;
        }
        let memory: Vec<f32> = (0..count * key_dim)
            .map(|i| (i % 31) as f32 * 0.01)
            .collect();
        let rows = Latent(&memory, key_dim, value_dim);
        let vectors: Vec<f32> = (0..heads * key_dim)
            .map(|i| (i % 29) as f32 * 0.01)
            .collect();
        let mut out = vec![0.0; heads * value_dim];
        let mut scratch = vec![0.0; Kernels::attend_rows_scratch(heads, count)];
        let scores = Scores {
            scale: 0.1,
            growth: 1.0,
        };
        let attend = time(|| {
            let outs = out.chunks_exact_mut(value_dim);
            let mut queries: Vec<RowQuery<'_>> = vectors
                .chunks_exact(key_dim)
                .zip(outs)
                .map(|(vector, out)| RowQuery {
                    vector,
                    bias: None,
                    sink: Some(0.0),
                    out,
                })
                .collect();
            self.kernels
                .attend_rows(&rows, count, scores, &mut queries, &mut scratch);
        });
        let queries = IndexQueries {
            heads,
            vectors: &vectors,
            weights: None,
            scale: 0.1,
        };
        let mut fits = vec![0.0; count];
        let select = time(|| self.kernels.index_scores(&rows, &queries, &mut fits));
        let mut chosen = vec![0; count / 8];
        let top = time(|| {
            self.kernels.top_k(&fits, &mut chosen);
        });
        let gflops =
            |dims: usize, seconds: f64| 2.0 * (count * dims * heads) as f64 / seconds / 1e9;
        println!(
            "{name}: {:.1} us, {:.1} GFLOPS; index scores {:.1} GFLOPS; top eighth {:.1} us",
            attend * 1e6,
            gflops(key_dim + value_dim, attend),
            gflops(key_dim, select),
            top * 1e6
        );
    }

    /// One token through the delta rule of many heads, with all threads.
    fn delta(&self, heads: usize) {
        let name = format!("delta {heads} heads");
        if !self.wants(&name) {
            return;
        }
        let dim = 128;
        let len = dim * dim;
        let layers = ((256 << 20) / (heads * len * 4)).max(1);
        let mut states = vec![0.01f32; layers * heads * len];
        let x: Vec<f32> = (0..dim).map(|i| (i % 37) as f32 * 0.01 - 0.18).collect();
        let decay: Vec<f32> = x.iter().map(|x| 0.9 + x / 10.0).collect();
        let mut out = vec![0.0; heads * dim];
        for decay in [&decay[..1], &decay[..]] {
            let mut layer = 0;
            let seconds = time(|| {
                layer = (layer + 1) % layers;
                let state = SharedRows::new(&mut states, len, len);
                let state = state.from_row(layer * heads);
                let out = SharedRows::new(&mut out, dim, dim);
                self.pool.run(heads, &|head, _| {
                    // SAFETY: each head is one task's.
                    let (state, out) =
                        unsafe { (state.slice_mut(head, 0..len), out.slice_mut(head, 0..dim)) };
                    self.kernels.delta_step(state, &x, &x, &x, decay, 0.5, out);
                });
            });
            let bytes = (heads * len * 8) as f64;
            println!(
                "{name}, {} factors: {:.1} us, {:.1} GB/s read and written",
                decay.len(),
                seconds * 1e6,
                bytes / seconds / 1e9
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let isa = arguments
        .get(1)
        .and_then(|name| Isa::from_name(name))
        .unwrap_or(Isa::detect());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let bench = Bench {
        filter: arguments.first().cloned().unwrap_or_default(),
        kernels: Kernels::new(isa).expect("an instruction set this processor has"),
        pool: Pool::new(threads).expect("threads"),
    };
    println!("{isa}, {threads} threads");
    bench.pool();
    bench.small();
    let mut big = huge((BIG << 20) + 64);
    let skip = big.as_ptr().align_offset(64);
    let big = &mut big[skip..][..BIG << 20];
    big.iter_mut()
        .enumerate()
        .for_each(|(i, byte)| *byte = (i % 29) as u8 + 32);
    println!("read loop {:.1} GB/s", bench.bandwidth(big));
    for encoding in Encoding::ALL {
        bench.hot(encoding, big);
        bench.matmul(encoding, big);
        for tokens in [1, 2, 3, 4, 8] {
            if encoding.is_tiled() {
                bench.experts(encoding, tokens, big);
            }
        }
    }
    for (positions, queries) in [(64, 1), (512, 1), (4096, 1), (512, 512)] {
        bench.attention(positions, queries);
    }
    for shape in [
        [2048, 576, 512, 64],
        [2048, 576, 512, 1],
        [640, 512, 512, 64],
        [2048, 128, 128, 6],
    ] {
        bench.listed(shape);
    }
    for heads in [1, 48] {
        bench.delta(heads);
    }
}
