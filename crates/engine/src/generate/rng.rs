//! The random stream of one choice: documented, portable, never shared.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Uniform numbers from ChaCha8 (Bernstein 2008). The 32-byte key is the request's seed and the
/// index of the choice, each a little-endian u64, then 16 fixed bytes; the stream is 0. Part of
/// what a seed promises: changing it changes every seeded answer.
#[derive(Clone, Debug)]
pub(super) struct Random(ChaCha8Rng);

const DOMAIN: &[u8; 16] = b"lamella sampling";

impl Random {
    pub(super) fn new(seed: u64, choice: u64) -> Random {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&choice.to_le_bytes());
        key[16..].copy_from_slice(DOMAIN);
        Random(ChaCha8Rng::from_seed(key))
    }

    /// The next number in `[0, 1)`: the upper 53 bits of one 64-bit draw.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden, from a separate ChaCha8 in Python.
    #[test]
    fn the_stream_is_fixed() {
        let mut random = Random::new(42, 1);
        let drawn: Vec<u64> = (0..3).map(|_| random.0.next_u64()).collect();
        assert_eq!(
            drawn,
            [
                5103715220187002626,
                121973348438819700,
                13157930706501899961
            ]
        );
    }

    #[test]
    fn seeds_and_choices_are_separate_streams() {
        let first = |seed, choice| Random::new(seed, choice).unit().to_bits();
        let all = [
            first(0, 0),
            first(0, 1),
            first(1, 0),
            first(1, 1),
            first(1 << 32, 0),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
        assert_eq!(first(7, 3), first(7, 3));
    }

    #[test]
    fn units_lie_in_the_half_open_interval() {
        let mut random = Random::new(9, 9);
        let drawn: Vec<f64> = (0..4096).map(|_| random.unit()).collect();
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = drawn.iter().sum::<f64>() / 4096.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
