//! The hard model of the testkit: its stages, batches for it, and what a host sends of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use outboard_graph::{
    Graph, InputKind, OutputKind, StagePrograms, Tensor, init, slice, stage_programs,
};
use outboard_schedule::{
    Action, CostModel, Limits, Placement, Schedule, ScheduleKind, generate, validate,
};
use outboard_testkit::tied;
use outboard_wire::{
    Assign, DataHeader, DataKind, Optimizer, SharedWeight, StageAssignment, StateKind, StepMode,
    TensorEncoding, WeightSpec,
};
use sha2::{Digest, Sha256};

use super::{RUN, header};

const WIDTH: usize = 6;
const CLASSES: usize = 4;

/// Batches of given micro-batch sizes; deterministic. The second target of each micro-batch is ignored.
pub fn batch(seed: u64, sizes: &[usize]) -> Vec<BTreeMap<&'static str, Tensor>> {
    let mut state = seed.wrapping_mul(977) + 13;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 40
    };
    sizes
        .iter()
        .map(|&size| {
            let input: Vec<f32> = (0..size * WIDTH)
                .map(|_| next() as f32 / (1 << 23) as f32 - 1.0)
                .collect();
            let target: Vec<i64> = (0..size)
                .map(|at| {
                    if at == 1 {
                        -100
                    } else {
                        (next() % CLASSES as u64) as i64
                    }
                })
                .collect();
            BTreeMap::from([
                ("input", Tensor::from_f32([size, WIDTH], &input).unwrap()),
                ("target", Tensor::from_i64([size], &target).unwrap()),
            ])
        })
        .collect()
}

/// A stage's programs.
pub struct Part {
    pub stage: u16,
    pub programs: StagePrograms,
    pub evaluate: Graph,
}

impl Part {
    fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let StagePrograms {
            forward,
            backward,
            weight,
            normaliser,
            ..
        } = &self.programs;
        [forward, backward, weight, &self.evaluate]
            .into_iter()
            .chain(normaliser)
    }

    /// Whether the stage takes this data.
    pub fn takes(&self, mode: StepMode, name: &str) -> bool {
        let graphs: Vec<&Graph> = match mode {
            StepMode::Train => std::iter::once(&self.programs.forward)
                .chain(&self.programs.normaliser)
                .collect(),
            StepMode::Evaluate => vec![&self.evaluate],
        };
        graphs
            .iter()
            .flat_map(|graph| &graph.inputs)
            .any(|input| input.kind == InputKind::Data && input.name == name)
    }

    fn weights(&self) -> BTreeSet<&str> {
        self.graphs()
            .flat_map(|graph| &graph.inputs)
            .filter(|input| input.kind.is_weight())
            .map(|input| input.name.as_str())
            .collect()
    }

    fn uses(&self) -> impl Iterator<Item = &str> {
        [&self.programs.backward, &self.programs.weight]
            .into_iter()
            .flat_map(|graph| &graph.outputs)
            .filter(|output| output.kind == OutputKind::ParameterGradient)
            .map(|output| output.name.as_str())
    }
}

/// Where the model runs, and how.
#[derive(Clone)]
pub struct Plan {
    pub graph: Graph,
    pub cuts: Vec<usize>,
    pub device_of_stage: Vec<usize>,
    pub kind: ScheduleKind,
    pub micro_batches: u16,
    pub largest: u32,
    pub encoding: TensorEncoding,
    pub optimizer: Option<Optimizer>,
    pub first_step: u64,
    /// Weights, then optimizer state.
    pub weights: BTreeMap<String, Tensor>,
    pub state: BTreeMap<String, Tensor>,
}

impl Plan {
    pub fn new(cuts: &[usize], device_of_stage: &[usize]) -> Plan {
        let graph = tied(CLASSES).unwrap();
        Plan {
            weights: init::weights(&graph, 3).unwrap(),
            graph,
            cuts: cuts.to_vec(),
            device_of_stage: device_of_stage.to_vec(),
            kind: ScheduleKind::Auto,
            micro_batches: 3,
            largest: 4,
            encoding: TensorEncoding::F32,
            optimizer: Some(Optimizer::Adam {
                betas: (0.9, 0.999),
                eps: 1e-8,
                weight_decay: 0.01,
                amsgrad: false,
                decoupled: true,
            }),
            first_step: 0,
            state: BTreeMap::new(),
        }
    }

    pub fn parts(&self) -> Vec<Part> {
        let stages = slice(&self.graph, &self.cuts).unwrap();
        let evaluation = self.graph.evaluation().unwrap();
        stages
            .iter()
            .zip(slice(&evaluation, &self.cuts).unwrap())
            .map(|(stage, evaluate)| Part {
                stage: stage.index as u16,
                programs: stage_programs(stage).unwrap(),
                evaluate: evaluate.graph,
            })
            .collect()
    }

    fn schedule(&self, micro_batches: u16) -> Schedule {
        let placement = Placement::new(self.device_of_stage.clone()).unwrap();
        let costs = CostModel::uniform(self.device_of_stage.len(), [1.0, 1.0, 1.0]);
        generate(
            self.kind,
            &placement,
            micro_batches,
            &costs,
            &Limits::none(),
        )
        .unwrap()
    }

    pub fn actions(&self, device: usize, micro_batches: u16) -> Vec<Action> {
        self.schedule(micro_batches).actions[device].clone()
    }

    /// A device's assignment and the tensors that go with it.
    pub fn assign(&self, parts: &[Part], device: usize) -> (Assign, Vec<(DataHeader, Bytes)>) {
        let in_flight = validate(&self.schedule(self.micro_batches), &Limits::none()).unwrap();
        let mut uploads = Vec::new();
        let mut stages = Vec::new();
        let held = |part: &&Part| self.device_of_stage[usize::from(part.stage)] == device;
        for part in parts.iter().filter(held) {
            let mut specs = Vec::new();
            let names = part.weights();
            let weights = names.iter().map(|name| (*name, &self.weights[*name]));
            let state = self
                .state
                .iter()
                .filter(|(name, _)| names.contains(name.rsplit_once('/').unwrap().0));
            let all = weights
                .map(|(name, tensor)| (name, StateKind::Weights, tensor))
                .chain(state.map(|(name, tensor)| (name.as_str(), StateKind::Optimizer, tensor)));
            for (name, state, tensor) in all {
                specs.push(WeightSpec {
                    name: name.to_owned(),
                    state,
                    dtype: tensor.dtype(),
                    dims: tensor.dims().iter().map(|dim| *dim as u64).collect(),
                    sha256: Sha256::digest(tensor.data()).into(),
                });
                let kind = match state {
                    StateKind::Weights => DataKind::Weight,
                    StateKind::Optimizer => DataKind::OptimizerState,
                };
                uploads.push((
                    header(0, kind, part.stage, 0, name, tensor),
                    tensor.data().clone(),
                ));
            }
            let train = |graph: &Graph| self.optimizer.map(|_| graph.to_string());
            stages.push(StageAssignment {
                stage: part.stage,
                forward: train(&part.programs.forward),
                backward: train(&part.programs.backward),
                weight: train(&part.programs.weight),
                normaliser: part.programs.normaliser.as_ref().and_then(train),
                evaluate: Some(part.evaluate.to_string()),
                weights: specs,
                in_flight: in_flight[usize::from(part.stage)],
            });
        }
        let assign = Assign {
            run: RUN,
            seed: 11,
            first_step: self.first_step,
            encoding: self.encoding,
            optimizer: self.optimizer,
            stages,
            shared: self.shared(parts),
            largest_micro_batch: self.largest,
            most_micro_batches: self.micro_batches,
        };
        (assign, uploads)
    }

    fn shared(&self, parts: &[Part]) -> Vec<SharedWeight> {
        let stages: Vec<u16> = parts
            .iter()
            .filter(|part| part.weights().contains("tied.weight"))
            .map(|part| part.stage)
            .collect();
        if stages.len() < 2 {
            return Vec::new();
        }
        let mut uses: Vec<String> = parts
            .iter()
            .flat_map(Part::uses)
            .filter(|name| name.starts_with("tied.weight#"))
            .map(str::to_owned)
            .collect();
        // All origins of this model have one digit.
        uses.sort();
        vec![SharedWeight {
            name: "tied.weight".to_owned(),
            uses,
            stages,
        }]
    }
}
