//! The tiny checkpoint with its weights in codes, and what the codes stand for by the formulas.

use super::{Sizes, Tensor, Tensors, program_of, safetensors, tensors_of, write_texts};
use lamella_container::Store;
use lamella_program::block::Ffn;
use lamella_program::operand::Coding;
use lamella_program::{Operand, OperandId, Program, Role, Slice};
use std::collections::BTreeMap;
use std::path::Path;

/// Sizes that scales for 32 columns divide and blocks do not.
pub const CODED: Sizes = Sizes {
    hidden: 96,
    width: 64,
    experts: 3,
    vocabulary: 50,
};

/// The name of the integer table.
pub const TABLE: &str = "model.0.experts_by_token";

/// How a tensor is to be stored.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// FP8 in blocks with scales of this type.
    Block(&'static str, [usize; 2]),
    /// FP8 with one scale of this type.
    Whole(&'static str),
    /// FP4 codes of the first type, E8M0 scales of the second.
    Mxfp4(&'static str, &'static str),
    /// FP4 with two scales; `true` for an outer one an item, otherwise one in all.
    Nvfp4(bool),
}

/// A checkpoint before it is written.
pub struct Shipment {
    pub program: Program,
    pub tensors: Tensors,
    /// The numbers of coded tensors and tables.
    pub decoded: BTreeMap<String, Vec<f32>>,
    random: Random,
}

/// A generator that gives the same every time.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }
}

/// The number of an E4M3 code.
pub fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from((code >> 3) & 15), f64::from(code & 7) / 8.0);
    let sign = if code < 128 { 1.0 } else { -1.0 };
    match exponent {
        _ if code & 127 == 127 => f64::NAN,
        0 => sign * fraction * 2f64.powi(-6),
        e => sign * (1.0 + fraction) * 2f64.powi(e - 7),
    }
}

/// The number of an E2M1 code.
pub fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code < 8 { magnitude } else { -magnitude }
}

/// The number of an E8M0 scale.
pub fn e8m0(bits: u8) -> f64 {
    2f64.powi(i32::from(bits) - 127)
}

/// Rounds once, as an f32 product does: the f64 product of two f32 is exact.
fn times(a: f64, b: f64) -> f64 {
    f64::from((a * b) as f32)
}

/// Scales of one type: their bytes and their numbers.
fn scales(dtype: &str, count: usize, random: &mut Random) -> (Vec<u8>, Vec<f64>) {
    let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let value = 0.001 + random.below(1 << 20) as f32 / (1 << 26) as f32;
        match dtype {
            "F32" => {
                bytes.extend_from_slice(&value.to_le_bytes());
                numbers.push(f64::from(value));
            }
            "BF16" => {
                let bits = (value.to_bits() >> 16) as u16;
                bytes.extend_from_slice(&bits.to_le_bytes());
                numbers.push(f64::from(f32::from_bits(u32::from(bits) << 16)));
            }
            "F8_E4M3" => {
                let code = random.below(0x7f) as u8;
                bytes.push(code);
                numbers.push(e4m3(code));
            }
            _ => {
                let bits = 115 + random.below(12) as u8;
                bytes.push(bits);
                numbers.push(e8m0(bits));
            }
        }
    }
    (bytes, numbers)
}

/// The scales of a tensor, and the block of numbers that shares one.
struct Grid {
    dtype: &'static str,
    shape: Vec<usize>,
    block: [usize; 2],
    coding: Coding,
}

impl Grid {
    fn of(name: &str, how: How, leading: &[usize], cols: usize) -> Grid {
        let rows = leading.iter().product::<usize>();
        let scale = format!("{name}.scale");
        let (dtype, shape, block, coding) = match how {
            How::Block(dtype, block) => {
                let shape = vec![rows.div_ceil(block[0]), cols.div_ceil(block[1])];
                (dtype, shape, block, Coding::BlockFp8 { scale, block })
            }
            How::Whole(dtype) => {
                let coding = Coding::TensorFp8 { scale };
                (dtype, vec![1], [rows, cols], coding)
            }
            How::Mxfp4(_, dtype) => {
                let shape = [leading, &[cols / 32]].concat();
                (dtype, shape, [1, 32], Coding::Mxfp4 { scale })
            }
            How::Nvfp4(_) => {
                let global = format!("{name}.global");
                let shape = [leading, &[cols / 16]].concat();
                ("F8_E4M3", shape, [1, 16], Coding::Nvfp4 { scale, global })
            }
        };
        Grid {
            dtype,
            shape,
            block,
            coding,
        }
    }
}

impl Shipment {
    /// The plain tiny model.
    pub fn plain(sizes: Sizes) -> Shipment {
        Shipment {
            program: program_of(sizes).0,
            tensors: tensors_of(sizes),
            decoded: BTreeMap::new(),
            random: Random(7),
        }
    }

    /// The tiny model with every coding somewhere, and a table.
    pub fn new(sizes: Sizes) -> Shipment {
        let mut shipment = Shipment::plain(sizes);
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        shipment.code("model.embedding.weight", How::Whole("BF16"));
        shipment.code(&layer("query"), How::Block("F32", [40, 64]));
        shipment.code(&layer("key"), How::Block("BF16", [128, 128]));
        shipment.code(&layer("value"), How::Block("F8_E8M0", [16, 32]));
        shipment.code(&layer("output"), How::Block("F8_E8M0", [1, 32]));
        for expert in 0..sizes.experts {
            let name = |matrix: &str| format!("model.layers.0.{matrix}.{expert}.weight");
            shipment.code(&name("gate"), How::Mxfp4("U8", "U8"));
            shipment.code(&name("up"), How::Mxfp4("I8", "F8_E8M0"));
            shipment.code(&name("down"), How::Mxfp4("F4", "F8_E8M0"));
            let down = format!("model.layers.1.down.{expert}.weight");
            shipment.code(&down, How::Nvfp4(false));
        }
        shipment.code("model.1.gate_up", How::Nvfp4(true));
        let ids = 0..2 * sizes.vocabulary as i64;
        shipment.table(ids.map(|n| n * 7 % sizes.experts as i64).collect());
        shipment
    }

    /// Replaces a tensor by random codes.
    pub fn code(&mut self, name: &str, how: How) {
        let shape = self.tensors[name].shape.clone();
        let (cols, leading) = shape.split_last().unwrap();
        let rows = leading.iter().product::<usize>();
        let four_bits = matches!(how, How::Mxfp4(..) | How::Nvfp4(_));
        let count = if four_bits {
            rows * cols / 2
        } else {
            rows * cols
        };
        let codes: Vec<u8> = (0..count)
            .map(|_| match self.random.next() as u8 {
                code if !four_bits && code & 127 == 127 => code & 0xfe,
                code => code,
            })
            .collect();
        let Grid {
            dtype,
            shape: dims,
            block: [b0, b1],
            coding,
        } = Grid::of(name, how, leading, *cols);
        let (bytes, inner) = scales(dtype, dims.iter().product(), &mut self.random);
        self.insert(&format!("{name}.scale"), dtype, &dims, bytes);
        let outer = self.outer(name, how, leading);
        let mut numbers = Vec::with_capacity(rows * cols);
        for n in 0..rows * cols {
            let (row, col) = (n / cols, n % cols);
            let scale = inner[row / b0 * cols.div_ceil(b1) + col / b1];
            let number = if four_bits {
                e2m1((codes[n / 2] >> (4 * (n % 2))) & 15)
            } else {
                e4m3(codes[n])
            };
            let number = times(number, scale);
            let number = match outer.len() {
                0 => number,
                items => times(number, outer[row / (rows / items)]),
            };
            numbers.push(number as f32);
        }
        self.decoded.insert(name.to_owned(), numbers);
        let stored = match how {
            How::Mxfp4("F4", _) => shape.clone(),
            _ if four_bits => [leading, &[cols / 2]].concat(),
            _ => shape.clone(),
        };
        let dtype = match how {
            How::Mxfp4(dtype, _) => dtype,
            How::Nvfp4(_) => "U8",
            _ => "F8_E4M3",
        };
        self.insert(name, dtype, &stored, codes);
        self.recode(name, &coding);
    }

    fn outer(&mut self, name: &str, how: How, leading: &[usize]) -> Vec<f64> {
        let How::Nvfp4(each) = how else {
            return Vec::new();
        };
        let dims = if each { vec![leading[0]] } else { Vec::new() };
        let (bytes, numbers) = scales("F32", dims.iter().product(), &mut self.random);
        self.insert(&format!("{name}.global"), "F32", &dims, bytes);
        numbers
    }

    pub fn insert(&mut self, name: &str, dtype: &'static str, shape: &[usize], bytes: Vec<u8>) {
        let shape = shape.to_vec();
        let tensor = Tensor {
            dtype,
            shape,
            bytes,
        };
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// Says of every slice of a tensor that it is in codes.
    pub fn recode(&mut self, name: &str, coding: &Coding) {
        let operands = self.program.operands.iter_mut();
        let slices = operands.flat_map(|o| o.parts.iter_mut().flatten());
        for slice in slices.filter(|s| s.tensor == name) {
            *slice.tensor_shape.last_mut().unwrap() /= coding.per_element();
            slice.coding = Some(coding.clone());
        }
    }

    /// Routes layer 0 by a table of I64.
    fn table(&mut self, ids: Vec<i64>) {
        let shape = [ids.len() / 2, 2];
        self.decoded
            .insert(TABLE.to_owned(), ids.iter().map(|&n| n as f32).collect());
        let bytes = ids.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.insert(TABLE, "I64", &shape, bytes);
        self.program.operands.push(Operand {
            name: "layers.0.table".to_owned(),
            shape: shape.to_vec(),
            role: Role::Table,
            parts: vec![vec![Slice::whole(TABLE, &shape)]],
        });
        let id = OperandId(self.program.operands.len() as u32 - 1);
        if let Ffn::Routed(routed) = &mut self.program.layers[0].ffn.body {
            routed.router.hash_table = Some(id);
        }
        self.program.boundary.needs_token_ids = true;
    }

    /// What an item of an operand must be, if it is coded.
    pub fn expected(&self, operand: &Operand, item: usize) -> Option<Vec<f32>> {
        let mut rows = Vec::new();
        for slice in &operand.parts[item] {
            let numbers = self.decoded.get(&slice.tensor)?;
            for n in 0..slice.rows {
                let start = (slice.start + n * slice.step) * slice.cols();
                rows.extend_from_slice(&numbers[start..start + slice.cols()]);
            }
        }
        Some(rows)
    }

    pub fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        write_texts(dir);
        std::fs::write(dir.join("model.safetensors"), safetensors(&self.tensors)).unwrap();
    }

    pub fn open(&self, dir: &Path) -> Result<Store, lamella_container::Error> {
        self.write(dir);
        Store::open(dir, &|_, _| Ok(self.program.clone()))
    }
}
