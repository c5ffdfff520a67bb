//! Control frames: a head and a `postcard` payload of private twins, so that domain types know nothing of the wire.
//!
//! A twin's strings, lists and numbers carry their bounds in their types, so what this side sends is what the other accepts.

mod host;
mod parts;
mod worker;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{DecodeError, EncodeError};
use crate::frame::{Direction, FrameKind, HEAD_BYTES, MAGIC, PROTOCOL, frame_kind, frame_name};

/// Limits on what control messages hold, beside the limits on whole frames in the table.
pub mod limits {
    /// Bytes of a tensor's or scope's name.
    pub const NAME_BYTES: usize = 512;
    /// Bytes of names and versions that people read; longer ones are cut.
    pub const LABEL_BYTES: usize = 256;
    /// Bytes of an error's text; longer ones are cut.
    pub const MESSAGE_BYTES: usize = 4096;
    /// Bytes of one program in text form.
    pub const PROGRAM_BYTES: usize = 32 << 20;
    /// Programs of one `Profile`.
    pub const PROFILE_PROGRAMS: usize = 4096;
    /// Actions of a worker in a step.
    pub const ACTIONS: usize = 1 << 18;
    /// Micro-batches of a step.
    pub const MICRO_BATCHES: usize = 1 << 15;
    /// Stages of a worker.
    pub const STAGES: usize = 1024;
    /// Weights of a stage, and parameters whose squares a worker reports.
    pub const WEIGHTS: usize = 1 << 16;
    /// Uses of a shared weight.
    pub const USES: usize = 1024;
    /// Dimensions of a tensor.
    pub const RANK: usize = 16;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::HostMessage {}
    impl Sealed for crate::WorkerMessage {}
}

/// The control messages of one direction: [`crate::HostMessage`] or [`crate::WorkerMessage`].
pub trait ControlMessage: sealed::Sealed + Sized {
    /// The direction in which they go.
    const DIRECTION: Direction;

    /// The whole frame.
    ///
    /// # Errors
    /// When the message has more than the peer would accept.
    fn encode(&self) -> Result<Bytes, EncodeError>;

    /// Reads the payload of a frame with this number; the caller has checked number, direction and length.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`], and [`DecodeError::Version`] for a `Hello`.
    fn decode(number: u16, payload: &[u8]) -> Result<Self, DecodeError>;
}

/// Writes a frame with a `postcard` payload after `prefix`.
fn write<T: Serialize>(number: u16, prefix: &[u8], twin: &T) -> Result<Bytes, EncodeError> {
    let mut frame = Vec::with_capacity(64);
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(prefix);
    let mut frame = postcard::to_extend(twin, frame).map_err(|cause| EncodeError::Serialise {
        frame: frame_name(number),
        cause: cause.to_string(),
    })?;
    let length = frame.len() - HEAD_BYTES;
    let limit = frame_kind(number).map_or(0, |kind| kind.limit);
    let bytes = u32::try_from(length)
        .ok()
        .filter(|&bytes| bytes <= limit)
        .ok_or(EncodeError::TooLong {
            frame: frame_name(number),
            length: length as u64,
            limit: u64::from(limit),
        })?;
    for (to, from) in frame.iter_mut().zip(bytes.to_le_bytes()) {
        *to = from;
    }
    Ok(frame.into())
}

/// Reads a `postcard` payload that fills the frame exactly.
fn read<'a, T: Deserialize<'a>>(number: u16, payload: &'a [u8]) -> Result<T, DecodeError> {
    let malformed = |cause| DecodeError::Malformed {
        frame: frame_name(number),
        cause,
    };
    match postcard::take_from_bytes(payload) {
        Ok((twin, [])) => Ok(twin),
        Ok(_) => Err(malformed("bytes are left over at its end")),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(malformed("it ends too early")),
        Err(postcard::Error::DeserializeBadUtf8) => Err(malformed("a string is not UTF-8")),
        Err(postcard::Error::DeserializeBadVarint) => {
            Err(malformed("an integer is beyond its type"))
        }
        Err(_) => Err(malformed(
            "a code is unknown, or a string, list or number is beyond its limit",
        )),
    }
}

/// Writes a `Hello`: magic and version stand before the rest.
fn write_hello<T: Serialize>(number: u16, protocol: u16, twin: &T) -> Result<Bytes, EncodeError> {
    let mut prefix = Vec::with_capacity(MAGIC.len() + 2);
    prefix.extend_from_slice(&MAGIC);
    prefix.extend_from_slice(&protocol.to_le_bytes());
    write(number, &prefix, twin)
}

/// Checks magic and version of a `Hello`, then reads the rest.
fn read_hello<'a, T: Deserialize<'a>>(
    number: u16,
    payload: &'a [u8],
) -> Result<(u16, T), DecodeError> {
    let stranger = || DecodeError::NotOutboard {
        first: payload
            .get(..MAGIC.len())
            .unwrap_or(payload)
            .escape_ascii()
            .to_string(),
    };
    let rest = payload.strip_prefix(&MAGIC).ok_or_else(stranger)?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(stranger)?;
    let theirs = u16::from_le_bytes(*version);
    if theirs != PROTOCOL {
        return Err(DecodeError::Version {
            theirs,
            ours: PROTOCOL,
        });
    }
    Ok((theirs, read(number, rest)?))
}

/// A number that belongs to no message of this direction.
fn foreign(number: u16) -> DecodeError {
    match frame_kind(number) {
        Some(&FrameKind {
            retired: Some(reason),
            ..
        }) => DecodeError::Retired { number, reason },
        Some(kind) => DecodeError::Direction { frame: kind.name },
        None => DecodeError::UnknownFrame { number },
    }
}
