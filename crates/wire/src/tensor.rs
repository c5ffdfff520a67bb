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
