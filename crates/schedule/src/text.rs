//! Schedules in text.

use std::fmt;
use std::str::FromStr;

use crate::{Action, MAX_ACTIONS, MAX_MICRO_BATCHES, MAX_STAGES, ParseActionError, Schedule};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule {}", self.name)?;
        writeln!(f, "micro-batches {}", self.micro_batches)?;
        write!(f, "stages on devices")?;
        for device in &self.device_of_stage {
            write!(f, " {device}")?;
        }
        writeln!(f)?;
        for (device, actions) in self.actions.iter().enumerate() {
            write!(f, "{device}:")?;
            for action in actions {
                write!(f, " {action}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseScheduleError {
    /// A line is missing or does not begin as it should.
    #[error("line {line}: expected `{expected}`")]
    Expected {
        /// Line, from 1.
        line: usize,
        /// How it must begin.
        expected: String,
    },
    /// Something that must be an action is none.
    #[error("line {line}: {source}")]
    Action {
        /// Line, from 1.
        line: usize,
        /// What it is instead.
        source: ParseActionError,
    },
    /// More than a schedule may have.
    #[error("line {line}: more than {most} {what}")]
    TooMany {
        /// Line, from 1.
        line: usize,
        /// Of what.
        what: &'static str,
        /// The limit.
        most: usize,
    },
}

/// Reads what [`Schedule`] prints; blank lines do not count. The result may still be unsound: see
/// [`validate`](crate::validate()).
impl FromStr for Schedule {
    type Err = ParseScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty());
        let mut field = |prefix: &'static str, shape: &'static str| {
            let (line, text) = lines.next().unwrap_or((text.lines().count() + 1, ""));
            let expected = ParseScheduleError::Expected {
                line,
                expected: shape.to_owned(),
            };
            match text.strip_prefix(prefix) {
                Some(rest) if rest.starts_with(' ') => Ok((line, rest.trim_start(), expected)),
                _ => Err(expected),
            }
        };

        let (_, name, expected) = field("schedule", "schedule NAME")?;
        if name.len() > 64 || name.contains(char::is_whitespace) {
            return Err(expected);
        }
        let name = name.to_owned();

        let (line, count, expected) = field("micro-batches", "micro-batches COUNT")?;
        let micro_batches: u16 = count.parse().map_err(|_| expected)?;
        if usize::from(micro_batches) > MAX_MICRO_BATCHES {
            return Err(ParseScheduleError::TooMany {
                line,
                what: "micro-batches",
                most: MAX_MICRO_BATCHES,
            });
        }

        let (line, devices, expected) =
            field("stages on devices", "stages on devices DEVICE DEVICE ...")?;
        let mut device_of_stage = Vec::new();
        for word in devices.split_whitespace() {
            if device_of_stage.len() == MAX_STAGES {
                return Err(ParseScheduleError::TooMany {
                    line,
                    what: "stages",
                    most: MAX_STAGES,
                });
            }
            device_of_stage.push(word.parse().map_err(|_| expected.clone())?);
        }

        let mut actions: Vec<Vec<Action>> = Vec::new();
        let mut total = 0;
        for (line, text) in lines {
            if actions.len() == MAX_STAGES {
                return Err(ParseScheduleError::TooMany {
                    line,
                    what: "devices",
                    most: MAX_STAGES,
                });
            }
            let prefix = format!("{}:", actions.len());
            let list = text
                .strip_prefix(&prefix)
                .ok_or_else(|| ParseScheduleError::Expected {
                    line,
                    expected: prefix.clone(),
                })?;
            let mut of_device = Vec::new();
            for word in list.split_whitespace() {
                total += 1;
                if total > MAX_ACTIONS {
                    return Err(ParseScheduleError::TooMany {
                        line,
                        what: "actions",
                        most: MAX_ACTIONS,
                    });
                }
                of_device.push(
                    word.parse()
                        .map_err(|source| ParseScheduleError::Action { line, source })?,
                );
            }
            actions.push(of_device);
        }
        Ok(Schedule {
            name,
            micro_batches,
            device_of_stage,
            actions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "schedule 1f1b
micro-batches 2
stages on devices 0 1
0: 0F0 0F1 0B0 0W0 0B1 0W1
1: 1F0 1B0 1W0 1F1 1B1 1W1
";

    #[test]
    fn prints_and_parses() {
        let schedule: Schedule = TEXT.parse().unwrap();
        assert_eq!(schedule.micro_batches, 2);
        assert_eq!(schedule.device_of_stage, [0, 1]);
        assert_eq!(schedule.actions[1][2], Action::weight(1, 0));
        assert_eq!(schedule.to_string(), TEXT);
        let spaced = TEXT.replace('\n', "  \r\n\n");
        assert_eq!(spaced.parse(), Ok(schedule));
    }

    #[test]
    fn errors_name_the_line() {
        for (from, to, says) in [
            (
                "schedule 1f1b",
                "plan x",
                "line 1: expected `schedule NAME`",
            ),
            (
                "schedule 1f1b",
                "schedule a b",
                "line 1: expected `schedule NAME`",
            ),
            (
                "micro-batches 2",
                "micro-batches many",
                "line 2: expected `micro-batches COUNT`",
            ),
            (
                "micro-batches 2",
                "micro-batches 65535",
                "line 2: more than 16384 micro-batches",
            ),
            (
                "devices 0 1",
                "devices 0 -1",
                "line 3: expected `stages on devices DEVICE DEVICE ...`",
            ),
            ("1F1 1B1", "1F1 1X1", "line 5: \"1X1\" is not an action"),
            ("1: 1F0", "2: 1F0", "line 5: expected `1:`"),
        ] {
            let error = TEXT
                .replace(from, to)
                .parse::<Schedule>()
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(says), "{error}");
        }
        assert_eq!(
            "".parse::<Schedule>().unwrap_err().to_string(),
            "line 1: expected `schedule NAME`"
        );
    }

    #[test]
    fn sizes_are_bounded() {
        let stages = TEXT.replace(
            "devices 0 1",
            &format!("devices{}", " 0".repeat(MAX_STAGES + 1)),
        );
        assert!(matches!(
            stages.parse::<Schedule>(),
            Err(ParseScheduleError::TooMany { what: "stages", .. })
        ));
        let actions = TEXT.replace("1: ", &format!("1: {}", "1F0 ".repeat(MAX_ACTIONS)));
        assert!(matches!(
            actions.parse::<Schedule>(),
            Err(ParseScheduleError::TooMany {
                what: "actions",
                ..
            })
        ));
    }
}
