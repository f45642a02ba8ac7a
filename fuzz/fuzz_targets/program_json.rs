//! A program from JSON: the closure check never panics, and a program without defects can be asked
//! everything that opening asks.
#![no_main]

use lamella_container::{expert_banks, expert_layout, parse_program};
use lamella_program::{Encoding, closure, state};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(program) = parse_program(data) else { return };
    if !closure::check(&program).is_empty() {
        return;
    }
    let _ = program.parameters();
    let _ = (state::bytes_per_token(&program), state::fixed_bytes(&program));
    for operand in &program.operands {
        let _ = Encoding::Q4.matrix_bytes(operand.rows(), operand.cols());
    }
    for bank in expert_banks(&program) {
        for encoding in Encoding::ALL {
            let _ = expert_layout(&program, &bank, encoding);
        }
    }
});
