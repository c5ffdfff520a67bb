//! Whether a worker's list of actions fits the stages it holds.

use std::collections::{BTreeMap, BTreeSet};

use outboard_schedule::{Action, Kind};

use crate::stage::Signature;

/// Checks that the list runs every program of every stage once for each micro-batch, each kind in the order of
/// micro-batches; that no action waits for one of this worker that comes after it; and that no stage holds more
/// micro-batches than its memory was planned for.
pub(crate) fn check(
    actions: &[Action],
    micro_batches: u16,
    stages: &BTreeMap<u16, Signature>,
) -> Result<(), String> {
    let mut done: BTreeSet<Action> = BTreeSet::new();
    let mut next: BTreeMap<(u16, Kind), u16> = BTreeMap::new();
    for action in actions {
        let Action {
            stage,
            kind,
            micro_batch,
        } = *action;
        let Some(signature) = stages.get(&stage) else {
            return Err(format!(
                "{action} is of a stage that this worker does not hold"
            ));
        };
        if signature.train.is_none() {
            return Err(format!(
                "{action}: stage {stage} was assigned for evaluation alone"
            ));
        }
        let expected = next.entry((stage, kind)).or_default();
        if micro_batch != *expected {
            return Err(format!(
                "{action} stands where micro-batch {expected} of its kind is due"
            ));
        }
        if micro_batch >= micro_batches {
            return Err(format!(
                "{action} is beyond the {micro_batches} micro-batches"
            ));
        }
        *expected = expected.saturating_add(1);
        let before = |kind, stage| Action {
            stage,
            kind,
            micro_batch,
        };
        let neighbour = match kind {
            Kind::Forward => stage.checked_sub(1),
            Kind::Backward => stage.checked_add(1),
            Kind::Weight => None,
        };
        let needs = [
            match kind {
                Kind::Forward => None,
                Kind::Backward => Some(before(Kind::Forward, stage)),
                Kind::Weight => Some(before(Kind::Backward, stage)),
            },
            neighbour
                .filter(|other| stages.contains_key(other))
                .map(|other| before(kind, other)),
        ];
        if let Some(missing) = needs
            .into_iter()
            .flatten()
            .find(|need| !done.contains(need))
        {
            return Err(format!("{action} stands before {missing}, which it needs"));
        }
        done.insert(*action);
        let count = |kind| next.get(&(stage, kind)).copied().unwrap_or_default();
        let held = count(Kind::Forward).saturating_sub(count(Kind::Weight));
        // The `W` that has just ended still held its own micro-batch while it ran.
        let held = held.saturating_add(u16::from(kind == Kind::Weight));
        if held > signature.in_flight {
            return Err(format!(
                "{action} makes {held} micro-batches in flight; memory is planned for {} on stage {stage}",
                signature.in_flight
            ));
        }
    }
    for stage in stages.keys() {
        for kind in [Kind::Forward, Kind::Backward, Kind::Weight] {
            let found = next.get(&(*stage, kind)).copied().unwrap_or_default();
            if found != micro_batches {
                return Err(format!(
                    "stage {stage} has {found} of {micro_batches} actions {}",
                    kind.letter()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Ports;

    fn stages(indices: &[u16], in_flight: u16) -> BTreeMap<u16, Signature> {
        indices
            .iter()
            .map(|&stage| {
                let signature = Signature {
                    stage,
                    train: Some(Ports::default()),
                    in_flight,
                    ..Signature::default()
                };
                (stage, signature)
            })
            .collect()
    }

    fn list(text: &str) -> Vec<Action> {
        text.split_whitespace()
            .map(|action| action.parse().unwrap())
            .collect()
    }

    #[test]
    fn what_fits_is_taken() {
        let one = "0F0 0F1 0B0 0W0 0B1 0W1";
        assert_eq!(check(&list(one), 2, &stages(&[0], 2)), Ok(()));
        let both = "0F0 1F0 1B0 1W0 0B0 0W0";
        assert_eq!(check(&list(both), 1, &stages(&[0, 1], 1)), Ok(()));
        // Stages that are not neighbours wait for others' tensors, never for each other.
        let apart = "2F0 0F0 0B0 0W0 2B0 2W0";
        assert_eq!(check(&list(apart), 1, &stages(&[0, 2], 1)), Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cases = [
            (
                "1F0",
                &[0][..],
                "1F0 is of a stage that this worker does not hold",
            ),
            (
                "0F1",
                &[0],
                "0F1 stands where micro-batch 0 of its kind is due",
            ),
            (
                "0F0 0F0",
                &[0],
                "0F0 stands where micro-batch 1 of its kind is due",
            ),
            ("0F0 0F1 0F2", &[0], "0F2 is beyond the 2 micro-batches"),
            ("0B0", &[0], "0B0 stands before 0F0, which it needs"),
            ("0F0 0W0", &[0], "0W0 stands before 0B0, which it needs"),
            ("1F0 0F0", &[0, 1], "1F0 stands before 0F0, which it needs"),
            (
                "0F0 1F0 0B0",
                &[0, 1],
                "0B0 stands before 1B0, which it needs",
            ),
            ("0F0 0B0 0W0", &[0], "stage 0 has 1 of 2 actions F"),
        ];
        for (text, held, expected) in cases {
            assert_eq!(
                check(&list(text), 2, &stages(held, 2)),
                Err(expected.to_owned()),
                "{text}"
            );
        }
        assert_eq!(
            check(&list("0F0 0F1 0B0 0W0 0B1 0W1"), 2, &stages(&[0], 1)),
            Err(
                "0F1 makes 2 micro-batches in flight; memory is planned for 1 on stage 0"
                    .to_owned()
            )
        );
    }
}
