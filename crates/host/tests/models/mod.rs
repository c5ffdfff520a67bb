//! Small models, where to cut them, and batches for them.

use outboard_graph::zoo::{self, ZooOptions};
use outboard_graph::{DType, Graph, InputKind, Tensor, cut_candidates, init};
use outboard_host::{Batch, Placement, RunOptions};
use outboard_schedule::ScheduleKind;
use outboard_wire::{Optimizer, TensorEncoding};

/// A model of the zoo for tiny images.
pub(crate) fn model(name: &str, options: &ZooOptions) -> Graph {
    let classes = if options.classes == 1000 {
        10
    } else {
        options.classes
    };
    let options = ZooOptions {
        image_size: 4,
        channels: 1,
        classes,
        ..options.clone()
    };
    zoo::build(name, &options).expect("a model of the zoo")
}

/// Cuts that make this many stages of about as many nodes each.
fn cuts(graph: &Graph, stages: usize) -> Vec<usize> {
    let candidates: Vec<usize> = cut_candidates(graph)
        .expect("a canonical graph")
        .iter()
        .filter(|candidate| candidate.obstacle.is_none())
        .map(|candidate| candidate.node)
        .collect();
    (1..stages)
        .map(|stage| candidates[candidates.len() * stage / stages])
        .collect()
}

/// Stages of about the same number of nodes on these devices, for three micro-batches.
pub(crate) fn by_hand(graph: &Graph, devices: &[usize], kind: ScheduleKind) -> Placement {
    Placement::by_hand(cuts(graph, devices.len()), devices, kind, 3).expect("a schedule")
}

/// A batch that follows from its number.
pub(crate) fn batch(graph: &Graph, size: usize, number: u64) -> Batch {
    graph
        .inputs
        .iter()
        .filter(|input| input.kind == InputKind::Data)
        .map(|input| {
            let ty = graph.ty(input.value).expect("typed");
            let dims = ty.sizes(size).expect("small");
            let count: usize = dims.iter().product();
            let noise = |index: usize| {
                let x = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (number << 32));
                (x >> 40) % 1000
            };
            let tensor = match ty.dtype {
                DType::I64 => {
                    let values: Vec<i64> = (0..count).map(|i| (noise(i) % 10) as i64).collect();
                    Tensor::from_i64(dims, &values)
                }
                _ => {
                    let values: Vec<f32> =
                        (0..count).map(|i| noise(i) as f32 / 500.0 - 1.0).collect();
                    Tensor::from_f32(dims, &values)
                }
            };
            (input.name.clone(), tensor.expect("it fits"))
        })
        .collect()
}

/// A run of SGD with momentum from seed 7.
pub(crate) fn run_options(graph: &Graph, placement: Placement) -> RunOptions {
    RunOptions {
        graph: graph.clone(),
        placement,
        weights: init::weights(graph, 7).expect("initial weights"),
        optimizer: Some(Optimizer::Sgd {
            momentum: 0.9,
            dampening: 0.0,
            weight_decay: 1e-4,
            nesterov: false,
        }),
        optimizer_state: Default::default(),
        first_step: 0,
        seed: 7,
        encoding: TensorEncoding::F32,
        clip_norm: Some(1.0),
        largest_batch: 7,
    }
}
