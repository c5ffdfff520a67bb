//! The coordinator on virtual time: many seeds, each another latency, another order of links, another moment of failure.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod simulation;

use std::time::Duration;

use outboard_host::core::{Command, DeviceId, Report};
use outboard_host::{HostOptions, RunError};
use outboard_wire::{StateKind, StepMode};
use simulation::network::{Network, Random};
use simulation::worker::Conduct;
use simulation::{LONG, connect, run_spec, start, step_spec};

fn network(seed: u64, conducts: &[Conduct]) -> Network {
    Network::new(seed, conducts.to_vec(), HostOptions::default())
}

fn is_failure(report: &Report) -> bool {
    matches!(report, Report::Failed(_))
}

fn failure(report: Option<Report>) -> RunError {
    match report {
        Some(Report::Failed(error)) => error,
        other => panic!("no failure but {other:?}"),
    }
}

/// What the toy model's training comes to: losses of the steps, then weights.
fn expected(
    stages: usize,
    steps: u64,
    sizes: &[u32],
    scale: impl Fn(u32) -> f32,
) -> (Vec<f64>, Vec<f32>) {
    let mut weights: Vec<f32> = (0..stages).map(|stage| stage as f32 + 1.0).collect();
    let samples: u32 = sizes.iter().sum();
    let mut losses = Vec::new();
    for step in 0..steps {
        let sum: f64 = (0..sizes.len())
            .map(|micro_batch| {
                let out = weights
                    .iter()
                    .fold(step as f32 + micro_batch as f32, |value, weight| {
                        value + weight
                    });
                f64::from(out * sizes[micro_batch] as f32)
            })
            .sum();
        losses.push(sum / f64::from(samples));
        for weight in &mut weights {
            *weight -= 0.5 * scale(samples) * samples as f32;
        }
    }
    (losses, weights)
}

#[test]
fn training_comes_out_the_same_whatever_the_network_does() {
    for seed in 0..200 {
        let stages = 1 + (seed % 4) as usize;
        let sizes = [3, 2];
        let mut network = network(seed, &vec![Conduct::Right; stages]);
        connect(&mut network);
        let started = start(&mut network, run_spec(stages, None));
        assert!(
            matches!(started, Report::Started { .. }),
            "seed {seed}: {started:?}"
        );
        for step in 0..5 {
            network.command(Command::Step(Box::new(step_spec(
                step,
                StepMode::Train,
                &sizes,
            ))));
        }
        network.command(Command::Fetch(StateKind::Weights));
        network.command(Command::Drop);
        let (losses, weights) = expected(stages, 5, &sizes, |_| 1.0);
        for (step, loss) in losses.iter().enumerate() {
            match network.run_until(LONG, |_| true) {
                Some(Report::Stepped(report)) => {
                    assert_eq!(
                        (report.step, report.loss),
                        (step as u64, *loss),
                        "seed {seed}"
                    );
                    assert_eq!(report.devices.len(), stages);
                    assert_eq!(report.transfers.len(), 2 * (2 * stages - 1));
                    assert!(report.seconds > 0.0);
                }
                other => panic!("seed {seed}, step {step}: {other:?}"),
            }
        }
        match network.run_until(LONG, |_| true) {
            Some(Report::Fetched { tensors, .. }) => {
                let fetched: Vec<f32> = tensors
                    .values()
                    .map(|tensor| tensor.to_f32_vec().unwrap()[0])
                    .collect();
                assert_eq!(fetched, weights, "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(
            network.run_until(LONG, |_| true),
            Some(Report::Dropped),
            "seed {seed}"
        );
        // Nothing but pings for an hour.
        network.idle(Duration::from_secs(3600));
        assert!(
            !network.reports.iter().any(|(_, report)| is_failure(report)),
            "seed {seed}"
        );
    }
}

#[test]
fn evaluations_in_flight_come_back_in_order() {
    for seed in 0..100 {
        let stages = 1 + (seed % 4) as usize;
        let mut network = network(seed, &vec![Conduct::Right; stages]);
        connect(&mut network);
        start(&mut network, run_spec(stages, None));
        network.command(Command::Step(Box::new(step_spec(
            0,
            StepMode::Train,
            &[1, 1],
        ))));
        for step in 0..9 {
            network.command(Command::Step(Box::new(step_spec(
                step,
                StepMode::Evaluate,
                &[1, 1],
            ))));
        }
        let trained = network.run_until(LONG, |_| true);
        assert!(
            matches!(trained, Some(Report::Stepped(_))),
            "seed {seed}: {trained:?}"
        );
        let (_, weights) = expected(stages, 1, &[1, 1], |_| 1.0);
        for number in 0..9 {
            match network.run_until(LONG, |_| true) {
                Some(Report::Evaluated { step, results }) => {
                    assert_eq!(step, number, "seed {seed}");
                    for (micro_batch, result) in results.iter().enumerate() {
                        let out = weights
                            .iter()
                            .fold(step as f32 + micro_batch as f32, |value, weight| {
                                value + weight
                            });
                        assert_eq!(result["y"].to_f32_vec().unwrap()[0], out, "seed {seed}");
                    }
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
}

#[test]
fn gradients_are_clipped_over_all_devices() {
    let mut network = network(1, &[Conduct::Right; 4]);
    connect(&mut network);
    start(&mut network, run_spec(4, Some(1.0)));
    network.command(Command::Step(Box::new(step_spec(
        0,
        StepMode::Train,
        &[2, 1],
    ))));
    match network.run_until(LONG, |_| true) {
        Some(Report::Stepped(report)) => {
            // Four weights with a gradient of 3 each.
            assert_eq!(report.grad_norm, 6.0);
            assert_eq!(report.gradient_scale, (1.0 / (6.0 + 1e-6)) as f32);
        }
        other => panic!("{other:?}"),
    }
    let (_, weights) = expected(4, 1, &[2, 1], |_| (1.0 / (6.0 + 1e-6)) as f32);
    let held: Vec<f32> = network.workers.iter().map(|worker| worker.value).collect();
    assert_eq!(held, weights);
}

#[test]
fn a_worker_lost_at_any_moment_ends_the_run_within_five_seconds_and_frees_the_others() {
    for seed in 0..400 {
        let mut random = Random::new(seed ^ 0xdead);
        let stages = 2 + (seed % 3) as usize;
        let mut network = network(seed, &vec![Conduct::Right; stages]);
        connect(&mut network);
        let victim = random.below(stages as u64) as usize;
        let silently = seed % 2 == 0;
        let after = random.micros(800_000);
        network.kill(after, victim, silently);
        let died = network.now + after;
        let started = start(&mut network, run_spec(stages, None));
        let mut failed = is_failure(&started).then_some(started);
        if failed.is_none() {
            for step in 0..1000 {
                network.command(Command::Step(Box::new(step_spec(
                    step,
                    StepMode::Train,
                    &[1, 1],
                ))));
            }
            failed = network.run_until(LONG, is_failure);
        }
        match failure(failed) {
            RunError::DeviceLost { device, .. } => {
                assert_eq!(device, format!("device {victim}"), "seed {seed}");
            }
            other => panic!("seed {seed}: {other}"),
        }
        let told = network
            .reports
            .iter()
            .find(|(_, report)| is_failure(report))
            .unwrap()
            .0;
        assert!(
            told <= died + Duration::from_secs(5),
            "seed {seed}: {:?} after",
            told - died
        );
        network.idle(Duration::from_secs(1));
        for (index, worker) in network.workers.iter().enumerate() {
            assert!(
                index == victim || worker.run.is_none(),
                "seed {seed}: {index} holds the run"
            );
        }
        let failures = network
            .reports
            .iter()
            .filter(|(_, report)| is_failure(report))
            .count();
        assert_eq!(failures, 1, "seed {seed}");
        // Every worker that is left has taken the same steps or one less: none has applied a step that others cannot.
        let most = network
            .workers
            .iter()
            .map(|worker| worker.committed.len())
            .max()
            .unwrap();
        for worker in &network.workers {
            assert!(worker.committed.len() + 1 >= most, "seed {seed}");
        }
        // Those that are left take another run at once; the lost one is named when it is asked for.
        if victim > 0 {
            let again = start(&mut network, run_spec(victim, None));
            assert!(
                matches!(again, Report::Started { .. }),
                "seed {seed}: {again:?}"
            );
            network.command(Command::Drop);
            let dropped = network.run_until(LONG, |_| true);
            assert_eq!(dropped, Some(Report::Dropped), "seed {seed}");
        }
        let lost = start(&mut network, run_spec(stages, None));
        assert!(
            matches!(lost, Report::Failed(RunError::DeviceLost { .. })),
            "seed {seed}"
        );
    }
}

/// A run in which one of three workers misbehaves: its error, after at most eleven virtual minutes.
fn with_one(conduct: Conduct, at: usize) -> (RunError, Network) {
    let mut conducts = [Conduct::Right; 3];
    conducts[at] = conduct;
    let mut network = network(at as u64, &conducts);
    connect(&mut network);
    let started = start(&mut network, run_spec(3, None));
    if is_failure(&started) {
        return (failure(Some(started)), network);
    }
    for step in 0..4 {
        network.command(Command::Step(Box::new(step_spec(
            step,
            StepMode::Train,
            &[1, 1],
        ))));
    }
    let error = failure(network.run_until(Duration::from_secs(660), is_failure));
    network.idle(Duration::from_secs(1));
    for (index, worker) in network.workers.iter().enumerate() {
        assert!(
            index == at || worker.run.is_none(),
            "{conduct:?}: worker {index} holds the run"
        );
    }
    (error, network)
}

#[test]
fn a_worker_that_breaks_the_protocol_is_named_and_left() {
    for conduct in [
        Conduct::WrongRun,
        Conduct::BogusActivation,
        Conduct::Twice,
        Conduct::BogusLosses,
        Conduct::BogusGradient,
        Conduct::Early,
    ] {
        for at in 0..2 {
            let (error, network) = with_one(conduct, at);
            match error {
                RunError::Protocol { device, what, .. } => {
                    assert_eq!(device, format!("device {at}"), "{conduct:?}: {what}");
                }
                other => panic!("{conduct:?}: {other}"),
            }
            assert!(network.closed_by_host[at], "{conduct:?}");
        }
    }
}

#[test]
fn a_worker_that_sends_without_credit_is_named() {
    let options = HostOptions {
        receive_window_bytes: 100,
        ..HostOptions::default()
    };
    let mut network = Network::new(1, vec![Conduct::Right; 2], options);
    connect(&mut network);
    start(&mut network, run_spec(2, None));
    // The scripted worker pays no heed to credit: its activations are larger than the window, and the second one comes
    // before the first has left for the other worker.
    network.command(Command::Step(Box::new(step_spec(
        0,
        StepMode::Train,
        &[1, 1, 1, 1],
    ))));
    match failure(network.run_until(LONG, is_failure)) {
        RunError::Protocol { device, what, .. } => {
            assert_eq!(device, "device 0");
            assert!(what.contains("without credit"), "{what}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_worker_that_never_answers_stalls_for_a_bounded_time() {
    let (error, _) = with_one(Conduct::Lazy, 1);
    match error {
        RunError::Stalled {
            device,
            step,
            waiting,
            ..
        } => {
            // The first one that has what it needs and does nothing with it.
            assert_eq!((device.as_str(), step), ("device 1", Some(0)));
            assert_eq!(waiting, "its gradients");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_run_before_anyone_applies_it() {
    let (error, network) = with_one(Conduct::NotFinite, 1);
    assert_eq!(
        error,
        RunError::NotFinite {
            step: 2,
            stage: 1,
            device: "device 1".into(),
            what: "w1".into()
        }
    );
    for worker in &network.workers {
        assert_eq!(worker.committed, [0, 1]);
    }
    // It is no fault of the device.
    assert!(!network.closed_by_host[1]);
}

#[test]
fn weights_are_compared_and_a_refusal_is_passed_on() {
    let (error, _) = with_one(Conduct::WrongHash, 2);
    assert!(
        matches!(&error, RunError::Weights { device, .. } if device == "device 2"),
        "{error}"
    );
    let (error, _) = with_one(Conduct::Refuses, 1);
    assert_eq!(
        error.to_string(),
        "device 1 failed in stage 1: stage needs 3.1 GiB of 2.0 GiB (use more stages, more micro-batches or a smaller \
         batch)"
    );
}

#[test]
fn a_device_that_says_nothing_or_speaks_another_version_is_named() {
    let mut quiet = network(1, &[Conduct::Right, Conduct::Mute]);
    match failure(quiet.run_until(LONG, is_failure)) {
        RunError::DeviceLost { device, cause, .. } => {
            assert_eq!(device, "device 1");
            assert!(cause.starts_with("no hello within 10 s"), "{cause}");
        }
        other => panic!("{other}"),
    }
    let mut old = network(1, &[Conduct::OldVersion]);
    match failure(old.run_until(LONG, is_failure)) {
        RunError::Version { device, theirs, .. } => {
            assert_eq!((device.as_str(), theirs), ("device 0", 0));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_link_is_measured() {
    for seed in 0..50 {
        let mut network = network(seed, &[Conduct::Right]);
        connect(&mut network);
        let began = network.now;
        network.command(Command::Probe(DeviceId(0)));
        match network.run_until(LONG, |_| true) {
            Some(Report::Probed { link, .. }) => {
                // 50 MB/s, and up to 20 ms of latency that comes and goes.
                assert!(link.latency_seconds <= 0.02, "seed {seed}: {link:?}");
                for rate in [
                    link.to_worker_bytes_per_second,
                    link.to_host_bytes_per_second,
                ] {
                    assert!((5e6..=5e8).contains(&rate), "seed {seed}: {link:?}");
                }
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        assert!(network.now - began < Duration::from_secs(1), "seed {seed}");
    }
}

#[test]
fn programs_are_timed_on_all_devices_at_once() {
    let mut network = network(5, &[Conduct::Right; 2]);
    connect(&mut network);
    for device in 0..2 {
        let programs = vec!["a".to_owned(), "?".to_owned()];
        network.command(Command::Profile {
            device: DeviceId(device),
            programs,
        });
    }
    for _ in 0..2 {
        match network.run_until(LONG, |_| true) {
            Some(Report::Profiled { seconds, .. }) => assert_eq!(seconds, [Some(0.5), None]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_host_that_was_held_up_does_not_blame_its_devices() {
    let mut network = network(3, &[Conduct::Right; 2]);
    connect(&mut network);
    network.idle(Duration::from_secs(10));
    // The laptop sleeps for an hour: the timer comes late, and so does everything else.
    network.now += Duration::from_secs(3600);
    network.idle(Duration::from_secs(10));
    assert!(!network.reports.iter().any(|(_, report)| is_failure(report)));
}
