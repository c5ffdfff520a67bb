//! The data frame: a compact head that a router reads, then the encoded tensor.
//!
//! The payload of a data frame, all integers little-endian:
//!
//! ```text
//! byte  0      1       2          3      4       6             8     12     20
//!      | kind | dtype | encoding | rank | stage | micro-batch | run | step | name length |
//!      | u8   | u8    | u8       | u8   | u16   | u16         | u32 | u64  | u16         |
//! byte 22         22 + 8 rank
//!      | dims      | name  | elements, row-major, to the end of the frame |
//!      | rank x u64| UTF-8 | exactly as many bytes as dims and encoding make |
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use outboard_graph::DType;

use crate::codes::Coded;
use crate::control::limits::{NAME_BYTES, RANK};
use crate::error::{DecodeError, EncodeError};
use crate::frame::{HEAD_BYTES, frame_kind, number};
use crate::message::{DataHeader, DataKind, TensorEncoding};

/// Bytes of the data head before dims and name.
const FIXED_BYTES: usize = 22;

/// Bytes of one element on the wire: `f32` is encoded, everything else travels as it is.
pub fn element_bytes(dtype: DType, encoding: TensorEncoding) -> usize {
    match (dtype, encoding) {
        (DType::F32, TensorEncoding::F16 | TensorEncoding::BF16) => 2,
        _ => dtype.bytes(),
    }
}

impl DataHeader {
    /// Bytes of the encoded tensor; `None` beyond 64 bits.
    pub fn payload_bytes(&self) -> Option<u64> {
        let element = element_bytes(self.dtype, self.encoding) as u64;
        self.dims
            .iter()
            .try_fold(element, |bytes, dim| bytes.checked_mul(*dim))
    }

    /// Bytes of the whole frame, which is what flow control counts; `None` beyond 64 bits.
    pub fn frame_bytes(&self) -> Option<u64> {
        self.payload_bytes()?
            .checked_add((HEAD_BYTES + self.head_bytes()) as u64)
    }

    fn head_bytes(&self) -> usize {
        FIXED_BYTES + 8 * self.dims.len() + self.name.len()
    }
}

/// A data frame in two pieces, so that a large payload is not copied: the head, and `payload` as given.
///
/// # Errors
/// [`EncodeError`] when the name or rank is over its limit, or the payload is not the size that the header makes.
pub fn encode_data(header: &DataHeader, payload: Bytes) -> Result<[Bytes; 2], EncodeError> {
    let out_of_bounds = |what, unit, length, limit| EncodeError::OutOfBounds {
        what,
        unit,
        length,
        limit,
    };
    let name_bytes = u16::try_from(header.name.len())
        .ok()
        .filter(|_| header.name.len() <= NAME_BYTES)
        .ok_or_else(|| out_of_bounds("name of a tensor", "bytes", header.name.len(), NAME_BYTES))?;
    let rank = u8::try_from(header.dims.len())
        .ok()
        .filter(|_| header.dims.len() <= RANK)
        .ok_or_else(|| out_of_bounds("shape of a tensor", "entries", header.dims.len(), RANK))?;
    let expected = header.payload_bytes().unwrap_or(u64::MAX);
    if payload.len() as u64 != expected {
        return Err(EncodeError::Payload {
            name: header.name.clone(),
            payload: payload.len() as u64,
            expected,
        });
    }
    let length = header.head_bytes() as u64 + expected;
    let limit = frame_kind(number::DATA).map_or(0, |kind| kind.limit);
    let announced = u32::try_from(length)
        .ok()
        .filter(|&length| length <= limit)
        .ok_or(EncodeError::TooLong {
            frame: "Data",
            length,
            limit: u64::from(limit),
        })?;

    let mut head = BytesMut::with_capacity(HEAD_BYTES + header.head_bytes());
    head.put_u32_le(announced);
    head.put_u16_le(number::DATA);
    head.put_u8(header.kind.code());
    head.put_u8(header.dtype.code());
    head.put_u8(header.encoding.code());
    head.put_u8(rank);
    head.put_u16_le(header.stage);
    head.put_u16_le(header.micro_batch);
    head.put_u32_le(header.run);
    head.put_u64_le(header.step);
    head.put_u16_le(name_bytes);
    for dim in &header.dims {
        head.put_u64_le(*dim);
    }
    head.put_slice(header.name.as_bytes());
    Ok([head.freeze(), payload])
}

/// Reads the data head from the start of a data frame's payload, of which `announced` bytes will come. `None` while too
/// little of it has come. A length that does not fit the head is found here, long before the tensor has arrived.
pub(crate) fn decode_head(
    body: &[u8],
    announced: u32,
) -> Result<Option<(DataHeader, usize)>, DecodeError> {
    let malformed = |cause| DecodeError::Malformed {
        frame: "Data",
        cause,
    };
    if (announced as usize) < FIXED_BYTES {
        return Err(malformed("it is shorter than its head"));
    }
    let Some((fixed, rest)) = body.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(None);
    };
    let [
        kind,
        dtype,
        encoding,
        rank,
        s0,
        s1,
        m0,
        m1,
        r0,
        r1,
        r2,
        r3,
        t0,
        t1,
        t2,
        t3,
        t4,
        t5,
        t6,
        t7,
        n0,
        n1,
    ] = *fixed;
    let rank = usize::from(rank);
    let name_bytes = usize::from(u16::from_le_bytes([n0, n1]));
    if rank > RANK {
        return Err(malformed("its tensor has too many dimensions"));
    }
    if name_bytes > NAME_BYTES {
        return Err(malformed("its name is too long"));
    }
    let head_bytes = FIXED_BYTES + 8 * rank + name_bytes;
    if (announced as usize) < head_bytes {
        return Err(malformed("it is shorter than its head"));
    }
    let Some((dims, rest)) = rest.split_at_checked(8 * rank) else {
        return Ok(None);
    };
    let Some(name) = rest.get(..name_bytes) else {
        return Ok(None);
    };
    let (dims, _) = dims.as_chunks::<8>();
    let header = DataHeader {
        run: u32::from_le_bytes([r0, r1, r2, r3]),
        step: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
        kind: DataKind::from_code(kind).ok_or_else(|| malformed("its kind is unknown"))?,
        stage: u16::from_le_bytes([s0, s1]),
        micro_batch: u16::from_le_bytes([m0, m1]),
        name: str::from_utf8(name)
            .map_err(|_| malformed("its name is not UTF-8"))?
            .to_owned(),
        dtype: DType::from_code(dtype).ok_or_else(|| malformed("its element type is unknown"))?,
        dims: dims.iter().map(|dim| u64::from_le_bytes(*dim)).collect(),
        encoding: TensorEncoding::from_code(encoding)
            .ok_or_else(|| malformed("its encoding is unknown"))?,
    };
    let expected = header
        .payload_bytes()
        .and_then(|bytes| bytes.checked_add(head_bytes as u64))
        .ok_or_else(|| malformed("its tensor has more than 2^64 bytes"))?;
    if expected != u64::from(announced) {
        return Err(DecodeError::DataLength {
            announced: u64::from(announced),
            expected,
        });
    }
    Ok(Some((header, head_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bytes, greeted};
    use crate::{Frame, WorkerMessage};

    fn header() -> DataHeader {
        DataHeader {
            run: 1,
            step: 130,
            kind: DataKind::Activation,
            stage: 3,
            micro_batch: 2,
            name: "%7".into(),
            dtype: DType::F32,
            dims: vec![1, 2],
            encoding: TensorEncoding::F16,
        }
    }

    // Head; kind, type, encoding, rank; stage, micro-batch; run; step; length of the name; dims; name; 1.0 and -2.0.
    const GOLDEN: &str = "2c000000 2000 | 01 00 01 02 0300 0200 01000000 8200000000000000 0200 \
        0100000000000000 0200000000000000 2537 003c 00c0";

    #[test]
    fn golden() {
        let payload = Bytes::from_static(&[0x00, 0x3c, 0x00, 0xc0]);
        let pieces = encode_data(&header(), payload.clone()).unwrap();
        let frame = pieces.concat();
        assert_eq!(frame, bytes(GOLDEN));
        assert_eq!(header().frame_bytes(), Some(frame.len() as u64));

        let mut decoder = greeted::<WorkerMessage>();
        decoder.push(frame.clone().into());
        let Some(Frame::Data(data)) = decoder.poll().unwrap() else {
            panic!("no data frame came");
        };
        assert_eq!(data.header, header());
        assert_eq!(data.payload, payload);
        assert_eq!(data.frame, frame, "a router forwards the frame as it came");
    }

    #[test]
    fn an_announced_length_that_does_not_fit_is_found_before_the_tensor_comes() {
        for wrong in [-1, 1, 1 << 20] {
            let mut frame = bytes(GOLDEN);
            let length = 0x2c + wrong;
            frame[..4].copy_from_slice(&i32::to_le_bytes(length));
            frame.truncate(frame.len() - 4);
            let mut decoder = greeted::<WorkerMessage>();
            decoder.push(frame.into());
            assert_eq!(
                decoder.poll(),
                Err(DecodeError::DataLength {
                    announced: u64::try_from(length).unwrap(),
                    expected: 0x2c
                })
            );
        }
    }

    #[test]
    fn shapes_that_overflow_are_refused() {
        let mut huge = header();
        huge.dims = vec![u64::MAX, u64::MAX];
        assert_eq!(huge.frame_bytes(), None);
        assert!(matches!(
            encode_data(&huge, Bytes::new()),
            Err(EncodeError::Payload { .. })
        ));
        let mut frame = bytes(GOLDEN);
        for byte in &mut frame[28..44] {
            *byte = 0xff;
        }
        let mut decoder = greeted::<WorkerMessage>();
        decoder.push(frame.into());
        assert!(matches!(
            decoder.poll(),
            Err(DecodeError::Malformed { frame: "Data", .. })
        ));
    }

    #[test]
    fn mutations_never_do_worse_than_an_error() {
        let golden = bytes(GOLDEN);
        for length in 0..golden.len() {
            let mut decoder = greeted::<WorkerMessage>();
            decoder.push(golden[..length].to_vec().into());
            assert_eq!(decoder.poll(), Ok(None));
            assert_eq!(decoder.finish().is_ok(), length == 0);
        }
        for bit in 0..8 * golden.len() {
            let mut frame = golden.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = greeted::<WorkerMessage>();
            decoder.push(frame.clone().into());
            if let Ok(Some(Frame::Data(data))) = decoder.poll() {
                let again = encode_data(&data.header, data.payload).unwrap().concat();
                assert_eq!(again, frame[..again.len()]);
            }
        }
    }

    #[test]
    fn names_and_ranks_are_bounded() {
        let mut long = header();
        long.name = "x".repeat(NAME_BYTES + 1);
        assert!(matches!(
            encode_data(&long, Bytes::from_static(&[0; 4])),
            Err(EncodeError::OutOfBounds { limit: 512, .. })
        ));
        let mut deep = header();
        deep.dims = vec![1; RANK + 1];
        assert!(matches!(
            encode_data(&deep, Bytes::from_static(&[0; 2])),
            Err(EncodeError::OutOfBounds { limit: 16, .. })
        ));
        let mut scalar = header();
        scalar.dims = vec![];
        assert!(encode_data(&scalar, Bytes::from_static(&[0; 2])).is_ok());
    }
}
