//! A tensor in host memory, as it lies in files and on the wire.

use bytes::Bytes;

use crate::DType;

/// A dense tensor: row-major, little-endian, reference-counted bytes. Cloning copies no data.
///
/// Invariant, kept by the constructors: `data.len() == product(dims) * dtype.bytes()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    data: Bytes,
}
