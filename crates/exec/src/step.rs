//! One step of a whole model on one engine, to see how fast that is.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use outboard_graph::{Graph, InputKind, OutputKind, StagePrograms, Tensor};

use crate::{ExecError, Executor, RandomKey};

/// A model's programs with something to compute on, compiled for one engine and one batch size.
pub struct Step<E: Executor> {
    programs: Vec<Program<E>>,
    /// Weights and data: what a step starts with.
    given: HashMap<(InputKind, String), E::Tensor>,
    /// The gradient of the loss with respect to the sum of losses.
    cotangent: E::Tensor,
}

impl<E: Executor> fmt::Debug for Step<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.programs.iter().map(|program| &program.graph.name);
        f.debug_list().entries(names).finish()
    }
}

struct Program<E: Executor> {
    graph: Graph,
    plan: E::Plan,
}

/// What a step took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The forward program.
    pub forward: Duration,
    /// The backward and the weight program; zero for inference.
    pub backward: Duration,
}

impl StepTime {
    /// Both.
    pub fn step(self) -> Duration {
        self.forward + self.backward
    }
}

impl<E: Executor> Step<E> {
    /// Forward and backward of a whole model.
    ///
    /// `weights` and `data` are by the names of the model's inputs.
    ///
    /// # Errors
    /// See [`ExecError`]; `Invalid` for programs of a slice that takes what other stages send.
    pub fn training(
        engine: &E,
        programs: &StagePrograms,
        weights: impl IntoIterator<Item = (String, Tensor)>,
        data: impl IntoIterator<Item = (String, Tensor)>,
        batch: usize,
    ) -> Result<Self, ExecError> {
        let all = [&programs.forward, &programs.backward, &programs.weight];
        Self::new(engine, &all, weights, data, batch)
    }

    /// Forward of a model in evaluation mode (see [`Graph::evaluation`]).
    ///
    /// # Errors
    /// As [`Step::training`].
    pub fn inference(
        engine: &E,
        program: &Graph,
        weights: impl IntoIterator<Item = (String, Tensor)>,
        data: impl IntoIterator<Item = (String, Tensor)>,
        batch: usize,
    ) -> Result<Self, ExecError> {
        Self::new(engine, &[program], weights, data, batch)
    }

    fn new(
        engine: &E,
        programs: &[&Graph],
        weights: impl IntoIterator<Item = (String, Tensor)>,
        data: impl IntoIterator<Item = (String, Tensor)>,
        batch: usize,
    ) -> Result<Self, ExecError> {
        let invalid = |error: &dyn std::fmt::Display| ExecError::Invalid(error.to_string());
        let programs = (programs.iter())
            // Of a whole model nothing needs an input gradient: its backward program has no nodes.
            .map(|graph| graph.instantiate(batch).map_err(|error| invalid(&error)))
            .map(|graph| {
                let graph = graph?;
                let plan = engine.compile(&graph)?;
                Ok(Program { graph, plan })
            })
            .collect::<Result<Vec<_>, ExecError>>()?;
        let mut given = HashMap::new();
        let weight_kinds = [InputKind::Parameter, InputKind::Frozen, InputKind::Buffer];
        for (name, tensor) in weights {
            let tensor = engine.upload(&tensor)?;
            for kind in weight_kinds {
                given.insert((kind, name.clone()), tensor.clone());
            }
        }
        for (name, tensor) in data {
            given.insert((InputKind::Data, name), engine.upload(&tensor)?);
        }
        let cotangent = engine.upload(&Tensor::scalar(1.0 / batch as f32))?;
        Ok(Step {
            programs,
            given,
            cotangent,
        })
    }

    /// The most bytes that one of the programs takes, by the engine's promise.
    pub fn peak_bytes(&self, engine: &E) -> u64 {
        let peaks = self.programs.iter().map(|p| engine.peak_bytes(&p.plan));
        peaks.max().unwrap_or(0)
    }

    /// Runs it once.
    ///
    /// # Errors
    /// See [`ExecError`].
    pub fn run(&self, engine: &E) -> Result<StepTime, ExecError> {
        let mut time = StepTime {
            forward: Duration::ZERO,
            backward: Duration::ZERO,
        };
        let mut saved: HashMap<String, E::Tensor> = HashMap::new();
        for (index, program) in self.programs.iter().enumerate() {
            let later = self.programs.get(index + 1..).unwrap_or_default();
            let again = |name: &str| {
                let mut inputs = later.iter().flat_map(|program| &program.graph.inputs);
                inputs.any(|input| input.kind == InputKind::Saved && input.name == name)
            };
            let mut inputs = Vec::with_capacity(program.graph.inputs.len());
            for input in &program.graph.inputs {
                let tensor = match input.kind {
                    InputKind::Saved if again(&input.name) => saved.get(&input.name).cloned(),
                    InputKind::Saved => saved.remove(&input.name),
                    InputKind::Cotangent => Some(self.cotangent.clone()),
                    kind => self.given.get(&(kind, input.name.clone())).cloned(),
                };
                inputs.push(tensor.ok_or_else(|| {
                    ExecError::Invalid(format!(
                        "there is no {} {:?}",
                        input.kind.name(),
                        input.name
                    ))
                })?);
            }
            let start = Instant::now();
            let outputs = engine.run(&program.plan, inputs, RandomKey::default())?;
            let spent = start.elapsed();
            if index == 0 {
                time.forward = spent;
            } else {
                time.backward += spent;
            }
            for (output, tensor) in program.graph.outputs.iter().zip(outputs) {
                if output.kind == OutputKind::Saved {
                    saved.insert(output.name.clone(), tensor);
                }
            }
        }
        Ok(time)
    }
}
