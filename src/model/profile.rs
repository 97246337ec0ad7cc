//! Where a session's time goes, operator by operator.

use serde_json::json;
use std::time::{Duration, Instant};

/// The operators that are timed; SwiGLU is part of the matmuls before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operator {
    Embedding,
    RmsNorm,
    Matmul,
    Rope,
    KvStore,
    Attention,
    Residual,
    LmHead,
    Sampling,
}

impl Operator {
    const ALL: [(Operator, &str); 9] = [
        (Operator::Matmul, "matmul"),
        (Operator::Attention, "attention"),
        (Operator::LmHead, "lm_head"),
        (Operator::RmsNorm, "rms_norm"),
        (Operator::Rope, "rope"),
        (Operator::KvStore, "kv_store"),
        (Operator::Residual, "residual"),
        (Operator::Embedding, "embedding"),
        (Operator::Sampling, "sampling"),
    ];
}

/// Counts and times of a session's steps. Timed on the leading thread, so waiting for the team counts.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    enabled: bool,
    steps: u64,
    tokens: u64,
    forward: Duration,
    operators: [(Duration, u64); Operator::ALL.len()],
}

impl Profile {
    /// An empty profile, which stays empty unless `enabled`.
    pub fn new(enabled: bool) -> Profile {
        Profile { enabled, ..Profile::default() }
    }

    /// Whether anything is measured.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// An empty profile that measures if this one does.
    pub fn fork(&self) -> Profile {
        Profile::new(self.enabled)
    }

    /// Adds what was measured of a pass, of which this session had `tokens`.
    pub fn add(&mut self, pass: &Profile, tokens: usize) {
        if self.enabled {
            self.steps += pass.steps;
            self.tokens += tokens as u64;
            self.forward += pass.forward;
            for (mine, its) in self.operators.iter_mut().zip(&pass.operators) {
                *mine = (mine.0 + its.0, mine.1 + its.1);
            }
        }
    }

    /// Starts timing; the laps of the clock go to this profile.
    pub fn clock(&mut self) -> Clock<'_> {
        Clock { last: self.enabled.then(Instant::now), profile: self }
    }

    /// As JSON: `{"steps", "tokens", "forward_ns", "operators": [{"name", "ns", "calls"}]}`.
    pub fn to_json(&self) -> String {
        let operators = Operator::ALL.map(|(operator, name)| {
            let (time, calls) = self.operators[operator as usize];
            json!({"name": name, "ns": time.as_nanos() as u64, "calls": calls})
        });
        let forward = self.forward.as_nanos() as u64;
        json!({"steps": self.steps, "tokens": self.tokens, "forward_ns": forward, "operators": operators}).to_string()
    }
}

/// Times one stretch of work as laps.
#[derive(Debug)]
pub struct Clock<'a> {
    profile: &'a mut Profile,
    last: Option<Instant>,
}

impl Clock<'_> {
    /// Adds the time since the last lap to `operator`.
    pub fn lap(&mut self, operator: Operator) {
        if let Some(last) = self.last {
            let now = Instant::now();
            let (time, calls) = &mut self.profile.operators[operator as usize];
            *time += now - last;
            *calls += 1;
            if operator != Operator::Sampling {
                self.profile.forward += now - last;
            }
            self.last = Some(now);
        }
    }

    /// Counts one forward pass over `tokens`.
    pub fn count_step(&mut self, tokens: usize) {
        self.profile.steps += u64::from(self.profile.enabled);
        self.profile.tokens += if self.profile.enabled { tokens as u64 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_its_own_row() {
        let mut seen = [false; Operator::ALL.len()];
        for (operator, _) in Operator::ALL {
            assert!(!std::mem::replace(&mut seen[operator as usize], true), "{operator:?} twice");
        }
        let mut profile = Profile::new(true);
        let mut clock = profile.clock();
        clock.lap(Operator::Rope);
        clock.lap(Operator::Sampling);
        clock.count_step(3);
        let json: serde_json::Value = serde_json::from_str(&profile.to_json()).unwrap();
        assert_eq!((&json["steps"], &json["tokens"]), (&json!(1), &json!(3)));
        let row =
            |name: &str| json["operators"].as_array().unwrap().iter().find(|o| o["name"] == name).unwrap().clone();
        assert_eq!((row("rope")["calls"].clone(), row("matmul")["calls"].clone()), (json!(1), json!(0)));
        assert_eq!(json["forward_ns"], row("rope")["ns"]);
    }

    #[test]
    fn a_profile_that_was_not_asked_for_stays_empty() {
        let mut profile = Profile::new(false);
        let mut clock = profile.clock();
        clock.lap(Operator::Rope);
        clock.count_step(3);
        assert_eq!(profile.to_json(), Profile::default().to_json());
    }
}
