//! A world in which the core is tested: virtual time, a network, scripted workers.

pub(crate) mod network;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_graph::Tensor;
use outboard_host::core::{
    Cargo, Command, DeviceId, Report, Route, RunSpec, ScheduleSpec, StepInput, StepSpec, Upload,
};
use outboard_wire::{
    Assign, Optimizer, StageAssignment, StateKind, StepMode, TensorEncoding, WeightSpec,
};
use sha2::{Digest, Sha256};

use network::Network;
use worker::WIDTH;

/// Longer than anything here takes that goes well.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The toy model over this many stages, one a device.
pub(crate) fn run_spec(stages: usize, clip_norm: Option<f64>) -> RunSpec {
    let weight = |stage: usize| Tensor::from_f32([1], &[stage as f32 + 1.0]).unwrap();
    let assign = |stage: usize| Assign {
        run: 0,
        seed: 0,
        first_step: 0,
        encoding: TensorEncoding::F32,
        optimizer: Some(Optimizer::Sgd {
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }),
        stages: vec![StageAssignment {
            stage: stage as u16,
            forward: Some(String::new()),
            backward: Some(String::new()),
            weight: Some(String::new()),
            normaliser: None,
            evaluate: Some(String::new()),
            weights: vec![WeightSpec {
                name: format!("w{stage}"),
                state: StateKind::Weights,
                dtype: outboard_graph::DType::F32,
                dims: vec![1],
                sha256: Sha256::digest(weight(stage).data()).into(),
            }],
            in_flight: 4,
        }],
        shared: Vec::new(),
        largest_micro_batch: 4,
        most_micro_batches: 4,
    };
    let upload = |stage: usize| Upload {
        stage: stage as u16,
        state: StateKind::Weights,
        name: format!("w{stage}"),
        tensor: weight(stage),
    };
    let mut routes = BTreeMap::new();
    for upper in 1..stages {
        let route = |stage: usize, cargo| Route {
            stage: stage as u16,
            cargo,
            name: "%1".into(),
        };
        routes.insert(route(upper, Cargo::Activation), DeviceId(upper - 1));
        routes.insert(route(upper - 1, Cargo::Cotangent), DeviceId(upper));
    }
    RunSpec {
        assigns: (0..stages)
            .map(|stage| (DeviceId(stage), assign(stage)))
            .collect(),
        uploads: (0..stages)
            .map(|stage| (DeviceId(stage), vec![upload(stage)]))
            .collect(),
        device_of_stage: (0..stages).map(DeviceId).collect(),
        reporter_of_parameter: (0..stages)
            .map(|stage| (format!("w{stage}"), DeviceId(stage)))
            .collect(),
        results: BTreeMap::from([("y".to_owned(), DeviceId(stages - 1))]),
        routes,
        clip_norm,
    }
}

/// A step whose micro-batches carry the values `step + micro-batch`.
pub(crate) fn step_spec(step: u64, mode: StepMode, sizes: &[u32]) -> StepSpec {
    let input = |micro_batch: usize| StepInput {
        stage: 0,
        micro_batch: micro_batch as u16,
        name: "x".into(),
        tensor: Tensor::from_f32([WIDTH], &[step as f32 + micro_batch as f32; WIDTH]).unwrap(),
    };
    StepSpec {
        step,
        mode,
        sizes: sizes.to_vec(),
        inputs: (0..sizes.len()).map(input).collect(),
        learning_rate: 0.5,
    }
}

/// Waits until every device said hello.
pub(crate) fn connect(network: &mut Network) {
    for _ in 0..network.workers.len() {
        let report = network.run_until(LONG, |_| true);
        assert!(
            matches!(report, Some(Report::Connected { .. })),
            "{report:?}"
        );
    }
}

/// Begins a run, and waits until it has begun or failed.
pub(crate) fn start(network: &mut Network, spec: RunSpec) -> Report {
    let schedule = ScheduleSpec {
        micro_batches: 2,
        actions: spec
            .assigns
            .iter()
            .map(|(device, _)| (*device, Vec::new()))
            .collect(),
    };
    network.command(Command::Start(Box::new(spec)));
    network.command(Command::Schedule(schedule));
    network
        .run_until(LONG, |report| {
            matches!(report, Report::Started { .. } | Report::Failed(_))
        })
        .expect("the start ends")
}
