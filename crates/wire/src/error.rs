//! What can be wrong with bytes from a peer, and with messages that are to be sent.

use thiserror::Error;

use crate::Stream;

/// The peer sent bytes that are not this protocol. The connection is of no further use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The very first bytes are not a `Hello`.
    #[error(
        "the peer does not speak Outboard's protocol: its first bytes are {first:?}; is the address that of `outboard worker`?"
    )]
    NotOutboard {
        /// What came, printable.
        first: String,
    },
    /// The peer is of another version.
    #[error(
        "the peer speaks version {theirs} of Outboard's protocol, this program version {ours}: install the same release on both"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
        /// [`crate::PROTOCOL`].
        ours: u16,
    },
    /// A frame other than `Hello` came first.
    #[error("the peer sent {frame} before Hello")]
    Early {
        /// Name in the frame table.
        frame: &'static str,
    },
    /// A second `Hello`.
    #[error("the peer said Hello twice")]
    SecondHello,
    /// No such frame.
    #[error("the peer sent a frame with the unknown number {number}")]
    UnknownFrame {
        /// The number.
        number: u16,
    },
    /// A frame that is not in use any more.
    #[error("the peer sent frame {number}, which is not in use: {reason}")]
    Retired {
        /// The number.
        number: u16,
        /// The table's reason.
        reason: &'static str,
    },
    /// A frame that only the other side may send.
    #[error("the peer sent {frame}, which only the other side may send")]
    Direction {
        /// Name in the frame table.
        frame: &'static str,
    },
    /// A length over the frame's limit.
    #[error("the peer announced {frame} of {length} bytes, the limit is {limit}")]
    TooLong {
        /// Name in the frame table.
        frame: &'static str,
        /// Announced payload.
        length: u64,
        /// Greatest payload.
        limit: u64,
    },
    /// A payload that cannot be read.
    #[error("the peer sent a malformed {frame}: {cause}")]
    Malformed {
        /// Name in the frame table.
        frame: &'static str,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// A data frame whose length is not that of its head and tensor.
    #[error(
        "the peer announced Data of {announced} bytes, but its head and shape make {expected} bytes"
    )]
    DataLength {
        /// Announced payload of the frame.
        announced: u64,
        /// Length of the data head and the encoded tensor.
        expected: u64,
    },
    /// The stream ended inside a frame.
    #[error("the connection ended inside a frame: {missing} more bytes should have come")]
    CutOff {
        /// Bytes that are missing, at the least.
        missing: u64,
    },
}

/// A message that the peer would refuse is not sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The whole frame is over its limit.
    #[error("{frame} takes {length} bytes, the limit is {limit}")]
    TooLong {
        /// Name in the frame table.
        frame: &'static str,
        /// Payload bytes.
        length: u64,
        /// Greatest payload.
        limit: u64,
    },
    /// A string or list is over its limit.
    #[error("{what} has {length} {unit}, the limit is {limit}")]
    OutOfBounds {
        /// Which part of the message.
        what: &'static str,
        /// `bytes` or `entries`.
        unit: &'static str,
        /// Its length.
        length: usize,
        /// Its limit.
        limit: usize,
    },
    /// A number that no peer may get: not finite, or negative seconds.
    #[error("{what} is {value}, which cannot be sent")]
    Number {
        /// Which part of the message.
        what: &'static str,
        /// Printed value.
        value: String,
    },
    /// The payload of a data frame does not fit its head.
    #[error(
        "tensor `{name}` has a payload of {payload} bytes, its shape and encoding make {expected}"
    )]
    Payload {
        /// Name of the tensor.
        name: String,
        /// Given bytes.
        payload: u64,
        /// Bytes by the head.
        expected: u64,
    },
    /// The serialiser failed.
    #[error("{frame} cannot be written: {cause}")]
    Serialise {
        /// Name in the frame table.
        frame: &'static str,
        /// From `postcard`.
        cause: String,
    },
}

/// A payload that is not the tensor its head describes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorError {
    /// The number of bytes is wrong.
    #[error("tensor `{name}` came with {payload} bytes, its shape and encoding make {expected}")]
    Length {
        /// Name of the tensor.
        name: String,
        /// Bytes that came.
        payload: u64,
        /// Bytes by the head.
        expected: u64,
    },
    /// The shape does not fit this machine's memory.
    #[error("tensor `{name}` has a shape of more bytes than this machine can address")]
    TooLarge {
        /// Name of the tensor.
        name: String,
    },
    /// The elements are not those of a tensor of this type.
    #[error("tensor `{name}` is malformed: {source}")]
    Elements {
        /// Name of the tensor.
        name: String,
        /// What is wrong.
        source: outboard_graph::TensorError,
    },
}

/// A peer broke the flow control of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CreditError {
    /// A frame came although all credit was spent.
    #[error("the peer sent {frame_bytes} bytes on the stream {stream:?} without credit")]
    Exceeded {
        /// Stream.
        stream: Stream,
        /// Length of the frame.
        frame_bytes: u64,
    },
    /// Credit that no window could have.
    #[error(
        "the peer granted {bytes} bytes more on the stream {stream:?}, which makes more than {limit}"
    )]
    Overflow {
        /// Stream.
        stream: Stream,
        /// The grant.
        bytes: u64,
        /// Greatest credit.
        limit: u64,
    },
    /// This side spends or releases what it does not have: a mistake of the caller.
    #[error("{bytes} bytes on the stream {stream:?} were {action} without being there")]
    Unbalanced {
        /// Stream.
        stream: Stream,
        /// Bytes.
        bytes: u64,
        /// `sent` or `released`.
        action: &'static str,
    },
}
