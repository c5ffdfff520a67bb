//! Training a small model on scripted hosts: the same bits wherever its stages run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod support;

use std::collections::BTreeMap;

use outboard_graph::Tensor;
use outboard_schedule::ScheduleKind;
use outboard_wire::{Optimizer, StateKind, StepMode, TensorEncoding, WorkerMessage};
use support::model::{Plan, batch};
use support::{Device, Host, Stepped};

const SIZES: [usize; 3] = [4, 3, 3];

/// Three steps; what each brought, and what is left after them.
fn trained(
    plan: Plan,
) -> (
    Vec<Stepped>,
    BTreeMap<String, Tensor>,
    BTreeMap<String, Tensor>,
) {
    let mut host = Host::start(plan);
    let steps = (0..3)
        .map(|step| host.train(step, &batch(step, &SIZES)))
        .collect();
    let weights = host.fetch(StateKind::Weights);
    let state = host.fetch(StateKind::Optimizer);
    (steps, weights, state)
}

#[test]
fn neither_cut_nor_placement_nor_schedule_changes_a_bit() {
    let whole = trained(Plan::new(&[], &[0]));
    assert_eq!(whole.1.len(), 7);
    assert_eq!(whole.2.len(), 2 * 5);
    assert_ne!(
        whole.1["tied.weight"],
        Plan::new(&[], &[0]).weights["tied.weight"]
    );
    assert_ne!(
        whole.1["bn.running_var"],
        Plan::new(&[], &[0]).weights["bn.running_var"]
    );
    let cases: [(&[usize], &[usize]); 6] = [
        // Two and three stages on one worker: tensors pass inside it.
        (&[4], &[0, 0]),
        (&[2, 6], &[0, 0, 0]),
        // Through the host.
        (&[4], &[0, 1]),
        (&[2, 6], &[0, 1, 2]),
        // A worker with stages around another's.
        (&[2, 6], &[0, 1, 0]),
        (&[2, 4, 6], &[0, 1, 1, 0]),
    ];
    for (cuts, devices) in cases {
        let one_each = devices
            .iter()
            .enumerate()
            .all(|(stage, device)| stage == *device);
        let kinds: &[ScheduleKind] = match one_each {
            true => &[
                ScheduleKind::GPipe,
                ScheduleKind::OneFOneB,
                ScheduleKind::ZbH1,
            ],
            false => &[ScheduleKind::Auto],
        };
        for &kind in kinds {
            let mut plan = Plan::new(cuts, devices);
            plan.kind = kind;
            assert_eq!(
                trained(plan),
                whole,
                "cuts {cuts:?}, devices {devices:?}, {kind}"
            );
        }
    }
}

#[test]
fn rounding_on_the_wire_is_the_same_inside_a_worker() {
    for encoding in [TensorEncoding::F16, TensorEncoding::BF16] {
        let on = |devices: &[usize]| {
            let mut plan = Plan::new(&[2, 6], devices);
            plan.encoding = encoding;
            trained(plan)
        };
        let apart = on(&[0, 1, 2]);
        assert_eq!(on(&[0, 0, 0]), apart);
        assert_eq!(on(&[0, 1, 1]), apart);
        assert_ne!(
            apart.1,
            trained(Plan::new(&[], &[0])).1,
            "{encoding:?} rounds"
        );
    }
}

#[test]
fn the_loss_is_that_of_the_whole_batch() {
    let mut host = Host::start(Plan::new(&[4], &[0, 1]));
    let stepped = host.train(0, &batch(0, &SIZES));
    // One target of each micro-batch is ignored.
    assert_eq!(stepped.loss_weights, [3.0, 2.0, 2.0]);
    assert_eq!(stepped.loss_sums.len(), 3);
    assert_eq!(stepped.squares.len(), 5);
    assert!(stepped.squares.values().all(|square| *square > 0.0));
    assert_eq!(stepped.not_finite, None);
}

#[test]
fn a_resumed_run_ends_as_one_that_was_never_interrupted() {
    let whole = trained(Plan::new(&[], &[0]));
    let mut host = Host::start(Plan::new(&[4], &[0, 1]));
    for step in 0..2 {
        host.train(step, &batch(step, &SIZES));
    }
    let mut plan = Plan::new(&[2, 6], &[0, 1, 0]);
    plan.weights = host.fetch(StateKind::Weights);
    plan.state = host.fetch(StateKind::Optimizer);
    plan.first_step = 2;
    let mut host = Host::start(plan);
    host.train(2, &batch(2, &SIZES));
    assert_eq!(host.fetch(StateKind::Weights), whole.1);
    assert_eq!(host.fetch(StateKind::Optimizer), whole.2);
}

#[test]
fn a_step_of_fewer_micro_batches_and_other_sizes_works() {
    let mut host = Host::start(Plan::new(&[4], &[0, 1]));
    for at in 0..2 {
        host.send_schedule(at, 2);
    }
    let stepped = host.train(0, &batch(0, &[2, 3]));
    assert_eq!(stepped.loss_weights, [1.0, 2.0]);
}

#[test]
fn the_next_step_may_be_opened_and_fed_ahead() {
    let plan = || Plan::new(&[4], &[0, 1]);
    let mut ahead = Host::start(plan());
    ahead.open(0, StepMode::Train, &batch(0, &SIZES));
    ahead.open(1, StepMode::Train, &batch(1, &SIZES));
    let first = ahead.gradients(0);
    ahead.commit(0);
    let second = ahead.gradients(1);
    ahead.commit(1);
    let mut one_by_one = Host::start(plan());
    assert_eq!(one_by_one.train(0, &batch(0, &SIZES)), first);
    assert_eq!(one_by_one.train(1, &batch(1, &SIZES)), second);
}

#[test]
fn what_is_not_finite_is_named_before_any_optimizer_runs() {
    let mut plan = Plan::new(&[4], &[0, 1]);
    let poisoned = Tensor::from_f32([6, 4], &[f32::INFINITY; 24]).unwrap();
    plan.weights.insert("head.weight".to_owned(), poisoned);
    let mut host = Host::start(plan);
    host.open(0, StepMode::Train, &batch(0, &SIZES));
    let (stage, name) = host.gradients(0).not_finite.unwrap();
    // The first stage's gradients are spoilt too, and the first stage is the first.
    assert_eq!((stage, name.as_str()), (0, "middle.weight"));
    let loss = host.devices[1].heard(|message| match message {
        WorkerMessage::Gradients { not_finite, .. } => not_finite.clone(),
        _ => None,
    });
    assert_eq!(loss, (1, "loss".to_owned()));
}

#[test]
fn a_batch_whose_targets_are_all_ignored_has_no_finite_loss() {
    let mut host = Host::start(Plan::new(&[], &[0]));
    let mut batch = batch(0, &SIZES);
    for data in &mut batch {
        let size = data["target"].dims()[0];
        data.insert(
            "target",
            Tensor::from_i64([size], &vec![-100; size]).unwrap(),
        );
    }
    host.open(0, StepMode::Train, &batch);
    let stepped = host.gradients(0);
    assert_eq!(stepped.loss_weights, [0.0; 3]);
    assert_eq!(stepped.not_finite, Some((0, "loss".to_owned())));
}

#[test]
fn evaluations_in_flight_give_the_same_results_wherever_they_run() {
    let results = |cuts: &[usize], devices: &[usize]| {
        let mut host = Host::start(Plan::new(cuts, devices));
        host.train(0, &batch(0, &SIZES));
        for step in 0..4 {
            host.open(100 + step, StepMode::Evaluate, &batch(step, &[2, 4, 1]));
        }
        host.pump();
        for device in &host.devices {
            for step in 100..104 {
                device.heard(|message| match message {
                    WorkerMessage::StepDone { step: of, .. } if *of == step => Some(()),
                    _ => None,
                });
            }
        }
        // And training goes on.
        host.train(1, &batch(1, &SIZES));
        host.results
    };
    let whole = results(&[], &[0]);
    assert_eq!(whole.len(), 12);
    assert_eq!(whole[&(100, 0, "logits".to_owned())].dims(), [2, 4]);
    assert_eq!(results(&[4], &[0, 1]), whole);
    assert_eq!(results(&[2, 6], &[0, 1, 0]), whole);
}

#[test]
fn an_inference_run_needs_no_training_programs() {
    let mut plan = Plan::new(&[4], &[0, 1]);
    plan.optimizer = None;
    let mut host = Host::start(plan);
    host.open(7, StepMode::Evaluate, &batch(0, &[4, 4]));
    host.pump();
    assert_eq!(host.results.len(), 2);
    host.open(8, StepMode::Train, &batch(0, &[4, 4]));
    let (_, message) = host.devices[0].failure();
    assert!(message.contains("assigned for evaluation"), "{message}");
}

#[test]
fn a_small_window_of_the_host_only_makes_it_slower() {
    let plan = Plan::new(&[2, 6], &[0, 1, 0]);
    let devices = (0..2)
        .map(|_| {
            Device::with(
                support::core_options(),
                outboard_exec::CpuExecutor::with_threads(1),
                1,
            )
        })
        .collect();
    let mut host = Host::start_on(plan, devices);
    let steps: Vec<Stepped> = (0..3)
        .map(|step| host.train(step, &batch(step, &SIZES)))
        .collect();
    let whole = trained(Plan::new(&[], &[0]));
    assert_eq!((steps, host.fetch(StateKind::Weights)), (whole.0, whole.1));
}

#[test]
fn sgd_has_no_state_before_the_first_step() {
    let mut plan = Plan::new(&[], &[0]);
    plan.optimizer = Some(Optimizer::Sgd {
        momentum: 0.9,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
    });
    let mut host = Host::start(plan);
    assert!(host.fetch(StateKind::Optimizer).is_empty());
    host.train(0, &batch(0, &SIZES));
    let names: Vec<String> = host.fetch(StateKind::Optimizer).into_keys().collect();
    assert_eq!(
        names,
        [
            "bn.bias",
            "bn.weight",
            "head.weight",
            "middle.weight",
            "tied.weight"
        ]
        .map(|name| format!("{name}/momentum_buffer"))
    );
}
