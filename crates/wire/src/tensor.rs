//! Tensors as payloads: `f32` exactly or rounded to 16 bits, everything else exactly.

use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use outboard_graph::{DType, Tensor};

use crate::error::TensorError;
use crate::message::{DataHeader, TensorEncoding};

/// Elements that are converted at a time: small enough for the stack, large enough for the processor's vector conversion.
const BLOCK: usize = 256;

/// The payload of a tensor. Copies nothing unless `f32` is rounded to 16 bits, which is to nearest even; beyond the range
/// of `f16` it becomes infinite.
pub fn encode_tensor(tensor: &Tensor, encoding: TensorEncoding) -> Bytes {
    match (tensor.dtype(), encoding) {
        (DType::F32, TensorEncoding::F16) => narrow(tensor.data(), |block, out| {
            let mut half = [f16::ZERO; BLOCK];
            let half = half.get_mut(..block.len()).unwrap_or_default();
            half.convert_from_f32_slice(block);
            out.extend(half.iter().flat_map(|x| x.to_le_bytes()));
        }),
        (DType::F32, TensorEncoding::BF16) => narrow(tensor.data(), |block, out| {
            out.extend(block.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()));
        }),
        _ => tensor.data().clone(),
    }
}

/// The tensor of a data frame. Copies nothing unless 16 bits become `f32` again.
///
/// # Errors
/// [`TensorError`] when the payload is not what the header says.
pub fn decode_tensor(header: &DataHeader, payload: &Bytes) -> Result<Tensor, TensorError> {
    let too_large = || TensorError::TooLarge {
        name: header.name.clone(),
    };
    let expected = header.payload_bytes().ok_or_else(too_large)?;
    if payload.len() as u64 != expected {
        return Err(TensorError::Length {
            name: header.name.clone(),
            payload: payload.len() as u64,
            expected,
        });
    }
    let dims = header
        .dims
        .iter()
        .map(|&dim| usize::try_from(dim))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| too_large())?;
    let data = match (header.dtype, header.encoding) {
        (DType::F32, TensorEncoding::F16) => widen(payload, |x| f16::from_le_bytes(x).to_f32()),
        (DType::F32, TensorEncoding::BF16) => widen(payload, |x| bf16::from_le_bytes(x).to_f32()),
        _ => payload.clone(),
    };
    Tensor::from_bytes(header.dtype, dims, data).map_err(|source| TensorError::Elements {
        name: header.name.clone(),
        source,
    })
}

/// Little-endian `f32` to half as many bytes, block by block.
fn narrow(data: &[u8], mut convert: impl FnMut(&[f32], &mut Vec<u8>)) -> Bytes {
    let (elements, _) = data.as_chunks::<4>();
    let mut out = Vec::with_capacity(2 * elements.len());
    let mut block = [0.0; BLOCK];
    for chunk in elements.chunks(BLOCK) {
        for (to, from) in block.iter_mut().zip(chunk) {
            *to = f32::from_le_bytes(*from);
        }
        convert(block.get(..chunk.len()).unwrap_or_default(), &mut out);
    }
    out.into()
}

/// Little-endian 16-bit floats to `f32`, exactly.
fn widen(payload: &[u8], convert: impl Fn([u8; 2]) -> f32) -> Bytes {
    let (elements, _) = payload.as_chunks::<2>();
    let mut out = Vec::with_capacity(4 * elements.len());
    for element in elements {
        out.extend_from_slice(&convert(*element).to_le_bytes());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DataKind;

    fn header(tensor: &Tensor, encoding: TensorEncoding) -> DataHeader {
        DataHeader {
            run: 0,
            step: 0,
            kind: DataKind::Activation,
            stage: 0,
            micro_batch: 0,
            name: "%1".into(),
            dtype: tensor.dtype(),
            dims: tensor.dims().iter().map(|&dim| dim as u64).collect(),
            encoding,
        }
    }

    fn there_and_back(values: &[f32], encoding: TensorEncoding) -> Vec<f32> {
        let tensor = Tensor::from_f32([values.len()], values).unwrap();
        let payload = encode_tensor(&tensor, encoding);
        decode_tensor(&header(&tensor, encoding), &payload)
            .unwrap()
            .to_f32_vec()
            .unwrap()
    }

    #[test]
    fn f32_travels_as_it_lies_in_memory() {
        let tensor = Tensor::from_f32([3], &[1.5, -0.0, f32::NAN]).unwrap();
        let payload = encode_tensor(&tensor, TensorEncoding::F32);
        assert_eq!(payload.as_ptr(), tensor.data().as_ptr());
        let back = decode_tensor(&header(&tensor, TensorEncoding::F32), &payload).unwrap();
        assert_eq!(back.data().as_ptr(), tensor.data().as_ptr());
    }

    #[test]
    fn ties_go_to_even_and_ranges_are_those_of_the_encoding() {
        let tiny = 2.0_f32.powi(-24);
        // Between 1 and the next f16, 1 + 2^-10, lies 1 + 2^-11: even is 1. The tie above it goes up.
        let step = 2.0_f32.powi(-10);
        assert_eq!(
            there_and_back(
                &[
                    1.0 + step / 2.0,
                    1.0 + 1.5 * step,
                    65_519.0,
                    65_520.0,
                    -1e6,
                    tiny,
                    tiny / 2.0
                ],
                TensorEncoding::F16
            ),
            [
                1.0,
                1.0 + 2.0 * step,
                65_504.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                tiny,
                0.0
            ]
        );
        let step = 2.0_f32.powi(-7);
        assert_eq!(
            there_and_back(
                &[
                    1.0 + step / 2.0,
                    1.0 + 1.5 * step,
                    f32::MAX,
                    1e30,
                    f32::MIN_POSITIVE
                ],
                TensorEncoding::BF16
            ),
            [
                1.0,
                1.0 + 2.0 * step,
                f32::INFINITY,
                bf16::from_f32(1e30).to_f32(),
                f32::MIN_POSITIVE
            ]
        );
        for encoding in [TensorEncoding::F16, TensorEncoding::BF16] {
            assert!(there_and_back(&[f32::NAN], encoding)[0].is_nan());
        }
    }

    #[test]
    fn the_vector_conversion_gives_the_bits_of_the_scalar_one() {
        // More than a block, so that the last one is partial; every exponent of f16 and beyond it.
        let values: Vec<f32> = (0..3 * BLOCK as u32 + 5)
            .map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9) & 0xBFFF_FFFF))
            .filter(|value| !value.is_nan())
            .collect();
        let tensor = Tensor::from_f32([values.len()], &values).unwrap();
        let expected: Vec<u8> = values
            .iter()
            .flat_map(|&value| f16::from_f32_const(value).to_le_bytes())
            .collect();
        assert_eq!(encode_tensor(&tensor, TensorEncoding::F16), expected);
    }

    #[test]
    fn every_f16_and_bf16_comes_back_as_it_was() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let halves: Vec<f32> = bits.iter().map(|&b| f16::from_bits(b).to_f32()).collect();
        let brains: Vec<f32> = bits.iter().map(|&b| bf16::from_bits(b).to_f32()).collect();
        for (values, encoding) in [
            (halves, TensorEncoding::F16),
            (brains, TensorEncoding::BF16),
        ] {
            let back = there_and_back(&values, encoding);
            for (value, back) in values.iter().zip(&back) {
                assert!(value.to_bits() == back.to_bits() || (value.is_nan() && back.is_nan()));
            }
        }
    }

    #[test]
    fn integers_and_booleans_are_exact_under_every_encoding() {
        for encoding in [
            TensorEncoding::F32,
            TensorEncoding::F16,
            TensorEncoding::BF16,
        ] {
            for tensor in [
                Tensor::from_i64([2], &[i64::MAX, -1]).unwrap(),
                Tensor::from_bool([1, 2], &[true, false]).unwrap(),
            ] {
                let payload = encode_tensor(&tensor, encoding);
                assert_eq!(
                    decode_tensor(&header(&tensor, encoding), &payload).unwrap(),
                    tensor
                );
            }
        }
    }

    #[test]
    fn a_payload_that_is_not_the_tensor_is_refused() {
        let tensor = Tensor::from_bool([2], &[true, false]).unwrap();
        let header = header(&tensor, TensorEncoding::F32);
        assert!(matches!(
            decode_tensor(&header, &Bytes::from_static(&[1])),
            Err(TensorError::Length { expected: 2, .. })
        ));
        assert!(matches!(
            decode_tensor(&header, &Bytes::from_static(&[1, 7])),
            Err(TensorError::Elements { .. })
        ));
        let mut huge = header;
        huge.dims = vec![u64::MAX, 3];
        assert!(matches!(
            decode_tensor(&huge, &Bytes::new()),
            Err(TensorError::TooLarge { .. })
        ));
    }
}
