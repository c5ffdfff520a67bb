//! The decoder under all that a network and a hostile peer do: any pieces, lies about lengths, noise.
//!
//! `OUTBOARD_FUZZ_ROUNDS=1000000 cargo test -p outboard-wire --release noise` looks for longer than the suite does.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::{Buf, Bytes, BytesMut};
use outboard_graph::DType;
use outboard_schedule::{Action, Kind};
use outboard_wire::{
    ControlMessage, DataHeader, DataKind, DecodeError, Decoder, Frame, HEAD_BYTES, HostMessage,
    PROTOCOL, Stream, TensorEncoding, WorkerDecoder, WorkerMessage, encode_data,
};
use proptest::prelude::*;

fn hello() -> HostMessage {
    HostMessage::Hello {
        protocol: PROTOCOL,
        build: "0.1.0".into(),
        name: "desk".into(),
    }
}

fn data(name: &str, dims: Vec<u64>) -> (DataHeader, Bytes) {
    let header = DataHeader {
        run: 1,
        step: 2,
        kind: DataKind::Input,
        stage: 0,
        micro_batch: 3,
        name: name.into(),
        dtype: DType::Bool,
        dims,
        encoding: TensorEncoding::F32,
    };
    let bytes = usize::try_from(header.payload_bytes().unwrap()).unwrap();
    (header, (0..bytes).map(|i| (i % 2) as u8).collect())
}

/// A conversation of small and large frames, as bytes and as frames.
fn conversation() -> (Vec<u8>, Vec<Frame<HostMessage>>) {
    let actions = (0..500)
        .map(|micro_batch| Action {
            stage: 1,
            kind: Kind::Backward,
            micro_batch,
        })
        .collect();
    let mut bytes = Vec::new();
    let mut frames = Vec::new();
    let control = |message: HostMessage, bytes: &mut Vec<u8>, frames: &mut Vec<_>| {
        bytes.extend_from_slice(&message.encode().unwrap());
        frames.push(Frame::Control(message));
    };
    control(hello(), &mut bytes, &mut frames);
    control(HostMessage::Ping { nonce: 9 }, &mut bytes, &mut frames);
    for dims in [
        vec![3],
        vec![100, 50],
        vec![0],
        vec![200_000],
        vec![1, 1, 1],
    ] {
        let (header, payload) = data("image", dims);
        let [head, tail] = encode_data(&header, payload.clone()).unwrap();
        let whole: Bytes = [head, tail].concat().into();
        bytes.extend_from_slice(&whole);
        frames.push(Frame::Data(outboard_wire::DataFrame {
            header,
            payload,
            frame: whole,
        }));
    }
    let schedule = HostMessage::Schedule {
        run: 1,
        micro_batches: 500,
        actions,
    };
    control(schedule, &mut bytes, &mut frames);
    control(HostMessage::Bye, &mut bytes, &mut frames);
    (bytes, frames)
}

fn drain(decoder: &mut WorkerDecoder, into: &mut Vec<Frame<HostMessage>>) {
    while let Some(frame) = decoder.poll().unwrap() {
        into.push(frame);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The frames do not depend on how the stream was cut, nor on the way the pieces were handed over.
    #[test]
    fn any_pieces_give_the_same_frames(cuts in prop::collection::vec(1_usize..30_000, 0..40), shared: bool, by_space: bool) {
        let (bytes, expected) = conversation();
        let stream = Bytes::from(bytes);
        let mut rest = stream.clone();
        let mut decoder = WorkerDecoder::new();
        let mut frames = Vec::new();
        let mut cuts = cuts.into_iter();
        while !rest.is_empty() {
            let piece = rest.split_to(cuts.next().unwrap_or(usize::MAX).min(rest.len()));
            if by_space {
                let mut piece = piece;
                while !piece.is_empty() {
                    let space = decoder.space();
                    let room = space.capacity() - space.len();
                    space.extend_from_slice(&piece.split_to(room.min(piece.len())));
                    drain(&mut decoder, &mut frames);
                }
            } else if shared {
                decoder.push(piece);
            } else {
                decoder.push(Bytes::copy_from_slice(&piece));
            }
            drain(&mut decoder, &mut frames);
        }
        prop_assert_eq!(frames, expected);
        prop_assert_eq!(decoder.finish(), Ok(()));
    }
}

#[test]
fn one_byte_at_a_time() {
    let (bytes, expected) = conversation();
    let mut decoder = WorkerDecoder::new();
    let mut frames = Vec::new();
    for byte in bytes {
        decoder.push(Bytes::copy_from_slice(&[byte]));
        drain(&mut decoder, &mut frames);
    }
    assert_eq!(frames, expected);
}

#[test]
fn a_large_frame_that_is_pushed_whole_is_not_copied() {
    let (header, payload) = data("x", vec![100_000]);
    let mut decoder = WorkerDecoder::new();
    decoder.push(hello().encode().unwrap());
    decoder.poll().unwrap();
    let frame = BytesMut::from(&encode_data(&header, payload).unwrap().concat()[..]).freeze();
    let at = frame.as_ptr();
    decoder.push(frame);
    let Some(Frame::Data(data)) = decoder.poll().unwrap() else {
        panic!("no data frame came");
    };
    assert_eq!(data.frame.as_ptr(), at);
}

#[test]
fn room_grows_with_what_came_not_with_what_was_announced() {
    // A vector of zeros takes no memory until it is touched.
    let (mut header, _) = data("x", vec![]);
    header.dims = vec![500_000_000];
    let [head, _] = encode_data(&header, vec![0; 500_000_000].into()).unwrap();
    let mut decoder = WorkerDecoder::new();
    decoder.push(hello().encode().unwrap());
    decoder.poll().unwrap();
    decoder.push(head);
    assert_eq!(decoder.poll(), Ok(None));
    let mut came = decoder.space().len();
    for _ in 0..200 {
        let space = decoder.space();
        let room = space.capacity() - space.len();
        assert!(
            space.capacity() <= 4 * (came + (64 << 10)),
            "{came} bytes came"
        );
        let piece = vec![0; room.min(10_000)];
        space.extend_from_slice(&piece);
        came += piece.len();
        assert_eq!(decoder.poll(), Ok(None));
    }
    assert!(
        matches!(decoder.finish(), Err(DecodeError::CutOff { missing }) if missing > 490_000_000)
    );
}

/// The first frame of a stranger, and what the worker says of it.
fn first(bytes: &[u8]) -> DecodeError {
    let mut decoder = WorkerDecoder::new();
    decoder.push(Bytes::copy_from_slice(bytes));
    let error = decoder.poll().unwrap_err();
    assert_eq!(decoder.poll(), Err(error.clone()), "an error stays");
    decoder.push(hello().encode().unwrap());
    assert_eq!(decoder.poll(), Err(error.clone()), "an error stays");
    error
}

#[test]
fn strangers_are_recognised_by_their_first_bytes() {
    for noise in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\x01\x00",
        // A Hello of a length that no Hello has.
        b"\x01\x10\x00\x00\x01\x00",
    ] {
        assert!(
            matches!(first(noise), DecodeError::NotOutboard { .. }),
            "{noise:?}"
        );
    }
    assert_eq!(
        first(b"GET / HTTP/1.1").to_string(),
        "the peer does not speak Outboard's protocol: its first bytes are \"GET / \"; is the address that of `outboard worker`?"
    );
    assert_eq!(
        first(&HostMessage::Ping { nonce: 1 }.encode().unwrap()),
        DecodeError::Early { frame: "Ping" }
    );
    let (header, payload) = data("x", vec![1]);
    assert_eq!(
        first(&encode_data(&header, payload).unwrap().concat()),
        DecodeError::Early { frame: "Data" }
    );
    let credit = WorkerMessage::Credit {
        stream: Stream::Bulk,
        bytes: 1,
    };
    assert_eq!(
        first(&credit.encode().unwrap()),
        DecodeError::Direction {
            frame: "WorkerCredit"
        }
    );
}

/// What the worker says of a frame that comes after `Hello`.
fn second(frame: &[u8], data_limit: Option<u32>) -> DecodeError {
    let mut decoder = WorkerDecoder::new();
    decoder.push(hello().encode().unwrap());
    decoder.poll().unwrap();
    if let Some(limit) = data_limit {
        decoder.set_data_limit(limit);
    }
    decoder.push(Bytes::copy_from_slice(frame));
    decoder.poll().unwrap_err()
}

fn head(length: u32, number: u16) -> Vec<u8> {
    [&length.to_le_bytes()[..], &number.to_le_bytes()].concat()
}

#[test]
fn every_broken_rule_has_its_error() {
    assert_eq!(
        second(&hello().encode().unwrap(), None),
        DecodeError::SecondHello
    );
    assert_eq!(
        second(&head(0, 999), None),
        DecodeError::UnknownFrame { number: 999 }
    );
    assert!(matches!(
        second(&head(0, 0), None),
        DecodeError::Retired { number: 0, .. }
    ));
    assert_eq!(
        second(&head(65, 3), None),
        DecodeError::TooLong {
            frame: "Ping",
            length: 65,
            limit: 64
        }
    );
    assert_eq!(
        second(&head(u32::MAX, 9), None),
        DecodeError::TooLong {
            frame: "Assign",
            length: u64::from(u32::MAX),
            limit: 64 << 20
        }
    );
    assert_eq!(
        second(&head((1 << 30) + 1, 32), None),
        DecodeError::TooLong {
            frame: "Data",
            length: (1 << 30) + 1,
            limit: 1 << 30
        }
    );
    assert_eq!(
        second(&head(1001, 32), Some(1000)),
        DecodeError::TooLong {
            frame: "Data",
            length: 1001,
            limit: 1000
        }
    );
    assert!(matches!(
        second(&head(21, 32), None),
        DecodeError::Malformed { frame: "Data", .. }
    ));
    // A Ping with a byte left over, and one that ends too early.
    let cause = |frame: &[u8]| second(frame, None).to_string();
    assert_eq!(
        cause(&[head(2, 3), vec![1, 1]].concat()),
        "the peer sent a malformed Ping: bytes are left over at its end"
    );
    assert_eq!(
        cause(&[head(1, 3), vec![0x80]].concat()),
        "the peer sent a malformed Ping: it ends too early"
    );
    assert_eq!(
        cause(&[head(2, 16), vec![1, 9]].concat()),
        "the peer sent a malformed Fetch: a code is unknown, or a string, list or number is beyond its limit"
    );
}

/// SplitMix64: the same noise on every machine.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}

/// Runs bytes through both sides' decoders; they may only give frames, ask for more or fail.
fn survive<M: ControlMessage>(bytes: &[u8], noise: &mut Noise) {
    let mut decoder = Decoder::<M>::new();
    decoder.set_data_limit(1 << 20);
    let mut rest = bytes;
    while rest.has_remaining() {
        let piece = rest.copy_to_bytes(1 + noise.below(rest.len()));
        decoder.push(piece);
        loop {
            match decoder.poll() {
                Ok(Some(Frame::Control(message))) => {
                    let frame = message.encode().unwrap();
                    assert!(
                        M::decode(
                            u16::from_le_bytes([frame[4], frame[5]]),
                            &frame[HEAD_BYTES..]
                        )
                        .is_ok()
                    );
                }
                Ok(Some(Frame::Data(data))) => {
                    assert_eq!(data.header.payload_bytes(), Some(data.payload.len() as u64));
                    let _ = outboard_wire::decode_tensor(&data.header, &data.payload);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

#[test]
fn noise_and_mutated_conversations_never_panic() {
    let rounds = std::env::var("OUTBOARD_FUZZ_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(2000);
    let (mut original, _) = conversation();
    // The long tensor would take most of the mutations.
    original.truncate(6000);
    for seed in 0..rounds {
        let mut noise = Noise(seed);
        let mut bytes = original.clone();
        for _ in 0..=noise.below(6) {
            let at = noise.below(bytes.len());
            match noise.below(5) {
                0 => bytes[at] ^= 1 << noise.below(8),
                1 => bytes[at] = noise.next() as u8,
                2 => bytes.truncate(at.max(1)),
                3 => {
                    let from = noise.below(bytes.len());
                    let copied: Vec<u8> = bytes[from..]
                        .iter()
                        .copied()
                        .take(noise.below(40))
                        .collect();
                    bytes.splice(at..at, copied);
                }
                _ => {
                    bytes.drain(at..(at + noise.below(20)).min(bytes.len()));
                    bytes.push(0);
                }
            }
        }
        survive::<HostMessage>(&bytes, &mut noise);
        survive::<WorkerMessage>(&bytes, &mut noise);
    }
}
