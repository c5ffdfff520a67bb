//! What workers say of a step in flight: gradients, then its end.

use std::collections::BTreeSet;

use outboard_wire::{HostMessage, StepMode};

use super::net::{Fault, Net};
use super::run::Run;
use super::step::Gradients;
use super::{DeviceId, Report};
use crate::RunError;
use crate::report::DeviceStep;

impl Run {
    /// A worker's list is done. When those of all are, the step is judged, and committed or given up.
    pub(super) fn gradients(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        number: u64,
        said: Gradients,
    ) -> Result<(), Fault> {
        let (in_progress, devices) = (self.step_in_progress(), self.spec.assigns.len());
        let last_stage = self.last_stage();
        let holds_loss = self.spec.device_of_stage.last() == Some(&device);
        let broke = |net: &Net, what: String| Err(net.protocol(device, in_progress, what));
        let Some(step) = self.steps.front_mut().filter(|step| step.step == number) else {
            return broke(
                net,
                format!("gradients of step {number}, which is not in progress"),
            );
        };
        if step.mode != StepMode::Train {
            return broke(net, "gradients of an evaluation".into());
        }
        let losses = if holds_loss { step.sizes.len() } else { 0 };
        if said.loss_sums.len() != losses || said.loss_weights.len() != losses {
            return broke(
                net,
                format!("{} losses, not {losses}", said.loss_sums.len()),
            );
        }
        let reporter = &self.spec.reporter_of_parameter;
        let names: BTreeSet<&String> = said.squares.iter().map(|(name, _)| name).collect();
        let wanted = reporter
            .values()
            .filter(|reporter| **reporter == device)
            .count();
        if names
            .iter()
            .any(|name| reporter.get(*name) != Some(&device))
            || names.len() != said.squares.len()
            || (said.not_finite.is_none() && names.len() != wanted)
        {
            return broke(net, "gradients of other parameters than its own".into());
        }
        if step.gradients.insert(device, said).is_some() {
            return broke(net, "gradients twice".into());
        }
        if step.gradients.len() < devices {
            return Ok(());
        }
        let verdict = step
            .judge(self.spec.clip_norm, last_stage)
            .map_err(|found| {
                let of_stage = self.spec.device_of_stage.get(usize::from(found.stage));
                let holder = found.device.or(of_stage.copied()).unwrap_or(device);
                Fault {
                    device: Some(holder),
                    gone: false,
                    error: RunError::NotFinite {
                        step: number,
                        stage: found.stage,
                        device: net.name(holder),
                        what: found.what,
                    },
                }
            })?;
        step.verdict = Some(verdict);
        let learning_rate = step.learning_rate;
        for device in self.devices() {
            let message = HostMessage::Commit {
                run: self.id,
                step: number,
                learning_rate,
                gradient_scale: verdict.gradient_scale,
            };
            net.send(device, message);
        }
        Ok(())
    }

    /// A worker is done with a step. Steps are reported in order, when all workers are.
    pub(super) fn step_done(
        &mut self,
        net: &mut Net,
        number: u64,
        done: DeviceStep,
    ) -> Result<(), Fault> {
        let device = done.device;
        let in_progress = self.step_in_progress();
        let Some(step) = self.steps.iter_mut().find(|step| step.step == number) else {
            let what = format!("the end of step {number}, which is not in progress");
            return Err(net.protocol(device, in_progress, what));
        };
        if step.mode == StepMode::Train && step.verdict.is_none() {
            return Err(net.protocol(device, in_progress, "the end of a step before its Commit"));
        }
        if step.done.insert(device, done).is_some() {
            return Err(net.protocol(device, in_progress, "the end of a step twice"));
        }
        while let Some(step) = self
            .steps
            .pop_front_if(|step| step.done.len() == self.spec.assigns.len())
        {
            match step.verdict {
                Some(verdict) => {
                    let report = step.report(verdict, self.previous_end, net.now);
                    net.report(Report::Stepped(Box::new(report)));
                }
                None => {
                    let missing = self.spec.results.iter().find(|(name, _)| {
                        step.results
                            .iter()
                            .any(|results| !results.contains_key(*name))
                    });
                    if let Some((name, device)) = missing {
                        let what = format!("the end of a step without its result `{name}`");
                        return Err(net.protocol(*device, Some(step.step), what));
                    }
                    net.report(Report::Evaluated {
                        step: step.step,
                        results: step.results,
                    });
                }
            }
            self.previous_end = net.now;
        }
        Ok(())
    }
}
