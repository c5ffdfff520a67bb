//! Bad input gets a clear error and nothing is lost.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Worker, outboard, run, train};

#[test]
fn garbage_and_oversized_lengths_on_the_port_harm_nobody() {
    let worker = Worker::start("tablet");
    let target = worker.address.trim_start_matches("tcp://").to_owned();
    let before = worker.resident_bytes();
    let attacks: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        &[0x00; 4096],
        &[0xff, 0xff, 0xff, 0x7f, 0x01, 0x00],
        b"",
    ];
    for attack in attacks {
        let mut stream = TcpStream::connect(&target).expect("connect");
        stream.write_all(attack).expect("write");
        stream
            .shutdown(std::net::Shutdown::Write)
            .expect("shutdown");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("timeout");
        let mut answer = Vec::new();
        // Closed or reset, but not kept open.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 4096);
    }
    assert!(worker.resident_bytes() < before + (32 << 20));
    run(&train(&[
        "--steps",
        "1",
        "--device",
        &worker.address,
        "--use",
        "all",
    ]))
    .done();
}

#[test]
fn an_unreachable_device_is_named() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("bind")
        .local_addr()
        .expect("address")
        .port();
    let address = format!("tcp://127.0.0.1:{port}");
    let message = run(&train(&["--steps", "1", "--device", &address])).error(3);
    assert!(message.contains(&address), "{message}");
}

#[test]
fn a_port_in_use_is_named() {
    let worker = Worker::start("first");
    let listen = worker.address.trim_start_matches("tcp://").to_owned();
    let message = run(&["worker", "--listen", &listen, "--json"]).error(2);
    assert!(
        message.contains(&listen) && message.contains("in use"),
        "{message}"
    );
}

#[test]
fn a_worker_does_not_listen_to_the_world_unasked() {
    let message = run(&["worker", "--listen", "0.0.0.0:0", "--json"]).error(2);
    assert!(message.contains("--insecure-listen"), "{message}");
}

#[test]
fn a_stage_over_the_memory_is_refused_with_both_numbers() {
    let message = run(&train(&["--steps", "1", "--memory", "2MiB"])).error(1);
    assert!(
        message.contains("2.00 MiB") || message.contains("2.0 MiB"),
        "{message}"
    );
    assert!(message.matches("iB").count() >= 2, "{message}");
}

#[test]
fn bad_usage_and_bad_input_exit_with_2() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    std::fs::write(
        at("cut.safetensors"),
        b"\x40\x00\x00\x00\x00\x00\x00\x00{\"weight\"",
    )
    .expect("write");
    std::fs::write(at("huge.safetensors"), [0xff; 64]).expect("write");
    let missing = at("nowhere");
    let cases: Vec<Vec<&str>> = vec![
        vec!["train", "resnet19", "--json"],
        vec!["train", "resnet18", "--data", "tapes:x", "--json"],
        vec!["train", "resnet18", "--steps", "0", "--json"],
        vec!["train", "resnet18", "--micro-batches", "many", "--json"],
        vec!["train", "resnet18", "--schedule", "2f2b", "--json"],
        vec!["train", "resnet18", "--cut", "999999", "--json"],
        vec!["train", "resnet18", "--lr-schedule", "sine", "--json"],
        vec!["train", "resnet18", "--lr", "nan", "--json"],
        vec!["train", "resnet18", "--resume", &missing, "--json"],
    ];
    for case in cases {
        let output = outboard(&case).output().expect("runs");
        assert_eq!(
            output.status.code(),
            Some(2),
            "{case:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            !String::from_utf8_lossy(&output.stderr).contains("panicked"),
            "{case:?}"
        );
    }
    for name in ["cut.safetensors", "huge.safetensors"] {
        let message = run(&["train", &at(name), "--json"]).error(2);
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn what_is_not_finite_stops_the_run_and_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let checkpoint = folder.path().to_str().expect("utf-8");
    let lost = [
        "--steps",
        "9",
        "--lr",
        "1e30",
        "--workers",
        "1",
        "--use",
        "all",
        "--checkpoint",
        checkpoint,
        "--checkpoint-every",
        "1",
    ];
    let finished = run(&train(&lost));
    let message = finished.error(1);
    for part in ["step ", " of stage ", " is not finite", "learning rate"] {
        assert!(message.contains(part), "{message}");
    }
    // Nothing that is not finite was applied, and so nothing such was saved.
    let steps = finished.all("step").len();
    assert!(steps < 9, "{steps}");
    assert!(message.contains(&format!("step {steps}:")), "{message}");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_kept() {
    let folder = tempfile::tempdir().expect("folder");
    let checkpoint = folder.path().to_str().expect("utf-8");
    run(&[
        "train",
        "mlp",
        "--steps",
        "1",
        "--checkpoint",
        checkpoint,
        "--json",
    ])
    .done();
    let message = run(&train(&["--steps", "2", "--resume", checkpoint])).error(2);
    assert!(message.contains("model"), "{message}");
    run(&[
        "train", "mlp", "--steps", "2", "--resume", checkpoint, "--json",
    ])
    .done();
}
