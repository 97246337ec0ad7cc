//! The kernels of quantized weights in every tier that this CPU supports: equal to the scalar tier to the bit, in the documented
//! order, and as close as the format allows.

#![expect(clippy::print_stdout, reason = "how close each format came is worth reading")]

use half::f16;
use rie::kernels::{CodeGroup, Kernels, supported};
use rie::tensor::Quant;
use rie::tensor::quant::{GROUP, PANEL_ROWS, SCALE_BYTES, ZEROS_AT};

mod common;

use common::Values;

fn scalar() -> &'static Kernels {
    supported().into_iter().find(|tier| tier.name() == "scalar").expect("a scalar tier")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The panels of `w`, `[rows][k]`, by `tier`; `None` if it refuses them.
fn quantize(tier: &Kernels, quant: Quant, w: &[f32], k: usize) -> Option<Vec<u8>> {
    let panel_bytes = quant.panel_bytes(k).unwrap();
    let mut panels = vec![0xaa; w.len().div_ceil(PANEL_ROWS * k) * panel_bytes];
    for (panel, rows) in panels.chunks_exact_mut(panel_bytes).zip(w.chunks(PANEL_ROWS * k)) {
        let mut padded = rows.to_vec();
        padded.resize(PANEL_ROWS * k, 0.0);
        if !tier.quantize_panel(quant, &padded, panel) {
            return None;
        }
    }
    Some(panels)
}

fn decode(quant: Quant, panels: &[u8], rows: usize, k: usize) -> Vec<f32> {
    let panel_bytes = quant.panel_bytes(k).unwrap();
    let mut values = vec![f32::NAN; rows * k];
    for (r, row) in values.chunks_exact_mut(k).enumerate() {
        quant.decode_row(&panels[r / PANEL_ROWS * panel_bytes..][..panel_bytes], r % PANEL_ROWS, row);
    }
    values
}

fn activations(tier: &Kernels, x: &[f32], k: usize) -> Vec<CodeGroup> {
    let mut out = vec![CodeGroup::default(); x.len() / k * k.div_ceil(GROUP)];
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(k.div_ceil(GROUP))) {
        tier.quantize_row(x, out);
    }
    out
}

/// The documented arithmetic of one row, spelled out from the decoded codes: each group's codes are its weights over its scale.
fn product(quant: Quant, panel: &[u8], r: usize, x: &[CodeGroup]) -> f32 {
    let groups = panel.chunks_exact(quant.group_bytes());
    groups.zip(x).fold(0.0, |acc, (group, x)| {
        let scale = f16::from_le_bytes([group[2 * r], group[2 * r + 1]]).to_f32();
        let mut one = group.to_vec();
        one[2 * r..2 * r + 2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        let mut codes = [0.0; GROUP];
        quant.decode_row(&one, r, &mut codes);
        let sum: i64 = codes.iter().zip(x.codes).map(|(w, x)| *w as i64 * i64::from(x)).sum();
        (scale * x.scale).mul_add(sum as f32, acc)
    })
}

/// Compares the products of all rows and up to nine tokens, in every tier, with the documented arithmetic.
fn check_products(quant: Quant, panels: &[u8], x: &[CodeGroup], groups: usize, what: &str) {
    let panel_bytes = groups * quant.group_bytes();
    let count = panels.len() / panel_bytes;
    let tokens = x.len() / groups;
    let expected: Vec<Vec<u32>> = x
        .chunks_exact(groups)
        .map(|x| {
            (0..count * PANEL_ROWS)
                .map(|r| {
                    let panel = &panels[r / PANEL_ROWS * panel_bytes..][..panel_bytes];
                    product(quant, panel, r % PANEL_ROWS, x).to_bits()
                })
                .collect()
        })
        .collect();
    for tier in supported() {
        for n in 1..=tokens {
            let stride = count * PANEL_ROWS + 3;
            let mut out = vec![7.0; n * stride];
            tier.panel_product(quant, panels, &x[..n * groups], n, &mut out, stride);
            for (out, expected) in out.chunks_exact(stride).zip(&expected) {
                let (out, beside) = out.split_at(count * PANEL_ROWS);
                assert_eq!(bits(out), *expected, "{} {} {what}, {n} tokens", tier.name(), quant.name());
                assert_eq!(beside, [7.0; 3], "{} {what}: wrote beside its rows", tier.name());
            }
        }
    }
}

const SHAPES: [(usize, usize); 9] =
    [(1, 1), (3, 7), (8, 32), (9, 33), (16, 576), (33, 64), (70, 100), (43, 1540), (1, 31)];

#[test]
fn products_keep_the_documented_order() {
    let mut values = Values(11);
    for (rows, k) in SHAPES {
        for quant in Quant::ALL {
            let panels = quantize(scalar(), quant, &values.vec(rows * k), k).unwrap();
            let x = activations(scalar(), &values.vec(9 * k), k);
            check_products(quant, &panels, &x, k.div_ceil(GROUP), &format!("{rows} × {k}"));
        }
    }
}

#[test]
fn extreme_codes_and_scales() {
    // Of a file nobody vouches for: every byte, and so the code −128 too; scales of all kinds but NaN and infinity.
    let mut values = Values(12);
    let scales = [0x0001u16, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x0000, 0x3c00];
    for quant in Quant::ALL {
        for filler in [0x80u8, 0x7f, 0x00, 0xff, 0x81, 0x88, 0x0f, 0xf0] {
            let mut panels = vec![filler; 5 * 2 * quant.group_bytes()];
            for (g, group) in panels.chunks_exact_mut(quant.group_bytes()).enumerate() {
                for (r, scale) in group[..SCALE_BYTES].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    *scale = scales[(r + g) % 8].to_le_bytes();
                }
                if g % 2 == 1 {
                    group[SCALE_BYTES..].iter_mut().for_each(|byte| *byte = (values.next() * 128.0) as i8 as u8);
                }
            }
            for x in [1.0f32, -1.0, 0.0, 1e-38, 3e38] {
                let row: Vec<f32> = (0..2 * GROUP).map(|i| if i < GROUP { x } else { values.next() * x }).collect();
                check_products(
                    quant,
                    &panels,
                    &activations(scalar(), &row, 2 * GROUP),
                    2,
                    &format!("{filler:#x}, {x}"),
                );
            }
        }
    }
}

#[test]
fn zeros_of_any_size_are_exact() {
    let quant = Quant::Int4Asymmetric;
    let mut values = Values(15);
    let mut panels = quantize(scalar(), quant, &values.vec(40 * 96), 96).unwrap();
    let zeros = [0u8, 1, 7, 8, 15, 16, 128, 255];
    for (g, group) in panels.chunks_exact_mut(quant.group_bytes()).enumerate() {
        group[ZEROS_AT..].iter_mut().enumerate().for_each(|(r, zero)| *zero = zeros[(r + g) % 8]);
    }
    // Random inputs, and those with the greatest sums of codes, ± 32 · 127.
    let mut x = values.vec(7 * 96);
    x.extend([1.0; 96]);
    x.extend([-1.0; 96]);
    check_products(quant, &panels, &activations(scalar(), &x, 96), 3, "zeros");
}

#[test]
fn activations_are_within_half_a_step() {
    let mut values = Values(13);
    for k in [1, 31, 32, 33, 576] {
        for factor in [1.0, 1e-25, 1e-38, 1e30] {
            let x: Vec<f32> = values.vec(3 * k).iter().map(|v| v * factor).collect();
            let expected = activations(scalar(), &x, k);
            for (row, groups) in x.chunks_exact(k).zip(expected.chunks_exact(k.div_ceil(GROUP))) {
                for (x, group) in row.chunks(GROUP).zip(groups) {
                    let sum: i32 = group.codes.iter().map(|&code| i32::from(code)).sum();
                    assert_eq!(group.eight, 8 * sum);
                    assert!(group.codes[x.len()..].iter().all(|&code| code == 0));
                    for (&x, &code) in x.iter().zip(&group.codes) {
                        let error = (group.scale * f32::from(code) - x).abs();
                        assert!(error <= 0.501 * group.scale + 1e-30, "{x}: {code} · {}", group.scale);
                    }
                }
            }
            for tier in supported() {
                for (got, expected) in activations(tier, &x, k).iter().zip(&expected) {
                    assert_eq!((got.codes, got.eight), (expected.codes, expected.eight), "{}", tier.name());
                    assert_eq!(got.scale.to_bits(), expected.scale.to_bits(), "{}", tier.name());
                }
            }
        }
    }
}

#[test]
fn an_activation_that_is_not_finite_is_not_lost() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 31, 32, 40] {
            let mut x = vec![0.5; 41];
            x[at] = bad;
            for tier in supported() {
                let groups = activations(tier, &x, 41);
                assert!(groups[at / GROUP].scale.is_nan() && !groups[1 - at / GROUP].scale.is_nan(), "{}", tier.name());
                for quant in Quant::ALL {
                    let panels = quantize(tier, quant, &[0.25; 41], 41).unwrap();
                    let mut out = [0.0; 8];
                    tier.panel_product(quant, &panels, &groups, 1, &mut out, 8);
                    assert!(out[0].is_nan(), "{} {}", tier.name(), quant.name());
                }
            }
        }
    }
}

/// The squared error of a group with the scale `scale`.
fn error_of_scale(quant: Quant, w: &[f32], scale: f32) -> f64 {
    let scale = f16::from_f32(scale).to_f32();
    let greatest = greatest_code(quant);
    let code = |w: f32| if scale == 0.0 { 0.0 } else { (w / scale).round().clamp(-greatest, greatest - 1.0) };
    w.iter().map(|&w| f64::from(w - scale * code(w)).powi(2)).sum()
}

fn greatest_code(quant: Quant) -> f32 {
    match quant {
        Quant::Int8 => 128.0,
        Quant::Int4 | Quant::Int4Asymmetric => 8.0,
    }
}

/// The least squared error of a group by trying hundreds of scales.
fn least_error(quant: Quant, w: &[f32], most: f32) -> f64 {
    let scales = match quant {
        Quant::Int8 => (0..400).map(|i| most / (125.0 + 0.02 * i as f32)).collect::<Vec<_>>(),
        Quant::Int4 | Quant::Int4Asymmetric => (0..400).map(|i| most / (5.0 + 0.02 * i as f32)).collect(),
    };
    let errors = scales.into_iter().flat_map(|scale| [scale, -scale]).map(|scale| error_of_scale(quant, w, scale));
    errors.fold(f64::INFINITY, f64::min)
}

#[test]
fn weights_are_as_close_as_the_format_allows() {
    let mut values = Values(14);
    for (rows, k) in SHAPES {
        // Weights of a model: many small, few large.
        let w: Vec<f32> = values.vec(rows * k).iter().map(|v| v * v * v * 0.3).collect();
        for quant in Quant::ALL {
            let panels = quantize(scalar(), quant, &w, k).unwrap();
            for tier in supported() {
                assert_eq!(quantize(tier, quant, &w, k).as_ref(), Some(&panels), "{} {}", tier.name(), quant.name());
            }
            let back = decode(quant, &panels, rows, k);
            let (mut error, mut least, mut by_maximum) = (0.0, 0.0, 0.0);
            for (w, back) in w.chunks_exact(k).zip(back.chunks_exact(k)) {
                for (w, back) in w.chunks(GROUP).zip(back.chunks(GROUP)) {
                    let most = w.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    error += w.iter().zip(back).map(|(w, b)| f64::from(w - b).powi(2)).sum::<f64>();
                    least += least_error(quant, w, most);
                    let scale = most / greatest_code(quant);
                    by_maximum += error_of_scale(quant, w, scale).min(error_of_scale(quant, w, -scale));
                }
            }
            if rows * k > 1000 {
                let errors =
                    format!("{} {rows} × {k}: {error}, least {least}, by the maximum alone {by_maximum}", quant.name());
                // Of INT8's hundreds of scales a lucky one rounds all weights well.
                let within = if quant == Quant::Int8 { 1.06 } else { 1.03 };
                assert!(error < within * least && error < by_maximum, "{errors}");
                println!("{errors}");
            }
        }
    }
}

#[test]
fn what_a_format_holds_exactly_is_kept() {
    let cases = [vec![0.0; 64], vec![-0.0; 40], vec![3.0; 33], vec![-2.5; 32], vec![1e-7; 32], vec![60000.0; 32]];
    for w in cases {
        for quant in Quant::ALL {
            for tier in supported() {
                let panels = quantize(tier, quant, &w, w.len()).unwrap();
                for (w, back) in w.iter().zip(decode(quant, &panels, 1, w.len())) {
                    // Scales of weights as small as 1e-7 are subnormal, and may be 0.
                    assert!(
                        (w - back).abs() <= 1e-3 * w.abs() + 3e-8 * 64.0,
                        "{} {}: {w}, {back}",
                        tier.name(),
                        quant.name()
                    );
                }
            }
        }
    }
}

#[test]
fn weights_that_are_not_finite_or_too_large_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        for at in [0, 31, 35, 7 * 36 + 35] {
            let mut w = vec![0.5; 8 * 36];
            w[at] = bad;
            for quant in Quant::ALL {
                for tier in supported() {
                    assert!(quantize(tier, quant, &w, 36).is_none(), "{} {} {bad} at {at}", tier.name(), quant.name());
                }
            }
        }
    }
}
