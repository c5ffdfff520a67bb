//! Golden bytes of every message of the host, and what is refused.

use outboard_graph::DType;
use outboard_schedule::{Action, Kind};

use super::*;
use crate::message::{
    Assign, Optimizer, SharedWeight, StageAssignment, TensorEncoding, WeightSpec,
};
use crate::testing::golden;

#[test]
fn hello() {
    let message = HostMessage::Hello {
        protocol: 1,
        build: "0.1".into(),
        name: "desk".into(),
    };
    golden(
        &message,
        // length, number | magic, version, "0.1", "desk"
        "13000000 0100 | 4f5554424f415244 0100 03302e31 046465736b",
    );
}

#[test]
fn measuring() {
    golden(&HostMessage::Ping { nonce: 300 }, "02000000 0300 | ac02");
    let probe = HostMessage::Probe {
        nonce: 2,
        bytes: 1 << 20,
    };
    golden(&probe, "04000000 0500 | 02 808040");
    let profile = HostMessage::Profile {
        id: 5,
        programs: vec!["g".into(), "".into()],
    };
    golden(
        &profile,
        // id, two programs: "g" and nothing
        "05000000 0700 | 05 02 0167 00",
    );
}

#[test]
fn assign() {
    let message = HostMessage::Assign(Box::new(Assign {
        run: 1,
        seed: 7,
        first_step: 0,
        encoding: TensorEncoding::BF16,
        optimizer: Some(Optimizer::Sgd {
            momentum: 0.5,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: true,
        }),
        stages: vec![StageAssignment {
            stage: 3,
            forward: Some("F".into()),
            backward: Some("B".into()),
            weight: Some("W".into()),
            normaliser: None,
            evaluate: Some("E".into()),
            weights: vec![WeightSpec {
                name: "w".into(),
                state: StateKind::Weights,
                dtype: DType::F32,
                dims: vec![2, 200],
                sha256: [0xAA; 32],
            }],
            in_flight: 4,
        }],
        shared: vec![SharedWeight {
            name: "w".into(),
            uses: vec!["w#1".into(), "w#2".into()],
            stages: vec![0, 3],
        }],
        largest_micro_batch: 8,
        most_micro_batches: 4,
    }));
    golden(
        &message,
        // run, seed, first step, encoding; SGD: momentum, dampening, decay, nesterov; one stage: index, F, B, W, none, E;
        // one weight: name, state, type, dims, hash; in flight; one shared weight: name, uses, stages; largest, most
        "69000000 0900 | 01 07 00 02 01 00 000000000000e03f 0000000000000000 0000000000000000 01 \
         01 03 010146 010142 010157 00 010145 01 0177 00 00 02 02c801 \
         aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa \
         04 01 0177 02 03772331 03772332 02 00 03 08 04",
    );
}

#[test]
fn assign_with_adam() {
    let message = HostMessage::Assign(Box::new(Assign {
        run: 1,
        seed: 0,
        first_step: 9,
        encoding: TensorEncoding::F32,
        optimizer: Some(Optimizer::Adam {
            betas: (0.5, 0.25),
            eps: 1.0,
            weight_decay: -0.0,
            amsgrad: false,
            decoupled: true,
        }),
        stages: vec![],
        shared: vec![],
        largest_micro_batch: 1,
        most_micro_batches: 1,
    }));
    golden(
        &message,
        // run, seed, first step, encoding; Adam: betas, eps, decay (-0), amsgrad, decoupled; no stages, nothing shared
        "2c000000 0900 | 01 00 09 00 01 01 000000000000e03f 000000000000d03f 000000000000f03f \
         0000000000000080 00 01 00 00 01 01",
    );
}

#[test]
fn steps() {
    let action = |stage, kind, micro_batch| Action {
        stage,
        kind,
        micro_batch,
    };
    let schedule = HostMessage::Schedule {
        run: 1,
        micro_batches: 2,
        actions: vec![
            action(0, Kind::Forward, 0),
            action(0, Kind::Backward, 1),
            action(300, Kind::Weight, 1),
        ],
    };
    golden(
        &schedule,
        // run, micro-batches, three actions: 0F0, 0B1, 300W1
        "0d000000 0b00 | 01 02 03 000000 000101 ac020201",
    );
    let step = HostMessage::Step {
        run: 1,
        step: 130,
        mode: StepMode::Evaluate,
        sizes: vec![8, 7],
    };
    golden(&step, "07000000 0c00 | 01 8201 01 02 08 07");
    let commit = HostMessage::Commit {
        run: 1,
        step: 130,
        learning_rate: 0.5,
        gradient_scale: 1.0,
    };
    golden(&commit, "0f000000 0e00 | 01 8201 000000000000e03f 0000803f");
}

#[test]
fn endings() {
    let fetch = HostMessage::Fetch {
        run: 1,
        state: StateKind::Optimizer,
    };
    golden(&fetch, "02000000 1000 | 01 01");
    golden(&HostMessage::DropRun { run: 1 }, "01000000 1200 | 01");
    let credit = HostMessage::Credit {
        stream: Stream::Stage,
        bytes: 1 << 14,
    };
    golden(&credit, "04000000 1500 | 01 808001");
    golden(&HostMessage::Bye, "00000000 1700 |");
}

#[test]
fn numbers_that_are_not_finite_are_not_sent() {
    for (learning_rate, gradient_scale) in [(f64::NAN, 1.0), (0.1, f32::INFINITY)] {
        let commit = HostMessage::Commit {
            run: 0,
            step: 0,
            learning_rate,
            gradient_scale,
        };
        assert!(matches!(commit.encode(), Err(EncodeError::Number { .. })));
    }
}

#[test]
fn numbers_that_are_not_finite_are_not_taken() {
    let commit = HostMessage::Commit {
        run: 0,
        step: 0,
        learning_rate: 1.0,
        gradient_scale: 1.0,
    };
    let frame = commit.encode().unwrap();
    let mut payload = frame[crate::HEAD_BYTES..].to_vec();
    payload[2..10].copy_from_slice(&f64::NAN.to_le_bytes());
    let error = HostMessage::decode(number::COMMIT, &payload).unwrap_err();
    assert!(matches!(
        error,
        DecodeError::Malformed {
            frame: "Commit",
            ..
        }
    ));
}

#[test]
fn what_is_beyond_a_limit_is_not_sent_and_says_what() {
    let profile = HostMessage::Profile {
        id: 0,
        programs: vec![String::new(); PROFILE_PROGRAMS + 1],
    };
    assert_eq!(
        profile.encode().unwrap_err().to_string(),
        "programs to profile has 4097 entries, the limit is 4096"
    );
    let profile = HostMessage::Profile {
        id: 0,
        programs: vec!["x".repeat(9 << 20); 2],
    };
    assert!(matches!(
        profile.encode(),
        Err(EncodeError::TooLong {
            frame: "Profile",
            ..
        })
    ));
}

#[test]
fn a_short_frame_that_announces_a_long_list_is_refused() {
    // Run 1, 2 micro-batches, 2^28 actions, of which none follows.
    let payload = [1, 2, 0x80, 0x80, 0x80, 0x80, 0x01];
    assert!(HostMessage::decode(number::SCHEDULE, &payload).is_err());
    // Two actions announced, one there.
    let payload = [1, 2, 2, 0, 0, 0];
    assert_eq!(
        HostMessage::decode(number::SCHEDULE, &payload),
        Err(DecodeError::Malformed {
            frame: "Schedule",
            cause: "it ends too early"
        })
    );
}
