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
mod tests;
