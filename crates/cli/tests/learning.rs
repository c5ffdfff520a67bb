//! It learns: real images, a real pipeline, accuracy on images it has not seen.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod common;

use common::{FASHION, run};

/// Trains over this process and one worker, gives the accuracy on the test images.
fn accuracy(data: &str, steps: &str) -> f64 {
    let finished = run(&[
        "train",
        "resnet18",
        "--data",
        data,
        "--image-size",
        "32",
        "--batch",
        "32",
        "--steps",
        steps,
        "--seed",
        "1",
        "--workers",
        "1",
        "--use",
        "all",
        "--threads",
        "1",
        "--eval",
        "--json",
    ]);
    finished.done()["test_accuracy"]
        .as_f64()
        .expect("test_accuracy")
}

/// Two passes over the shipped 2,000 images. The long form (`OUTBOARD_LONG=1`) is one epoch of 12,000 images of the full
/// data set, which must reach 80% on its 10,000 test images.
#[test]
fn resnet18_learns_fashion() {
    if std::env::var_os("OUTBOARD_LONG").is_some() {
        let long = accuracy(FASHION, "375");
        assert!(long >= 0.80, "{long}");
    } else {
        let short = accuracy("builtin", "126");
        assert!(short >= 0.70, "{short}");
    }
}
