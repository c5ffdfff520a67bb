//! One unit of work: a program of a stage applied to one micro-batch.

use std::fmt;
use std::str::FromStr;

/// Which program of the stage an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `F`: forward.
    Forward,
    /// `B`: gradients of the stage's inputs; they leave for the previous stage as soon as it ends.
    Backward,
    /// `W`: gradients of the stage's weights.
    Weight,
}

impl Kind {
    /// All kinds, in the order in which a micro-batch passes a stage.
    pub const ALL: [Kind; 3] = [Kind::Forward, Kind::Backward, Kind::Weight];

    /// The letter that stands for it in text: `F`, `B` or `W`.
    pub fn letter(self) -> char {
        match self {
            Kind::Forward => 'F',
            Kind::Backward => 'B',
            Kind::Weight => 'W',
        }
    }

    /// Position in [`Kind::ALL`], and in every array that has one element a kind.
    pub fn index(self) -> usize {
        match self {
            Kind::Forward => 0,
            Kind::Backward => 1,
            Kind::Weight => 2,
        }
    }
}

/// A program of a stage applied to a micro-batch; prints and parses as `0F3`: stage 0, forward, micro-batch 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action {
    /// Stage, from the input (0) to the loss.
    pub stage: u16,
    /// Program.
    pub kind: Kind,
    /// Micro-batch within the step.
    pub micro_batch: u16,
}

impl Action {
    /// `F` of a stage and micro-batch.
    pub fn forward(stage: u16, micro_batch: u16) -> Self {
        Action {
            stage,
            kind: Kind::Forward,
            micro_batch,
        }
    }

    /// `B` of a stage and micro-batch.
    pub fn backward(stage: u16, micro_batch: u16) -> Self {
        Action {
            stage,
            kind: Kind::Backward,
            micro_batch,
        }
    }

    /// `W` of a stage and micro-batch.
    pub fn weight(stage: u16, micro_batch: u16) -> Self {
        Action {
            stage,
            kind: Kind::Weight,
            micro_batch,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through `pad`, so that a width aligns it in tables.
        f.pad(&format!(
            "{}{}{}",
            self.stage,
            self.kind.letter(),
            self.micro_batch
        ))
    }
}

/// A text that is no action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an action; write stage, F, B or W, and micro-batch, such as 0F3")]
pub struct ParseActionError(String);

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseActionError(text.chars().take(16).collect());
        let (at, letter) = text
            .char_indices()
            .find(|(_, c)| !c.is_ascii_digit())
            .ok_or_else(error)?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.letter() == letter)
            .ok_or_else(error)?;
        let stage = text.get(..at).and_then(number).ok_or_else(error)?;
        let micro_batch = text.get(at + 1..).and_then(number).ok_or_else(error)?;
        Ok(Action {
            stage,
            kind,
            micro_batch,
        })
    }
}

/// A decimal number as [`Action`] prints it: no sign, no leading zero.
fn number(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (text == "0" || !text.starts_with('0')))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        for (action, text) in [
            (Action::forward(0, 3), "0F3"),
            (Action::backward(1, 0), "1B0"),
            (Action::weight(65535, 65535), "65535W65535"),
        ] {
            assert_eq!(action.to_string(), text);
            assert_eq!(text.parse(), Ok(action));
        }
        assert_eq!(
            format!("{:>5}|{:<5}", Action::forward(0, 3), Action::weight(1, 2)),
            "  0F3|1W2  "
        );
    }

    #[test]
    fn refuses_everything_else() {
        for text in [
            "", "F", "0F", "F0", "0f3", "0X3", "00F3", "0F03", "+0F3", "0F+3", "0F3 ", "65536F0",
            "0F65536", "0Fé", "é", "0FF3",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text:?}");
        }
        let long = "9".repeat(100_000);
        assert!(long.parse::<Action>().unwrap_err().to_string().len() < 200);
    }
}
