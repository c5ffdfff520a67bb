//! A full disk while saving: the old checkpoint survives and training goes on from it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;

use common::finished;

/// A script in a mount namespace of its own, with a small file system on `$DISK`.
fn on_a_small_disk(script: &str, folder: &std::path::Path, size: &str) -> std::process::Output {
    let script = format!(
        "set -e; mkdir -p \"$DISK\"; mount -t tmpfs -o size={size} none \"$DISK\"; {script}"
    );
    Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .env("OUTBOARD", env!("CARGO_BIN_EXE_outboard"))
        .env("DISK", folder.join("disk"))
        .env("OUT", folder)
        .env("OUTBOARD_CACHE", folder.join("profiles"))
        .output()
        .expect("unshare runs")
}

/// The model's weights and momentum take about 1 MiB; the disk holds one checkpoint and a part of the next.
#[test]
fn a_full_disk_leaves_the_last_checkpoint_to_go_on_from() {
    let folder = tempfile::tempdir().expect("folder");
    let script = r#"
        run="$OUTBOARD train mlp --batch 16 --seed 3 --threads 1 --steps 6 --json"
        $run > "$OUT/uninterrupted"
        $run --checkpoint "$DISK" --checkpoint-every 2 > "$OUT/first" || echo $? > "$OUT/code"
        ls -A "$DISK" > "$OUT/left"
        $run --resume "$DISK" > "$OUT/resumed"
    "#;
    let bytes = checkpoint_bytes(folder.path());
    let output = on_a_small_disk(script, folder.path(), &(bytes * 3 / 2).to_string());
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    assert_eq!(read("code").trim(), "1");
    let last: serde_json::Value =
        serde_json::from_str(read("first").lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["event"], "error");
    let message = last["message"].as_str().expect("message");
    assert!(message.contains("No space left"), "{message}");
    // Nothing half-written lies about.
    assert_eq!(read("left").lines().collect::<Vec<_>>(), ["step-000002"]);
    let weights = |name: &str| {
        let last = read(name).lines().last().expect("a line").to_owned();
        serde_json::from_str::<serde_json::Value>(&last).expect("JSON")["weights_sha256"].clone()
    };
    assert!(weights("resumed").is_string());
    assert_eq!(weights("resumed"), weights("uninterrupted"));
}

/// Bytes of one checkpoint, measured.
fn checkpoint_bytes(folder: &std::path::Path) -> u64 {
    let place = folder.join("measured");
    let output = common::outboard(&[
        "train",
        "mlp",
        "--batch",
        "16",
        "--steps",
        "1",
        "--json",
        "--checkpoint",
    ])
    .arg(&place)
    .output()
    .expect("runs");
    assert_eq!(finished(output).code, Some(0));
    let files = std::fs::read_dir(place.join("step-000001")).expect("checkpoint");
    files
        .map(|file| file.expect("file").metadata().expect("size").len())
        .sum()
}
