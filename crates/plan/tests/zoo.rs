//! Plans of real models on synthetic profiles.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeSet;

use outboard_graph::{Graph, zoo};
use outboard_plan::{
    Device, DeviceKey, DeviceProfile, LinkProfile, MicroBatches, OpSignature, Plan, PlanError,
    Rehearsed, SearchOptions, UseDevices, micro_batch_sizes, search, signatures,
};
use outboard_schedule::{Action, Kind};

fn model(name: &str) -> Graph {
    let options = zoo::ZooOptions {
        image_size: 32,
        classes: 10,
        ..zoo::ZooOptions::default()
    };
    zoo::build(name, &options).unwrap()
}

/// A device that takes a microsecond for every program, and a nanosecond more for every byte of its text: arbitrary, but
/// different for different work and the same each time.
fn device(name: &str, slowness: f64, wanted: &BTreeSet<OpSignature>, link: Option<f64>) -> Device {
    let key = DeviceKey {
        device_id: name.into(),
        build: "1".into(),
        engine: "cpu".into(),
        threads: 1,
    };
    let mut profile = DeviceProfile::new(key, 8 << 30);
    for signature in wanted {
        let heavy = ["convolution", "addmm", "mm", "bmm"]
            .iter()
            .any(|op| signature.0.contains(op));
        let seconds = if heavy { 1e-3 } else { 1e-4 } + 1e-9 * signature.0.len() as f64;
        profile.record(signature.clone(), Some(seconds * slowness));
    }
    let link = link.map(|bytes_per_second| LinkProfile {
        up_bytes_per_second: bytes_per_second,
        down_bytes_per_second: bytes_per_second,
        latency_seconds: 1e-4,
        device_seconds_per_byte: 1e-10,
    });
    Device {
        name: name.into(),
        profile,
        link,
    }
}

fn devices(graph: &Graph, options: &SearchOptions) -> Vec<Device> {
    let sizes = micro_batch_sizes(options, graph.min_batch()).unwrap();
    let wanted = signatures(graph, &sizes).unwrap();
    vec![
        device("host", 1.0, &wanted, None),
        device("laptop", 0.7, &wanted, Some(1e9)),
        device("phone", 1.5, &wanted, Some(3e7)),
    ]
}

fn plan(graph: &Graph, devices: &[Device], options: &SearchOptions) -> Plan {
    search(graph, devices, options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_model_of_the_zoo() {
    for name in zoo::NAMES {
        let graph = model(name);
        let options = SearchOptions {
            use_devices: UseDevices::All,
            ..SearchOptions::new(30)
        };
        let devices = devices(&graph, &options);
        let plan = plan(&graph, &devices, &options);
        assert_eq!(plan.stages.len(), 3, "{name}");
        assert_eq!(plan.micro_batch_sizes, [8, 8, 7, 7]);
        let mut next = 0;
        for stage in &plan.stages {
            assert_eq!(stage.nodes.start, next);
            next = stage.nodes.end;
            assert!(stage.memory.total() > 0 && stage.seconds[0] > 0.0);
        }
        assert_eq!(next, graph.nodes.len());
        let parameters: u64 = plan.stages.iter().map(|stage| stage.parameters).sum();
        let whole: u64 = (graph.inputs.iter())
            .filter(|input| input.kind == outboard_graph::InputKind::Parameter)
            .map(|input| graph.ty(input.value).unwrap().elements(1).unwrap())
            .sum();
        assert_eq!(parameters, whole, "{name}");
    }
}

/// The planner's quick numbers lead it to plans that its exact numbers confirm: moving a cut by hand does not help.
#[test]
fn no_neighbouring_cut_is_better() {
    let graph = model("resnet18");
    let options = SearchOptions {
        use_devices: UseDevices::All,
        ..SearchOptions::new(32)
    };
    let devices = devices(&graph, &options);
    let best = plan(&graph, &devices, &options);
    let mut compared = 0;
    for at in 0..best.cuts.len() {
        for shift in [-3i64, -2, -1, 1, 2, 3] {
            let mut cuts = best.cuts.clone();
            cuts[at] = (cuts[at] as i64 + shift) as usize;
            let fixed = SearchOptions {
                cuts: Some(cuts),
                ..options.clone()
            };
            if let Ok(other) = search(&graph, &devices, &fixed) {
                compared += 1;
                let (other, best) = (other.predicted_step_seconds, best.predicted_step_seconds);
                assert!(other >= best * (1.0 - 1e-9), "{other} {best}");
            }
        }
    }
    assert!(compared >= 2, "{compared}");
}

/// On one device the prediction is the plain sum of all measured programs, micro-batch by micro-batch.
#[test]
fn one_device_is_a_sum() {
    let graph = model("mlp");
    let options = SearchOptions {
        optimizer_state_tensors: 0,
        ..SearchOptions::new(32)
    };
    let host = devices(&graph, &options).remove(0);
    let whole =
        outboard_graph::stage_programs(&outboard_graph::Stage::whole(graph.clone())).unwrap();
    let nodes = |program: &Graph| {
        let concrete = program.instantiate(8).unwrap();
        (0..concrete.nodes.len())
            .map(|node| {
                let mut single = concrete.single_node(node).unwrap();
                if let outboard_graph::Op::Dropout { key, .. } = &mut single.nodes[0].op {
                    *key = 0;
                }
                host.profile.seconds[&OpSignature(single.to_string())]
            })
            .sum::<f64>()
    };
    let of_programs = nodes(&whole.forward) + nodes(&whole.backward) + nodes(&whole.weight);
    let plan = plan(&graph, std::slice::from_ref(&host), &options);
    let probe = host
        .profile
        .seconds
        .iter()
        .find(|(signature, _)| signature.0.starts_with("graph \"probe\""))
        .unwrap()
        .1;
    let parameters = plan.stages[0].parameters as f64 / f64::from(1 << 20);
    // Gradient sums of four micro-batches; the norm and the optimizer once.
    let sums = parameters * probe * (4.0 + 2.0);
    let expected = 4.0 * of_programs + sums;
    assert!(
        (plan.predicted_step_seconds - expected).abs() < expected * 1e-9,
        "{} {expected}",
        plan.predicted_step_seconds
    );
}

#[test]
fn what_is_not_measured_or_cannot_run() {
    let graph = model("mlp");
    let options = SearchOptions::new(32);
    let mut devices = devices(&graph, &options);
    let relu = devices[1]
        .profile
        .seconds
        .keys()
        .find(|signature| signature.0.contains("= relu("))
        .unwrap()
        .clone();
    devices[1].profile.seconds.remove(&relu);
    let error = search(&graph, &devices, &options).unwrap_err();
    assert!(
        matches!(&error, PlanError::NotMeasured { missing: 1, signature, .. } if *signature == relu.0),
        "{error}"
    );
    devices[1].profile.record(relu, None);
    let plan = plan(&graph, &devices, &options);
    let laptop = plan
        .left_out
        .iter()
        .find(|left_out| left_out.name == "laptop");
    if let Some(laptop) = laptop {
        assert!(
            laptop.step_with.is_some() || laptop.to_string().contains("cannot run"),
            "{laptop}"
        );
    }
    for device in &mut devices {
        let all: Vec<OpSignature> = device.profile.seconds.keys().cloned().collect();
        device.profile.seconds.clear();
        for signature in all {
            device.profile.record(signature, None);
        }
    }
    let error = search(&graph, &devices, &options).unwrap_err();
    assert!(
        matches!(&error, PlanError::Impossible { .. }) && error.to_string().contains("cannot run"),
        "{error}"
    );
    let mut endless = devices.clone();
    endless[1].link = endless[1].link.map(|link| LinkProfile {
        up_bytes_per_second: 0.0,
        ..link
    });
    assert!(matches!(
        search(&graph, &endless, &options),
        Err(PlanError::Number { .. })
    ));
}

/// Four devices, automatic micro-batches, batch normalisation's least size: the widest search a person is likely to ask for.
#[test]
fn a_wide_search() {
    let graph = model("resnet34");
    let options = SearchOptions {
        micro_batches: MicroBatches::Auto,
        ..SearchOptions::new(16)
    };
    let mut devices = devices(&graph, &options);
    let wanted = devices[0].profile.seconds.keys().cloned().collect();
    devices.push(device("tablet", 1.2, &wanted, Some(3e8)));
    let plan = plan(&graph, &devices, &options);
    assert!(plan.devices.len() >= 2);
    assert_eq!(plan.micro_batch_sizes.iter().sum::<usize>(), 16);
    assert_eq!(plan.devices.len() + plan.left_out.len(), 4);
    assert!(plan.left_out.iter().all(|left_out| {
        left_out
            .step_with
            .is_none_or(|with| with >= left_out.step_without)
    }));
}

/// Actions that take twice as long as was estimated double the compute, and nothing else.
#[test]
fn a_rehearsal_refines_the_prediction() {
    let graph = model("mlp");
    let options = SearchOptions {
        use_devices: UseDevices::All,
        ..SearchOptions::new(30)
    };
    let devices = devices(&graph, &options);
    let before = plan(&graph, &devices[..2], &options);
    let mut same = before.clone();
    assert!(same.refine(&Rehearsed::default()).unwrap().is_empty());
    assert_eq!(same.timeline, before.timeline);

    let action = |stage: usize, kind: Kind, micro_batch: usize| Action {
        stage: stage as u16,
        kind,
        micro_batch: micro_batch as u16,
    };
    let mut twice = Rehearsed::default();
    // Micro-batches of 8 and of 7 have costs of their own; one step was disturbed.
    assert_eq!(before.micro_batch_sizes, [8, 8, 7, 7]);
    for (stage, planned) in before.stages.iter().enumerate() {
        for micro_batch in 0..4 {
            for kind in Kind::ALL {
                let seconds = before.cost_model.cost(stage, micro_batch).seconds[kind.index()];
                for factor in [2.0, 30.0, 2.0] {
                    let action = action(stage, kind, micro_batch);
                    twice.actions.push((action, factor * seconds));
                }
            }
        }
        let update = before.cost_model.stages[stage].optimizer_seconds;
        twice.updates.push((planned.device, 2.0 * update));
    }
    let mut after = before.clone();
    let slower = after.refine(&twice).unwrap();
    assert_eq!(slower.keys().collect::<Vec<_>>(), [&0, &1]);
    assert!(slower.values().all(|ratio| (ratio - 2.0).abs() < 1e-9));
    for (before, after) in (before.cost_model.stages.iter()).zip(&after.cost_model.stages) {
        assert_eq!(after.optimizer_seconds, 2.0 * before.optimizer_seconds);
        for (before, after) in before.classes.iter().zip(&after.classes) {
            assert_eq!(after.seconds, before.seconds.map(|seconds| 2.0 * seconds));
        }
    }
    assert_eq!(after.cost_model.links, before.cost_model.links);
    let ratio = after.predicted_step_seconds / before.predicted_step_seconds;
    assert!((1.5..2.0).contains(&ratio), "{ratio}");

    let mut absurd = before.clone();
    let actions = [f64::NAN, -1.0, f64::INFINITY].map(|time| (action(0, Kind::Forward, 0), time));
    let nowhere = (action(9, Kind::Backward, 9), 1.0);
    absurd
        .refine(&Rehearsed {
            actions: actions.into_iter().chain([nowhere]).collect(),
            updates: vec![(0, f64::NAN), (7, 1.0)],
        })
        .unwrap();
    assert_eq!(absurd.timeline, before.timeline);
}
