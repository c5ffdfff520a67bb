//! Real workers over memory links and TCP: what a run comes to must not depend on where the model was cut, in which order
//! the stages worked, or over what they talked.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod devices;
mod models;

use std::collections::BTreeMap;

use devices::Devices;
use models::{batch, by_hand, model, run_options};
use outboard_graph::zoo::ZooOptions;
use outboard_graph::{
    Builder, DType, Graph, Loss, Op, OutputKind, Tensor, TensorType, init, weights_sha256,
};
use outboard_host::{Placement, Progress, Rehearsal, RunError};
use outboard_plan::{Plan, SearchOptions, UseDevices, micro_batch_sizes};
use outboard_schedule::{ScheduleKind, simulate};
use outboard_wire::{Optimizer, TensorEncoding};

/// Trains a few steps and gives the losses and the hash of the weights.
fn train(devices: &Devices, placement: Placement) -> (Vec<f64>, [u8; 32], usize) {
    let graph = model("mlp", &ZooOptions::default());
    let host = devices.connect();
    let mut run = host
        .start(run_options(&graph, placement), |_| {})
        .expect("the run starts");
    // The last batch is smaller: fewer micro-batches, and uneven ones before.
    let sizes = [7, 7, 7, 2];
    for (step, size) in sizes.iter().enumerate() {
        run.submit(batch(&graph, *size, step as u64), 0.05)
            .expect("the batch fits");
    }
    let losses = sizes
        .iter()
        .map(|_| run.wait().expect("a step").loss)
        .collect();
    let weights = run.weights().expect("weights");
    let state = run.optimizer_state().expect("state");
    run.finish().expect("the end");
    (losses, weights_sha256(&weights), state.len())
}

#[test]
fn the_cut_the_schedule_and_the_link_never_change_the_result() {
    let graph = model("mlp", &ZooOptions::default());
    let alone = train(
        &Devices::in_memory(1),
        by_hand(&graph, &[0], ScheduleKind::GPipe),
    );
    assert!(alone.0.iter().all(|loss| loss.is_finite()));
    for stages in 2..=4 {
        let order: Vec<usize> = (0..stages).collect();
        for kind in ScheduleKind::ALL {
            let placement = match kind {
                // Two stages on each of two devices.
                ScheduleKind::Interleaved if stages == 4 => by_hand(&graph, &[0, 1, 0, 1], kind),
                ScheduleKind::Interleaved => continue,
                _ => by_hand(&graph, &order, kind),
            };
            let devices = Devices::in_memory(stages);
            assert_eq!(train(&devices, placement), alone, "{stages} stages, {kind}");
        }
    }
    let placement = by_hand(&graph, &[1, 0], ScheduleKind::OneFOneB);
    assert_eq!(train(&Devices::over_tcp(2), placement), alone, "over TCP");
}

#[test]
fn a_run_goes_on_from_its_weights_and_state_on_other_devices() {
    let graph = model("mlp", &ZooOptions::default());
    let options = |placement| {
        let mut options = run_options(&graph, placement);
        options.optimizer = Some(Optimizer::Adam {
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            amsgrad: false,
            decoupled: true,
        });
        options
    };
    let placement = by_hand(&graph, &[0, 1], ScheduleKind::ZbH1);
    let devices = Devices::in_memory(2);
    let host = devices.connect();
    let mut run = host
        .start(options(placement.clone()), |_| {})
        .expect("the run starts");
    for step in 0..4 {
        run.step(batch(&graph, 6, step), 0.01).expect("a step");
    }
    let whole = run.weights().expect("weights");
    run.finish().expect("the end");

    // The same devices take another run, which stops in the middle.
    let mut run = host
        .start(options(placement), |_| {})
        .expect("the run starts");
    for step in 0..2 {
        run.step(batch(&graph, 6, step), 0.01).expect("a step");
    }
    let (weights, state) = (
        run.weights().expect("weights"),
        run.optimizer_state().expect("state"),
    );
    assert!(!state.is_empty());
    run.finish().expect("the end");
    drop(host);

    let devices = Devices::in_memory(3);
    let host = devices.connect();
    let mut resumed = options(by_hand(&graph, &[2, 0, 1], ScheduleKind::GPipe));
    (resumed.weights, resumed.optimizer_state, resumed.first_step) = (weights, state, 2);
    let mut run = host.start(resumed, |_| {}).expect("the run starts");
    for step in 2..4 {
        let report = run.step(batch(&graph, 6, step), 0.01).expect("a step");
        assert_eq!(report.step, step);
    }
    assert_eq!(
        weights_sha256(&run.weights().expect("weights")),
        weights_sha256(&whole)
    );
}

#[test]
fn evaluation_gives_the_same_results_in_order_however_it_is_cut() {
    let graph = model("mlp", &ZooOptions::default());
    let inputs = || {
        (0..6).map(|index| {
            let mut batch = batch(&graph, 5, index);
            batch.retain(|(name, _)| name == "input");
            batch
        })
    };
    let mut all: Vec<Vec<BTreeMap<String, Tensor>>> = Vec::new();
    for devices in [&[0][..], &[0, 1, 2]] {
        let here = Devices::in_memory(devices.len());
        let host = here.connect();
        let mut options = run_options(&graph, by_hand(&graph, devices, ScheduleKind::GPipe));
        options.optimizer = None;
        let mut run = host.start(options, |_| {}).expect("the run starts");
        let mut results = Vec::new();
        run.evaluate(inputs(), 3, |index, result| {
            assert_eq!(index, results.len());
            results.push(result);
        })
        .expect("results");
        assert!(matches!(
            run.submit(batch(&graph, 5, 0), 0.1),
            Err(RunError::Usage(_))
        ));
        all.push(results);
    }
    assert_eq!(all[0].len(), 6);
    assert_eq!(all[0][0]["logits"].dims(), [5, 10]);
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_batch_that_does_not_fit_is_refused_and_the_run_goes_on() {
    let graph = model("mlp", &ZooOptions::default());
    let devices = Devices::in_memory(1);
    let host = devices.connect();
    let placement = by_hand(&graph, &[0], ScheduleKind::GPipe);
    let mut run = host
        .start(run_options(&graph, placement.clone()), |_| {})
        .expect("the run starts");
    let mut lacking = batch(&graph, 4, 0);
    lacking.retain(|(name, _)| name == "input");
    assert!(matches!(run.submit(lacking, 0.1), Err(RunError::Batch(_))));
    assert!(matches!(
        run.submit(batch(&graph, 8, 0), 0.1),
        Err(RunError::Batch(_))
    ));
    assert!(matches!(
        host.start(run_options(&graph, placement), |_| {}),
        Err(RunError::Usage(_))
    ));
    run.step(batch(&graph, 4, 0), 0.1).expect("a step");
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_is_named() {
    let graph = model("mlp", &ZooOptions::default());
    let devices = Devices::in_memory(2);
    let host = devices.connect();
    let placement = by_hand(&graph, &[0, 1], ScheduleKind::OneFOneB);
    let mut run = host
        .start(run_options(&graph, placement), |_| {})
        .expect("the run starts");
    run.step(batch(&graph, 4, 0), 0.1).expect("a step");
    let mut bad = batch(&graph, 4, 1);
    let (_, input) = &mut bad[0];
    let mut values = input.to_f32_vec().unwrap();
    values[3] = f32::NAN;
    *input = Tensor::from_f32(input.dims().to_vec(), &values).unwrap();
    match run.step(bad, 0.1) {
        Err(RunError::NotFinite {
            step: 1,
            stage: 1,
            device,
            what,
        }) => {
            assert_eq!((device.as_str(), what.as_str()), ("device 1", "loss"));
        }
        other => panic!("{other:?}"),
    }
    // The run is over; its devices are free for the next one.
    assert!(matches!(run.weights(), Err(RunError::NotFinite { .. })));
}

/// Losses are a sum and a weight: uneven micro-batches in which some targets count for nothing and others for more come to the
/// loss and the weights of the batch at once.
#[test]
fn ignored_targets_and_class_weights_are_those_of_the_whole_batch() {
    let loss = Loss::CrossEntropy {
        ignore_index: 1,
        class_weights: Some((1..=10).map(|class| 0.25 * class as f32).collect()),
        label_smoothing: 0.1,
    };
    let graph = model(
        "mlp",
        &ZooOptions {
            loss,
            dropout: Some(0.0),
            ..ZooOptions::default()
        },
    );
    let train = |devices: &[usize], micro_batches| {
        let own = Devices::in_memory(devices.len());
        let host = own.connect();
        let cuts = by_hand(&graph, devices, ScheduleKind::OneFOneB).cuts;
        let placement =
            Placement::by_hand(cuts, devices, ScheduleKind::OneFOneB, micro_batches).unwrap();
        let mut run = host
            .start(run_options(&graph, placement), |_| {})
            .expect("the run starts");
        let mut losses = Vec::new();
        for step in 0..3 {
            let mut batch = batch(&graph, 7, step);
            // Of the first micro-batch all targets but one are ignored, of the second none is.
            let (_, targets) = batch
                .iter_mut()
                .find(|(_, tensor)| tensor.dtype() == DType::I64)
                .expect("targets");
            *targets = Tensor::from_i64(vec![7], &[1, 4, 1, 9, 0, 1, 3]).unwrap();
            losses.push(run.step(batch, 0.05).expect("a step").loss);
        }
        let weights: Vec<f32> = (run.weights().expect("weights").values())
            .flat_map(|tensor| tensor.to_f32_vec().expect("f32"))
            .collect();
        (losses, weights)
    };
    let (losses, weights) = train(&[0], 1);
    let (parts_losses, parts_weights) = train(&[0, 1], 3);
    for (whole, parts) in losses.iter().zip(&parts_losses) {
        assert!((whole - parts).abs() < 1e-5 * whole, "{whole} {parts}");
    }
    assert_eq!(weights.len(), parts_weights.len());
    for (whole, parts) in weights.iter().zip(&parts_weights) {
        assert!((whole - parts).abs() < 1e-5, "{whole} {parts}");
    }
}

#[test]
fn half_precision_on_the_wire_trains_too() {
    let graph = model("mlp", &ZooOptions::default());
    for encoding in [TensorEncoding::F16, TensorEncoding::BF16] {
        let devices = Devices::in_memory(2);
        let host = devices.connect();
        let mut options = run_options(&graph, by_hand(&graph, &[0, 1], ScheduleKind::GPipe));
        options.encoding = encoding;
        let mut run = host.start(options, |_| {}).expect("the run starts");
        let first = run.step(batch(&graph, 6, 0), 0.05).expect("a step").loss;
        for _ in 0..8 {
            run.step(batch(&graph, 6, 0), 0.05).expect("a step");
        }
        let last = run.step(batch(&graph, 6, 0), 0.05).expect("a step").loss;
        assert!(last < first, "{encoding:?}: {first} to {last}");
    }
}

#[test]
fn a_worker_killed_in_the_middle_is_named_within_five_seconds() {
    let graph = model("mlp", &ZooOptions::default());
    let devices = Devices::over_tcp(2);
    let host = devices.connect();
    let placement = by_hand(&graph, &[0, 1], ScheduleKind::OneFOneB);
    let mut run = host
        .start(run_options(&graph, placement), |_| {})
        .expect("the run starts");
    run.step(batch(&graph, 6, 0), 0.05).expect("a step");
    let began = std::time::Instant::now();
    devices.kill(1);
    let error = loop {
        match run.step(batch(&graph, 6, 1), 0.05) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    assert!(
        matches!(&error, RunError::DeviceLost { device, .. } if device == "device 1"),
        "{error}"
    );
    drop(run);
    // The other device takes the next run.
    let alone = by_hand(&graph, &[0], ScheduleKind::GPipe);
    let mut run = host
        .start(run_options(&graph, alone), |_| {})
        .expect("the run starts");
    run.step(batch(&graph, 6, 0), 0.05).expect("a step");
}

#[test]
fn initial_weights_of_another_model_are_refused_before_anything_is_sent() {
    let graph = model("mlp", &ZooOptions::default());
    let devices = Devices::in_memory(1);
    let host = devices.connect();
    let mut options = run_options(&graph, by_hand(&graph, &[0], ScheduleKind::GPipe));
    options.weights = init::weights(
        &model(
            "mlp",
            &ZooOptions {
                classes: 11,
                ..ZooOptions::default()
            },
        ),
        1,
    )
    .unwrap();
    let error = host.start(options, |_| {}).expect_err("another model");
    assert!(matches!(&error, RunError::Model(_)), "{error}");
}

/// The plan for a run over two devices, and the steps of its rehearsals.
fn rehearsed(graph: &Graph, steps: u64) -> (Plan, usize) {
    let devices = Devices::in_memory(2);
    let host = devices.connect();
    let options = SearchOptions {
        use_devices: UseDevices::All,
        ..SearchOptions::new(8)
    };
    let sizes = micro_batch_sizes(&options, graph.min_batch()).expect("sizes");
    let (profiles, _) = host.profile(graph, &sizes, None, |_| {}).expect("profiles");
    let rehearsal = Rehearsal {
        steps: Some(steps),
        optimizer: Optimizer::Adam {
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            decoupled: false,
        },
        encoding: TensorEncoding::F32,
    };
    let mut steps = 0;
    let plan = host.plan(graph, &profiles, &options, &rehearsal, |progress| {
        steps += usize::from(matches!(progress, Progress::Rehearsing { .. }));
    });
    let plan = plan.expect("a plan");

    // Nothing of it is left: the run that was planned begins from its own weights.
    let placement = Placement::of_plan(&plan, ScheduleKind::Auto);
    let mut run = host
        .start(run_options(graph, placement), |_| {})
        .expect("the run starts");
    let report = run.step(batch(graph, 7, 0), 0.05).expect("a step");
    assert!(report.loss > 0.0);
    run.finish().expect("the end");
    (plan, steps)
}

/// What a step took on the clock beside the operators (handing tensors over, sums of gradients, a real optimizer) is known
/// only by taking some.
#[test]
fn a_plan_is_rehearsed_in_proportion_to_the_run() {
    let graph = model("mlp", &ZooOptions::default());
    let (plan, steps) = rehearsed(&graph, 6);
    assert_eq!(steps, 2, "one to fill caches, one to measure");
    let simulated = simulate(&plan.schedule, &plan.cost_model).expect("it fits");
    assert_eq!(simulated.step_seconds, plan.predicted_step_seconds);
    let (_, steps) = rehearsed(&graph, 1000);
    assert!(steps == 17 || steps == 34, "{steps}: one plan, or two");
}

/// Zeros are no input for every model. One that divides by its input is planned from its operators alone.
#[test]
fn a_model_that_cannot_take_zeros_is_planned_all_the_same() {
    let divides = || {
        let mut b = Builder::new("divides");
        let input = b.data("input", TensorType::batched(DType::F32, &[4]))?;
        let ones = b.op(Op::Div {}, &[input, input])?;
        let weight = b.parameter("weight", TensorType::fixed(DType::F32, &[4, 10]))?;
        let x = b.op(Op::Mm {}, &[ones, weight])?;
        let last = b.parameter("last", TensorType::fixed(DType::F32, &[10, 10]))?;
        let logits = b.op(Op::Mm {}, &[x, last])?;
        b.output(OutputKind::Result, "logits", logits)?;
        Loss::default()
            .append(&mut b, logits)
            .expect("scores of classes");
        b.finish().canonicalize()
    };
    let graph = divides().expect("a model");
    let (plan, steps) = rehearsed(&graph, 1000);
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(steps, 1, "given up at the first loss");
}
