//! Frames from the host to a worker.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::{ACTIONS, LABEL_BYTES, MICRO_BATCHES, PROFILE_PROGRAMS, PROGRAM_BYTES};
use super::parts::{ActionTwin, AssignTwin};
use super::{ControlMessage, foreign, read, read_hello, write, write_hello};
use crate::bounded::{Finite, FiniteF32, List, Text};
use crate::codes::Code;
use crate::error::{DecodeError, EncodeError};
use crate::frame::{Direction, number};
use crate::message::{HostMessage, StateKind, StepMode, Stream};

#[derive(Serialize, Deserialize)]
struct Hello<'a> {
    #[serde(borrow)]
    build: Text<'a, LABEL_BYTES>,
    name: Text<'a, LABEL_BYTES>,
}

#[derive(Serialize, Deserialize)]
struct Probe {
    nonce: u16,
    bytes: u32,
}

#[derive(Serialize, Deserialize)]
struct Profile<'a> {
    id: u32,
    #[serde(borrow)]
    programs: List<Text<'a, PROGRAM_BYTES>, PROFILE_PROGRAMS>,
}

#[derive(Serialize, Deserialize)]
struct Schedule {
    run: u32,
    micro_batches: u16,
    actions: List<ActionTwin, ACTIONS>,
}

#[derive(Serialize, Deserialize)]
struct Step {
    run: u32,
    step: u64,
    mode: Code<StepMode>,
    sizes: List<u32, MICRO_BATCHES>,
}

#[derive(Serialize, Deserialize)]
struct Commit {
    run: u32,
    step: u64,
    learning_rate: Finite,
    gradient_scale: FiniteF32,
}

#[derive(Serialize, Deserialize)]
struct Fetch {
    run: u32,
    state: Code<StateKind>,
}

#[derive(Serialize, Deserialize)]
struct Credit {
    stream: Code<Stream>,
    bytes: u64,
}

impl ControlMessage for HostMessage {
    const DIRECTION: Direction = Direction::ToWorker;

    fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Hello {
                protocol,
                build,
                name,
            } => {
                let twin = Hello {
                    build: Text::clipped(build),
                    name: Text::clipped(name),
                };
                write_hello(number::HOST_HELLO, *protocol, &twin)
            }
            Self::Ping { nonce } => write(number::PING, &[], nonce),
            &Self::Probe { nonce, bytes } => write(number::PROBE, &[], &Probe { nonce, bytes }),
            Self::Profile { id, programs } => {
                let twin = Profile {
                    id: *id,
                    programs: List::new("programs to profile", programs, |text| {
                        Text::new("program to profile", text)
                    })?,
                };
                write(number::PROFILE, &[], &twin)
            }
            Self::Assign(assign) => write(number::ASSIGN, &[], &AssignTwin::new(assign)?),
            Self::Schedule {
                run,
                micro_batches,
                actions,
            } => {
                let twin = Schedule {
                    run: *run,
                    micro_batches: *micro_batches,
                    actions: List::new("actions of a worker", actions, |action| {
                        Ok(ActionTwin::from(action))
                    })?,
                };
                write(number::SCHEDULE, &[], &twin)
            }
            Self::Step {
                run,
                step,
                mode,
                sizes,
            } => {
                let twin = Step {
                    run: *run,
                    step: *step,
                    mode: Code(*mode),
                    sizes: List::new("micro-batches of a step", sizes, |size| Ok(*size))?,
                };
                write(number::STEP, &[], &twin)
            }
            &Self::Commit {
                run,
                step,
                learning_rate,
                gradient_scale,
            } => {
                let twin = Commit {
                    run,
                    step,
                    learning_rate: Finite::new("learning rate", learning_rate)?,
                    gradient_scale: FiniteF32::new("gradient scale", gradient_scale)?,
                };
                write(number::COMMIT, &[], &twin)
            }
            &Self::Fetch { run, state } => {
                let state = Code(state);
                write(number::FETCH, &[], &Fetch { run, state })
            }
            Self::DropRun { run } => write(number::DROP_RUN, &[], run),
            &Self::Credit { stream, bytes } => {
                let stream = Code(stream);
                write(number::HOST_CREDIT, &[], &Credit { stream, bytes })
            }
            Self::Bye => write(number::HOST_BYE, &[], &()),
        }
    }

    fn decode(number: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(match number {
            number::HOST_HELLO => {
                let (protocol, twin) = read_hello::<Hello<'_>>(number, payload)?;
                Self::Hello {
                    protocol,
                    build: twin.build.into_string(),
                    name: twin.name.into_string(),
                }
            }
            number::PING => Self::Ping {
                nonce: read(number, payload)?,
            },
            number::PROBE => {
                let Probe { nonce, bytes } = read(number, payload)?;
                Self::Probe { nonce, bytes }
            }
            number::PROFILE => {
                let twin = read::<Profile<'_>>(number, payload)?;
                Self::Profile {
                    id: twin.id,
                    programs: twin.programs.into_vec(Text::into_string),
                }
            }
            number::ASSIGN => {
                Self::Assign(Box::new(read::<AssignTwin<'_>>(number, payload)?.into()))
            }
            number::SCHEDULE => {
                let twin = read::<Schedule>(number, payload)?;
                Self::Schedule {
                    run: twin.run,
                    micro_batches: twin.micro_batches,
                    actions: twin.actions.into_vec(Into::into),
                }
            }
            number::STEP => {
                let twin = read::<Step>(number, payload)?;
                Self::Step {
                    run: twin.run,
                    step: twin.step,
                    mode: twin.mode.0,
                    sizes: twin.sizes.into_vec(|size| size),
                }
            }
            number::COMMIT => {
                let twin = read::<Commit>(number, payload)?;
                Self::Commit {
                    run: twin.run,
                    step: twin.step,
                    learning_rate: twin.learning_rate.get(),
                    gradient_scale: twin.gradient_scale.get(),
                }
            }
            number::FETCH => {
                let twin = read::<Fetch>(number, payload)?;
                Self::Fetch {
                    run: twin.run,
                    state: twin.state.0,
                }
            }
            number::DROP_RUN => Self::DropRun {
                run: read(number, payload)?,
            },
            number::HOST_CREDIT => {
                let twin = read::<Credit>(number, payload)?;
                Self::Credit {
                    stream: twin.stream.0,
                    bytes: twin.bytes,
                }
            }
            number::HOST_BYE => {
                read::<()>(number, payload)?;
                Self::Bye
            }
            _ => return Err(foreign(number)),
        })
    }
}

#[cfg(test)]
mod tests {
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
}
