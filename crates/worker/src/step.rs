//! One step: which of its actions may run now, and what came of those that ran.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use outboard_schedule::{Action, Kind};
use outboard_wire::{ActionTime, DataKind, StepMode};

use crate::event::{Act, Arrived};
use crate::mailbox::{Address, Letter, Mailbox};
use crate::stage::{Port, Ports, Signature};

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    /// Its actions run.
    Acting,
    /// All actions are done; gradients of shared weights have been sent, others' are awaited.
    Sharing,
    /// `Gradients` has been sent.
    AwaitingCommit,
    /// The host wants the optimizer applied.
    Committed {
        learning_rate: f64,
        gradient_scale: f32,
    },
}

/// A step that the host has opened.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) mode: StepMode,
    /// Samples of each micro-batch.
    pub(crate) sizes: Vec<u32>,
    pub(crate) phase: Phase,
    /// What to do, in order; in evaluation whatever is ready first.
    list: Arc<[Action]>,
    at: usize,
    done: HashSet<Action>,
    pub(crate) times: Vec<ActionTime>,
    pub(crate) peak_bytes: u64,
    /// By micro-batch, on the worker that holds the loss; else empty.
    loss_sums: Vec<Option<f32>>,
    loss_weights: Vec<Option<f32>>,
}

/// A micro-batch whose loss weight can be computed.
pub(crate) struct Normalisable {
    pub(crate) micro_batch: u16,
    pub(crate) arrived: Vec<Arrived>,
    pub(crate) released: Vec<(DataKind, u64)>,
}

/// What an action takes out of the mailbox.
pub(crate) struct Ready {
    pub(crate) act: Act,
    pub(crate) released: Vec<(DataKind, u64)>,
}

impl Step {
    pub(crate) fn new(
        number: u64,
        mode: StepMode,
        sizes: Vec<u32>,
        list: Arc<[Action]>,
        holds_loss: bool,
    ) -> Self {
        let losses = match (mode, holds_loss) {
            (StepMode::Train, true) => vec![None; sizes.len()],
            _ => Vec::new(),
        };
        Step {
            number,
            mode,
            sizes,
            phase: Phase::Acting,
            list,
            at: 0,
            done: HashSet::new(),
            times: Vec::new(),
            peak_bytes: 0,
            loss_sums: losses.clone(),
            loss_weights: losses,
        }
    }

    /// Samples of a micro-batch.
    pub(crate) fn samples(&self, micro_batch: u16) -> Option<u32> {
        self.sizes.get(usize::from(micro_batch)).copied()
    }

    /// What a stage takes and gives in this step's mode.
    pub(crate) fn ports<'a>(&self, signature: &'a Signature) -> Option<&'a Ports> {
        match self.mode {
            StepMode::Train => signature.train.as_ref(),
            StepMode::Evaluate => signature.evaluate.as_ref(),
        }
    }

    fn address(&self, stage: u16, kind: DataKind, micro_batch: u16, name: &str) -> Address {
        Address {
            step: self.number,
            stage,
            kind,
            micro_batch,
            name: name.to_owned(),
        }
    }

    /// The next micro-batch whose loss weight can be computed, with the normaliser's data. Data that `F` does not take
    /// leaves the mailbox.
    pub(crate) fn normalisable(
        &self,
        signature: &Signature,
        mailbox: &mut Mailbox,
    ) -> Option<Normalisable> {
        let names = signature.normaliser.as_ref()?;
        let stage = signature.stage;
        let micro_batch = (0_u16..)
            .zip(&self.loss_weights)
            .filter(|(_, weight)| weight.is_none())
            .map(|(micro_batch, _)| micro_batch)
            .find(|&micro_batch| {
                names.iter().all(|name| {
                    mailbox.has(&self.address(stage, DataKind::Input, micro_batch, name))
                })
            })?;
        let mut arrived = Vec::new();
        let mut released = Vec::new();
        for name in names {
            let address = self.address(stage, DataKind::Input, micro_batch, name);
            if signature.forward_data.contains(name) {
                arrived.extend(mailbox.get(&address).cloned());
            } else if let Some(letter) = mailbox.take(&address) {
                released.push((DataKind::Input, letter.frame_bytes));
                arrived.push(letter.arrived);
            }
        }
        Some(Normalisable {
            micro_batch,
            arrived,
            released,
        })
    }

    /// The next action whose tensors are all there, with those that came over the link.
    pub(crate) fn ready(
        &self,
        stages: &BTreeMap<u16, Signature>,
        mailbox: &mut Mailbox,
    ) -> Option<Ready> {
        let action = match self.mode {
            StepMode::Train => self
                .list
                .get(self.at)
                .copied()
                .filter(|action| self.is_ready(*action, stages, mailbox))?,
            StepMode::Evaluate => self.list.iter().copied().find(|action| {
                !self.done.contains(action) && self.is_ready(*action, stages, mailbox)
            })?,
        };
        let mut arrived = Vec::new();
        let mut released = Vec::new();
        for address in self.taken(action, stages)? {
            let Letter {
                arrived: tensor,
                frame_bytes,
            } = mailbox.take(&address)?;
            released.push((address.kind, frame_bytes));
            arrived.push(tensor);
        }
        let act = Act {
            step: self.number,
            mode: self.mode,
            action,
            samples: self.samples(action.micro_batch)?,
            arrived,
            loss_cotangent: self.loss_cotangent(),
        };
        Some(Ready { act, released })
    }

    /// What an action takes from the mailbox; `None` for an action that the stage does not have.
    fn taken(&self, action: Action, stages: &BTreeMap<u16, Signature>) -> Option<Vec<Address>> {
        let signature = stages.get(&action.stage)?;
        let ports = self.ports(signature)?;
        let local = |stage: Option<u16>| stage.is_some_and(|stage| stages.contains_key(&stage));
        let address = |kind, name: &str| self.address(action.stage, kind, action.micro_batch, name);
        let addresses = |kind, ports: &[Port]| {
            ports
                .iter()
                .map(|port| address(kind, &port.name))
                .collect::<Vec<_>>()
        };
        let mut taken = Vec::new();
        match action.kind {
            Kind::Forward => {
                match self.mode {
                    StepMode::Train => taken.extend(
                        signature
                            .forward_data
                            .iter()
                            .map(|name| address(DataKind::Input, name)),
                    ),
                    StepMode::Evaluate => taken.extend(addresses(DataKind::Input, &ports.data)),
                }
                if !local(action.stage.checked_sub(1)) {
                    taken.extend(addresses(DataKind::Activation, &ports.activations_in));
                }
            }
            Kind::Backward if !local(action.stage.checked_add(1)) => {
                taken.extend(addresses(DataKind::Cotangent, &ports.cotangents_in));
            }
            Kind::Backward | Kind::Weight => {}
        }
        Some(taken)
    }

    fn is_ready(
        &self,
        action: Action,
        stages: &BTreeMap<u16, Signature>,
        mailbox: &Mailbox,
    ) -> bool {
        let Some(signature) = stages.get(&action.stage) else {
            return false;
        };
        let Some(taken) = self.taken(action, stages) else {
            return false;
        };
        let at = |kind, stage| Action {
            stage,
            kind,
            micro_batch: action.micro_batch,
        };
        let has_run = |kind, stage: Option<u16>| {
            stage
                .filter(|stage| stages.contains_key(stage))
                .is_none_or(|stage| self.done.contains(&at(kind, stage)))
        };
        let others = match action.kind {
            Kind::Forward => {
                let normalised = self
                    .loss_weights
                    .get(usize::from(action.micro_batch))
                    .is_none_or(Option::is_some);
                has_run(Kind::Forward, action.stage.checked_sub(1))
                    && (signature.normaliser.is_none() || normalised)
            }
            Kind::Backward => {
                has_run(Kind::Forward, Some(action.stage))
                    && has_run(Kind::Backward, action.stage.checked_add(1))
                    && (signature.normaliser.is_none()
                        || self.loss_weights.iter().all(Option::is_some))
            }
            Kind::Weight => has_run(Kind::Backward, Some(action.stage)),
        };
        others && taken.iter().all(|address| mailbox.has(address))
    }

    /// The gradient of the batch's loss with respect to each loss sum: one over the sum of all weights, in f32, added up
    /// in the order of micro-batches. Infinite where every target is ignored; [`Step::loss_is_finite`] then says no, as
    /// PyTorch's loss is not a number.
    fn loss_cotangent(&self) -> Option<f32> {
        if self.loss_weights.is_empty() {
            return None;
        }
        let sum: Option<f32> = self.loss_weights.iter().copied().sum();
        sum.map(|sum| 1.0 / sum)
    }

    /// Whether the loss of the batch is a finite number.
    pub(crate) fn loss_is_finite(&self) -> bool {
        if self.loss_weights.is_empty() {
            return true;
        }
        let total = |losses: &[Option<f32>]| -> f64 {
            losses.iter().flatten().map(|loss| f64::from(*loss)).sum()
        };
        (total(&self.loss_sums) / total(&self.loss_weights)).is_finite()
            && self.loss_sums.iter().flatten().all(|loss| loss.is_finite())
    }

    pub(crate) fn loss_sums(&self) -> Vec<f32> {
        self.loss_sums.iter().flatten().copied().collect()
    }

    pub(crate) fn loss_weights(&self) -> Vec<f32> {
        self.loss_weights.iter().flatten().copied().collect()
    }

    pub(crate) fn normalised(&mut self, micro_batch: u16, weight: f32) {
        if let Some(slot) = self.loss_weights.get_mut(usize::from(micro_batch)) {
            *slot = Some(weight);
        }
    }

    pub(crate) fn acted(&mut self, time: ActionTime, loss_sum: Option<f32>, peak_bytes: u64) {
        let micro_batch = usize::from(time.action.micro_batch);
        if let (Some(loss), Some(slot)) = (loss_sum, self.loss_sums.get_mut(micro_batch)) {
            *slot = Some(loss);
        }
        self.at = self.at.saturating_add(1);
        self.done.insert(time.action);
        self.times.push(time);
        self.peak_bytes = self.peak_bytes.max(peak_bytes);
    }

    /// Whether every action has run.
    pub(crate) fn list_is_done(&self) -> bool {
        self.at >= self.list.len() && self.loss_weights.iter().all(Option::is_some)
    }

    /// What the step waits for, for an error or a log: its next action.
    pub(crate) fn waits_for(&self) -> Option<Action> {
        self.list.get(self.at).copied()
    }
}
