//! A lost worker costs nothing but time: it is named, nothing hangs, and a resumed run ends with the same bits. The same for
//! a host that is killed or asked to stop.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]
#![cfg(unix)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Finished, Running, Worker, run};

/// What everything here may take before it begins.
const PATIENCE: Duration = Duration::from_secs(120);

/// Eight steps.
fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    common::train(&[&["--steps", "8"], more].concat())
}

/// Starts [`train`] over this process and the worker, with a checkpoint every second step.
fn start(worker: &Worker, checkpoint: &str) -> Running {
    let more = [
        "--use",
        "all",
        "--checkpoint",
        checkpoint,
        "--checkpoint-every",
        "2",
    ];
    let mut arguments = train(&more);
    arguments.extend(["--device", &worker.address]);
    Running::start(&arguments)
}

/// The last complete step that a folder holds.
fn saved_step(checkpoint: &Path) -> Option<u64> {
    let names = std::fs::read_dir(checkpoint).ok()?;
    names
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_prefix("step-")?
                .parse()
                .ok()
        })
        .max()
}

/// Waits until the host has got this far, then a little longer.
fn wait_for(host: &Running, (event, step): (&str, Option<u64>), then_millis: u64) {
    while host.wait_for(event, PATIENCE)["step"].as_u64() < step {}
    std::thread::sleep(Duration::from_millis(then_millis));
}

fn assert_names(ended: &Finished, step: bool) {
    let message = ended.error(3);
    assert!(message.contains("tablet"), "{message}");
    assert!(!step || message.contains(" step "), "{message}");
}

/// A moment: the event that is awaited, the step it must tell of, and how long after it the signal comes.
type Moment = ((&'static str, Option<u64>), u64);

/// While the devices are measured, while the model is loaded, within steps, while a checkpoint is fetched.
const MOMENTS: [Moment; 4] = [
    (("device", None), 50),
    (("plan", None), 20),
    (("step", Some(4)), 150),
    (("step", Some(5)), 0),
];

/// Many more within a step, for the long form (`OUTBOARD_LONG=1`).
fn moments() -> Vec<Moment> {
    let mut moments = MOMENTS.to_vec();
    if std::env::var_os("OUTBOARD_LONG").is_some() {
        // Well before the last step has been taken.
        moments.extend((0..40).map(|moment| (("step", Some(2 + moment % 3)), moment * 7)));
    }
    moments
}

#[test]
fn a_worker_killed_at_any_moment_is_named_within_five_seconds_and_resume_gives_the_same_bits() {
    let uninterrupted = run(&train(&[])).weights();
    for (moment @ (event, step), millis) in moments() {
        let folder = tempfile::tempdir().expect("folder");
        let checkpoint = folder.path().to_str().expect("utf-8");
        let mut worker = Worker::start("tablet");
        let host = start(&worker, checkpoint);
        wait_for(&host, moment, millis);
        worker.kill();
        let (ended, took) = host.end(Duration::from_secs(15));
        assert!(
            took < Duration::from_secs(5),
            "{event} {step:?} + {millis} ms: {took:?}"
        );
        assert_names(&ended, event == "step");
        match saved_step(folder.path()) {
            // Alone, or on new devices: the same bits as if nothing had happened.
            Some(saved) => {
                let workers = if saved == 4 { "2" } else { "0" };
                let resumed = run(&train(&[
                    "--resume",
                    checkpoint,
                    "--workers",
                    workers,
                    "--use",
                    "all",
                ]));
                assert_eq!(
                    resumed.weights(),
                    uninterrupted,
                    "{event} {step:?} + {millis} ms"
                );
            }
            None => assert_ne!(event, "step", "no checkpoint by step {step:?}"),
        }
    }
}

/// Silence is not the end of a stream: a worker that is stopped, like a phone that sleeps, is given up in time too.
#[test]
fn a_worker_that_falls_silent_is_named_within_five_seconds() {
    let folder = tempfile::tempdir().expect("folder");
    let worker = Worker::start("tablet");
    let host = start(&worker, folder.path().to_str().expect("utf-8"));
    wait_for(&host, ("step", Some(2)), 100);
    worker.process.signal("STOP");
    let (ended, took) = host.end(Duration::from_secs(15));
    assert!(took < Duration::from_secs(5), "took {took:?}");
    assert_names(&ended, true);
    assert!(saved_step(folder.path()).is_some());
}

#[test]
fn a_worker_outlives_a_host_killed_at_any_moment_and_frees_its_memory() {
    let worker = Worker::start("tablet");
    let uninterrupted = run(&train(&[])).weights();
    let over_worker = ["--device", worker.address.as_str(), "--use", "all"];
    for (moment @ (event, step), millis) in moments() {
        let idle = worker.resident_bytes();
        let mut host = Running::start(&train(&over_worker));
        wait_for(&host, moment, millis);
        let busy = worker.resident_bytes();
        host.child.kill().expect("kill");
        host.child.wait().expect("wait");
        // It holds weights, momentum and gradients only once steps have been taken.
        if event == "step" {
            let limit = idle + (busy - idle) / 4;
            let start = Instant::now();
            while worker.resident_bytes() > limit {
                assert!(
                    start.elapsed() < Duration::from_secs(5),
                    "{step:?} + {millis} ms: {idle} bytes when idle, {busy} when busy, still {}",
                    worker.resident_bytes()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let next = run(&train(&over_worker));
    assert_eq!(next.done()["stages"].as_array().map(Vec::len), Some(2));
    assert_eq!(next.weights(), uninterrupted);
}

#[test]
fn ctrl_c_saves_and_resume_continues_to_the_same_bits() {
    let folder = tempfile::tempdir().expect("folder");
    let checkpoint = folder.path().to_str().expect("utf-8");
    let uninterrupted = run(&train(&["--workers", "1", "--use", "all"])).weights();
    let more = ["--workers", "1", "--use", "all", "--checkpoint", checkpoint];
    let host = Running::start(&train(&more));
    host.wait_for("step", PATIENCE);
    host.signal("INT");
    let (ended, _) = host.end(Duration::from_secs(30));
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(!ended.all("checkpoint").is_empty(), "{:?}", ended.events);
    let resumed = run(&train(&["--resume", checkpoint]));
    assert_eq!(resumed.weights(), uninterrupted);
}
