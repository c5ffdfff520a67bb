//! The cut never changes the result: the same final weights, bit for bit, for every number of stages, every schedule and
//! every number of threads, over real worker processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod common;

use std::collections::BTreeMap;

use common::{FASHION, run};

const SCHEDULES: [&str; 6] = ["gpipe", "1f1b", "hybrid", "zb-h1", "interleaved", "auto"];

/// Trains and gives the hash of the weights.
fn weights(model: &str, more: &[&str]) -> String {
    let mut arguments = vec!["train", model, "--data", FASHION, "--seed", "7", "--json"];
    arguments.extend(more);
    run(&arguments).weights()
}

/// Fails with the table of hashes unless all are the same.
fn assert_same(hashes: &BTreeMap<String, String>) {
    let mut different: Vec<&String> = hashes.values().collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 1, "{hashes:#?}");
}

/// What the short form leaves out and the long form (`OUTBOARD_LONG=1`) has.
fn long() -> bool {
    std::env::var_os("OUTBOARD_LONG").is_some()
}

/// Trains once for every combination of workers, schedule and threads, and once alone.
fn assert_cuts_do_not_show(model: &str, more: &[&str], combinations: &[[&str; 3]]) {
    let mut hashes = BTreeMap::new();
    for [workers, schedule, threads] in [["0", "auto", "2"]].iter().chain(combinations) {
        let mut arguments = vec!["--micro-batches", "4", "--use", "all"];
        arguments.extend(["--workers", workers, "--schedule", schedule]);
        arguments.extend(["--threads", threads]);
        arguments.extend(more);
        hashes.insert(
            format!("{workers} workers, {schedule}, {threads} threads"),
            weights(model, &arguments),
        );
    }
    assert_same(&hashes);
}

#[test]
fn resnet34_over_one_to_four_stages_and_one_or_two_threads() {
    let (size, steps) = if long() {
        (["--image-size", "32", "--batch", "32"], ["--steps", "6"])
    } else {
        (["--image-size", "32", "--batch", "8"], ["--steps", "2"])
    };
    let mut combinations = Vec::new();
    for workers in ["0", "1", "2", "3"] {
        combinations.push([workers, "auto", "1"]);
        if long() {
            combinations.push([workers, "auto", "2"]);
        }
    }
    assert_cuts_do_not_show(
        "resnet34",
        &[size.as_slice(), &steps].concat(),
        &combinations,
    );
}

#[test]
fn every_schedule_over_three_stages() {
    let (model, more) = if long() {
        (
            "resnet34",
            ["--image-size", "32", "--batch", "32", "--steps", "6"],
        )
    } else {
        (
            "resnet18",
            ["--image-size", "32", "--batch", "8", "--steps", "2"],
        )
    };
    let combinations = SCHEDULES.map(|schedule| ["2", schedule, "1"]);
    assert_cuts_do_not_show(model, &more, &combinations);
}

#[test]
fn dropout_in_vit_tiny() {
    let mut combinations = vec![["2", "zb-h1", "1"], ["3", "1f1b", "2"]];
    let mut more = vec!["--optimizer", "adamw"];
    if long() {
        more.extend(["--image-size", "32", "--batch", "32", "--steps", "6"]);
        for workers in ["0", "1", "2", "3"] {
            combinations.extend(SCHEDULES.map(|schedule| [workers, schedule, "1"]));
            combinations.push([workers, "auto", "2"]);
        }
    } else {
        more.extend(["--image-size", "16", "--batch", "16", "--steps", "3"]);
    }
    assert_cuts_do_not_show("vit_tiny", &more, &combinations);
}

/// The counter-example: another number of micro-batches is another computation for a model with batch norm.
#[test]
fn micro_batches_do_change_batch_norm() {
    let with = |count| {
        let more = ["--batch", "8", "--steps", "1", "--micro-batches", count];
        weights("resnet18", &more)
    };
    assert_ne!(with("2"), with("4"));
}

/// A batch that does not divide evenly, and one smaller than the number of micro-batches.
#[test]
fn uneven_and_tiny_batches() {
    for batch in ["6", "3"] {
        let more = ["--image-size", "16", "--batch", batch, "--steps", "3"];
        assert_cuts_do_not_show("vit_tiny", &more, &[["2", "auto", "1"]]);
    }
}
