//! The maps of hyper-connections, against their definition in f64.

mod common;

use common::Random;
use lamella_kernels::HyperMaps;

/// The maps by their definition.
fn exact(maps: &HyperMaps, m: &[f32], base: &[f32], scale: &[f32]) -> Vec<f64> {
    let (n, eps) = (maps.streams, f64::from(maps.eps));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let z: Vec<f64> = (0..m.len())
        .map(|i| f64::from(m[i]) * f64::from(scale[(i / n).min(2)]) + f64::from(base[i]))
        .collect();
    let mut out: Vec<f64> = z[..n].iter().map(|z| sigmoid(*z) + eps).collect();
    out.extend(z[n..2 * n].iter().map(|z| 2.0 * sigmoid(*z)));
    let mut c: Vec<Vec<f64>> = z[2 * n..].chunks(n).map(<[f64]>::to_vec).collect();
    for row in &mut c {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter_mut().for_each(|x| *x = x.exp() / sum + eps);
    }
    for pass in 0..maps.iterations {
        if pass > 0 {
            for row in &mut c {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|x| *x /= sum + eps);
            }
        }
        for k in 0..n {
            let sum: f64 = c.iter().map(|row| row[k]).sum();
            c.iter_mut().for_each(|row| row[k] /= sum + eps);
        }
    }
    out.extend(c.into_iter().flatten());
    out
}

#[test]
fn maps_follow_their_definition() {
    let random = &mut Random(17);
    let scale = [0.7, 1.3, 2.0];
    for streams in 1..=8 {
        for iterations in [1, 2, 20] {
            let maps = HyperMaps {
                streams,
                iterations,
                eps: 1e-6,
            };
            let len = (2 + streams) * streams;
            let (m, base) = (random.floats(len), random.floats(len));
            let mut got = m.clone();
            maps.finish(&mut got, &base, &scale);
            let want = exact(&maps, &m, &base, &scale);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= 1e-5 * want.abs(), "{maps:?} {i}: {got} {want}");
            }
            for k in 0..streams {
                let column: f32 = (0..streams)
                    .map(|j| got[2 * streams + j * streams + k])
                    .sum();
                assert!((column - 1.0).abs() < 1e-5, "column {k}: {column}");
            }
        }
    }
}

#[test]
fn damage_is_not_hidden() {
    let maps = HyperMaps {
        streams: 3,
        iterations: 4,
        eps: 1e-6,
    };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut site = [0.5; 15];
        site[10] = bad;
        maps.finish(&mut site, &[0.0; 15], &[1.0; 3]);
        assert!(site[..6].iter().all(|x| x.is_finite()));
        assert!(site[6..].iter().all(|x| x.is_nan()), "{site:?}");
    }
    let mut site = [f32::NAN; 15];
    maps.finish(&mut site, &[0.0; 15], &[1.0; 3]);
    assert!(site.iter().all(|x| x.is_nan()));
}
