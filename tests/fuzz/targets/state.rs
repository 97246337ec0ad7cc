//! Saved sessions: as they come, and with the numbers made right that keep damaged ones out.

use super::model::with_model;
use super::reader::Reader;
use rie::ffi::constants::*;
use twox_hash::xxhash3_128::Hasher;

/// What is made right, by the bits of the first byte.
const FINGERPRINT: u8 = 1;
const CHECKSUM: u8 = 2;
const LENGTH: u8 = 4;
/// A KV cache of F32.
const F32: u8 = 8;
/// A session of few tokens.
const SHORT: u8 = 16;

/// The places of a saved session (see `session/state.rs`).
const HEADER: usize = 56;
const FINGERPRINT_AT: std::ops::Range<usize> = 16..32;
/// Tokens of a page, and numbers that the model caches of each.
const PAGE: u64 = 64;
const TOKEN_NUMBERS: u64 = 8;

/// The input is a byte of flags and a saved session.
pub fn run(data: &[u8]) {
    let mut reader = Reader::new(data);
    let flags = reader.byte();
    let mut bytes = reader.take(usize::MAX).to_vec();
    with_model(|library, model| {
        let context = if flags & SHORT == 0 { 0 } else { 8 };
        let options = [(RIE_OPT_KV_TYPE, kv_type(flags).into()), (RIE_OPT_CONTEXT, context)];
        let session = library.session(model, &options).expect("a session");
        library.append(&session, &[5, 6, 7]).expect("tokens");
        library.step(&session).expect("a token");
        let before = library.saved(&session).expect("a saved session");
        make_right(&mut bytes, flags, &before);
        if let Err(status) = library.restore(&session, &bytes) {
            let named = [RIE_ERR_MISMATCH, RIE_ERR_FORMAT, RIE_ERR_CONTEXT_FULL, RIE_ERR_NO_MEMORY];
            assert!(named.contains(&status), "{}", library.message());
            assert_eq!(library.saved(&session), Ok(before), "the session is as it was");
            return;
        }
        let tokens = library.tokens(&session).expect("tokens");
        let stored = bytes[HEADER..].chunks_exact(4).map(|id| i32::from_le_bytes(id.try_into().expect("four bytes")));
        assert!(stored.take(tokens.len()).eq(tokens.iter().copied()), "the tokens of the saved session");
        let again = library.session(model, &options).expect("a session");
        let saved = library.saved(&session).expect("a saved session");
        library.restore(&again, &saved).expect("what was saved");
        assert_eq!(library.saved(&again), Ok(saved));
        for _ in 0..2 {
            let step = library.step(&session);
            assert_eq!(step, library.step(&again));
            if let Err(status) = step {
                let named = [RIE_ERR_NUMERIC, RIE_ERR_CONTEXT_FULL, RIE_ERR_STATE];
                assert!(named.contains(&status), "{}", library.message());
            }
        }
    });
}

fn kv_type(flags: u8) -> i32 {
    if flags & F32 == 0 { RIE_DTYPE_F16 } else { RIE_DTYPE_F32 }
}

/// Makes right in `bytes` what `flags` say; `valid` is a saved session of the same model.
fn make_right(bytes: &mut Vec<u8>, flags: u8, valid: &[u8]) {
    if bytes.len() < HEADER {
        return;
    }
    if flags & FINGERPRINT != 0 {
        bytes[FINGERPRINT_AT].copy_from_slice(&valid[FINGERPRINT_AT]);
    }
    if flags & LENGTH != 0 {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) & 0xFFF;
        let page = PAGE * TOKEN_NUMBERS * if flags & F32 == 0 { 2 } else { 4 };
        let length = number(32) * 5 + number(40).div_ceil(PAGE) * page + number(48) * 4;
        bytes.resize(HEADER + length as usize, 0);
    }
    if flags & CHECKSUM != 0 {
        let mut hasher = Hasher::new();
        hasher.write(bytes);
        bytes.extend(hasher.finish_128().to_le_bytes());
    }
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let all = FINGERPRINT | CHECKSUM | LENGTH;
    with_model(|library, model| {
        let mut seeds = Vec::new();
        for (name, tokens, steps, flags) in [
            ("empty", 0, 0, all),
            ("queued", 3, 0, all),
            ("short", 5, 2, all | SHORT),
            ("long", 70, 1, all),
            ("f32", 9, 1, all | F32),
            ("whole", 3, 1, FINGERPRINT),
        ] {
            let session = library.session(model, &[(RIE_OPT_KV_TYPE, kv_type(flags).into())]).expect("a session");
            let ids: Vec<i32> = (0..tokens).map(|i| i * 7 % 300).collect();
            library.append(&session, &ids).expect("tokens");
            for _ in 0..steps {
                library.step(&session).expect("a token");
            }
            let mut saved = library.saved(&session).expect("a saved session");
            if flags & CHECKSUM != 0 {
                saved.truncate(saved.len() - 16);
            }
            seeds.push((name.to_owned(), [&[flags], &saved[..]].concat()));
        }
        seeds
    })
}
