//! A tensor in host memory, as it lies in files and on the wire.

use bytes::Bytes;

use crate::{DType, TensorType};

/// A dense tensor: row-major, little-endian, reference-counted bytes. Cloning copies no data.
///
/// Invariant, kept by the constructors: `data.len() == product(dims) * dtype.bytes()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<usize>,
    data: Bytes,
}

/// Bytes that do not fit the shape they are said to have, or elements asked for as another type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The product of the dimensions does not fit a machine word.
    #[error("a tensor of shape {0:?} does not fit this machine")]
    TooLarge(Vec<usize>),
    /// The number of bytes is not that of the shape.
    #[error("a {dtype} tensor of shape {dims:?} has {expected} bytes, not {given}")]
    Size {
        /// Element type.
        dtype: DType,
        /// Shape.
        dims: Vec<usize>,
        /// Bytes of that shape.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// The elements have another type than the one asked for.
    #[error("the tensor holds {found}, not {wanted}")]
    DType {
        /// Type of its elements.
        found: DType,
        /// Type asked for.
        wanted: DType,
    },
    /// A byte of a `bool` tensor that is neither 0 nor 1.
    #[error("byte {index} of a bool tensor is {value}, neither 0 nor 1")]
    NotBool {
        /// Where.
        index: usize,
        /// What stands there.
        value: u8,
    },
}

impl Tensor {
    /// A tensor over these bytes, row-major and little-endian; copies nothing.
    pub fn from_bytes(
        dtype: DType,
        dims: impl Into<Vec<usize>>,
        data: Bytes,
    ) -> Result<Self, TensorError> {
        let dims = dims.into();
        let expected =
            byte_count(dtype, &dims).ok_or_else(|| TensorError::TooLarge(dims.clone()))?;
        if expected != data.len() {
            let given = data.len();
            return Err(TensorError::Size {
                dtype,
                dims,
                expected,
                given,
            });
        }
        if dtype == DType::Bool
            && let Some(index) = data.iter().position(|&byte| byte > 1)
        {
            let value = data.get(index).copied().unwrap_or_default();
            return Err(TensorError::NotBool { index, value });
        }
        Ok(Tensor { dtype, dims, data })
    }

    /// An `f32` tensor of these elements, row-major.
    pub fn from_f32(dims: impl Into<Vec<usize>>, elements: &[f32]) -> Result<Self, TensorError> {
        let data: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::from_bytes(DType::F32, dims, data.into())
    }

    /// An `i64` tensor of these elements, row-major.
    pub fn from_i64(dims: impl Into<Vec<usize>>, elements: &[i64]) -> Result<Self, TensorError> {
        let data: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::from_bytes(DType::I64, dims, data.into())
    }

    /// A `bool` tensor of these elements, row-major.
    pub fn from_bool(dims: impl Into<Vec<usize>>, elements: &[bool]) -> Result<Self, TensorError> {
        let data: Vec<u8> = elements.iter().map(|&x| u8::from(x)).collect();
        Tensor::from_bytes(DType::Bool, dims, data.into())
    }

    /// An `f32` tensor of shape `[]`.
    pub fn scalar(element: f32) -> Self {
        Tensor {
            dtype: DType::F32,
            dims: Vec::new(),
            data: Bytes::copy_from_slice(&element.to_le_bytes()),
        }
    }

    /// A tensor of zeros. The caller bounds the size: the memory is taken at once.
    pub fn zeros(dtype: DType, dims: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let dims = dims.into();
        let bytes = byte_count(dtype, &dims).ok_or_else(|| TensorError::TooLarge(dims.clone()))?;
        // `vec![0; n]` aborts when memory runs out; reserving first makes that an error.
        let mut data = Vec::new();
        data.try_reserve_exact(bytes)
            .map_err(|_| TensorError::TooLarge(dims.clone()))?;
        data.resize(bytes, 0);
        Ok(Tensor {
            dtype,
            dims,
            data: data.into(),
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, outermost dimension first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Element type and shape.
    pub fn ty(&self) -> TensorType {
        TensorType::fixed(self.dtype, &self.dims)
    }

    /// The bytes, row-major and little-endian.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The bytes, without a copy.
    pub fn into_data(self) -> Bytes {
        self.data
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.data.len() / self.dtype.bytes()
    }

    /// The elements of an `f32` tensor.
    pub fn to_f32_vec(&self) -> Result<Vec<f32>, TensorError> {
        self.expect_dtype(DType::F32)?;
        let (elements, _) = self.data.as_chunks::<4>();
        Ok(elements.iter().map(|x| f32::from_le_bytes(*x)).collect())
    }

    /// The elements of an `i64` tensor.
    pub fn to_i64_vec(&self) -> Result<Vec<i64>, TensorError> {
        self.expect_dtype(DType::I64)?;
        let (elements, _) = self.data.as_chunks::<8>();
        Ok(elements.iter().map(|x| i64::from_le_bytes(*x)).collect())
    }

    /// The elements of a `bool` tensor.
    pub fn to_bool_vec(&self) -> Result<Vec<bool>, TensorError> {
        self.expect_dtype(DType::Bool)?;
        Ok(self.data.iter().map(|&x| x != 0).collect())
    }

    /// The same elements in another shape; copies nothing.
    pub fn reshaped(&self, dims: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        Tensor::from_bytes(self.dtype, dims, self.data.clone())
    }

    fn expect_dtype(&self, wanted: DType) -> Result<(), TensorError> {
        if self.dtype == wanted {
            Ok(())
        } else {
            Err(TensorError::DType {
                found: self.dtype,
                wanted,
            })
        }
    }
}

/// Bytes of a dense tensor; `None` when they do not fit a machine word.
fn byte_count(dtype: DType, dims: &[usize]) -> Option<usize> {
    dims.iter()
        .try_fold(dtype.bytes(), |product, &dim| product.checked_mul(dim))
        // The largest allocation that Rust accepts.
        .filter(|&bytes| bytes <= isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back() {
        let t = Tensor::from_f32([2, 2], &[1.0, -2.5, 3.0, f32::MIN_POSITIVE]).unwrap();
        assert_eq!(t.dims(), [2, 2]);
        assert_eq!(t.elements(), 4);
        assert_eq!(t.to_f32_vec().unwrap(), [1.0, -2.5, 3.0, f32::MIN_POSITIVE]);
        assert_eq!(
            t.to_i64_vec().unwrap_err(),
            TensorError::DType {
                found: DType::F32,
                wanted: DType::I64
            }
        );
        let t = Tensor::from_i64([3], &[i64::MIN, 0, 7]).unwrap();
        assert_eq!(t.to_i64_vec().unwrap(), [i64::MIN, 0, 7]);
        let t = Tensor::from_bool([2], &[true, false]).unwrap();
        assert_eq!(t.to_bool_vec().unwrap(), [true, false]);
        assert_eq!(Tensor::scalar(2.0).to_f32_vec().unwrap(), [2.0]);
    }

    #[test]
    fn sizes_are_checked() {
        let bytes = Bytes::from_static(&[0; 12]);
        assert!(Tensor::from_bytes(DType::F32, [3], bytes.clone()).is_ok());
        assert!(matches!(
            Tensor::from_bytes(DType::F32, [2], bytes.clone()),
            Err(TensorError::Size {
                expected: 8,
                given: 12,
                ..
            })
        ));
        let huge = vec![usize::MAX, 2];
        assert_eq!(
            Tensor::from_bytes(DType::F32, huge.clone(), bytes),
            Err(TensorError::TooLarge(huge.clone()))
        );
        assert_eq!(
            Tensor::zeros(DType::Bool, huge.clone()),
            Err(TensorError::TooLarge(huge))
        );
        assert_eq!(
            Tensor::from_bytes(DType::Bool, [2], Bytes::from_static(&[1, 2])),
            Err(TensorError::NotBool { index: 1, value: 2 })
        );
    }
}
