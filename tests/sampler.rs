//! The sampler against transformers' own processors (`tests/golden/sampling`) and against its documented rules.

use rie::error::{Error, Status};
use rie::sampler::{History, Sampler, SamplerOptions, greedy};
use serde_json::Value;

const NONE: History<'static> = History { tokens: &[], generated: &[] };
const INF: f32 = f32::INFINITY;

fn options() -> SamplerOptions {
    SamplerOptions { seed: Some(1), ..SamplerOptions::default() }
}

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(&options).unwrap()
}

/// What survives of `logits`.
fn survivors(options: SamplerOptions, logits: &[f32]) -> Vec<u32> {
    sampler(options).distribution(logits, NONE).unwrap().iter().map(|&(id, _)| id).collect()
}

/// Logits of a wide distribution, different for each `salt`.
fn wide(n: usize, salt: u64) -> Vec<f32> {
    let mut s = salt;
    let mut uniform = || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| (uniform() + uniform() + uniform() + uniform() - 2.0) * 6.0).collect()
}

#[test]
fn survivors_and_probabilities_are_those_of_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sampling/reference.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).unwrap();
    let cases = reference["cases"].as_array().unwrap();
    let floats = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64()).collect::<Vec<_>>();
    let ids = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect::<Vec<_>>();
    for case in cases {
        let vector = &reference["vectors"][case["vector"].as_str().unwrap()];
        let logits: Vec<f32> = floats(vector).into_iter().map(|x| x.map_or(-INF, |x| x as f32)).collect();
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        let mut sampler = sampler(SamplerOptions {
            repetition_penalty: number("repetition_penalty"),
            temperature: number("temperature"),
            top_k: case["top_k"].as_u64().unwrap() as usize,
            top_p: number("top_p"),
            min_p: number("min_p"),
            ..options()
        });
        let tokens = ids(&case["ids"]);
        let history = History { tokens: &tokens, generated: &vec![false; tokens.len()] };
        let what = format!("{} {}", case["vector"], serde_json::json!(sampler_parameters(case)));
        let found = sampler.distribution(&logits, history).unwrap();
        assert_eq!(found.iter().map(|&(id, _)| id).collect::<Vec<_>>(), ids(&case["survivors"]), "{what}");
        for ((id, p), expected) in found.iter().zip(floats(&case["probabilities"])) {
            assert!((p - expected.unwrap()).abs() < 1e-6, "{what}: token {id}: {p}, expected {expected:?}");
        }
    }
    assert!(cases.len() > 200);
}

fn sampler_parameters(case: &Value) -> Vec<&Value> {
    ["repetition_penalty", "temperature", "top_k", "top_p", "min_p"].iter().map(|key| &case[*key]).collect()
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), Ok(1));
    assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
    assert_eq!(greedy(&[-INF, -5.0]), Ok(1));
    let mut logits = wide(1000, 1);
    logits[777] = 100.0;
    assert_eq!(greedy(&logits), Ok(777));
    let mut cold = sampler(SamplerOptions { temperature: 0.0, top_k: 3, ..options() });
    assert_eq!(cold.sample(&logits, NONE), Ok(777));
    assert_eq!(cold.distribution(&logits, NONE).unwrap(), [(777, 1.0)]);
    cold.set_bias(777, -INF).unwrap();
    cold.set_bias(5, 1000.0).unwrap();
    assert_eq!(cold.sample(&logits, NONE), Ok(5));
}

#[test]
fn penalties_look_at_the_right_tokens() {
    let logits = [2.0, -2.0, 4.0, 1.0];
    let tokens = [0, 1, 1, 2, 0, 2, 2];
    let generated = [false, false, false, true, false, true, true];
    let history = History { tokens: &tokens, generated: &generated };
    let log_odds = |options: SamplerOptions| -> Vec<f64> {
        let d = sampler(options).distribution(&logits, history).unwrap();
        d.iter().map(|(_, p)| (p / d[3].1).ln() + 1.0).collect() // token 3 is untouched: its logit is 1
    };
    let close = |found: Vec<f64>, expected: [f64; 4]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
    };
    close(log_odds(options()), [2.0, -2.0, 4.0, 1.0]);
    close(log_odds(SamplerOptions { repetition_penalty: 2.0, ..options() }), [1.0, -4.0, 2.0, 1.0]);
    close(log_odds(SamplerOptions { presence_penalty: 0.5, ..options() }), [2.0, -2.0, 3.5, 1.0]);
    close(log_odds(SamplerOptions { frequency_penalty: 0.5, ..options() }), [2.0, -2.0, 2.5, 1.0]);
    let all = SamplerOptions { repetition_penalty: 2.0, presence_penalty: 1.0, frequency_penalty: 0.25, ..options() };
    close(log_odds(all.clone()), [1.0, -4.0, 0.25, 1.0]);
    // the bias comes first
    let mut biased = sampler(all);
    biased.set_bias(0, -3.0).unwrap(); // −1, times 2
    let d = biased.distribution(&logits, history).unwrap();
    close(d.iter().map(|(_, p)| (p / d[3].1).ln() + 1.0).collect(), [-2.0, -4.0, 0.25, 1.0]);
}

#[test]
fn penalties_leave_no_trace() {
    let logits = wide(64, 3);
    let penalised = SamplerOptions { repetition_penalty: 1.5, frequency_penalty: 1.0, ..options() };
    let mut used = sampler(penalised.clone());
    used.distribution(&logits, History { tokens: &[1, 2, 2, 63], generated: &[true; 4] }).unwrap();
    used.distribution(&logits[..10], NONE).unwrap(); // a smaller vocabulary too
    let history = History { tokens: &[5, 2], generated: &[true, false] };
    let fresh = sampler(penalised).distribution(&logits, history).unwrap();
    assert_eq!(used.distribution(&logits, history).unwrap(), fresh);
}

#[test]
fn bias_is_set_and_removed() {
    let logits = [0.0; 4];
    let mut s = sampler(options());
    s.set_bias(2, -INF).unwrap();
    assert_eq!(s.distribution(&logits, NONE).unwrap().iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 3]);
    s.set_bias(2, 0.0).unwrap();
    assert_eq!(s.distribution(&logits, NONE).unwrap(), [(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]);
    s.set_bias(1, f32::MAX).unwrap();
    assert_eq!(s.sample(&logits, NONE), Ok(1));
    for bad in [f32::NAN, INF] {
        let e = s.set_bias(7, bad).unwrap_err();
        assert!(e.status == Status::InvalidArgument && e.message.contains("token 7"), "{e}");
    }
    s.set_bias(4, 1.0).unwrap();
    let e = s.sample(&logits, NONE).unwrap_err();
    assert!(e.status == Status::Token && e.message.contains("token 4") && e.message.contains("4 tokens"), "{e}");
}

#[test]
fn top_k_keeps_ties() {
    let logits = [1.0, 3.0, 2.0, 2.0, 0.0, 2.0];
    let top_k = |top_k| survivors(SamplerOptions { top_k, ..options() }, &logits);
    assert_eq!(top_k(1), [1]);
    assert_eq!(top_k(2), [1, 2, 3, 5]);
    assert_eq!(top_k(4), [1, 2, 3, 5]);
    assert_eq!(top_k(5), [0, 1, 2, 3, 5]);
    for all in [0, 6, 7, usize::MAX] {
        assert_eq!(top_k(all), [0, 1, 2, 3, 4, 5]);
    }
    assert_eq!(survivors(SamplerOptions { top_k: 1, ..options() }, &[-0.0, 0.0, -1.0]), [0, 1]);
    assert_eq!(survivors(SamplerOptions { top_k: 2, ..options() }, &[-INF, 0.0, -INF, -INF]), [1]);
    // against a full sort
    for (n, k) in [(1000, 1), (1000, 7), (1000, 40), (1000, 64), (1000, 500), (1000, 999), (50_000, 40)] {
        let logits = wide(n, k as u64);
        let mut sorted = logits.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let expected: Vec<u32> = (0..n as u32).filter(|&i| logits[i as usize] >= sorted[k - 1]).collect();
        assert_eq!(survivors(SamplerOptions { top_k: k, ..options() }, &logits), expected, "{n} {k}");
        let mut rising = logits.clone(); // the worst order for the bar
        rising.sort_by(|a, b| a.total_cmp(b));
        assert!(survivors(SamplerOptions { top_k: k, ..options() }, &rising).len() >= k);
    }
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it() {
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let top_p = |top_p| survivors(SamplerOptions { top_p, ..options() }, &logits);
    assert_eq!(top_p(1e-30), [0]);
    assert_eq!(top_p(0.49), [0]);
    assert_eq!(top_p(0.51), [0, 1]);
    assert_eq!(top_p(0.8), [0, 1, 2]); // the lower id among equals
    assert_eq!(top_p(0.9), [0, 1, 2, 3]);
    assert_eq!(top_p(1.0), [0, 1, 2, 3]);
    // against a full sort
    for (n, p) in [(10, 0.3), (300, 0.9), (3000, 0.5), (3000, 0.999), (20_000, 0.95), (20_000, 0.999_99)] {
        for logits in [wide(n, 9), vec![0.5; n]] {
            let all = sampler(options()).distribution(&logits, NONE).unwrap();
            let mut sorted = all.clone();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let (mut mass, mut expected) = (0.0, Vec::new());
            for (id, q) in sorted {
                if mass < f64::from(p) - 1e-12 {
                    expected.push(id);
                }
                mass += q;
            }
            expected.sort_unstable();
            assert_eq!(survivors(SamplerOptions { top_p: p, ..options() }, &logits), expected, "{n} {p}");
        }
    }
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = [0.5f32, 0.26, 0.12, 0.12].map(f32::ln);
    let min_p = |min_p, top_p| survivors(SamplerOptions { min_p, top_p, ..options() }, &logits);
    for top_p in [1.0, 0.99] {
        assert_eq!(min_p(0.0, top_p).len(), 4);
        assert_eq!(min_p(0.2, top_p).len(), 4);
        assert_eq!(min_p(0.25, top_p), [0, 1]);
        assert_eq!(min_p(1.0, top_p), [0]);
    }
    assert_eq!(survivors(SamplerOptions { min_p: 1.0, ..options() }, &[2.0, 2.0, 1.9]), [0, 1]);
}

#[test]
fn a_seed_gives_the_same_tokens() {
    let logits = wide(500, 11);
    let draw = |seed| {
        let mut s = sampler(SamplerOptions { seed: Some(seed), top_p: 0.9, ..options() });
        assert_eq!(s.seed(), seed);
        (0..200).map(|_| s.sample(&logits, NONE).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let random = || sampler(SamplerOptions { seed: None, ..options() });
    let mut first = random();
    assert_ne!(first.seed(), random().seed());
    let mut again = sampler(SamplerOptions { seed: Some(first.seed()), ..options() });
    for _ in 0..50 {
        assert_eq!(first.sample(&logits, NONE), again.sample(&logits, NONE));
    }
}

/// The numbers that the documentation's recipe gives, for whoever ports it.
#[test]
fn the_stream_is_the_documented_one() {
    let chacha8 = |seed: u64, count: usize| -> Vec<f64> {
        let mut s = seed;
        let key: Vec<u32> = (0..8)
            .map(|_| {
                s = s.wrapping_mul(6364136223846793005).wrapping_add(11634580027462260723);
                ((((s >> 18) ^ s) >> 27) as u32).rotate_right((s >> 59) as u32)
            })
            .collect();
        let mut words = Vec::new();
        for counter in 0..count.div_ceil(8) as u32 {
            let mut start = vec![0x61707865, 0x3320646e, 0x79622d32, 0x6b206574];
            start.extend(&key);
            start.extend([counter, 0, 0, 0]);
            let mut x = start.clone();
            let mut quarter = |a: usize, b: usize, c: usize, d: usize| {
                for (to, add, other, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
                    x[to] = x[to].wrapping_add(x[add]);
                    x[other] = (x[other] ^ x[to]).rotate_left(by);
                }
            };
            for _ in 0..4 {
                (0..4).for_each(|i| quarter(i, 4 + i, 8 + i, 12 + i));
                (0..4).for_each(|i| quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4));
            }
            words.extend(x.iter().zip(&start).map(|(a, b)| a.wrapping_add(*b)));
        }
        let numbers = words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w[1]) << 32);
        numbers.map(|r| (r >> 11) as f64 / (1u64 << 53) as f64).take(count).collect()
    };
    // over equal logits the token is the number, cut to the vocabulary
    let logits = vec![0.0; 1 << 16];
    for seed in [0, 1, u64::MAX] {
        let mut s = sampler(SamplerOptions { seed: Some(seed), ..options() });
        for u in chacha8(seed, 50) {
            assert_eq!(s.sample(&logits, NONE), Ok((u * 65536.0) as u32), "seed {seed}");
        }
    }
}

#[test]
fn frequencies_match_the_probabilities() {
    let logits = wide(40, 5).iter().map(|x| x / 3.0).collect::<Vec<_>>();
    for options in [
        options(),
        SamplerOptions { temperature: 1.7, top_k: 12, ..options() },
        SamplerOptions { top_p: 0.8, min_p: 0.05, ..options() },
    ] {
        let mut s = sampler(options);
        let expected = s.distribution(&logits, NONE).unwrap();
        assert!((expected.iter().map(|t| t.1).sum::<f64>() - 1.0).abs() < 1e-12);
        let draws = 100_000;
        let mut counts = vec![0u32; logits.len()];
        (0..draws).for_each(|_| counts[s.sample(&logits, NONE).unwrap() as usize] += 1);
        let chi2: f64 = expected
            .iter()
            .map(|&(id, p)| (f64::from(counts[id as usize]) - p * f64::from(draws)).powi(2) / (p * f64::from(draws)))
            .sum();
        let freedom = expected.len() as f64 - 1.0;
        assert!(chi2 < freedom + 5.0 * (2.0 * freedom).sqrt(), "chi² {chi2} with {freedom} degrees of freedom");
        assert_eq!(counts.iter().sum::<u32>(), expected.iter().map(|t| counts[t.0 as usize]).sum::<u32>());
    }
}

#[test]
fn bad_logits_are_errors_and_draw_nothing() {
    let good = wide(100, 2);
    let bad = |i: usize, x: f32| {
        let mut logits = good.clone();
        logits[i] = x;
        logits[99] = f32::NAN;
        logits
    };
    let numeric = |e: Error, part: &str| {
        assert!(e.status == Status::Numeric && e.message.contains(part), "{e}");
    };
    for temperature in [0.0, 1.0] {
        for top_k in [0, 5] {
            let mut s = sampler(SamplerOptions { temperature, top_k, repetition_penalty: 1.2, ..options() });
            let mut clean = sampler(SamplerOptions { temperature, top_k, repetition_penalty: 1.2, ..options() });
            for _ in 0..20 {
                numeric(s.sample(&bad(42, f32::NAN), NONE).unwrap_err(), "token 42 is NaN");
                numeric(s.sample(&bad(0, INF), NONE).unwrap_err(), "token 0 is inf");
                numeric(s.sample(&[-INF; 9], NONE).unwrap_err(), "all 9 logits are -inf");
                numeric(s.sample(&[], NONE).unwrap_err(), "all 0 logits");
                let far = History { tokens: &[3, 100], generated: &[false, false] };
                let e = s.sample(&good, far).unwrap_err();
                assert!(e.status == Status::Token && e.message.contains("token 100"), "{e}");
                let uneven = History { tokens: &[3], generated: &[] };
                assert_eq!(s.sample(&good, uneven).unwrap_err().status, Status::InvalidArgument);
                assert_eq!(s.sample(&good, NONE), clean.sample(&good, NONE));
            }
        }
    }
    numeric(greedy(&bad(42, f32::NAN)).unwrap_err(), "token 42 is NaN");
    numeric(greedy(&[-INF]).unwrap_err(), "all 1 logits");
}

#[test]
fn extreme_numbers_are_no_trouble() {
    let logits = [f32::MAX, f32::MAX, 0.0, -f32::MAX, -INF];
    for temperature in [f32::from_bits(1), 1e-30, 0.5, 1.0, f32::MAX] {
        for (top_p, min_p) in [(1.0, 0.0), (f32::from_bits(1), 0.0), (0.9, 1.0), (1.0, f32::from_bits(1))] {
            let extreme = SamplerOptions { temperature, top_p, min_p, top_k: 3, ..options() };
            let id = sampler(extreme).sample(&logits, NONE).unwrap();
            assert!(id < 2 || temperature == f32::MAX && id < 4, "{temperature} {top_p} {min_p}: {id}");
        }
    }
    let low = [-f32::MAX, -f32::MAX, -INF];
    assert_eq!(survivors(SamplerOptions { temperature: 1e-3, ..options() }, &low), [0, 1]);
    let overflow = SamplerOptions { repetition_penalty: 1e-30, ..options() };
    let history = History { tokens: &[0], generated: &[false] };
    assert_eq!(sampler(overflow).sample(&logits, history).unwrap_err().status, Status::Numeric);
}

#[test]
fn parameters_are_checked() {
    type Change = fn(&mut SamplerOptions, f32);
    let parameters: [(&str, Change, &[f32]); 6] = [
        ("temperature", |o, x| o.temperature = x, &[-0.1, INF, f32::NAN]),
        ("top_p", |o, x| o.top_p = x, &[0.0, -1.0, 1.1, INF, f32::NAN]),
        ("min_p", |o, x| o.min_p = x, &[-0.1, 1.1, INF, f32::NAN]),
        ("repetition_penalty", |o, x| o.repetition_penalty = x, &[0.0, -1.0, INF, f32::NAN]),
        ("presence_penalty", |o, x| o.presence_penalty = x, &[INF, -INF, f32::NAN]),
        ("frequency_penalty", |o, x| o.frequency_penalty = x, &[INF, -INF, f32::NAN]),
    ];
    for (name, change, values) in parameters {
        for &value in values {
            let mut options = options();
            change(&mut options, value);
            let e = Sampler::new(&options).unwrap_err();
            assert_eq!(e.status, Status::InvalidArgument);
            assert!(e.message.starts_with(&format!("{name}: expected ")), "{e}");
        }
    }
}
