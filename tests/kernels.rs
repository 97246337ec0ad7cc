//! Every kernel of every tier that this CPU supports: equal to the scalar tier to the bit, and right against f64.

use rie::kernels::{
    Activation, GEMV_TOKENS, GROUP_ROWS, GemmScratch, Kernels, KvTile, Scoring, TILE_KEYS, Visible,
    attention_state_len, clear_state, finish_state, k_blocks, packed_len, supported, token_groups,
};
use rie::tensor::DType;

mod common;

use common::Values;

fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let one = |v: &f32| match dtype {
        DType::F32 => v.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(dtype.size()).map(|b| dtype.decode(b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn scalar() -> &'static Kernels {
    let tiers = supported();
    let last = tiers[tiers.len() - 1];
    assert_eq!(last.name(), "scalar");
    last
}

/// Under an emulator of another CPU, the tier that is tested there comes first (`RIE_TEST_TIER`).
#[test]
fn the_expected_tier_is_the_best() {
    if let Ok(tier) = std::env::var("RIE_TEST_TIER") {
        assert_eq!(supported()[0].name(), tier);
    }
}

fn assert_close(got: f32, expected: f64, scale: f64, what: &str) {
    let error = (f64::from(got) - expected).abs();
    assert!(error <= 2e-6 * scale + 1e-30, "{what}: {got}, expected {expected}");
}

/// The documented order of a dot product, spelled out independently of the kernels.
fn dot_in_eight_lanes(w: &[f32], x: &[f32]) -> f32 {
    let mut l = [0.0f32; 8];
    for (k, (w, x)) in w.iter().zip(x).enumerate() {
        l[k % 8] = w.mul_add(*x, l[k % 8]);
    }
    ((l[0] + l[2]) + (l[1] + l[3])) + ((l[4] + l[6]) + (l[5] + l[7]))
}

#[test]
fn matrix_products_keep_the_documented_order() {
    let mut values = Values(1);
    for (rows, k) in [(1, 1), (3, 7), (4, 8), (19, 83), (16, 576), (35, 1540), (5, 2048)] {
        for dtype in DType::ALL {
            // One byte ahead: nothing may count on alignment.
            let mut bytes = vec![0u8];
            bytes.extend(encode(dtype, &values.vec(rows * k)));
            let bytes = &bytes[1..];
            let w = decode(dtype, bytes);
            let n = 37; // beyond the number up to which the product packs few rows at a time
            let x = values.vec(n * k);
            let expected: Vec<f32> = (0..n * rows)
                .map(|i| dot_in_eight_lanes(&w[i % rows * k..(i % rows + 1) * k], &x[i / rows * k..(i / rows + 1) * k]))
                .collect();
            for tier in supported() {
                let what = format!("{} {} {rows} × {k}", tier.name(), dtype.name());
                for tokens in 1..=GEMV_TOKENS {
                    let mut out = vec![f32::NAN; tokens * rows];
                    tier.gemv(dtype, bytes, k, &x[..tokens * k], &mut out);
                    assert_eq!(bits(&out), bits(&expected[..tokens * rows]), "gemv {what}, {tokens} tokens");
                }
                for tokens in (1..=11).chain(31..=n) {
                    let out = gemm(tier, dtype, bytes, &x[..tokens * k], k);
                    assert_eq!(bits(&out), bits(&expected[..tokens * rows]), "gemm {what}, {tokens} tokens");
                }
            }
        }
    }
}

/// The tiled product of all rows with all tokens: `[n][rows]`.
fn gemm(tier: &Kernels, dtype: DType, w: &[u8], x: &[f32], k: usize) -> Vec<f32> {
    let (rows, n) = (w.len() / (k * dtype.size()), x.len() / k);
    let mut packed = vec![f32::NAN; packed_len(n, k)];
    let mut rest = &mut packed[..];
    for block in k_blocks(k) {
        for tokens in token_groups(n) {
            let (now, later) = rest.split_at_mut(packed_len(tokens.len(), block.len()));
            tier.pack_tokens(&x[tokens.start * k..tokens.end * k], k, block.clone(), now);
            rest = later;
        }
    }
    assert!(rest.is_empty());
    let mut result = vec![f32::NAN; n * rows];
    let mut scratch = GemmScratch::default();
    for first in (0..rows).step_by(GROUP_ROWS) {
        let group: Vec<&[u8]> = w.chunks_exact(k * dtype.size()).skip(first).take(GROUP_ROWS).collect();
        let mut out = vec![f32::NAN; n * GROUP_ROWS];
        tier.gemm_group(dtype, &group, k, &packed, &mut scratch, &mut out);
        for (result, out) in result.chunks_exact_mut(rows).zip(out.chunks_exact(GROUP_ROWS)) {
            result[first..first + group.len()].copy_from_slice(&out[..group.len()]);
        }
    }
    result
}

#[test]
fn blocks_of_k_cover_it_in_multiples_of_eight() {
    for k in [1, 7, 8, 576, 768, 769, 1536, 4096, 14336, 11008] {
        let blocks: Vec<_> = k_blocks(k).collect();
        assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (0, k));
        assert!(blocks.windows(2).all(|w| w[0].end == w[1].start && w[0].len() % 8 == 0), "{blocks:?}");
    }
}

#[test]
fn functions_of_rows() {
    let mut values = Values(2);
    for n in [1, 5, 8, 48, 83, 576] {
        let (a, b): (Vec<f32>, Vec<f32>) = (values.vec(n).iter().map(|v| v * 20.0).collect(), values.vec(n));
        let run = |tier: &Kernels| {
            let mut out: [Vec<f32>; 5] = std::array::from_fn(|_| a.clone());
            tier.rms_norm(&a, &b, 1e-5, &mut out[0]);
            tier.gated(Activation::Silu, &a, &b, &mut out[1]);
            tier.gated(Activation::GeluTanh, &a, &b, &mut out[2]);
            tier.soft_cap(&mut out[3], 7.0);
            tier.softmax(&mut out[4]);
            let mut in_place = a.clone();
            tier.rms_norm_in_place(&mut in_place, &b, 1e-5);
            assert_eq!(bits(&in_place), bits(&out[0]));
            out
        };
        let expected = run(scalar());
        let exp_sum: f64 = a.iter().map(|&v| f64::from(v).exp()).sum();
        let mean: f64 = a.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n as f64 + 1e-5;
        for i in 0..n {
            let (x, y) = (f64::from(a[i]), f64::from(b[i]));
            assert_close(expected[0][i], x / mean.sqrt() * y, (x / mean.sqrt() * y).abs(), "rms_norm");
            assert_close(expected[1][i], x / (1.0 + (-x).exp()) * y, (x * y).abs(), "swiglu");
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            assert_close(expected[2][i], 0.5 * x * (1.0 + inner.tanh()) * y, (x * y).abs(), "geglu");
            let capped = 7.0 * (x / 7.0).tanh();
            assert_close(expected[3][i], capped, capped.abs(), "soft_cap");
            // x − m is rounded before it is the exponent.
            assert_close(expected[4][i], x.exp() / exp_sum, 10.0 * x.exp() / exp_sum, "softmax");
        }
        for tier in supported() {
            let out = run(tier);
            for (f, (out, expected)) in out.iter().zip(&expected).enumerate() {
                assert_eq!(bits(out), bits(expected), "function {f} {} {n}", tier.name());
            }
        }
    }
}

#[test]
fn extreme_gates_give_finite_results_and_nan_stays_nan() {
    let gate = [-1e30, -100.0, -87.5, 0.0, 87.5, 100.0, 1e30, f32::NAN];
    for tier in supported() {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let mut out = [0.0; 8];
            tier.gated(activation, &gate, &[1.0; 8], &mut out);
            assert!(out[..3].iter().all(|v| (-1e-6..=0.0).contains(v)), "{out:?}");
            assert_eq!(out[3..7], gate[3..7]);
            assert!(out[7].is_nan());
        }
        let mut capped = gate;
        tier.soft_cap(&mut capped, 2.0);
        for (got, expected) in capped.iter().zip([-2.0, -2.0, -2.0, 0.0, 2.0, 2.0, 2.0]) {
            assert!((got - expected).abs() <= 1e-6 && got.abs() <= 2.0, "{got} {expected}");
        }
        assert!(capped[7].is_nan());
    }
}

#[test]
fn conversions_are_exact_or_round_to_nearest_even() {
    let every: Vec<u8> = (0..=u16::MAX).flat_map(|h| h.to_le_bytes()).collect();
    let mut values = Values(3);
    let mut floats: Vec<f32> = values.vec(4096).iter().map(|v| v * 10f32.powf(values.next() * 9.0)).collect();
    floats.extend([65504.0, 65519.9, 65520.0, f32::INFINITY, 5.9e-8, 2.9e-8, 2.0f32.powi(-25), 1.0 + 2.0f32.powi(-11)]);
    for tier in supported() {
        for dtype in [DType::F16, DType::BF16] {
            let mut wide = vec![0.0; 1 << 16];
            tier.widen(dtype, &every, &mut wide);
            for (got, expected) in wide.iter().zip(decode(dtype, &every)) {
                assert!(got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()), "{got} {expected}");
            }
        }
        for n in [1, 7, 8, 4100] {
            let mut narrow = vec![0u8; 2 * n];
            tier.narrow(DType::F16, &floats[floats.len() - n..], &mut narrow);
            assert_eq!(narrow, encode(DType::F16, &floats[floats.len() - n..]), "{} {n}", tier.name());
        }
    }
}

#[test]
fn attention_over_tiles() {
    let mut values = Values(4);
    for (head_dim, rows, dtype, window, cap) in [
        (2usize, 1usize, DType::F32, None, None),
        (10, 3, DType::F32, None, None),
        (64, 4, DType::F16, None, None),
        (12, 9, DType::F16, None, None),
        (16, 55, DType::F16, None, None),
        (80, 5, DType::F32, None, None),
        (10, 3, DType::F32, Some(1), None),
        (64, 9, DType::F16, Some(8), None),
        (16, 55, DType::F16, Some(70), Some(1.5)),
        (12, 4, DType::F32, None, Some(0.7)),
    ] {
        let padded = head_dim.next_multiple_of(8);
        let tiles = 3;
        let keys: Vec<_> = (0..tiles).map(|_| encode(dtype, &values.vec(head_dim * TILE_KEYS))).collect();
        let rows_of_values: Vec<_> = (0..tiles).map(|_| encode(dtype, &values.vec(padded * TILE_KEYS))).collect();
        let q: Vec<f32> = values.vec(rows * head_dim).iter().map(|v| v * 5.0).collect();
        // Row r sees the keys before this one, and after another; the first row none.
        let end = |r: usize| if r == 0 && rows > 1 { 0 } else { (70 + 13 * r).min(3 * TILE_KEYS - r % 5) };
        let begin = |r: usize| window.map_or(0, |window| end(r).saturating_sub(window + r % 3));
        let scoring = Scoring { scale: 1.0 / (head_dim as f32).sqrt(), cap };
        let len = attention_state_len(head_dim);
        let run = |tier: &Kernels, tile_by_tile: bool| {
            let mut states = vec![0.0; rows * len];
            states.chunks_exact_mut(len).for_each(clear_state);
            for t in 0..tiles {
                let tile = KvTile { dtype, keys: &keys[t], values: &rows_of_values[t], head_dim };
                let within = |key: usize| key.saturating_sub(t * TILE_KEYS).min(TILE_KEYS);
                let visible: Vec<_> =
                    (0..rows).map(|r| Visible { from: within(begin(r)), to: within(end(r)) }).collect();
                if !tile_by_tile {
                    tier.attend(tile, None, scoring, &q, &visible, &mut states);
                    continue;
                }
                let mut partials = vec![f32::NAN; rows * len];
                partials.chunks_exact_mut(len).for_each(clear_state);
                tier.attend(tile, None, scoring, &q, &visible, &mut partials);
                for (state, partial) in states.chunks_exact_mut(len).zip(partials.chunks_exact(len)) {
                    tier.merge(state, partial);
                }
            }
            let mut out = vec![f32::NAN; rows * head_dim];
            for (out, state) in out.chunks_exact_mut(head_dim).zip(states.chunks_exact(len)) {
                finish_state(state, out);
            }
            out
        };
        let expected = run(scalar(), false);
        let key =
            |t: usize, d: usize, j: usize| f64::from(dtype.decode(&keys[t][(d * TILE_KEYS + j) * dtype.size()..]));
        let value = |t: usize, d: usize, j: usize| {
            f64::from(dtype.decode(&rows_of_values[t][(j * padded + d) * dtype.size()..]))
        };
        for r in 0..rows {
            let weights: Vec<f64> = (begin(r)..end(r))
                .map(|j| {
                    let dot =
                        (0..head_dim).map(|d| key(j / TILE_KEYS, d, j % TILE_KEYS) * f64::from(q[r * head_dim + d]));
                    let score = dot.sum::<f64>() * f64::from(scoring.scale);
                    cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
                })
                .collect();
            for d in 0..head_dim {
                let sum = |f: &dyn Fn(f64) -> f64| -> f64 {
                    (begin(r)..).zip(&weights).map(|(j, w)| w * f(value(j / TILE_KEYS, d, j % TILE_KEYS))).sum()
                };
                let expected_value = if weights.is_empty() { 0.0 } else { sum(&|v| v) / weights.iter().sum::<f64>() };
                assert_close(expected[r * head_dim + d], expected_value, 1.0, "attention");
            }
        }
        for tier in supported() {
            for tile_by_tile in [false, true] {
                let got = run(tier, tile_by_tile);
                assert_eq!(bits(&got), bits(&expected), "{} head_dim {head_dim} {tile_by_tile}", tier.name());
            }
        }
    }
}

#[test]
fn keys_that_a_row_does_not_see_do_not_touch_it() {
    let head_dim = 8;
    let mut values = Values(5);
    let (mut keys, mut rows) = (values.vec(head_dim * TILE_KEYS), values.vec(head_dim * TILE_KEYS));
    let q = values.vec(2 * head_dim);
    for tier in supported() {
        let attend = |keys: &[f32], rows: &[f32]| {
            let (keys, rows) = (encode(DType::F32, keys), encode(DType::F32, rows));
            let mut out = vec![0.0; 2 * attention_state_len(head_dim)];
            out.chunks_exact_mut(attention_state_len(head_dim)).for_each(clear_state);
            let tile = KvTile { dtype: DType::F32, keys: &keys, values: &rows, head_dim };
            let scoring = Scoring { scale: 1.0, cap: None };
            let visible = [Visible { from: 3, to: 10 }, Visible { from: 2, to: 11 }];
            tier.attend(tile, None, scoring, &q, &visible, &mut out);
            out
        };
        let clean = attend(&keys, &rows);
        (0..head_dim).for_each(|d| keys[d * TILE_KEYS + 11..(d + 1) * TILE_KEYS].fill(f32::NAN));
        rows[11 * head_dim..].fill(f32::NAN);
        (0..head_dim).for_each(|d| keys[d * TILE_KEYS..d * TILE_KEYS + 2].fill(f32::NAN));
        rows[..2 * head_dim].fill(f32::NAN);
        assert_eq!(bits(&attend(&keys, &rows)), bits(&clean));
        // Poison in the last key that only row 1 sees leaves row 0 as it is.
        rows[10 * head_dim..11 * head_dim].fill(f32::INFINITY);
        let poisoned = attend(&keys, &rows);
        let len = attention_state_len(head_dim);
        assert_eq!(bits(&poisoned[..len]), bits(&clean[..len]));
        (keys, rows) = (values.vec(head_dim * TILE_KEYS), values.vec(head_dim * TILE_KEYS));
    }
}
