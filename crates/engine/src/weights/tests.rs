//! Which encodings the maps of a unit take together.

use super::*;
use std::path::Path;

#[test]
fn maps_of_a_unit_are_held_in_one_encoding_or_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/olmoe-101");
    let store = Store::open(&path, &crate::lower).expect("a golden checkpoint");
    let program = store.program();
    let mut choices = choose_all(&store, &Options::default()).expect("it can be opened");
    let unit = units(&program.layers[0].ffn.body)[0];
    let (gate, up) = (unit.gate.index(), unit.up.index());
    choices[gate].resident = Encoding::F16;
    choices[up].resident = Encoding::Bf16;
    pair_up(program, false, &mut choices).expect("f32 holds both");
    for id in [gate, up] {
        assert_eq!(choices[id].resident, Encoding::F32);
    }
    for other in [Encoding::Q4, Encoding::Bf16] {
        choices[gate].resident = Encoding::Q8;
        choices[up].resident = other;
        let Err(Error::Unpaired {
            first,
            second,
            encodings,
        }) = pair_up(program, false, &mut choices)
        else {
            panic!("q8 and {other} have no encoding in common");
        };
        assert_eq!(first, program.operands[gate].name);
        assert_eq!(second, program.operands[up].name);
        assert_eq!(encodings, [Encoding::Q8, other]);
    }
}

fn loaded(layout: Layout, cols: usize) -> Loaded {
    Loaded {
        choice: Choice {
            stored: Encoding::F32,
            resident: Encoding::F32,
            layout,
        },
        rows: 16,
        cols,
        item_bytes: 256,
        data: Buffer::zeroed(256).expect("memory"),
        held: 0..0,
    }
}

#[test]
fn operands_are_read_as_they_are_held() {
    assert_eq!(loaded(Layout::Rows, 4).vector().len(), 64);
    assert_eq!(loaded(Layout::Packed, 4).matrix(0).data.len(), 256);
}

#[test]
#[should_panic(expected = "values of Packed")]
fn a_matrix_is_no_vector() {
    let _ = loaded(Layout::Packed, 4).vector();
}

#[test]
#[should_panic(expected = "a matrix of Rows")]
fn rows_are_no_matrix() {
    let _ = loaded(Layout::Rows, 4).matrix(0);
}

#[test]
#[should_panic(expected = "65 values, 64 are held")]
fn a_vector_ends_where_its_memory_does() {
    let mut short = loaded(Layout::Rows, 4);
    (short.rows, short.cols) = (65, 1);
    let _ = short.vector();
}
