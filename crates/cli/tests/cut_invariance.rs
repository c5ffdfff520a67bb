//! The cut never changes the result: the same final weights, bit for bit, for every number of stages, every schedule and
//! every number of threads, over real worker processes.

mod common;

use std::collections::BTreeMap;

use common::{FASHION, run};

const SCHEDULES: [&str; 6] = ["gpipe", "1f1b", "hybrid", "zb-h1", "interleaved", "auto"];

/// Trains and gives the hash of the weights.
fn weights(model: &str, more: &[&str]) -> String {
    let mut arguments = vec![
        "train",
        model,
        "--data",
        FASHION,
        "--image-size",
        "32",
        "--batch",
        "32",
        "--seed",
        "7",
        "--json",
    ];
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

#[test]
fn resnet34_over_one_to_four_stages_and_one_or_two_threads() {
    let mut hashes = BTreeMap::new();
    for workers in ["0", "1", "2", "3"] {
        for threads in ["1", "2"] {
            let more = [
                "--micro-batches",
                "4",
                "--steps",
                "6",
                "--use",
                "all",
                "--workers",
                workers,
                "--threads",
                threads,
            ];
            hashes.insert(
                format!("{workers} workers, {threads} threads"),
                weights("resnet34", &more),
            );
        }
    }
    assert_same(&hashes);
}

#[test]
fn resnet34_with_every_schedule() {
    let mut hashes = BTreeMap::new();
    for schedule in SCHEDULES {
        let more = [
            "--micro-batches",
            "4",
            "--steps",
            "2",
            "--use",
            "all",
            "--workers",
            "2",
            "--threads",
            "1",
            "--schedule",
            schedule,
        ];
        hashes.insert(schedule.to_owned(), weights("resnet34", &more));
    }
    hashes.insert(
        "alone".to_owned(),
        weights(
            "resnet34",
            &["--micro-batches", "4", "--steps", "2", "--threads", "1"],
        ),
    );
    assert_same(&hashes);
}

#[test]
fn dropout_in_vit_tiny() {
    let mut hashes = BTreeMap::new();
    for workers in ["0", "1", "2", "3"] {
        for (schedule, threads) in [("1f1b", "1"), ("zb-h1", "2")] {
            let more = [
                "--micro-batches",
                "4",
                "--steps",
                "4",
                "--use",
                "all",
                "--optimizer",
                "adamw",
                "--workers",
                workers,
                "--schedule",
                schedule,
                "--threads",
                threads,
            ];
            hashes.insert(
                format!("{workers} workers, {schedule}, {threads} threads"),
                weights("vit_tiny", &more),
            );
        }
    }
    assert_same(&hashes);
}

/// The counter-example: another number of micro-batches is another computation for a model with batch norm.
#[test]
fn micro_batches_do_change_batch_norm() {
    let two = weights("resnet18", &["--micro-batches", "2", "--steps", "1"]);
    let four = weights("resnet18", &["--micro-batches", "4", "--steps", "1"]);
    assert_ne!(two, four);
}

/// A batch that does not divide evenly, and one smaller than the number of micro-batches.
#[test]
fn uneven_and_tiny_batches() {
    for batch in ["30", "3"] {
        let mut hashes = BTreeMap::new();
        for workers in ["0", "2"] {
            let done = run(&[
                "train",
                "vit_tiny",
                "--data",
                "builtin",
                "--batch",
                batch,
                "--micro-batches",
                "4",
                "--steps",
                "3",
                "--seed",
                "7",
                "--use",
                "all",
                "--workers",
                workers,
                "--json",
            ]);
            hashes.insert(workers.to_owned(), done.weights());
        }
        assert_same(&hashes);
    }
}
