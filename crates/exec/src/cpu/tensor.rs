//! The engine's tensor: a Burn Flex primitive that is always contiguous and alone in its buffer.

use burn_backend::{BoolStore, Bytes, DType as BurnType, Shape};
use burn_flex::{FlexTensor, Layout};
use outboard_graph::{DType, Tensor};

use super::strided::gathered;
use crate::ExecError;

/// A tensor in this engine's memory. Cloning copies no data.
///
/// Invariant: row-major from offset 0, and its buffer holds its elements and nothing else. So a handle keeps no memory
/// alive beyond its own size, which the plan of memory counts on, and every operator may see it as one slice.
#[derive(Clone, Debug)]
pub struct CpuTensor(FlexTensor);

impl CpuTensor {
    /// Takes over a primitive; copies it when it is a view.
    pub(super) fn from_flex(tensor: FlexTensor) -> Self {
        let elements = tensor.layout().num_elements();
        let alone = tensor.layout().contiguous_offsets() == Some((0, elements))
            && tensor.bytes().len() == elements * tensor.dtype().size();
        if alone {
            return CpuTensor(tensor);
        }
        let layout = tensor.layout();
        let bytes = match tensor.dtype() {
            BurnType::F32 => Bytes::from_elems(gathered::<f32>(tensor.storage(), layout)),
            BurnType::I64 => Bytes::from_elems(gathered::<i64>(tensor.storage(), layout)),
            BurnType::F16 => Bytes::from_elems(gathered::<half::f16>(tensor.storage(), layout)),
            BurnType::BF16 => Bytes::from_elems(gathered::<half::bf16>(tensor.storage(), layout)),
            _ => Bytes::from_elems(gathered(tensor.bytes(), layout)),
        };
        let layout = Layout::contiguous(layout.shape().clone());
        CpuTensor(FlexTensor::new(bytes, layout, tensor.dtype()))
    }

    /// The primitive.
    pub(super) fn flex(&self) -> &FlexTensor {
        &self.0
    }

    /// The primitive, for operators that work in place when nobody else holds it.
    pub(super) fn into_flex(self) -> FlexTensor {
        self.0
    }

    fn new(dims: &[usize], bytes: Bytes, dtype: DType) -> Self {
        let layout = Layout::contiguous(Shape::from(dims.to_vec()));
        CpuTensor(FlexTensor::new(bytes, layout, burn_type(dtype)))
    }

    /// An `f32` tensor; there are as many elements as the shape says.
    pub(super) fn from_f32(dims: &[usize], elements: Vec<f32>) -> Self {
        debug_assert_eq!(elements.len(), dims.iter().product::<usize>());
        Self::new(dims, Bytes::from_elems(elements), DType::F32)
    }

    /// An `i64` tensor.
    pub(super) fn from_i64(dims: &[usize], elements: Vec<i64>) -> Self {
        debug_assert_eq!(elements.len(), dims.iter().product::<usize>());
        Self::new(dims, Bytes::from_elems(elements), DType::I64)
    }

    /// A `bool` tensor of bytes 0 and 1.
    pub(super) fn from_bool(dims: &[usize], elements: Vec<u8>) -> Self {
        debug_assert_eq!(elements.len(), dims.iter().product::<usize>());
        Self::new(dims, Bytes::from_elems(elements), DType::Bool)
    }

    /// A tensor of two-byte floats.
    pub(super) fn from_half(dims: &[usize], bits: Vec<u16>, dtype: DType) -> Self {
        debug_assert_eq!(bits.len(), dims.iter().product::<usize>());
        Self::new(dims, Bytes::from_elems(bits), dtype)
    }

    /// Copies a host tensor.
    pub(super) fn upload(tensor: &Tensor) -> Result<Self, ExecError> {
        let data = tensor.data();
        let dims = tensor.dims();
        Ok(match tensor.dtype() {
            DType::F32 => Self::from_f32(dims, words(data, f32::from_le_bytes)),
            DType::I64 => Self::from_i64(dims, words(data, i64::from_le_bytes)),
            DType::Bool => Self::from_bool(dims, data.to_vec()),
            dtype @ (DType::F16 | DType::BF16) => {
                Self::from_half(dims, words(data, u16::from_le_bytes), dtype)
            }
        })
    }

    /// Copies to the host.
    pub(super) fn download(&self) -> Result<Tensor, ExecError> {
        let dtype = self.dtype();
        let bytes = if cfg!(target_endian = "little") {
            self.0.bytes().to_vec()
        } else {
            let mut bytes = self.0.bytes().to_vec();
            for element in bytes.chunks_exact_mut(dtype.bytes()) {
                element.reverse();
            }
            bytes
        };
        Tensor::from_bytes(dtype, self.dims(), bytes.into())
            .map_err(|error| ExecError::Invalid(format!("download: {error}")))
    }

    /// Sizes, outermost first.
    pub(super) fn dims(&self) -> &[usize] {
        self.0.layout().shape().as_slice()
    }

    /// Number of elements.
    pub(super) fn elements(&self) -> usize {
        self.0.layout().num_elements()
    }

    /// Element type.
    pub(super) fn dtype(&self) -> DType {
        match self.0.dtype() {
            BurnType::F16 => DType::F16,
            BurnType::BF16 => DType::BF16,
            BurnType::I64 => DType::I64,
            BurnType::Bool(_) => DType::Bool,
            // No other type is ever made: see `burn_type`.
            _ => DType::F32,
        }
    }

    /// The elements of an `f32` tensor.
    pub(super) fn f32s(&self) -> &[f32] {
        self.0.storage()
    }

    /// The elements of an `i64` tensor.
    pub(super) fn i64s(&self) -> &[i64] {
        self.0.storage()
    }

    /// The elements of a `bool` tensor, 0 or 1.
    pub(super) fn bools(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes of any tensor, in the machine's order.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The elements of an `f32` tensor to be changed in place; `None` when someone else holds it too.
    pub(super) fn f32s_mut(&mut self) -> Option<&mut [f32]> {
        self.0.try_storage_mut()
    }

    /// The elements of an `f32` tensor to be changed in place, copied first when someone else holds it too.
    pub(super) fn f32s_unshared(&mut self) -> &mut [f32] {
        self.0.storage_mut()
    }

    /// The same elements in another shape of the same size; copies nothing.
    pub(super) fn reshaped(self, dims: &[usize]) -> Self {
        debug_assert_eq!(self.elements(), dims.iter().product::<usize>());
        let layout = Layout::contiguous(Shape::from(dims.to_vec()));
        CpuTensor(self.0.with_layout(layout))
    }
}

fn burn_type(dtype: DType) -> BurnType {
    match dtype {
        DType::F32 => BurnType::F32,
        DType::F16 => BurnType::F16,
        DType::BF16 => BurnType::BF16,
        DType::I64 => BurnType::I64,
        DType::Bool => BurnType::Bool(BoolStore::Native),
    }
}

fn words<const N: usize, T>(data: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (words, _) = data.as_chunks::<N>();
    words.iter().map(|word| read(*word)).collect()
}
