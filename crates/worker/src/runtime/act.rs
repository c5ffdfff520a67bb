//! Running one program on one micro-batch: where each input comes from, where each output goes.

use std::collections::HashMap;

use outboard_exec::{Executor, RandomKey};
use outboard_graph::{DType, InputKind, OutputKind, Tensor};
use outboard_schedule::{Action, Kind};
use outboard_wire::{DataHeader, DataKind, StepMode, TensorEncoding, decode_tensor, encode_tensor};

use super::{Held, Kept, Loaded, Passage, compute, depart, upload};
use crate::event::{Act, Arrived, Departing, JobError, JobOutput};
use crate::stage::{LOSS, ProgramKind};

/// Where an action's inputs come from.
struct Sources<'a, E: Executor> {
    act: &'a Act,
    passing: &'a mut HashMap<Passage, Kept<E::Tensor>>,
    held_bytes: &'a mut u64,
}

/// What becomes of an output.
enum Fate {
    /// For another worker or the host.
    Depart(DataKind, u16),
    /// For a stage of this worker.
    Pass(DataKind, u16),
    Save,
    Drop,
}

impl<E: Executor> Loaded<E> {
    pub(super) fn normalise(
        &mut self,
        engine: &E,
        stage: u16,
        micro_batch: u16,
        samples: u32,
        arrived: Vec<Arrived>,
    ) -> Result<JobOutput, JobError> {
        let key = RandomKey {
            seed: self.seed,
            step: 0,
            micro_batch: u32::from(micro_batch),
        };
        let held = self.held(stage)?;
        let Held {
            programs, weights, ..
        } = held;
        let program = programs
            .get_mut(&ProgramKind::Normaliser)
            .ok_or_else(|| compute("the stage has no normaliser"))?
            .at(engine, samples)?;
        let inputs = program
            .inputs
            .iter()
            .map(|(kind, name)| match kind {
                InputKind::Data => data(engine, &arrived, DataKind::Input, name),
                _ => weights
                    .get(*name)
                    .map(|kept| kept.tensor.clone())
                    .ok_or_else(|| compute(format!("there is no weight {name:?}"))),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = program.run(engine, inputs, key)?;
        let weight = outputs
            .first()
            .ok_or_else(|| compute("the normaliser gave nothing"))?;
        Ok(JobOutput::Normalised(scalar(engine, weight)?))
    }

    pub(super) fn act(&mut self, engine: &E, act: Act) -> Result<JobOutput, JobError> {
        let Action {
            stage,
            kind,
            micro_batch,
        } = act.action;
        let key = RandomKey {
            seed: self.seed,
            step: act.step,
            micro_batch: u32::from(micro_batch),
        };
        let program_kind = match act.mode {
            StepMode::Train => ProgramKind::Train(kind),
            StepMode::Evaluate => ProgramKind::Evaluate,
        };
        let before = stage
            .checked_sub(1)
            .filter(|stage| self.stages.contains_key(stage));
        let after = stage
            .checked_add(1)
            .filter(|stage| self.stages.contains_key(stage));
        // What the stage before needs of this one's cotangents, what the stage after takes of its activations.
        let wanted = |neighbour: Option<u16>, kind: DataKind, name: &str| -> bool {
            let signature = neighbour
                .and_then(|stage| self.stages.get(&stage))
                .map(|held| &held.stage.signature);
            let ports = signature.and_then(|signature| match act.mode {
                StepMode::Train => signature.train.as_ref(),
                StepMode::Evaluate => signature.evaluate.as_ref(),
            });
            ports.is_some_and(|ports| {
                let taken = match kind {
                    DataKind::Cotangent => &ports.cotangents_in,
                    _ => &ports.activations_in,
                };
                taken.iter().any(|port| port.name == name)
            })
        };
        let passes: Vec<(DataKind, String)> = self
            .stages
            .get(&stage)
            .and_then(|held| held.stage.programs.get(program_kind))
            .into_iter()
            .flat_map(|graph| &graph.outputs)
            .filter_map(|output| match output.kind {
                OutputKind::Activation if wanted(after, DataKind::Activation, &output.name) => {
                    Some((DataKind::Activation, output.name.clone()))
                }
                OutputKind::Cotangent if wanted(before, DataKind::Cotangent, &output.name) => {
                    Some((DataKind::Cotangent, output.name.clone()))
                }
                _ => None,
            })
            .collect();
        let passed =
            |kind: DataKind, name: &str| passes.iter().any(|(k, n)| *k == kind && n == name);

        let Loaded {
            stages,
            passing,
            held_bytes,
            scratch_bytes,
            encoding,
            ..
        } = self;
        let held = stages
            .get_mut(&stage)
            .ok_or_else(|| compute(format!("stage {stage} is not here")))?;
        let Held {
            stage: description,
            programs,
            weights,
            saved,
            sums,
            ..
        } = held;
        let program = programs
            .get_mut(&program_kind)
            .ok_or_else(|| compute("the stage has no such program"))?
            .at(engine, act.samples)?;
        let mut sources = Sources::<E> {
            act: &act,
            passing,
            held_bytes,
        };
        let mut inputs = Vec::with_capacity(program.inputs.len());
        for (input, name) in &program.inputs {
            let tensor = match input {
                InputKind::Parameter | InputKind::Frozen | InputKind::Buffer => weights
                    .get(*name)
                    .map(|kept| kept.tensor.clone())
                    .ok_or_else(|| compute(format!("there is no weight {name:?}")))?,
                InputKind::Data => data(engine, &act.arrived, DataKind::Input, name)?,
                InputKind::Activation => sources.border(engine, DataKind::Activation, name)?,
                InputKind::Cotangent if *name == LOSS => {
                    let seed = act
                        .loss_cotangent
                        .ok_or_else(|| compute("the weight of the loss is not known"))?;
                    engine.upload(&Tensor::scalar(seed))?
                }
                InputKind::Cotangent => sources.border(engine, DataKind::Cotangent, name)?,
                InputKind::Saved => {
                    let at = (micro_batch, (*name).to_owned());
                    let keeps =
                        kind == Kind::Backward && description.kept_for_weight.contains(*name);
                    let kept = if keeps {
                        saved.get(&at).map(|kept| kept.tensor.clone())
                    } else {
                        saved.remove(&at).map(|kept| {
                            *sources.held_bytes = sources.held_bytes.saturating_sub(kept.bytes);
                            kept.tensor
                        })
                    };
                    kept.ok_or_else(|| compute(format!("the saved value {name:?} is not here")))?
                }
            };
            inputs.push(tensor);
        }
        *scratch_bytes = program.scratch_bytes.max(*scratch_bytes);
        let peak_bytes =
            (held_bytes.saturating_add(*scratch_bytes)).saturating_add(program.peak_bytes);
        let outputs = program.run(engine, inputs, key)?;

        let mut departing: Vec<Departing> = Vec::new();
        let mut loss_sum = None;
        for (tensor, (output, name, bytes)) in outputs.into_iter().zip(&program.outputs) {
            let fate = match output {
                OutputKind::Activation => match after {
                    Some(after) if passed(DataKind::Activation, name) => {
                        Fate::Pass(DataKind::Activation, after)
                    }
                    Some(_) => Fate::Drop,
                    None => Fate::Depart(DataKind::Activation, stage.saturating_add(1)),
                },
                OutputKind::Cotangent => match before {
                    Some(before) if passed(DataKind::Cotangent, name) => {
                        Fate::Pass(DataKind::Cotangent, before)
                    }
                    Some(_) => Fate::Drop,
                    None => Fate::Depart(DataKind::Cotangent, stage.saturating_sub(1)),
                },
                OutputKind::Result if act.mode == StepMode::Evaluate => {
                    Fate::Depart(DataKind::Result, DataHeader::HOST)
                }
                OutputKind::Saved if act.mode == StepMode::Train => {
                    let backward =
                        kind == Kind::Forward && description.kept_for_backward.contains(*name);
                    if backward || description.kept_for_weight.contains(*name) {
                        Fate::Save
                    } else {
                        Fate::Drop
                    }
                }
                OutputKind::LossSum if act.mode == StepMode::Train => {
                    loss_sum = Some(scalar(engine, &tensor)?);
                    Fate::Drop
                }
                OutputKind::BufferUpdate if act.mode == StepMode::Train => {
                    if let Some(kept) = weights.get_mut(*name) {
                        kept.tensor = tensor;
                    }
                    continue;
                }
                OutputKind::ParameterGradient => {
                    let mut sum = sums.remove(*name).map(|kept| kept.tensor);
                    if sum.is_none() {
                        *held_bytes = held_bytes.saturating_add(*bytes);
                    }
                    engine.accumulate(&mut sum, tensor)?;
                    if let Some(tensor) = sum {
                        let kept = Kept {
                            tensor,
                            bytes: *bytes,
                        };
                        sums.insert((*name).to_owned(), kept);
                    }
                    continue;
                }
                _ => Fate::Drop,
            };
            match fate {
                Fate::Drop => {}
                Fate::Save => {
                    *held_bytes = held_bytes.saturating_add(*bytes);
                    let kept = Kept {
                        tensor,
                        bytes: *bytes,
                    };
                    saved.insert((micro_batch, (*name).to_owned()), kept);
                }
                Fate::Depart(kind, stage) => {
                    let encoding = match kind {
                        DataKind::Result => TensorEncoding::F32,
                        _ => *encoding,
                    };
                    let name = (*name).to_owned();
                    departing.push(depart(engine, &tensor, kind, stage, name, encoding)?);
                }
                Fate::Pass(kind, stage) => {
                    *held_bytes = held_bytes.saturating_add(*bytes);
                    let kept = Kept {
                        tensor: round(engine, tensor, *encoding)?,
                        bytes: *bytes,
                    };
                    let passage = Passage {
                        step: act.step,
                        stage,
                        kind,
                        micro_batch,
                        name: (*name).to_owned(),
                    };
                    passing.insert(passage, kept);
                }
            }
        }
        Ok(JobOutput::Acted {
            departing,
            loss_sum,
            peak_bytes,
        })
    }
}

impl<E: Executor> Sources<'_, E> {
    /// A tensor from a neighbouring stage, of this worker or another.
    fn border(&mut self, engine: &E, kind: DataKind, name: &str) -> Result<E::Tensor, JobError> {
        let passage = Passage {
            step: self.act.step,
            stage: self.act.action.stage,
            kind,
            micro_batch: self.act.action.micro_batch,
            name: name.to_owned(),
        };
        match self.passing.remove(&passage) {
            Some(kept) => {
                *self.held_bytes = self.held_bytes.saturating_sub(kept.bytes);
                Ok(kept.tensor)
            }
            None => data(engine, &self.act.arrived, kind, name),
        }
    }
}

/// A tensor that came over the link.
fn data<E: Executor>(
    engine: &E,
    arrived: &[Arrived],
    kind: DataKind,
    name: &str,
) -> Result<E::Tensor, JobError> {
    let tensor = arrived
        .iter()
        .find(|arrived| arrived.header.kind == kind && arrived.header.name == name)
        .ok_or_else(|| compute(format!("{kind:?} {name:?} is not here")))?;
    upload(engine, tensor)
}

fn scalar<E: Executor>(engine: &E, tensor: &E::Tensor) -> Result<f32, JobError> {
    let tensor = engine.download(tensor)?;
    tensor
        .to_f32_vec()
        .ok()
        .and_then(|elements| elements.first().copied())
        .ok_or_else(|| compute("a loss is no f32"))
}

/// Rounds as a way over a link would, so that where a stage runs never changes a bit.
fn round<E: Executor>(
    engine: &E,
    tensor: E::Tensor,
    encoding: TensorEncoding,
) -> Result<E::Tensor, JobError> {
    if encoding == TensorEncoding::F32 {
        return Ok(tensor);
    }
    let exact = engine.download(&tensor)?;
    if exact.dtype() != DType::F32 {
        return Ok(tensor);
    }
    let header = DataHeader {
        run: 0,
        step: 0,
        kind: DataKind::Activation,
        stage: 0,
        micro_batch: 0,
        name: String::new(),
        dtype: exact.dtype(),
        dims: exact.dims().iter().map(|dim| *dim as u64).collect(),
        encoding,
    };
    let rounded = decode_tensor(&header, &encode_tensor(&exact, encoding))
        .map_err(|error| compute(error.to_string()))?;
    Ok(engine.upload(&rounded)?)
}
