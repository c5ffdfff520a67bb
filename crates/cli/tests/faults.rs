//! A lost worker costs nothing but time; bad input gets a clear error and nothing is lost.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Running, Worker, outboard, run};

/// A short run that is cheap enough to repeat: shipped images, a small model.
fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![
        "train",
        "resnet18",
        "--batch",
        "16",
        "--seed",
        "3",
        "--threads",
        "1",
        "--json",
    ];
    arguments.extend(more);
    arguments
}

#[test]
fn a_killed_worker_is_named_within_five_seconds_and_resume_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().expect("folder");
    let checkpoint = folder.path().to_str().expect("utf-8");
    let uninterrupted = run(&train(&["--steps", "8"])).weights();

    let mut worker = Worker::start("tablet");
    let address = worker.address.clone();
    let more = [
        "--steps",
        "8",
        "--device",
        &address,
        "--use",
        "all",
        "--checkpoint",
        checkpoint,
        "--checkpoint-every",
        "2",
    ];
    let host = Running::start(&train(&more));
    // Killed in the middle of a later step, at no particular moment.
    let step = |name, number: u64| loop {
        if host.wait_for(name, Duration::from_secs(120))["step"].as_u64() >= Some(number) {
            break;
        }
    };
    step("checkpoint", 4);
    step("step", 5);
    worker.kill();
    let (ended, took) = host.end(Duration::from_secs(15));
    let message = ended.error(3);
    assert!(took < Duration::from_secs(5), "took {took:?}");
    assert!(message.contains("tablet"), "{message}");
    assert!(message.contains("step"), "{message}");

    // Alone, and on two new devices: the same bits as if nothing had happened.
    let alone = run(&train(&["--steps", "8", "--resume", checkpoint]));
    assert_eq!(alone.weights(), uninterrupted);
    let two = run(&train(&[
        "--steps",
        "8",
        "--resume",
        checkpoint,
        "--workers",
        "2",
        "--use",
        "all",
    ]));
    assert_eq!(two.weights(), uninterrupted);
}

#[test]
fn a_worker_outlives_a_killed_host_and_frees_its_memory() {
    let worker = Worker::start("tablet");
    let more = [
        "--steps",
        "200",
        "--device",
        &worker.address,
        "--use",
        "all",
    ];
    let mut host = Running::start(&train(&more));
    host.wait_for("step", Duration::from_secs(120));
    let busy = worker.resident_bytes();
    host.child.kill().expect("kill");
    host.child.wait().expect("wait");
    let start = Instant::now();
    let freed = loop {
        let now = worker.resident_bytes();
        if now < busy / 2 || start.elapsed() > Duration::from_secs(5) {
            break now;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(freed < busy / 2, "held {busy} bytes, still holds {freed}");
    let next = run(&train(&[
        "--steps",
        "1",
        "--device",
        &worker.address,
        "--use",
        "all",
    ]));
    assert_eq!(next.done()["stages"].as_array().map(Vec::len), Some(2));
}

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

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_resume_continues_to_the_same_bits() {
    let folder = tempfile::tempdir().expect("folder");
    let checkpoint = folder.path().to_str().expect("utf-8");
    let uninterrupted = run(&train(&["--steps", "6", "--workers", "1", "--use", "all"])).weights();
    let host = Running::start(&train(&[
        "--steps",
        "6",
        "--workers",
        "1",
        "--use",
        "all",
        "--checkpoint",
        checkpoint,
    ]));
    host.wait_for("step", Duration::from_secs(120));
    let status = std::process::Command::new("kill")
        .args(["-INT", &host.child.id().to_string()])
        .status();
    assert!(status.expect("kill").success());
    let (ended, _) = host.end(Duration::from_secs(30));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(!ended.all("checkpoint").is_empty(), "{:?}", ended.events);
    let resumed = run(&train(&["--steps", "6", "--resume", checkpoint]));
    assert_eq!(resumed.weights(), uninterrupted);
}
