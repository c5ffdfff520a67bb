//! The push decoder: bytes in, frames out, in any pieces.
//!
//! ```text
//!  push(chunk) / space()  ->  | head | payload so far ... |  ->  poll() -> Frame
//!                                (1)          (2)
//! ```
//!
//! 1. As soon as the six bytes of a head are there, number, direction and length are judged; of a data frame also its
//!    head, so that a lie about a tensor's size is found before the tensor comes.
//! 2. The buffer grows with what has come, never with what was announced.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};

use crate::control::ControlMessage;
use crate::data::decode_head;
use crate::error::DecodeError;
use crate::frame::{Direction, HEAD_BYTES, frame_kind, number};
use crate::message::{DataFrame, DataHeader, HostMessage, WorkerMessage};

/// Greatest payload of a data frame unless [`Decoder::set_data_limit`] says otherwise: 1 GiB.
pub const DATA_LIMIT: u32 = 1 << 30;

/// Frames up to this many bytes are copied out of the receive buffer, so that a tensor of a few bytes that is kept does
/// not keep a whole buffer alive.
const COPY_BYTES: usize = 4096;

/// What [`Decoder::space`] offers at the least, and beyond what has already come of a frame at the most.
const SPACE_BYTES: usize = 64 << 10;

/// A frame that came.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame<M> {
    /// A control message.
    Control(M),
    /// A tensor.
    Data(DataFrame),
}

/// Decodes what a worker hears.
pub type WorkerDecoder = Decoder<HostMessage>;

/// Decodes what the host hears from one worker.
pub type HostDecoder = Decoder<WorkerMessage>;

/// Turns the bytes of one connection into frames. Nothing but a `Hello` (or a reason for refusal) is accepted first.
///
/// After an error the connection is of no further use: every later [`Decoder::poll`] gives the same error.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: BytesMut,
    head: Option<Head>,
    greeted: bool,
    data_limit: u32,
    failed: Option<DecodeError>,
    messages: PhantomData<fn() -> M>,
}

/// The frame that is arriving.
#[derive(Debug)]
struct Head {
    number: u16,
    length: u32,
    data: Option<(DataHeader, usize)>,
}

impl Head {
    fn frame_bytes(&self) -> usize {
        HEAD_BYTES.saturating_add(self.length as usize)
    }
}

impl<M: ControlMessage> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: ControlMessage> Decoder<M> {
    /// A decoder at the start of a connection.
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            head: None,
            greeted: false,
            data_limit: DATA_LIMIT,
            failed: None,
            messages: PhantomData,
        }
    }

    /// Refuses data frames with a longer payload from here on.
    pub fn set_data_limit(&mut self, bytes: u32) {
        self.data_limit = bytes;
    }

    /// Feeds the next bytes of the connection. They are taken over without a copy when nothing is waiting and nobody else
    /// holds them.
    pub fn push(&mut self, chunk: Bytes) {
        if !self.buffer.is_empty() {
            self.buffer.extend_from_slice(&chunk);
            return;
        }
        match chunk.try_into_mut() {
            Ok(chunk) => self.buffer = chunk,
            Err(chunk) => self.buffer.extend_from_slice(&chunk),
        }
    }

    /// Room to read the next bytes into, appended to what is waiting; an alternative to [`Decoder::push`] without its
    /// copy. At least 64 KiB are free; of a long frame as much again as has come.
    pub fn space(&mut self) -> &mut BytesMut {
        let missing = self.head.as_ref().map_or(0, |head| {
            head.frame_bytes().saturating_sub(self.buffer.len())
        });
        self.buffer
            .reserve(missing.min(self.buffer.len()).max(SPACE_BYTES));
        &mut self.buffer
    }

    /// The next whole frame; `None` when more bytes must come.
    ///
    /// # Errors
    /// [`DecodeError`] when the peer breaks the protocol.
    pub fn poll(&mut self) -> Result<Option<Frame<M>>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.advance().inspect_err(|error| {
            self.failed = Some(error.clone());
            self.buffer = BytesMut::new();
        })
    }

    /// Says whether the connection may end here.
    ///
    /// # Errors
    /// [`DecodeError::CutOff`] inside a frame.
    pub fn finish(&self) -> Result<(), DecodeError> {
        let waiting = self.buffer.len();
        if waiting == 0 {
            return Ok(());
        }
        let whole = self.head.as_ref().map_or(HEAD_BYTES, Head::frame_bytes);
        Err(DecodeError::CutOff {
            missing: whole.saturating_sub(waiting).max(1) as u64,
        })
    }

    fn advance(&mut self) -> Result<Option<Frame<M>>, DecodeError> {
        let mut head = match self.head.take() {
            Some(head) => head,
            None => match self.read_head()? {
                Some(head) => head,
                None => return Ok(None),
            },
        };
        if head.number == number::DATA && head.data.is_none() {
            let body = self.buffer.get(HEAD_BYTES..).unwrap_or_default();
            head.data = decode_head(body, head.length)?;
        }
        let frame_bytes = head.frame_bytes();
        if self.buffer.len() < frame_bytes {
            self.head = Some(head);
            return Ok(None);
        }
        let frame = self.buffer.split_to(frame_bytes);
        if head.number != number::DATA {
            let payload = frame.get(HEAD_BYTES..).unwrap_or_default();
            let message = M::decode(head.number, payload)?;
            return Ok(Some(Frame::Control(message)));
        }
        let Some((header, head_bytes)) = head.data else {
            return Err(DecodeError::Malformed {
                frame: "Data",
                cause: "it is shorter than its head",
            });
        };
        let frame = if frame_bytes <= COPY_BYTES {
            Bytes::copy_from_slice(&frame)
        } else {
            frame.freeze()
        };
        Ok(Some(Frame::Data(DataFrame {
            header,
            payload: frame.slice(HEAD_BYTES + head_bytes..),
            frame,
        })))
    }

    fn read_head(&mut self) -> Result<Option<Head>, DecodeError> {
        let Some(&[l0, l1, l2, l3, n0, n1]) = self.buffer.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let number = u16::from_le_bytes([n0, n1]);
        self.judge(number, length).map_err(|error| {
            // Before anything was understood, an error most likely means another protocol (a browser, a port scan).
            if self.greeted
                || matches!(
                    error,
                    DecodeError::Early { .. } | DecodeError::Direction { .. }
                )
            {
                error
            } else {
                DecodeError::NotOutboard {
                    first: [l0, l1, l2, l3, n0, n1].escape_ascii().to_string(),
                }
            }
        })?;
        if number == number::HOST_HELLO || number == number::DEVICE_HELLO {
            self.greeted = true;
        }
        Ok(Some(Head {
            number,
            length,
            data: None,
        }))
    }

    fn judge(&self, number: u16, length: u32) -> Result<(), DecodeError> {
        let kind = frame_kind(number).ok_or(DecodeError::UnknownFrame { number })?;
        if let Some(reason) = kind.retired {
            return Err(DecodeError::Retired { number, reason });
        }
        let limit = if number == number::DATA {
            self.data_limit.min(kind.limit)
        } else {
            kind.limit
        };
        if length > limit {
            return Err(DecodeError::TooLong {
                frame: kind.name,
                length: u64::from(length),
                limit: u64::from(limit),
            });
        }
        if kind.direction != Direction::Both && kind.direction != M::DIRECTION {
            return Err(DecodeError::Direction { frame: kind.name });
        }
        if !self.greeted && !kind.early {
            return Err(DecodeError::Early { frame: kind.name });
        }
        let hello = number == number::HOST_HELLO || number == number::DEVICE_HELLO;
        if self.greeted && hello {
            return Err(DecodeError::SecondHello);
        }
        Ok(())
    }
}
