//! A check in progress: which operands are claimed, which defects were found.

use super::defect::Defect;
use crate::block::{Linear, MAX_TAPS, RmsNorm, ShortConvolution};
use crate::operand::{Operand, OperandId, Role};
use crate::program::Program;
use std::collections::{HashMap, HashSet};

/// A length. `None` where it cannot be told because something it comes from is a defect already;
/// what depends on it is then claimed and not compared.
pub(super) type Size = Option<usize>;

/// A size that a product names too, where zero is reported.
pub(super) fn known(size: usize) -> Size {
    Some(size).filter(|&size| size > 0)
}

/// Largest count that sizes nothing in the operand table: windows, distances, numbers of selected
/// positions. Sums and products of two of them cannot overflow.
pub(super) const MAX_COUNT: usize = (1 << 31) - 1;

/// In which form a block reads an operand. A role decides how an operand is held in memory, so it
/// has to be one of those that are held as the block reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Rows of f32 values.
    Plain,
    /// Taps of a convolution, which are transposed at opening.
    Kernel,
    /// A linear map, possibly in a compiled encoding.
    Linear,
    /// One of a unit's maps, two of which are computed together in one encoding.
    Unit,
    /// A linear map that is read row by row in f32.
    Rows,
    /// A linear map of f32 inputs.
    Router,
    /// A table of which rows are looked up.
    Embedding,
    /// The map to the logits.
    Head,
    /// A stack of matrices, one for each expert.
    Stack,
    /// Integers.
    Table,
}

impl Form {
    fn allows(self, role: Role) -> bool {
        match self {
            Form::Plain => matches!(role, Role::Vector | Role::Kernel),
            Form::Kernel => role == Role::Kernel,
            Form::Linear => matches!(role, Role::Linear | Role::Router),
            Form::Unit | Form::Rows => role == Role::Linear,
            Form::Router => role == Role::Router,
            Form::Embedding => role == Role::Embedding,
            // A tied head is the embedding.
            Form::Head => matches!(role, Role::Head | Role::Embedding),
            Form::Stack => role == Role::Expert,
            Form::Table => role == Role::Table,
        }
    }

    fn roles(self) -> &'static str {
        match self {
            Form::Plain => "Vector or Kernel",
            Form::Kernel => "Kernel",
            Form::Linear => "Linear or Router",
            Form::Unit | Form::Rows => "Linear",
            Form::Router => "Router",
            Form::Embedding => "Embedding",
            Form::Head => "Head or Embedding",
            Form::Stack => "Expert",
            Form::Table => "Table",
        }
    }
}

/// A check in progress.
pub(super) struct Checker<'p> {
    pub(super) program: &'p Program,
    pub(super) defects: Vec<Defect>,
    pub(super) used: HashSet<OperandId>,
    /// For operands read so far, whether it was row by row: none is laid out both ways.
    by_rows: HashMap<OperandId, bool>,
    /// Places, or operands, and what was said of them so far: one cause is reported once.
    said: HashSet<(String, String)>,
    /// Whether a layer so far selects positions that later layers may share.
    pub(super) selection: bool,
}

impl<'p> Checker<'p> {
    pub(super) fn new(program: &'p Program) -> Checker<'p> {
        Checker {
            program,
            defects: Vec::new(),
            used: HashSet::new(),
            by_rows: HashMap::new(),
            said: HashSet::new(),
            selection: false,
        }
    }

    /// Width of one stream.
    pub(super) fn hidden(&self) -> Size {
        known(self.program.dims.hidden)
    }

    /// Reports operands that nothing has claimed.
    pub(super) fn unused(&mut self) {
        for (index, operand) in self.program.operands.iter().enumerate() {
            let id = u32::try_from(index).map(OperandId);
            if !id.is_ok_and(|id| self.used.contains(&id)) {
                self.defects
                    .push(Defect::UnusedOperand(operand.name.clone()));
            }
        }
    }

    /// The operand, if it exists.
    fn claim(&mut self, place: &str, id: OperandId, form: Form) -> Option<&'p Operand> {
        self.used.insert(id);
        let Some(operand) = self.program.operands.get(id.index()) else {
            self.defects.push(Defect::DanglingOperand {
                place: place.to_owned(),
                id: id.0,
            });
            return None;
        };
        if !form.allows(operand.role) && self.first(operand, form.roles()) {
            self.defects.push(Defect::OperandRole {
                place: place.to_owned(),
                operand: operand.name.clone(),
                found: operand.role,
                expected: form.roles(),
            });
        }
        let by_rows = form == Form::Rows;
        if *self.by_rows.entry(id).or_insert(by_rows) != by_rows {
            let name = &operand.name;
            let message = format!("operand {name} is read row by row in one block, not in another");
            self.geometry(place, message);
        }
        Some(operand)
    }

    /// Whether an operand, which several blocks may share, is told for the first time what it
    /// should be.
    fn first(&mut self, operand: &Operand, expected: &str) -> bool {
        self.said
            .insert((operand.name.clone(), expected.to_owned()))
    }

    fn shape(&mut self, place: &str, operand: &Operand, expected: Vec<usize>) {
        if !self.first(operand, &format!("{expected:?}")) {
            return;
        }
        self.defects.push(Defect::OperandShape {
            place: place.to_owned(),
            operand: operand.name.clone(),
            found: operand.shape.clone(),
            expected,
        });
    }

    /// An operand of exactly this shape.
    pub(super) fn expect(&mut self, place: &str, id: OperandId, form: Form, shape: &[Size]) {
        let Some(operand) = self.claim(place, id, form) else {
            return;
        };
        if let Some(expected) = shape.iter().copied().collect::<Option<Vec<usize>>>()
            && operand.shape != expected
        {
            self.shape(place, operand, expected);
        }
    }

    /// A vector `[len]`.
    pub(super) fn vector(&mut self, place: &str, id: OperandId, len: Size) {
        self.expect(place, id, Form::Plain, &[len]);
    }

    /// A vector of at least `len` values.
    pub(super) fn vector_from(&mut self, place: &str, id: OperandId, len: Size) {
        let Some(operand) = self.claim(place, id, Form::Plain) else {
            return;
        };
        if let Some(len) = len
            && !matches!(operand.shape[..], [found] if found >= len)
        {
            self.shape(place, operand, vec![len]);
        }
    }

    /// A matrix `[rows, cols]` whose rows nothing else tells; their number.
    pub(super) fn rows(&mut self, place: &str, id: OperandId, form: Form, cols: Size) -> Size {
        let operand = self.claim(place, id, form)?;
        let cols = cols?;
        match operand.shape[..] {
            [rows, found] if found == cols => known(rows),
            _ => {
                let rows = operand.shape.first().copied().unwrap_or(1);
                self.shape(place, operand, vec![rows, cols]);
                None
            }
        }
    }

    /// A table that alone tells its shape.
    pub(super) fn embedding(&mut self, place: &str, id: OperandId) -> Option<[usize; 2]> {
        let operand = self.claim(place, id, Form::Embedding)?;
        if let [rows, cols] = operand.shape[..] {
            return Some([rows, cols]);
        }
        let rows = operand.shape.first().copied().unwrap_or(1);
        self.shape(place, operand, vec![rows, 1]);
        None
    }

    /// A linear map `[rows, cols]`.
    pub(super) fn linear(&mut self, place: &str, linear: &Linear, rows: Size, cols: Size) {
        self.linear_as(place, linear, Form::Linear, rows, cols);
    }

    /// A linear map `[rows, cols]` that is read in a form of its own.
    pub(super) fn linear_as(
        &mut self,
        place: &str,
        linear: &Linear,
        form: Form,
        rows: Size,
        cols: Size,
    ) {
        self.expect(place, linear.weight, form, &[rows, cols]);
        if let Some(bias) = linear.bias {
            self.vector(place, bias, rows);
        }
    }

    /// A linear map into a width that nothing else tells; that width.
    pub(super) fn linear_rows(&mut self, place: &str, linear: &Linear, cols: Size) -> Size {
        let rows = self.rows(place, linear.weight, Form::Linear, cols);
        if let Some(bias) = linear.bias {
            self.vector(place, bias, rows);
        }
        rows
    }

    /// A norm over `width` values.
    pub(super) fn norm(&mut self, place: &str, norm: &RmsNorm, width: Size) {
        if let Some(weight) = norm.weight {
            self.vector(place, weight, width);
        }
        self.eps(place, norm.eps);
    }

    /// A convolution over `channels` channels.
    pub(super) fn convolution(&mut self, place: &str, c: &ShortConvolution, channels: Size) {
        let mut taps = self.count(place, "taps", c.taps);
        if taps.is_some_and(|taps| taps > MAX_TAPS) {
            self.geometry(place, format!("{} taps, at most {MAX_TAPS}", c.taps));
            taps = None;
        }
        self.count(place, "dilation", c.dilation);
        self.expect(place, c.weight, Form::Kernel, &[channels, Some(1), taps]);
    }

    /// The product of named sizes, none of which may be zero.
    pub(super) fn product(&mut self, place: &str, factors: &[(&str, usize)]) -> Size {
        let mut product = Some(1usize);
        for &(name, factor) in factors {
            if factor == 0 {
                self.geometry(place, format!("{name} is zero"));
                product = None;
            }
        }
        let product = product?;
        let result = factors
            .iter()
            .try_fold(product, |n, &(_, factor)| n.checked_mul(factor));
        if result.is_none() {
            let names: Vec<&str> = factors.iter().map(|f| f.0).collect();
            self.geometry(place, format!("{} overflows", names.join(" times ")));
        }
        result
    }

    /// The product of a size and one that may not be known.
    pub(super) fn times(&mut self, place: &str, a: (&str, usize), b: (&str, Size)) -> Size {
        self.product(place, &[a, (b.0, b.1?)])
    }

    /// The sum of two lengths.
    pub(super) fn sum(&mut self, place: &str, a: Size, b: Size) -> Size {
        let (a, b) = (a?, b?);
        let sum = a.checked_add(b);
        if sum.is_none() {
            self.geometry(place, format!("{a} and {b} are too many together"));
        }
        sum
    }

    /// A number of tokens, taps or choices: at least 1 and no more than anything could use.
    pub(super) fn count(&mut self, place: &str, name: &str, count: usize) -> Size {
        if count == 0 {
            self.geometry(place, format!("{name} is zero"));
        } else if count > MAX_COUNT {
            self.geometry(
                place,
                format!("{name} {count} is larger than anything could use"),
            );
        } else {
            return Some(count);
        }
        None
    }

    /// A number that is added under a root or to a denominator.
    pub(super) fn eps(&mut self, place: &str, eps: f32) {
        if !(eps.is_finite() && eps >= 0.0) {
            self.geometry(place, format!("eps {eps} is not usable"));
        }
    }

    /// A finite number.
    pub(super) fn finite(&mut self, place: &str, name: &str, value: f32) {
        if !value.is_finite() {
            self.geometry(place, format!("{name} {value} is not finite"));
        }
    }

    /// A finite number above zero.
    pub(super) fn positive(&mut self, place: &str, name: &str, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            self.geometry(place, format!("{name} {value} is not a positive number"));
        }
    }

    /// Numbers that contradict each other.
    pub(super) fn geometry(&mut self, place: &str, message: String) {
        if self.said.insert((place.to_owned(), message.clone())) {
            self.defects.push(Defect::Geometry {
                place: place.to_owned(),
                message,
            });
        }
    }
}
