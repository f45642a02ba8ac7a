//! A shard index: no accepted name leads out of the directory it is joined to.
#![no_main]

use lamella_container::shard_index::ShardIndex;
use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};

fuzz_target!(|data: &[u8]| {
    let Ok(index) = ShardIndex::parse(data) else { return };
    for shard in index.shards() {
        let path = Path::new("/model").join(shard);
        assert!(path.starts_with("/model"));
        assert!(path.components().skip(1).all(|c| matches!(c, Component::Normal(_))));
    }
});
