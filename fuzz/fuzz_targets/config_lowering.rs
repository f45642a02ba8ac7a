//! config.json with a tensor table: lowering never panics, never allocates by a number that only
//! the configuration claims, and what it accepts is closed. The input is the configuration and,
//! after a zero byte, a tensor a line: name, element type, dimensions. Without a table, that of
//! the seed model is taken.
#![no_main]

use lamella_families::{LowerError, lower};
use lamella_program::closure::{TensorInfo, check, check_against};
use lamella_program::{Encoding, state};
use libfuzzer_sys::fuzz_target;

const TABLE: &str = include_str!("../olmoe.table");

fn tensor(line: &str) -> Option<TensorInfo> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let dtype = words.next()?.to_owned();
    let shape = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
    let encoding = match dtype.as_str() {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        _ => None,
    };
    Some(TensorInfo { name, dtype, encoding, shape })
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (config, table) = text.split_once('\0').unwrap_or((text, TABLE));
    let mut tensors: Vec<_> = table.lines().filter_map(tensor).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors.dedup_by(|a, b| a.name == b.name);
    match lower(config, &tensors) {
        Ok(program) => {
            assert!(check(&program).is_empty());
            assert!(check_against(&program, &tensors).is_empty());
            let _ = (state::bytes_per_token(&program), state::fixed_bytes(&program));
        }
        Err(LowerError::Defects(defects)) => assert!(!defects.is_empty()),
        Err(error) => assert!(error.to_string().starts_with("config.json")),
    }
});
