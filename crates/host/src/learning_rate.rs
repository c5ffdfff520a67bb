//! Learning rates by step: the closed forms of `torch.optim.lr_scheduler`, each a pure function of the step.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

/// How the learning rate changes. Prints and parses as the command line's `--lr-schedule`.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRate {
    /// `constant`.
    Constant,
    /// `step:EVERY:FACTOR` (`StepLR`): times `FACTOR` after every `EVERY` steps.
    Step {
        /// Steps between changes.
        every: u64,
        /// What the rate is multiplied with.
        factor: f64,
    },
    /// `cosine:STEPS` or `cosine:STEPS:LOWEST` (`CosineAnnealingLR`): falls to `LOWEST` (0) within `STEPS`, along half a
    /// cosine; rises again after that, as PyTorch's does.
    Cosine {
        /// Steps until the lowest rate.
        steps: u64,
        /// The lowest rate.
        lowest: f64,
    },
    /// `warmup:STEPS,REST` (`LinearLR(start_factor=1 / STEPS, total_iters=STEPS)`, then `REST` from its beginning, by
    /// `SequentialLR`): rises from a `STEPS`-th of the rate to all of it. `warmup:STEPS` alone stays constant then.
    Warmup {
        /// Steps until the whole rate.
        steps: u64,
        /// What follows; never another warm-up.
        rest: Box<LearningRate>,
    },
}

impl LearningRate {
    /// The rate of a step, counted from 0, for an optimizer whose rate is `base`.
    pub fn at(&self, base: f64, step: u64) -> f64 {
        match self {
            LearningRate::Constant => base,
            LearningRate::Step { every, factor } => {
                base * factor.powf((step / (*every).max(1)) as f64)
            }
            LearningRate::Cosine { steps, lowest } => {
                let angle = PI * step as f64 / (*steps).max(1) as f64;
                lowest + (base - lowest) * (1.0 + angle.cos()) / 2.0
            }
            LearningRate::Warmup { steps, rest } => match step.checked_sub(*steps) {
                Some(step) => rest.at(base, step),
                None => {
                    let start = 1.0 / *steps as f64;
                    base * (start + (1.0 - start) * step as f64 / *steps as f64)
                }
            },
        }
    }
}

/// A learning rate schedule that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown learning rate schedule `{text}`: {reason}; give constant, step:EVERY:FACTOR, cosine:STEPS[:LOWEST] or \
     warmup:STEPS[,one of these]"
)]
pub struct LearningRateError {
    text: String,
    reason: &'static str,
}

impl FromStr for LearningRate {
    type Err = LearningRateError;

    fn from_str(text: &str) -> Result<Self, LearningRateError> {
        let wrong = |reason| LearningRateError {
            text: text.to_owned(),
            reason,
        };
        let (first, rest) = match text.split_once(',') {
            Some((first, rest)) => (first, Some(rest)),
            None => (text, None),
        };
        let words: Vec<&str> = first.split(':').collect();
        let steps = |word: &str| match word.parse() {
            Ok(0) | Err(_) => Err(wrong("a number of steps is a whole number from 1")),
            Ok(steps) => Ok(steps),
        };
        let number = |word: &str| {
            let number = word
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite() && *number >= 0.0);
            number.ok_or_else(|| wrong("a factor or rate is a number from 0"))
        };
        if rest.is_some() && words.first() != Some(&"warmup") {
            return Err(wrong("only a warm-up is followed by something"));
        }
        match words[..] {
            ["constant"] => Ok(LearningRate::Constant),
            ["step", every, factor] => Ok(LearningRate::Step {
                every: steps(every)?,
                factor: number(factor)?,
            }),
            ["cosine", count] => Ok(LearningRate::Cosine {
                steps: steps(count)?,
                lowest: 0.0,
            }),
            ["cosine", count, lowest] => Ok(LearningRate::Cosine {
                steps: steps(count)?,
                lowest: number(lowest)?,
            }),
            ["warmup", count] => {
                let rest = rest.unwrap_or("constant");
                // Before parsing on: a long chain of warm-ups must not take a deep stack.
                if rest.starts_with("warmup") {
                    return Err(wrong("a warm-up is not followed by another"));
                }
                Ok(LearningRate::Warmup {
                    steps: steps(count)?,
                    rest: Box::new(rest.parse()?),
                })
            }
            _ => Err(wrong("no such form")),
        }
    }
}

impl fmt::Display for LearningRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LearningRate::Constant => f.write_str("constant"),
            LearningRate::Step { every, factor } => write!(f, "step:{every}:{factor}"),
            LearningRate::Cosine { steps, lowest: 0.0 } => write!(f, "cosine:{steps}"),
            LearningRate::Cosine { steps, lowest } => write!(f, "cosine:{steps}:{lowest}"),
            LearningRate::Warmup { steps, rest } => write!(f, "warmup:{steps},{rest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> LearningRate {
        text.parse().unwrap()
    }

    /// From `torch.optim.lr_scheduler` 2.14.1, `lr` 0.1, at steps 0 to 9.
    const TORCH: &[(&str, [f64; 10])] = &[
        (
            "constant",
            [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
        ),
        (
            "step:3:0.5",
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125],
        ),
        (
            "cosine:6",
            [
                0.1,
                0.09330127018922195,
                0.07500000000000001,
                0.05,
                0.025000000000000012,
                0.006698729810778065,
                0.0,
                0.006698729810778065,
                0.025,
                0.05000000000000004,
            ],
        ),
        (
            "cosine:9:0.01",
            [
                0.1,
                0.09728616793536589,
                0.08947199994035401,
                0.07750000000000001,
                0.06281416799501188,
                0.047185832004988146,
                0.032500000000000015,
                0.020528000059645994,
                0.012713832064634126,
                0.01,
            ],
        ),
        (
            "warmup:4,cosine:6",
            [
                0.025,
                0.043750000000000004,
                0.06250000000000001,
                0.08125000000000002,
                0.1,
                0.09330127018922195,
                0.07500000000000001,
                0.05,
                0.025000000000000012,
                0.006698729810778065,
            ],
        ),
        (
            "warmup:3,step:2:0.1",
            [
                0.03333333333333333,
                0.05555555555555556,
                0.07777777777777778,
                0.1,
                0.1,
                0.010000000000000002,
                0.010000000000000002,
                0.0010000000000000002,
                0.0010000000000000002,
                0.00010000000000000003,
            ],
        ),
    ];

    #[test]
    fn rates_are_those_of_pytorch() {
        for (text, rates) in TORCH {
            for (step, rate) in rates.iter().enumerate() {
                let ours = parse(text).at(0.1, step as u64);
                // PyTorch multiplies step by step, which rounds each time.
                assert!(
                    (ours - rate).abs() < 1e-15,
                    "{text} at {step}: {ours}, not {rate}"
                );
            }
        }
    }

    #[test]
    fn what_prints_parses() {
        for text in [
            "constant",
            "step:30:0.1",
            "cosine:1000",
            "cosine:10:0.001",
            "warmup:100,cosine:1000",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("warmup:5").to_string(), "warmup:5,constant");
    }

    #[test]
    fn nonsense_is_refused() {
        let chain = "warmup:1,".repeat(100_000) + "constant";
        for text in [
            "",
            "constant:1",
            "step:30",
            "step:0:0.1",
            "step:-1:0.1",
            "step:1:NaN",
            "step:1:inf",
            "cosine:",
            "cosine:1.5",
            "cosine:1:-1",
            "constant,constant",
            "warmup:0,constant",
            "warmup:1,",
            "linear:3",
            &chain,
        ] {
            let error = text.parse::<LearningRate>().unwrap_err().to_string();
            assert!(
                error.contains("give constant, step:EVERY:FACTOR"),
                "{error}"
            );
        }
    }

    #[test]
    fn any_step_has_a_rate() {
        for text in ["constant", "step:1:0.1", "cosine:3", "warmup:7,step:2:0.5"] {
            for step in [0, 1, u64::MAX / 2, u64::MAX] {
                assert!(parse(text).at(0.1, step).is_finite(), "{text} at {step}");
            }
        }
    }
}
