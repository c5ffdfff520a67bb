//! Golden bytes of every message of a worker, and what is refused.

use outboard_schedule::{Action, Kind};

use super::*;
use crate::testing::golden;

#[test]
fn hello() {
    let message = WorkerMessage::Hello(DeviceHello {
        protocol: 1,
        build: "0.1".into(),
        name: "phone".into(),
        device_id: "id".into(),
        engine: "cpu".into(),
        hardware: "A1".into(),
        threads: 2,
        memory_bytes: 1 << 31,
    });
    golden(
        &message,
        // magic, version, "0.1", "phone", "id", "cpu", "A1", threads, memory
        "24000000 0200 | 4f5554424f415244 0100 03302e31 0570686f6e65 026964 03637075 024131 02 8080808008",
    );
}

#[test]
fn measuring() {
    let pong = WorkerMessage::Pong {
        nonce: 300,
        clock_micros: 5,
    };
    golden(&pong, "03000000 0400 | ac02 05");
    golden(
        &WorkerMessage::ProbeReceived { nonce: 2 },
        "01000000 0600 | 02",
    );
    let profiled = WorkerMessage::Profiled {
        id: 5,
        seconds: vec![Some(0.5), None],
    };
    golden(&profiled, "0c000000 0800 | 05 02 01 000000000000e03f 00");
}

#[test]
fn steps() {
    let ready = WorkerMessage::Ready {
        run: 1,
        planned_bytes: 1 << 21,
        weights_sha256: [0xBB; 32],
    };
    golden(
        &ready,
        "25000000 0a00 | 01 80808001 \
         bbbbbbbbbbbbbbbb bbbbbbbbbbbbbbbb bbbbbbbbbbbbbbbb bbbbbbbbbbbbbbbb",
    );
    let gradients = WorkerMessage::Gradients {
        run: 1,
        step: 130,
        loss_sums: vec![1.0, -2.0],
        loss_weights: vec![8.0, 7.0],
        squares: vec![("fc.weight".into(), 0.5)],
        not_finite: Some((3, "fc.bias".into())),
    };
    golden(
        &gradients,
        // run, step, loss sums, loss weights, squares: "fc.weight" 0.5, not finite: stage 3, "fc.bias"
        "32000000 0d00 | 01 8201 02 0000803f 000000c0 02 00000041 0000e040 \
         01 0966632e776569676874 000000000000e03f 01 03 0766632e62696173",
    );
    let done = WorkerMessage::StepDone {
        run: 1,
        step: 130,
        times: vec![ActionTime {
            action: Action {
                stage: 3,
                kind: Kind::Backward,
                micro_batch: 1,
            },
            start_micros: 1000,
            micros: 50,
        }],
        update_seconds: 0.25,
        peak_bytes: 4096,
        heat: Some(2),
    };
    golden(
        &done,
        // run, step, one time: 3B1 from 1000 for 50, seconds of the update, peak bytes, heat
        "16000000 0f00 | 01 8201 01 030101 e807 32 000000000000d03f 8020 0102",
    );
}

#[test]
fn not_a_number_is_told_to_the_host() {
    let gradients = WorkerMessage::Gradients {
        run: 1,
        step: 0,
        loss_sums: vec![f32::NAN],
        loss_weights: vec![1.0],
        squares: vec![("w".into(), f64::INFINITY)],
        not_finite: None,
    };
    golden(
        &gradients,
        "18000000 0d00 | 01 00 01 0000c07f 01 0000803f 01 0177 000000000000f07f 00",
    );
}

#[test]
fn endings() {
    let fetched = WorkerMessage::Fetched {
        run: 1,
        state: StateKind::Weights,
        tensors: 161,
    };
    golden(&fetched, "04000000 1100 | 01 00 a101");
    golden(&WorkerMessage::Dropped { run: 1 }, "01000000 1300 | 01");
    let failed = WorkerMessage::Failed {
        run: Some(1),
        step: None,
        stage: Some(3),
        kind: FailureKind::Memory,
        message: "too big".into(),
    };
    golden(
        &failed,
        // run, no step, stage, kind, "too big"
        "0e000000 1400 | 0101 00 0103 03 07746f6f20626967",
    );
    let credit = WorkerMessage::Credit {
        stream: Stream::Bulk,
        bytes: 127,
    };
    golden(&credit, "02000000 1600 | 02 7f");
    let bye = WorkerMessage::Bye {
        reason: "hot".into(),
    };
    golden(&bye, "04000000 1800 | 03686f74");
}

#[test]
fn long_texts_for_people_are_cut_between_characters() {
    let failed = WorkerMessage::Failed {
        run: None,
        step: None,
        stage: None,
        kind: FailureKind::Compute,
        message: "ä".repeat(MESSAGE_BYTES),
    };
    let frame = failed.encode().unwrap();
    let WorkerMessage::Failed { message, .. } =
        WorkerMessage::decode(number::FAILED, &frame[crate::HEAD_BYTES..]).unwrap()
    else {
        panic!("another message came back");
    };
    assert_eq!(message, "ä".repeat(MESSAGE_BYTES / 2));
}

#[test]
fn times_that_no_clock_shows_are_refused() {
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        let profiled = WorkerMessage::Profiled {
            id: 0,
            seconds: vec![Some(seconds)],
        };
        assert!(matches!(profiled.encode(), Err(EncodeError::Number { .. })));
    }
}

#[test]
fn a_stranger_and_another_version_are_told_apart() {
    let frame = WorkerMessage::Hello(DeviceHello {
        protocol: 2,
        build: String::new(),
        name: String::new(),
        device_id: String::new(),
        engine: String::new(),
        hardware: String::new(),
        threads: 1,
        memory_bytes: 0,
    })
    .encode()
    .unwrap();
    let payload = &frame[crate::HEAD_BYTES..];
    assert_eq!(
        WorkerMessage::decode(number::DEVICE_HELLO, payload),
        Err(DecodeError::Version { theirs: 2, ours: 1 })
    );
    // The version is seen whatever follows it.
    assert_eq!(
        WorkerMessage::decode(number::DEVICE_HELLO, b"OUTBOARD\x09\x00\xff\xff\xff"),
        Err(DecodeError::Version { theirs: 9, ours: 1 })
    );
    assert_eq!(
        WorkerMessage::decode(number::DEVICE_HELLO, b"SSH-2.0-OpenSSH"),
        Err(DecodeError::NotOutboard {
            first: "SSH-2.0-".into()
        })
    );
}
