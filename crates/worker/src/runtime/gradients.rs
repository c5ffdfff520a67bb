//! From the sums of each use to a gradient of each parameter, and the optimizer.

use std::collections::BTreeMap;

use outboard_exec::{Executor, StepSize};
use outboard_wire::{DataKind, TensorEncoding};

use super::{Kept, Loaded, compute, depart, upload};
use crate::event::{Arrived, JobError, JobOutput};
use crate::stage::split_use;

impl<E: Executor> Loaded<E> {
    /// This worker's sums of shared weights, for every stage elsewhere that holds them.
    pub(super) fn share_gradients(&mut self, engine: &E) -> Result<JobOutput, JobError> {
        let mut departing = Vec::new();
        for shared in &self.shared {
            let elsewhere: Vec<u16> = shared
                .stages
                .iter()
                .copied()
                .filter(|stage| !self.stages.contains_key(stage))
                .collect();
            for used in &shared.uses {
                let own = self
                    .stages
                    .values()
                    .find_map(|held| held.sums.get(used.as_str()));
                let (Some(own), [first, rest @ ..]) = (own, elsewhere.as_slice()) else {
                    continue;
                };
                let tensor = depart(
                    engine,
                    &own.tensor,
                    DataKind::SharedGradient,
                    *first,
                    used.clone(),
                    TensorEncoding::F32,
                )?;
                for stage in rest {
                    let mut copy = tensor.clone();
                    copy.stage = *stage;
                    departing.push(copy);
                }
                departing.push(tensor);
            }
        }
        Ok(JobOutput::Shared(departing))
    }

    /// Adds up the uses of each parameter, in ascending order of `(ORIGIN, OPERAND)` whichever stage they come from.
    pub(super) fn finish_gradients(
        &mut self,
        engine: &E,
        arrived: Vec<Arrived>,
    ) -> Result<JobOutput, JobError> {
        let mut sums: BTreeMap<String, E::Tensor> = BTreeMap::new();
        let mut uses: BTreeMap<(u16, String), Vec<String>> = BTreeMap::new();
        for (stage, held) in &mut self.stages {
            for (used, Kept { tensor, bytes }) in std::mem::take(&mut held.sums) {
                self.held_bytes = self.held_bytes.saturating_sub(bytes);
                let (parameter, _) = split_use(&used)
                    .ok_or_else(|| compute(format!("{used:?} names no use of a parameter")))?;
                let of = uses.entry((*stage, parameter.to_owned())).or_default();
                of.push(used.clone());
                sums.insert(used, tensor);
            }
        }
        for uses in uses.values_mut() {
            uses.sort_by_key(|used| split_use(used).map(|(_, at)| at));
        }
        for tensor in &arrived {
            if !sums.contains_key(&tensor.header.name) {
                let uploaded = upload(engine, tensor)?;
                sums.insert(tensor.header.name.clone(), uploaded);
            }
        }
        for shared in &self.shared {
            for stage in &shared.stages {
                if self.stages.contains_key(stage) {
                    uses.insert((*stage, shared.name.clone()), shared.uses.clone());
                }
            }
        }

        let mut totals: BTreeMap<String, E::Tensor> = BTreeMap::new();
        let mut squares = Vec::new();
        let mut not_finite = None;
        for ((stage, parameter), uses) in uses {
            let shared = self.shared.iter().find(|shared| shared.name == parameter);
            let gradient = match totals.get(&parameter).filter(|_| shared.is_some()) {
                Some(total) => total.clone(),
                None => {
                    let mut total = None;
                    for used in &uses {
                        let sum = sums
                            .remove(used)
                            .ok_or_else(|| compute(format!("the gradient {used:?} is not here")))?;
                        engine.accumulate(&mut total, sum)?;
                    }
                    total.ok_or_else(|| compute(format!("{parameter:?} has no gradient")))?
                }
            };
            if shared.is_some() {
                totals.insert(parameter.clone(), gradient.clone());
            }
            if shared.is_none_or(|shared| shared.stages.first() == Some(&stage)) {
                let sum = engine.sum_of_squares(&gradient)?;
                if !sum.is_finite() && not_finite.is_none() {
                    not_finite = Some((stage, parameter.clone()));
                }
                squares.push((parameter.clone(), sum));
            }
            self.held(stage)?.gradients.insert(parameter, gradient);
        }
        Ok(JobOutput::Finished {
            squares,
            not_finite,
        })
    }

    /// One optimizer step on every parameter that has a gradient. A shared weight is updated wherever it is held, with the
    /// same numbers.
    pub(super) fn update(
        &mut self,
        engine: &E,
        updates: u64,
        learning_rate: f64,
        gradient_scale: f32,
    ) -> Result<JobOutput, JobError> {
        let rule = self
            .rule
            .ok_or_else(|| compute("the run has no optimizer"))?;
        let size = StepSize {
            step: updates,
            learning_rate,
            gradient_scale,
        };
        for (stage, held) in &mut self.stages {
            for (parameter, gradient) in std::mem::take(&mut held.gradients) {
                let kept = held
                    .weights
                    .get_mut(&parameter)
                    .ok_or_else(|| compute(format!("there is no weight {parameter:?}")))?;
                let state = held.optimizer.entry(parameter.clone()).or_default();
                let before = state.len();
                engine
                    .update(&rule, size, &mut kept.tensor, &gradient, state)
                    .map_err(|error| compute(format!("{parameter:?} of stage {stage}: {error}")))?;
                let grown = (state.len().saturating_sub(before) as u64).saturating_mul(kept.bytes);
                self.held_bytes = self.held_bytes.saturating_add(grown);
            }
        }
        Ok(JobOutput::Done)
    }
}
