//! One step in flight: collects what the workers say of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboard_graph::Tensor;
use outboard_wire::{ActionTime, StepMode};

use super::{DeviceId, Route};
use crate::clip::{global_norm, gradient_scale};
use crate::report::{DeviceStep, StepReport, TimedAction, Transfer};

/// What a worker said of its gradients.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gradients {
    pub(super) loss_sums: Vec<f32>,
    pub(super) loss_weights: Vec<f32>,
    pub(super) squares: Vec<(String, f64)>,
    pub(super) not_finite: Option<(u16, String)>,
}

/// What a step comes to, once all gradients are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) loss: f64,
    pub(super) grad_norm: f64,
    pub(super) gradient_scale: f32,
}

/// The value that stops a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NotFinite {
    pub(super) device: Option<DeviceId>,
    pub(super) stage: u16,
    pub(super) what: String,
}

/// A step that was opened.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) mode: StepMode,
    pub(super) sizes: Vec<u32>,
    pub(super) learning_rate: f64,
    pub(super) begun: Duration,
    pub(super) gradients: BTreeMap<DeviceId, Gradients>,
    pub(super) verdict: Option<Verdict>,
    pub(super) done: BTreeMap<DeviceId, DeviceStep>,
    pub(super) results: Vec<BTreeMap<String, Tensor>>,
    pub(super) relayed: BTreeSet<(u16, Route)>,
    pub(super) transfers: Vec<Transfer>,
}

impl Step {
    pub(super) fn new(
        step: u64,
        mode: StepMode,
        sizes: Vec<u32>,
        learning_rate: f64,
        now: Duration,
    ) -> Self {
        Step {
            step,
            mode,
            results: vec![BTreeMap::new(); sizes.len()],
            sizes,
            learning_rate,
            begun: now,
            gradients: BTreeMap::new(),
            verdict: None,
            done: BTreeMap::new(),
            relayed: BTreeSet::new(),
            transfers: Vec::new(),
        }
    }

    /// The batch's loss and the scale of its gradients, once every worker has reported; or the value that is not finite:
    /// the loss first, for everything after it follows from it, then the highest stage, for gradients flow down from there.
    pub(super) fn judge(
        &self,
        clip_norm: Option<f64>,
        last_stage: u16,
    ) -> Result<Verdict, NotFinite> {
        let found = self
            .gradients
            .iter()
            .filter_map(|(device, gradients)| {
                let (stage, what) = gradients.not_finite.as_ref()?;
                Some((what == "loss", *stage, *device, what))
            })
            .max_by_key(|(is_loss, stage, _, _)| (*is_loss, *stage));
        if let Some((_, stage, device, what)) = found {
            return Err(NotFinite {
                device: Some(device),
                stage,
                what: what.clone(),
            });
        }
        let sum = |of: fn(&Gradients) -> &Vec<f32>| -> f64 {
            self.gradients
                .values()
                .flat_map(of)
                .map(|value| f64::from(*value))
                .sum()
        };
        let loss = sum(|gradients| &gradients.loss_sums) / sum(|gradients| &gradients.loss_weights);
        if !loss.is_finite() {
            let of_loss = self
                .gradients
                .iter()
                .find(|(_, said)| !said.loss_sums.is_empty());
            return Err(NotFinite {
                device: of_loss.map(|(device, _)| *device),
                stage: last_stage,
                what: "loss".to_owned(),
            });
        }
        let squares: BTreeMap<&str, f64> = self
            .gradients
            .values()
            .flat_map(|gradients| &gradients.squares)
            .map(|(name, square)| (name.as_str(), *square))
            .collect();
        let grad_norm = global_norm(squares.values());
        if !grad_norm.is_finite() {
            return Err(NotFinite {
                device: None,
                stage: last_stage,
                what: "the norm of all gradients".to_owned(),
            });
        }
        Ok(Verdict {
            loss,
            grad_norm,
            gradient_scale: gradient_scale(grad_norm, clip_norm),
        })
    }

    /// The report, when all devices are done with a step of training.
    pub(super) fn report(
        self,
        verdict: Verdict,
        previous_end: Duration,
        now: Duration,
    ) -> StepReport {
        let started = self.begun.max(previous_end);
        StepReport {
            step: self.step,
            loss: verdict.loss,
            sizes: self.sizes,
            grad_norm: verdict.grad_norm,
            gradient_scale: verdict.gradient_scale,
            learning_rate: self.learning_rate,
            seconds: now.saturating_sub(started).as_secs_f64(),
            started,
            ended: now,
            devices: self.done.into_values().collect(),
            transfers: self.transfers,
        }
    }
}

/// A worker's action times on the host's clock.
pub(super) fn timed(
    times: &[ActionTime],
    on_host_clock: impl Fn(u64) -> Duration,
) -> Vec<TimedAction> {
    times
        .iter()
        .map(|time| TimedAction {
            action: time.action,
            start: on_host_clock(time.start_micros),
            duration: Duration::from_micros(time.micros),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradients(loss: &[(f32, f32)], squares: &[(&str, f64)]) -> Gradients {
        Gradients {
            loss_sums: loss.iter().map(|(sum, _)| *sum).collect(),
            loss_weights: loss.iter().map(|(_, weight)| *weight).collect(),
            squares: squares
                .iter()
                .map(|(name, square)| ((*name).to_owned(), *square))
                .collect(),
            not_finite: None,
        }
    }

    fn step_of(said: Vec<Gradients>) -> Step {
        let mut step = Step::new(3, StepMode::Train, vec![2, 1], 0.1, Duration::ZERO);
        step.gradients = said
            .into_iter()
            .enumerate()
            .map(|(at, said)| (DeviceId(at), said))
            .collect();
        step
    }

    #[test]
    fn an_uneven_micro_batch_weighs_what_it_holds() {
        let step = step_of(vec![
            gradients(&[], &[("a", 9.0)]),
            gradients(&[(4.0, 2.0), (5.0, 1.0)], &[("b", 16.0)]),
        ]);
        assert_eq!(
            step.judge(None, 1),
            Ok(Verdict {
                loss: 3.0,
                grad_norm: 5.0,
                gradient_scale: 1.0
            })
        );
    }

    #[test]
    fn what_is_not_finite_is_named_by_its_cause() {
        let mut first = gradients(&[], &[]);
        first.not_finite = Some((0, "conv1.weight".into()));
        let mut last = gradients(&[(f32::NAN, 1.0)], &[]);
        last.not_finite = Some((1, "fc.weight".into()));
        let step = step_of(vec![first.clone(), last.clone()]);
        assert_eq!(
            step.judge(None, 1).map_err(|found| found.what),
            Err("fc.weight".to_owned())
        );
        last.not_finite = Some((1, "loss".into()));
        let step = step_of(vec![first, last]);
        assert_eq!(
            step.judge(None, 1).map_err(|found| found.what),
            Err("loss".to_owned())
        );
    }

    #[test]
    fn a_batch_without_any_target_has_no_loss() {
        let step = step_of(vec![gradients(&[(0.0, 0.0), (0.0, 0.0)], &[])]);
        assert_eq!(
            step.judge(None, 0),
            Err(NotFinite {
                device: Some(DeviceId(0)),
                stage: 0,
                what: "loss".into()
            })
        );
    }
}
