//! Frames from a worker to the host.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::{
    ACTIONS, LABEL_BYTES, MESSAGE_BYTES, MICRO_BATCHES, NAME_BYTES, PROFILE_PROGRAMS, WEIGHTS,
};
use super::parts::ActionTwin;
use super::{ControlMessage, foreign, read, read_hello, write, write_hello};
use crate::bounded::{List, Seconds, Text};
use crate::codes::Code;
use crate::error::{DecodeError, EncodeError};
use crate::frame::{Direction, number};
use crate::message::{ActionTime, DeviceHello, FailureKind, StateKind, Stream, WorkerMessage};

#[derive(Serialize, Deserialize)]
struct Hello<'a> {
    #[serde(borrow)]
    build: Text<'a, LABEL_BYTES>,
    name: Text<'a, LABEL_BYTES>,
    device_id: Text<'a, LABEL_BYTES>,
    engine: Text<'a, LABEL_BYTES>,
    hardware: Text<'a, LABEL_BYTES>,
    threads: u32,
    memory_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Pong {
    nonce: u64,
    clock_micros: u64,
}

#[derive(Serialize, Deserialize)]
struct Profiled {
    id: u32,
    seconds: List<Option<Seconds>, PROFILE_PROGRAMS>,
}

#[derive(Serialize, Deserialize)]
struct Ready {
    run: u32,
    planned_bytes: u64,
    weights_sha256: [u8; 32],
}

/// Losses and squares may be infinite or NaN here: this is how the host learns of it.
#[derive(Serialize, Deserialize)]
struct Gradients<'a> {
    run: u32,
    step: u64,
    loss_sums: List<f32, MICRO_BATCHES>,
    loss_weights: List<f32, MICRO_BATCHES>,
    #[serde(borrow)]
    squares: List<(Text<'a, NAME_BYTES>, f64), WEIGHTS>,
    not_finite: Option<(u16, Text<'a, NAME_BYTES>)>,
}

#[derive(Serialize, Deserialize)]
struct Time {
    action: ActionTwin,
    start_micros: u64,
    micros: u64,
}

#[derive(Serialize, Deserialize)]
struct StepDone {
    run: u32,
    step: u64,
    times: List<Time, ACTIONS>,
    update_seconds: Seconds,
    peak_bytes: u64,
    heat: Option<u8>,
}

#[derive(Serialize, Deserialize)]
struct Fetched {
    run: u32,
    state: Code<StateKind>,
    tensors: u32,
}

#[derive(Serialize, Deserialize)]
struct Failed<'a> {
    run: Option<u32>,
    step: Option<u64>,
    stage: Option<u16>,
    kind: Code<FailureKind>,
    #[serde(borrow)]
    message: Text<'a, MESSAGE_BYTES>,
}

#[derive(Serialize, Deserialize)]
struct Credit {
    stream: Code<Stream>,
    bytes: u64,
}

impl ControlMessage for WorkerMessage {
    const DIRECTION: Direction = Direction::ToHost;

    fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::Hello(hello) => {
                let twin = Hello {
                    build: Text::clipped(&hello.build),
                    name: Text::clipped(&hello.name),
                    device_id: Text::new("device id", &hello.device_id)?,
                    engine: Text::clipped(&hello.engine),
                    hardware: Text::clipped(&hello.hardware),
                    threads: hello.threads,
                    memory_bytes: hello.memory_bytes,
                };
                write_hello(number::DEVICE_HELLO, hello.protocol, &twin)
            }
            &Self::Pong {
                nonce,
                clock_micros,
            } => {
                let twin = Pong {
                    nonce,
                    clock_micros,
                };
                write(number::PONG, &[], &twin)
            }
            Self::ProbeReceived { nonce } => write(number::PROBE_RECEIVED, &[], nonce),
            Self::Profiled { id, seconds } => {
                let twin = Profiled {
                    id: *id,
                    seconds: List::new("profiled programs", seconds, |seconds| {
                        seconds
                            .map(|seconds| Seconds::new("seconds of a program", seconds))
                            .transpose()
                    })?,
                };
                write(number::PROFILED, &[], &twin)
            }
            &Self::Ready {
                run,
                planned_bytes,
                weights_sha256,
            } => {
                let twin = Ready {
                    run,
                    planned_bytes,
                    weights_sha256,
                };
                write(number::READY, &[], &twin)
            }
            Self::Gradients {
                run,
                step,
                loss_sums,
                loss_weights,
                squares,
                not_finite,
            } => {
                let name = |text| Text::new("name of a parameter", text);
                let twin = Gradients {
                    run: *run,
                    step: *step,
                    loss_sums: List::new("loss sums", loss_sums, |sum| Ok(*sum))?,
                    loss_weights: List::new("loss weights", loss_weights, |weight| Ok(*weight))?,
                    squares: List::new("squares of gradients", squares, |(text, square)| {
                        Ok((name(text)?, *square))
                    })?,
                    not_finite: match not_finite {
                        Some((stage, text)) => Some((*stage, name(text)?)),
                        None => None,
                    },
                };
                write(number::GRADIENTS, &[], &twin)
            }
            Self::StepDone {
                run,
                step,
                times,
                update_seconds,
                peak_bytes,
                heat,
            } => {
                let twin = StepDone {
                    run: *run,
                    step: *step,
                    times: List::new("times of actions", times, |time| {
                        Ok(Time {
                            action: ActionTwin::from(&time.action),
                            start_micros: time.start_micros,
                            micros: time.micros,
                        })
                    })?,
                    update_seconds: Seconds::new("seconds of the optimizer", *update_seconds)?,
                    peak_bytes: *peak_bytes,
                    heat: *heat,
                };
                write(number::STEP_DONE, &[], &twin)
            }
            &Self::Fetched {
                run,
                state,
                tensors,
            } => {
                let twin = Fetched {
                    run,
                    state: Code(state),
                    tensors,
                };
                write(number::FETCHED, &[], &twin)
            }
            Self::Dropped { run } => write(number::DROPPED, &[], run),
            Self::Failed {
                run,
                step,
                stage,
                kind,
                message,
            } => {
                let twin = Failed {
                    run: *run,
                    step: *step,
                    stage: *stage,
                    kind: Code(*kind),
                    message: Text::clipped(message),
                };
                write(number::FAILED, &[], &twin)
            }
            &Self::Credit { stream, bytes } => {
                let stream = Code(stream);
                write(number::WORKER_CREDIT, &[], &Credit { stream, bytes })
            }
            Self::Bye { reason } => write(
                number::WORKER_BYE,
                &[],
                &Text::<MESSAGE_BYTES>::clipped(reason),
            ),
        }
    }

    fn decode(number: u16, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(match number {
            number::DEVICE_HELLO => {
                let (protocol, twin) = read_hello::<Hello<'_>>(number, payload)?;
                Self::Hello(DeviceHello {
                    protocol,
                    build: twin.build.into_string(),
                    name: twin.name.into_string(),
                    device_id: twin.device_id.into_string(),
                    engine: twin.engine.into_string(),
                    hardware: twin.hardware.into_string(),
                    threads: twin.threads,
                    memory_bytes: twin.memory_bytes,
                })
            }
            number::PONG => {
                let twin = read::<Pong>(number, payload)?;
                Self::Pong {
                    nonce: twin.nonce,
                    clock_micros: twin.clock_micros,
                }
            }
            number::PROBE_RECEIVED => Self::ProbeReceived {
                nonce: read(number, payload)?,
            },
            number::PROFILED => {
                let twin = read::<Profiled>(number, payload)?;
                Self::Profiled {
                    id: twin.id,
                    seconds: twin.seconds.into_vec(|seconds| seconds.map(Seconds::get)),
                }
            }
            number::READY => {
                let twin = read::<Ready>(number, payload)?;
                Self::Ready {
                    run: twin.run,
                    planned_bytes: twin.planned_bytes,
                    weights_sha256: twin.weights_sha256,
                }
            }
            number::GRADIENTS => {
                let twin = read::<Gradients<'_>>(number, payload)?;
                Self::Gradients {
                    run: twin.run,
                    step: twin.step,
                    loss_sums: twin.loss_sums.into_vec(|sum| sum),
                    loss_weights: twin.loss_weights.into_vec(|weight| weight),
                    squares: twin
                        .squares
                        .into_vec(|(name, square)| (name.into_string(), square)),
                    not_finite: twin
                        .not_finite
                        .map(|(stage, name)| (stage, name.into_string())),
                }
            }
            number::STEP_DONE => {
                let twin = read::<StepDone>(number, payload)?;
                Self::StepDone {
                    run: twin.run,
                    step: twin.step,
                    times: twin.times.into_vec(|time| ActionTime {
                        action: time.action.into(),
                        start_micros: time.start_micros,
                        micros: time.micros,
                    }),
                    update_seconds: twin.update_seconds.get(),
                    peak_bytes: twin.peak_bytes,
                    heat: twin.heat,
                }
            }
            number::FETCHED => {
                let twin = read::<Fetched>(number, payload)?;
                Self::Fetched {
                    run: twin.run,
                    state: twin.state.0,
                    tensors: twin.tensors,
                }
            }
            number::DROPPED => Self::Dropped {
                run: read(number, payload)?,
            },
            number::FAILED => {
                let twin = read::<Failed<'_>>(number, payload)?;
                Self::Failed {
                    run: twin.run,
                    step: twin.step,
                    stage: twin.stage,
                    kind: twin.kind.0,
                    message: twin.message.into_string(),
                }
            }
            number::WORKER_CREDIT => {
                let twin = read::<Credit>(number, payload)?;
                Self::Credit {
                    stream: twin.stream.0,
                    bytes: twin.bytes,
                }
            }
            number::WORKER_BYE => Self::Bye {
                reason: read::<Text<'_, MESSAGE_BYTES>>(number, payload)?.into_string(),
            },
            _ => return Err(foreign(number)),
        })
    }
}

#[cfg(test)]
mod tests;
