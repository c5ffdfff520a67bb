//! `outboard bench` says how fast this computer is, in lines that a program reads.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod common;

use common::run;

const SMALL: [&str; 9] = [
    "--model",
    "resnet18",
    "--image-size",
    "32",
    "--batch",
    "2",
    "--threads",
    "1",
    "--json",
];

fn bench(what: &[&str]) -> common::Finished {
    run(&[&["bench"], what, &SMALL].concat())
}

#[test]
fn a_step_is_timed() {
    for conv in ["auto", "direct"] {
        let finished = bench(&["step", "--repetitions", "3", "--conv", conv]);
        let done = finished.done();
        let seconds = |field: &str| done[field].as_f64().unwrap();
        let (forward, backward) = (seconds("forward_seconds"), seconds("backward_seconds"));
        assert!(forward > 0.0 && backward > forward);
        assert!(seconds("step_seconds") > forward);
        assert_eq!(done["threads"], 1);
        // Eleven million parameters, and their gradients.
        assert!(done["peak_bytes"].as_u64().unwrap() > 2 * 4 * 11_000_000);
    }
    let finished = bench(&["step", "--repetitions", "1", "--inference"]);
    assert!(finished.done()["backward_seconds"].is_null());
}

#[test]
fn every_convolution_is_timed() {
    let finished = bench(&["ops"]);
    let lines = finished.all("convolution");
    // Seven of 3x3 (four of stride 1), three of 1x1 and the stem.
    assert_eq!(lines.len(), 11);
    let count = |line: &&serde_json::Value| line["count"].as_u64().unwrap();
    assert_eq!(lines.iter().map(count).sum::<u64>(), 20);
    for line in lines {
        assert!(line["forward_gflops"].as_f64().unwrap() > 0.0);
        assert!(line["weight_gradient_gflops"].as_f64().unwrap() > 0.0);
        assert_eq!(
            line["input_gradient_gflops"].is_null(),
            line["weight"][1] == 3
        );
    }
    finished.done();
}

#[test]
fn an_unknown_model_is_named() {
    let finished = run(&["bench", "step", "--model", "resnet19", "--json"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("no model is named \"resnet19\""));
}
