//! What the tests of this crate share: golden bytes in readable hex, and the mutations that must not harm.

use std::fmt::Debug;

use bytes::Bytes;

use crate::{
    ControlMessage, DecodeError, Decoder, DeviceHello, Direction, Frame, HostMessage, WorkerMessage,
};

/// Bytes from hex; blanks and `|` group them for the reader.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace() && *byte != b'|')
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Hex of a frame: length, number, and the payload in groups of eight bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let plain = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (head, payload) = bytes.split_at(bytes.len().min(crate::HEAD_BYTES));
    let groups: Vec<_> = payload.chunks(8).map(plain).collect();
    format!(
        "{} {} | {}",
        plain(&head[..4]),
        plain(&head[4..]),
        groups.join(" ")
    )
}

/// A decoder that has heard the peer's `Hello`.
pub(crate) fn greeted<M: ControlMessage>() -> Decoder<M> {
    let hello = match M::DIRECTION {
        Direction::ToHost => WorkerMessage::Hello(DeviceHello {
            protocol: crate::PROTOCOL,
            build: String::new(),
            name: String::new(),
            device_id: String::new(),
            engine: String::new(),
            hardware: String::new(),
            threads: 1,
            memory_bytes: 0,
        })
        .encode(),
        _ => HostMessage::Hello {
            protocol: crate::PROTOCOL,
            build: String::new(),
            name: String::new(),
        }
        .encode(),
    };
    let mut decoder = Decoder::new();
    decoder.push(hello.unwrap());
    assert!(matches!(decoder.poll(), Ok(Some(Frame::Control(_)))));
    decoder
}

fn decode<M: ControlMessage>(
    frame: &[u8],
    is_hello: bool,
) -> Result<Option<Frame<M>>, DecodeError> {
    let mut decoder = if is_hello { Decoder::new() } else { greeted() };
    decoder.push(Bytes::copy_from_slice(frame));
    decoder.poll()
}

/// Checks that a message has these bytes, that they give it back, that no prefix of them is a frame, and that no flipped
/// bit does more than give an error or another message that is as good as any.
pub(crate) fn golden<M: ControlMessage + Debug>(message: &M, expected: &str) {
    let frame = message.encode().unwrap();
    assert_eq!(
        hex(&frame),
        hex(&bytes(expected)),
        "the bytes of {message:?} changed: that needs a new protocol version"
    );
    let is_hello = [1, 2].contains(&frame[4]);
    // Compared as text, since a NaN does not equal itself.
    let same = |frame: Frame<M>| assert_eq!(format!("{frame:?}"), format!("Control({message:?})"));
    same(decode(&frame, is_hello).unwrap().unwrap());

    for length in 0..frame.len() {
        assert_eq!(
            decode::<M>(&frame[..length], is_hello).unwrap().map(|_| ()),
            None
        );
        // The same with a head that fits: the payload ends in the middle of something.
        let mut cut = frame[..length].to_vec();
        if length >= crate::HEAD_BYTES {
            let payload = u32::try_from(length - crate::HEAD_BYTES).unwrap();
            cut[..4].copy_from_slice(&payload.to_le_bytes());
            assert!(
                decode::<M>(&cut, is_hello).is_err(),
                "{length} bytes of {message:?}"
            );
        }
    }
    for bit in 0..8 * frame.len() {
        let mut flipped = frame.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(Some(Frame::Control(other))) = decode::<M>(&flipped, is_hello) {
            let again = other.encode().unwrap();
            let back = decode::<M>(&again, is_hello).unwrap().unwrap();
            assert_eq!(format!("{back:?}"), format!("Control({other:?})"));
        }
    }
}
