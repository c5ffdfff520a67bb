//! What the run learns from the jobs it gave out.

use std::collections::BTreeSet;
use std::time::Duration;

use outboard_wire::{
    ActionTime, DataHeader, FailureKind, SharedWeight, StepMode, Stream, WorkerMessage,
};

use super::{Doing, Failure, Run, State, Work};
use crate::event::{Departing, Effect, JobOutput};
use crate::memory::MemoryPlan;
use crate::outbox::Outbox;
use crate::stage::Signature;
use crate::step::{Phase, Step};

impl Run {
    /// Takes the output of a job. `started` and `took` are on the worker's clock.
    pub(crate) fn done(
        &mut self,
        doing: Doing,
        started: Duration,
        took: Duration,
        output: JobOutput,
        outbox: &mut Outbox,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Failure> {
        match (doing, output) {
            (
                Doing::Prepare,
                JobOutput::Prepared {
                    signatures,
                    windows,
                    memory,
                },
            ) => {
                self.windows = windows;
                self.prepared(signatures, &memory)?;
            }
            (Doing::Load { .. }, JobOutput::Done) => {}
            (Doing::Normalise { step, micro_batch }, JobOutput::Normalised(weight)) => {
                if let Some(step) = self.step(step) {
                    step.normalised(micro_batch, weight);
                }
            }
            (
                Doing::Act {
                    step: number,
                    action,
                },
                JobOutput::Acted {
                    departing,
                    loss_sum,
                    peak_bytes,
                },
            ) => {
                self.send(number, action.micro_batch, departing, outbox);
                let time = ActionTime {
                    action,
                    start_micros: micros(started),
                    micros: micros(took),
                };
                if let Some(step) = self.step(number) {
                    step.acted(time, loss_sum, peak_bytes);
                    if step.mode == StepMode::Evaluate && step.list_is_done() {
                        self.close(number, 0.0, |message| {
                            outbox.then(Stream::Samples, message);
                        });
                    }
                }
            }
            (Doing::Share { step }, JobOutput::Shared(departing)) => {
                self.send(step, 0, departing, outbox);
            }
            (
                Doing::Finish { step },
                JobOutput::Finished {
                    squares,
                    not_finite,
                },
            ) => self.finished(step, squares, not_finite, effects),
            (Doing::Update { step }, JobOutput::Done) => {
                self.updates = self.updates.saturating_add(1);
                self.close(step, took.as_secs_f64(), |message| {
                    effects.push(Effect::Send(message));
                });
            }
            (Doing::List, JobOutput::Listed(all)) => {
                if let Some(Work::Fetch { names, .. }) = self.work.front_mut() {
                    *names = Some(all.into());
                }
                self.fetched(outbox);
            }
            (Doing::Export, JobOutput::Exported(tensor)) => {
                self.send(self.updates, 0, vec![tensor], outbox);
                if let Some(Work::Fetch { sent, .. }) = self.work.front_mut() {
                    *sent = sent.saturating_add(1);
                }
                self.fetched(outbox);
            }
            // The compute side answers each job with its own output; anything else is its mistake.
            (doing, output) => {
                return Err(Failure {
                    step: doing.step(),
                    stage: None,
                    kind: FailureKind::Compute,
                    message: format!("{doing:?} was answered by {output:?}"),
                });
            }
        }
        if matches!(self.state, State::Loading)
            && self.awaited_weights.is_empty()
            && self.arrived_weights.is_empty()
        {
            self.state = State::Ready;
            effects.push(Effect::Send(WorkerMessage::Ready {
                run: self.id,
                planned_bytes: self.planned_bytes,
                weights_sha256: self.weights_sha256,
            }));
        }
        Ok(())
    }

    fn prepared(&mut self, signatures: Vec<Signature>, memory: &MemoryPlan) -> Result<(), Failure> {
        self.state = State::Loading;
        self.planned_bytes = memory.total();
        self.stages = signatures
            .into_iter()
            .map(|signature| (signature.stage, signature))
            .collect();
        let own: BTreeSet<&str> = self
            .stages
            .values()
            .flat_map(|signature| &signature.uses)
            .map(|port| port.name.as_str())
            .collect();
        for SharedWeight { name, uses, stages } in &self.shared {
            let all_mine = stages.iter().all(|stage| self.stages.contains_key(stage));
            let some_use = uses.iter().any(|used| own.contains(used.as_str()));
            self.shares |= some_use && !all_mine;
            let others: Vec<&String> = uses
                .iter()
                .filter(|used| !own.contains(used.as_str()))
                .collect();
            if all_mine && !others.is_empty() {
                return Err(Failure::order(format!(
                    "the uses {others:?} of {name:?} are in no stage, though all its stages are here"
                )));
            }
            for stage in stages
                .iter()
                .filter(|stage| self.stages.contains_key(stage))
            {
                let dims = self
                    .weight_dims
                    .get(&(*stage, name.clone()))
                    .ok_or_else(|| {
                        Failure::order(format!("stage {stage} holds no weight {name:?} to share"))
                    })?;
                for used in &others {
                    self.awaited_uses
                        .push((*stage, (*used).clone(), dims.clone()));
                }
            }
        }
        Ok(())
    }

    fn finished(
        &mut self,
        number: u64,
        squares: Vec<(String, f64)>,
        not_finite: Option<(u16, String)>,
        effects: &mut Vec<Effect>,
    ) {
        let run = self.id;
        let loss_stage = self.holds_loss().map(|signature| signature.stage);
        let Some(step) = self.step(number) else {
            return;
        };
        step.phase = Phase::AwaitingCommit;
        let loss = loss_stage
            .filter(|_| !step.loss_is_finite())
            .map(|stage| (stage, crate::stage::LOSS.to_owned()));
        effects.push(Effect::Send(WorkerMessage::Gradients {
            run,
            step: number,
            loss_sums: step.loss_sums(),
            loss_weights: step.loss_weights(),
            squares,
            not_finite: loss.or(not_finite),
        }));
    }

    /// Ends a step: says so, and forgets it.
    fn close(&mut self, number: u64, update_seconds: f64, say: impl FnOnce(WorkerMessage)) {
        let at = self
            .work
            .iter()
            .position(|work| matches!(work, Work::Step(step) if step.number == number));
        let Some(Work::Step(step)) = at.and_then(|at| self.work.remove(at)) else {
            return;
        };
        for letter in self.mailbox.close(number) {
            self.released
                .push((letter.arrived.header.kind, letter.frame_bytes));
        }
        say(WorkerMessage::StepDone {
            run: self.id,
            step: number,
            times: step.times,
            update_seconds,
            peak_bytes: step.peak_bytes,
            heat: None,
        });
    }

    /// Ends a fetch whose tensors have all been exported.
    fn fetched(&mut self, outbox: &mut Outbox) {
        let Some(Work::Fetch {
            state,
            names: Some(names),
            sent,
        }) = self.work.front()
        else {
            return;
        };
        if names.is_empty() {
            outbox.then(
                Stream::Bulk,
                WorkerMessage::Fetched {
                    run: self.id,
                    state: *state,
                    tensors: *sent,
                },
            );
            self.work.pop_front();
        }
    }

    fn step(&mut self, number: u64) -> Option<&mut Step> {
        self.work.iter_mut().find_map(|work| match work {
            Work::Step(step) if step.number == number => Some(step),
            _ => None,
        })
    }

    fn send(&self, step: u64, micro_batch: u16, departing: Vec<Departing>, outbox: &mut Outbox) {
        for tensor in departing {
            let header = DataHeader {
                run: self.id,
                step,
                kind: tensor.kind,
                stage: tensor.stage,
                micro_batch,
                name: tensor.name,
                dtype: tensor.dtype,
                dims: tensor.dims.iter().map(|dim| *dim as u64).collect(),
                encoding: tensor.encoding,
            };
            outbox.push(header, tensor.payload);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
