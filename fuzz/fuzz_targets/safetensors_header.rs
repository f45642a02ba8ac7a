//! A whole safetensors file: what is accepted lies inside the file, in order, without overlap.
#![no_main]

use lamella_container::safetensors::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(header) = Header::from_file_bytes(data) else { return };
    let json = u64::from_le_bytes(data[..8].try_into().unwrap());
    let mut end = 8 + json;
    for tensor in header.tensors {
        assert_eq!(tensor.offset, end);
        end += tensor.length;
    }
    assert_eq!(end, data.len() as u64);
});
