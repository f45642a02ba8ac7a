//! DeepSeek V4 as released: both sizes from their published configurations and tensor tables.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;

use common::{fixture, one_defect, parameters, program, tensor, with};
use damage::bytes;
use lamella_program::closure::draft_operands;
use lamella_program::{OperandId, Program, Role, TensorInfo, state};
use serde_json::{Value, json};

/// What differs between the two released models.
struct Release {
    hidden: usize,
    ratios: Vec<usize>,
    heads: usize,
    query_rank: usize,
    groups: usize,
    width: usize,
    experts: usize,
    scale: f64,
    top_k: usize,
}

fn flash() -> Release {
    Release {
        hidden: 4096,
        ratios: [vec![0, 0, 4], [128, 4].repeat(20)].concat(),
        heads: 64,
        query_rank: 1024,
        groups: 8,
        width: 2048,
        experts: 256,
        scale: 1.5,
        top_k: 512,
    }
}

fn pro() -> Release {
    Release {
        hidden: 7168,
        ratios: [vec![128, 128, 4], [128, 4].repeat(29)].concat(),
        heads: 128,
        query_rank: 1536,
        groups: 16,
        width: 3072,
        experts: 384,
        scale: 2.5,
        top_k: 1024,
    }
}

impl Release {
    fn config(&self) -> Value {
        let (mut config, _) = fixture("deepseek_v4-303");
        for (key, value) in [
            ("hidden_size", json!(self.hidden)),
            ("num_hidden_layers", json!(self.ratios.len())),
            ("num_hash_layers", json!(3)),
            ("num_attention_heads", json!(self.heads)),
            ("head_dim", json!(512)),
            ("qk_rope_head_dim", json!(64)),
            ("q_lora_rank", json!(self.query_rank)),
            ("o_groups", json!(self.groups)),
            ("o_lora_rank", json!(1024)),
            ("moe_intermediate_size", json!(self.width)),
            ("n_routed_experts", json!(self.experts)),
            ("num_experts_per_tok", json!(6)),
            ("routed_scaling_factor", json!(self.scale)),
            ("swiglu_limit", json!(10.0)),
            ("sliding_window", json!(128)),
            ("index_n_heads", json!(64)),
            ("index_head_dim", json!(128)),
            ("index_topk", json!(self.top_k)),
            ("max_position_embeddings", json!(1_048_576)),
            ("vocab_size", json!(129_280)),
            (
                "compress_ratios",
                json!([self.ratios.clone(), vec![0]].concat()),
            ),
        ] {
            config = with(&config, key, value);
        }
        let original = "rope_scaling.original_max_position_embeddings";
        with(&config, original, json!(65_536))
    }

    fn tensors(&self) -> Vec<TensorInfo> {
        let mut table = Table(Vec::new());
        let (v, h) = (129_280, self.hidden);
        table.plain("embed.weight", &[v, h]);
        table.plain("head.weight", &[v, h]);
        table.plain("norm.weight", &[h]);
        table.streams("hc_head", 4, 1, h);
        for (index, &ratio) in self.ratios.iter().enumerate() {
            self.layer(&mut table, &format!("layers.{index}"), ratio, index < 3);
        }
        self.layer(&mut table, "mtp.0", 0, false);
        for name in ["enorm", "hnorm", "norm"] {
            table.plain(&format!("mtp.0.{name}.weight"), &[h]);
        }
        table.fp8("mtp.0.e_proj", [h, h]);
        table.fp8("mtp.0.h_proj", [h, h]);
        table.streams("mtp.0.hc_head", 4, 1, h);
        table.0
    }

    fn layer(&self, t: &mut Table, name: &str, ratio: usize, hashed: bool) {
        let (h, queries, groups) = (self.hidden, self.heads * 512, self.groups);
        t.plain(&format!("{name}.attn_norm.weight"), &[h]);
        t.plain(&format!("{name}.ffn_norm.weight"), &[h]);
        t.streams(&format!("{name}.hc_attn"), 24, 3, h);
        t.streams(&format!("{name}.hc_ffn"), 24, 3, h);
        let attn = format!("{name}.attn");
        t.float(&format!("{attn}.attn_sink"), &[self.heads]);
        t.plain(&format!("{attn}.q_norm.weight"), &[self.query_rank]);
        t.plain(&format!("{attn}.kv_norm.weight"), &[512]);
        t.fp8(&format!("{attn}.wq_a"), [self.query_rank, h]);
        t.fp8(&format!("{attn}.wq_b"), [queries, self.query_rank]);
        t.fp8(&format!("{attn}.wkv"), [512, h]);
        t.fp8(&format!("{attn}.wo_a"), [groups * 1024, queries / groups]);
        t.fp8(&format!("{attn}.wo_b"), [h, groups * 1024]);
        if ratio != 0 {
            t.compressor(&format!("{attn}.compressor"), ratio, 512, h);
        }
        if ratio == 4 {
            let index = format!("{attn}.indexer");
            t.fp8(&format!("{index}.wq_b"), [64 * 128, self.query_rank]);
            t.plain(&format!("{index}.weights_proj.weight"), &[64, h]);
            t.compressor(&format!("{index}.compressor"), ratio, 128, h);
        }
        let ffn = format!("{name}.ffn");
        t.plain(&format!("{ffn}.gate.weight"), &[self.experts, h]);
        match hashed {
            true => t.add(&format!("{ffn}.gate.tid2eid"), "I64", &[129_280, 6]),
            false => t.float(&format!("{ffn}.gate.bias"), &[self.experts]),
        }
        for (w, shape) in self.unit() {
            t.fp8(&format!("{ffn}.shared_experts.{w}"), shape);
        }
        for e in 0..self.experts {
            for (w, [rows, cols]) in self.unit() {
                let name = format!("{ffn}.experts.{e}.{w}");
                t.add(&format!("{name}.weight"), "I8", &[rows, cols / 2]);
                t.add(&format!("{name}.scale"), "F8_E8M0", &[rows, cols / 32]);
            }
        }
    }

    fn unit(&self) -> [(&'static str, [usize; 2]); 3] {
        let (h, f) = (self.hidden, self.width);
        [("w1", [f, h]), ("w3", [f, h]), ("w2", [h, f])]
    }
}

struct Table(Vec<TensorInfo>);

impl Table {
    fn add(&mut self, name: &str, dtype: &str, shape: &[usize]) {
        self.0.push(tensor(name, dtype, shape));
    }

    fn plain(&mut self, name: &str, shape: &[usize]) {
        self.add(name, "BF16", shape);
    }

    fn float(&mut self, name: &str, shape: &[usize]) {
        self.add(name, "F32", shape);
    }

    fn fp8(&mut self, name: &str, [rows, cols]: [usize; 2]) {
        self.add(&format!("{name}.weight"), "F8_E4M3", &[rows, cols]);
        let blocks = [rows.div_ceil(128), cols.div_ceil(128)];
        self.add(&format!("{name}.scale"), "F8_E8M0", &blocks);
    }

    fn streams(&mut self, name: &str, rows: usize, scales: usize, hidden: usize) {
        self.float(&format!("{name}_fn"), &[rows, 4 * hidden]);
        self.float(&format!("{name}_base"), &[rows]);
        self.float(&format!("{name}_scale"), &[scales]);
    }

    fn compressor(&mut self, name: &str, ratio: usize, width: usize, hidden: usize) {
        let channels = if ratio == 4 { 2 * width } else { width };
        self.float(&format!("{name}.ape"), &[ratio, channels]);
        self.plain(&format!("{name}.wkv.weight"), &[channels, hidden]);
        self.plain(&format!("{name}.wgate.weight"), &[channels, hidden]);
        self.plain(&format!("{name}.norm.weight"), &[width]);
    }
}

/// Bytes of the tensors whose names `wanted` accepts.
fn size(table: &[TensorInfo], wanted: impl Fn(&str) -> bool) -> u64 {
    table.iter().filter(|t| wanted(&t.name)).map(bytes).sum()
}

/// What the published arithmetic says of a release.
struct Published {
    parameters: u64,
    experts: u64,
    expert_bytes: u64,
    resident: u64,
    vocabulary: u64,
    draft: [u64; 2],
    draft_parameters: u64,
    values_per_token: usize,
}

fn check_release(release: &Release, published: &Published) -> Program {
    let table = release.tensors();
    let p = program(&release.config(), &table);
    let draft = |name: &str| name.starts_with("mtp.");
    let expert = |name: &str| name.contains(".ffn.experts.");
    let hash = |name: &str| name.ends_with(".tid2eid");
    let layer = |name: &str| name.starts_with("layers.");
    let main_experts = size(&table, |name| expert(name) && !draft(name));
    assert_eq!(main_experts, published.experts * published.expert_bytes);
    let resident = size(&table, |name| layer(name) && !expert(name) && !hash(name));
    assert_eq!(resident, published.resident);
    assert_eq!(
        size(&table, |name| name == "embed.weight"),
        published.vocabulary
    );
    assert_eq!(size(&table, hash), 18_616_320);
    let [dense, experts] = published.draft;
    assert_eq!(size(&table, |name| draft(name) && !expert(name)), dense);
    assert_eq!(size(&table, |name| draft(name) && expert(name)), experts);

    let own = draft_operands(&p);
    let main = p.operands.iter().enumerate();
    let main = main.filter(|(i, _)| !own.contains(&OperandId(*i as u32)));
    let count = main.map(|(_, o)| o).filter(|o| o.role == Role::Expert);
    let count: usize = count.map(|o| o.items()).sum();
    assert_eq!(count as u64, 3 * published.experts);
    // Hash tables are not counted as parameters.
    let counted = parameters(&p, |role| role != Role::Table);
    assert_eq!(counted, published.parameters);
    assert_eq!(state::bytes_per_token(&p), 4 * published.values_per_token);
    assert_eq!(p.draft_parameters(), published.draft_parameters);
    assert!(p.unused.is_empty());
    // The draft head only has a window.
    assert_eq!(state::draft_bytes_per_token(&p), 0);
    assert_eq!(state::draft_fixed_bytes(&p), 4 * 128 * 512);
    assert_eq!(p.boundary.width, 4 * release.hidden);
    p
}

#[test]
fn the_released_flash_model_has_its_published_size() {
    let published = Published {
        parameters: 284_332_240_471,
        experts: 11_008,
        expert_bytes: 13_369_344,
        resident: 6_708_949_192,
        vocabulary: 1_059_061_760,
        draft: [171_235_692, 3_422_552_064],
        draft_parameters: 6_610_048_891,
        values_per_token: 3440,
    };
    let p = check_release(&flash(), &published);
    // Windows, and what compressors keep of tokens that are in no entry yet.
    let raw = 20 * 127 * 1024 + 21 * 7 * (2048 + 512);
    assert_eq!(state::fixed_bytes(&p), 4 * (43 * 128 * 512 + raw));
}

#[test]
fn the_released_pro_model_has_its_published_size() {
    let published = Published {
        parameters: 1_572_997_201_763,
        experts: 23_424,
        expert_bytes: 35_094_528,
        resident: 24_968_175_544,
        vocabulary: 1_853_358_080,
        draft: [480_288_940, 13_476_298_752],
        draft_parameters: 25_840_145_979,
        values_per_token: 4924,
    };
    let p = check_release(&pro(), &published);
    let raw = 31 * 127 * 1024 + 30 * 7 * (2048 + 512);
    assert_eq!(state::fixed_bytes(&p), 4 * (61 * 128 * 512 + raw));
}

/// Of the largest table there is, one wrong count is one defect, and not seventy thousand.
#[test]
fn twice_the_experts_of_the_pro_model() {
    let release = pro();
    let config = with(&release.config(), "n_routed_experts", json!(768));
    let text = one_defect(&config, &release.tensors());
    let start = "config.json: n_routed_experts: is 768, but the checkpoint fits 384; with it, ";
    assert!(text.starts_with(start), "{text}");
}
