//! generation_config.json: what is accepted is usable as it stands.
#![no_main]

use lamella_text::GenerationDefaults;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(json) = std::str::from_utf8(data) else { return };
    match GenerationDefaults::from_json("generation_config.json", json) {
        Err(error) => assert!(error.to_string().starts_with("generation_config.json")),
        Ok(read) => {
            assert!(read.temperature.is_none_or(|t| t >= 0.0 && t.is_finite()));
            assert!(read.top_p.is_none_or(|p| (0.0..=1.0).contains(&p)));
            assert!(read.min_p.is_none_or(|p| (0.0..=1.0).contains(&p)));
            assert!(read.repetition_penalty.is_none_or(|p| p >= 0.0 && p.is_finite()));
        }
    }
});
