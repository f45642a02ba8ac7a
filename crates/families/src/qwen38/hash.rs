//! Constants of the hashes that pick rows of the n-gram tables. A checkpoint carries them too; they
//! follow from the configuration, and a test holds them against published ones.

use super::ngram_keys::Ngram;

/// Constants of one layer's table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hashes {
    /// An odd factor for each position of the history.
    pub(super) multipliers: Vec<u64>,
    /// Rows of each head.
    pub(super) sizes: Vec<u64>,
    /// First row of each head.
    pub(super) offsets: Vec<u64>,
    /// Rows of the table, padding included.
    pub(super) rows: usize,
}

/// Constants for each layer with an n-gram embedding, in the order of the layers.
pub(super) fn hashes(n: &Ngram, vocabulary: usize) -> Vec<Hashes> {
    let heads = (n.longest - 1) * n.heads;
    let mut primes = (n.base as u64..).filter(|&n| is_prime(n));
    (0..n.layers.len() as u64)
        .map(|rank| {
            // No head of any layer has the size of another.
            let sizes: Vec<u64> = primes.by_ref().take(heads).collect();
            let mut total = 0;
            let offsets = sizes
                .iter()
                .map(|size| {
                    total += size;
                    total - size
                })
                .collect();
            Hashes {
                multipliers: multipliers(n, vocabulary, rank),
                sizes,
                offsets,
                rows: (total as usize).next_multiple_of(n.multiple),
            }
        })
        .collect()
}

/// Factors below 2^63 / vocabulary: products with token ids do not overflow.
fn multipliers(n: &Ngram, vocabulary: usize, rank: u64) -> Vec<u64> {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    const LAYER: u64 = 10_007;
    let half = (i64::MAX as u64 / vocabulary as u64 / 2).max(1);
    let seed = n.seed.wrapping_add(LAYER.wrapping_mul(rank));
    (1..=n.longest as u64)
        .map(|i| 2 * (splitmix(seed.wrapping_add(GOLDEN.wrapping_mul(i))) % half) + 1)
        .collect()
}

/// The generator of Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators".
fn splitmix(state: u64) -> u64 {
    let v = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let v = (v ^ (v >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    v ^ (v >> 31)
}

fn is_prime(n: u64) -> bool {
    let mut odd = (3..).step_by(2).take_while(|d| d * d <= n);
    n == 2 || n > 2 && n % 2 == 1 && odd.all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const VECTORS: &str = include_str!("../../tests/data/qwen38-hashes.json");

    fn ngram(layers: Vec<usize>, heads: usize, base: usize, multiple: usize) -> Ngram {
        Ngram {
            layers,
            longest: 3,
            heads,
            base,
            multiple,
            seed: 1234,
            shards: 128,
            width: 2560,
            taps: 4,
            boundary: 248_044,
        }
    }

    fn list(value: &Value) -> Vec<u64> {
        let items = value.as_array().unwrap().iter();
        items.map(|n| n.as_u64().unwrap()).collect()
    }

    #[test]
    fn the_release_has_its_published_constants() {
        let v: Value = serde_json::from_str(VECTORS).unwrap();
        let found = hashes(&ngram(vec![1], 8, 20_000_000, 128), 248_320);
        let expected = Hashes {
            multipliers: list(&v["layer_multipliers"]),
            sizes: list(&v["ngram_heads_vocab_sizes"]),
            offsets: list(&v["ngram_heads_offsets"]),
            rows: v["padded_rows"].as_u64().unwrap() as usize,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn the_constants_pick_the_published_rows() {
        let v: Value = serde_json::from_str(VECTORS).unwrap();
        let h = &hashes(&ngram(vec![1], 8, 20_000_000, 128), 248_320)[0];
        for case in v["vectors"].as_array().unwrap() {
            let older = list(&case["history_oldest_first"]);
            let mut tokens = [case["token"].as_u64().unwrap(), older[1], older[0]];
            if tokens[1] == 248_044 {
                tokens[2] = 248_044;
            }
            let mut rows = Vec::new();
            for order in 2..=3 {
                let terms = tokens[..order].iter().zip(&h.multipliers);
                let mix = terms.fold(0, |mix, (token, m)| mix ^ (token * m));
                for head in (order - 2) * 8..(order - 1) * 8 {
                    rows.push(mix % h.sizes[head] + h.offsets[head]);
                }
            }
            assert_eq!(rows, list(&case["rows"]), "{case}");
        }
    }

    #[test]
    fn later_layers_go_on_where_the_primes_stopped() {
        let found = hashes(&ngram(vec![0, 2], 1, 10, 8), 100);
        assert_eq!(found[0].sizes, [11, 13]);
        assert_eq!(found[1].sizes, [17, 19]);
        assert_eq!(found[1].offsets, [0, 17]);
        assert_eq!((found[0].rows, found[1].rows), (24, 40));
        assert_ne!(found[0].multipliers, found[1].multipliers);
        let small: Vec<u64> = (0..30).filter(|&n| is_prime(n)).collect();
        assert_eq!(small, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
    }

    #[test]
    fn the_largest_table_heads_are_found_quickly() {
        let found = hashes(&ngram(vec![0], 512, 1 << 28, 1), 1 << 24);
        assert_eq!(found[0].sizes.len(), 1024);
        let limit = 1 << 63;
        assert!(found[0].multipliers.iter().all(|m| m * (1 << 24) < limit));
    }
}
