//! A whole pipeline in one thread: runs the programs of stages over the micro-batches of a batch, on any engine.

#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::collections::BTreeMap;

use outboard_exec::{Executor, RandomKey};
use outboard_graph::{Graph, InputKind, OutputKind, Stage, StagePrograms, stage_programs};

pub(crate) mod numbers;

/// Tensors by name.
pub(crate) type Named<T> = BTreeMap<String, T>;

/// The data of one micro-batch.
pub(crate) struct MicroBatch<T> {
    pub(crate) size: usize,
    pub(crate) data: Named<T>,
}

/// What a batch gives.
pub(crate) struct Outcome<T> {
    /// The mean loss of the batch.
    pub(crate) loss: f64,
    pub(crate) loss_weight: f64,
    /// The micro-batches' results in order, by name.
    pub(crate) results: BTreeMap<String, Vec<T>>,
    /// By parameter: its uses' sums over the micro-batches, added in ascending order.
    pub(crate) gradients: Named<T>,
    /// Buffers after the last micro-batch.
    pub(crate) buffers: Named<T>,
}

/// The programs of a pipeline on an engine.
pub(crate) struct Pipeline<'a, E: Executor> {
    engine: &'a E,
    stages: Vec<StagePrograms>,
    /// Makes an `f32[]`; the reference engine's keeps the precision of f64.
    scalar: fn(&E, f64) -> E::Tensor,
    number: fn(&E, &E::Tensor) -> f64,
}

impl<'a, E: Executor> Pipeline<'a, E> {
    pub(crate) fn new(
        engine: &'a E,
        stages: &[Stage],
        scalar: fn(&E, f64) -> E::Tensor,
        number: fn(&E, &E::Tensor) -> f64,
    ) -> Self {
        let stages = stages
            .iter()
            .map(|stage| stage_programs(stage).unwrap())
            .collect();
        Self {
            engine,
            stages,
            scalar,
            number,
        }
    }

    /// Runs a program of one micro-batch size; inputs and outputs by kind and name.
    fn run(
        &self,
        program: &Graph,
        size: usize,
        key: RandomKey,
        input: impl Fn(InputKind, &str) -> E::Tensor,
    ) -> Vec<(OutputKind, String, E::Tensor)> {
        let program = program.instantiate(size).unwrap();
        let plan = self.engine.compile(&program).unwrap();
        let inputs = program
            .inputs
            .iter()
            .map(|wanted| input(wanted.kind, &wanted.name))
            .collect();
        let outputs = self.engine.run(&plan, inputs, key).unwrap();
        program
            .outputs
            .iter()
            .zip(outputs)
            .map(|(output, tensor)| (output.kind, output.name.clone(), tensor))
            .collect()
    }

    /// The loss of a batch without gradients.
    pub(crate) fn loss(
        &self,
        weights: &Named<E::Tensor>,
        batch: &[MicroBatch<E::Tensor>],
        key: RandomKey,
    ) -> f64 {
        self.batch(weights, batch, key, false).loss
    }

    /// Forward and backward.
    pub(crate) fn train(
        &self,
        weights: &Named<E::Tensor>,
        batch: &[MicroBatch<E::Tensor>],
        key: RandomKey,
    ) -> Outcome<E::Tensor> {
        self.batch(weights, batch, key, true)
    }

    fn batch(
        &self,
        weights: &Named<E::Tensor>,
        batch: &[MicroBatch<E::Tensor>],
        key: RandomKey,
        backward: bool,
    ) -> Outcome<E::Tensor> {
        let mut weights = weights.clone();
        let loss_weight: f64 = batch
            .iter()
            .map(|micro| self.loss_weight(micro, &weights))
            .sum();
        let (mut loss, mut results) = (0.0, BTreeMap::<String, Vec<E::Tensor>>::new());
        let mut uses: BTreeMap<(String, Vec<u32>), Option<E::Tensor>> = BTreeMap::new();
        for (index, micro) in batch.iter().enumerate() {
            let key = RandomKey {
                micro_batch: index as u32,
                ..key
            };
            let mut saved: Vec<Named<E::Tensor>> = Vec::new();
            let mut activations = Named::new();
            for stage in &self.stages {
                let outputs = self.run(&stage.forward, micro.size, key, |kind, name| match kind {
                    InputKind::Data => micro.data[name].clone(),
                    InputKind::Activation => Clone::clone(&activations[name]),
                    _ => weights[name].clone(),
                });
                // What the next stage needs is what this one sends, and nothing else.
                activations = Named::new();
                let mut kept = Named::new();
                for (kind, name, tensor) in outputs {
                    match kind {
                        OutputKind::Activation => drop(activations.insert(name, tensor)),
                        OutputKind::Saved => drop(kept.insert(name, tensor)),
                        OutputKind::BufferUpdate => drop(weights.insert(name, tensor)),
                        OutputKind::Result => results.entry(name).or_default().push(tensor),
                        OutputKind::LossSum => loss += (self.number)(self.engine, &tensor),
                        other => panic!("a forward program gives {other:?}"),
                    }
                }
                saved.push(kept);
            }
            if !backward {
                continue;
            }
            let mut cotangents = Named::from([(
                "loss".to_owned(),
                (self.scalar)(self.engine, 1.0 / loss_weight),
            )]);
            for (stage, mut kept) in self.stages.iter().zip(saved).rev() {
                let mut sent = Named::new();
                for program in [&stage.backward, &stage.weight] {
                    let outputs = self.run(program, micro.size, key, |kind, name| match kind {
                        InputKind::Saved => kept[name].clone(),
                        InputKind::Cotangent => cotangents[name].clone(),
                        _ => weights[name].clone(),
                    });
                    for (kind, name, tensor) in outputs {
                        match kind {
                            OutputKind::Saved => drop(kept.insert(name, tensor)),
                            OutputKind::Cotangent => drop(sent.insert(name, tensor)),
                            OutputKind::ParameterGradient => {
                                let sum = uses.entry(use_of(&name)).or_default();
                                self.engine.accumulate(sum, tensor).unwrap();
                            }
                            other => panic!("a backward program gives {other:?}"),
                        }
                    }
                }
                cotangents = sent;
            }
        }
        let mut sums: BTreeMap<String, Option<E::Tensor>> = BTreeMap::new();
        for ((name, _), term) in uses {
            self.engine
                .accumulate(sums.entry(name).or_default(), term.unwrap())
                .unwrap();
        }
        let gradients = sums
            .into_iter()
            .map(|(name, sum)| (name, sum.unwrap()))
            .collect();
        Outcome {
            loss: loss / loss_weight,
            loss_weight,
            results,
            gradients,
            buffers: weights,
        }
    }

    fn loss_weight(&self, micro: &MicroBatch<E::Tensor>, weights: &Named<E::Tensor>) -> f64 {
        let program = self
            .stages
            .iter()
            .find_map(|stage| stage.normaliser.as_ref())
            .unwrap();
        let outputs = self.run(
            program,
            micro.size,
            RandomKey::default(),
            |kind, name| match kind {
                InputKind::Data => micro.data[name].clone(),
                _ => weights[name].clone(),
            },
        );
        (self.number)(self.engine, &outputs[0].2)
    }
}

/// `NAME#ORIGIN.OPERAND` as a key that sorts by number.
fn use_of(name: &str) -> (String, Vec<u32>) {
    let (name, place) = name.rsplit_once('#').unwrap();
    (
        name.to_owned(),
        place
            .split('.')
            .map(|number| number.parse().unwrap())
            .collect(),
    )
}
