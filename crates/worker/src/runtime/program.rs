//! A program and its compiled forms, one for each size of micro-batch that was met.

use std::collections::VecDeque;

use outboard_exec::Executor;
use outboard_graph::{Graph, InputKind, OutputKind};

use super::compute;
use crate::event::JobError;

/// Sizes of micro-batch for which a program stays compiled. An epoch meets three: two that differ by one, and those of
/// its last batch.
const SIZES: usize = 6;

pub(super) struct Program<E: Executor> {
    /// With a symbolic batch.
    graph: Graph,
    /// The latest used last.
    compiled: VecDeque<Compiled<E>>,
}

struct Compiled<E: Executor> {
    samples: u32,
    plan: Plan<E>,
    peak_bytes: u64,
    scratch_bytes: u64,
    output_bytes: Vec<u64>,
}

/// How a program runs.
enum Plan<E: Executor> {
    Engine(E::Plan),
    /// A program without nodes hands inputs on: for each output the index of its input.
    Wires(Vec<usize>),
}

/// A program ready for one micro-batch.
pub(super) struct Runnable<'a, E: Executor> {
    plan: &'a Plan<E>,
    /// The most that a run takes, inputs and outputs too, without scratch memory.
    pub(super) peak_bytes: u64,
    /// Scratch memory, which all programs share.
    pub(super) scratch_bytes: u64,
    /// Kinds and names of the inputs, in order.
    pub(super) inputs: Vec<(InputKind, &'a str)>,
    /// Kinds, names and sizes of the outputs, in order.
    pub(super) outputs: Vec<(OutputKind, &'a str, u64)>,
}

impl<E: Executor> Program<E> {
    pub(super) fn new(graph: Graph) -> Self {
        Program {
            graph,
            compiled: VecDeque::new(),
        }
    }

    /// The program for micro-batches of this size, compiled now if it is not yet.
    pub(super) fn at(&mut self, engine: &E, samples: u32) -> Result<Runnable<'_, E>, JobError> {
        let found = self
            .compiled
            .iter()
            .position(|compiled| compiled.samples == samples);
        let compiled = match found.and_then(|at| self.compiled.remove(at)) {
            Some(compiled) => compiled,
            None => compile(engine, &self.graph, samples)?,
        };
        if self.compiled.len() >= SIZES {
            self.compiled.pop_front();
        }
        self.compiled.push_back(compiled);
        let compiled = self
            .compiled
            .back()
            .ok_or_else(|| compute("no compiled program"))?;
        Ok(Runnable {
            plan: &compiled.plan,
            peak_bytes: compiled.peak_bytes,
            scratch_bytes: compiled.scratch_bytes,
            inputs: self
                .graph
                .inputs
                .iter()
                .map(|input| (input.kind, input.name.as_str()))
                .collect(),
            outputs: self
                .graph
                .outputs
                .iter()
                .zip(&compiled.output_bytes)
                .map(|(output, bytes)| (output.kind, output.name.as_str(), *bytes))
                .collect(),
        })
    }
}

impl<E: Executor> Runnable<'_, E> {
    /// Runs it; outputs come in the program's order.
    pub(super) fn run(
        &self,
        engine: &E,
        inputs: Vec<E::Tensor>,
        key: outboard_exec::RandomKey,
    ) -> Result<Vec<E::Tensor>, JobError> {
        let outputs = match self.plan {
            Plan::Engine(plan) => engine.run(plan, inputs, key)?,
            Plan::Wires(wires) => wires
                .iter()
                .filter_map(|input| inputs.get(*input).cloned())
                .collect(),
        };
        if outputs.len() == self.outputs.len() {
            Ok(outputs)
        } else {
            Err(compute(format!(
                "the engine gave {} outputs instead of {}",
                outputs.len(),
                self.outputs.len()
            )))
        }
    }
}

fn compile<E: Executor>(engine: &E, graph: &Graph, samples: u32) -> Result<Compiled<E>, JobError> {
    let graph = graph
        .instantiate(samples as usize)
        .map_err(|error| compute(error.to_string()))?;
    let bytes = |value: outboard_graph::ValueId| {
        graph
            .values
            .get(value.0 as usize)
            .and_then(|value| value.ty.bytes(samples as usize))
            .ok_or_else(|| compute("a value is larger than a machine can address"))
    };
    let output_bytes = graph
        .outputs
        .iter()
        .map(|output| bytes(output.value))
        .collect::<Result<Vec<_>, _>>()?;
    if graph.nodes.is_empty() {
        let mut peak_bytes = 0_u64;
        for input in &graph.inputs {
            peak_bytes = peak_bytes.saturating_add(bytes(input.value)?);
        }
        let wires = graph
            .outputs
            .iter()
            .map(|output| {
                graph
                    .inputs
                    .iter()
                    .position(|input| input.value == output.value)
                    .ok_or_else(|| compute("an output of a program without nodes is no input"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        return Ok(Compiled {
            samples,
            plan: Plan::Wires(wires),
            peak_bytes,
            scratch_bytes: 0,
            output_bytes,
        });
    }
    let plan = engine.compile(&graph)?;
    let scratch_bytes = engine.scratch_bytes(&plan);
    let peak_bytes = engine.peak_bytes(&plan).saturating_sub(scratch_bytes);
    Ok(Compiled {
        samples,
        plan: Plan::Engine(plan),
        peak_bytes,
        scratch_bytes,
        output_bytes,
    })
}
