//! The engine's tensor: a Burn Flex primitive that is always contiguous and alone in its buffer.
//!
//! Images go through convolution, normalisation and pooling *channels last*: the channels of a pixel side by side. A
//! tensor says which order its elements lie in; its dimensions are the program's, whatever the order.

use burn_backend::{BoolStore, Bytes, DType as BurnType, Shape};
use burn_flex::{FlexTensor, Layout};
use outboard_graph::{DType, Tensor};
use outboard_kernels as kernels;

use super::recycle::Recycled;
use super::strided::gathered;
use crate::ExecError;

/// In which order the elements of `[N, C, ...]` lie. With fewer than three dimensions there is one order only, `First`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As the dimensions say: channels first.
    First,
    /// `[N, ..., C]`.
    Last,
}

impl Order {
    /// This order where a tensor of some dimensions can lie in it.
    pub(super) fn of(self, dims: &[usize]) -> Self {
        if dims.len() < 3 { Order::First } else { self }
    }
}

/// A tensor in this engine's memory. Cloning copies no data.
///
/// Invariant: contiguous from offset 0, and its buffer holds its elements and nothing else. So a handle keeps no memory
/// alive beyond its own size, which the plan of memory counts on, and every operator may see it as one slice.
#[derive(Clone, Debug)]
pub struct CpuTensor {
    /// Its shape is the order in memory.
    flex: FlexTensor,
    /// The program's dimensions, where the channels lie last.
    dims_of_last: Option<Box<[usize]>>,
}

impl CpuTensor {
    /// Takes over a primitive; copies it when it is a view.
    pub(super) fn from_flex(tensor: FlexTensor) -> Self {
        let elements = tensor.layout().num_elements();
        let alone = tensor.layout().contiguous_offsets() == Some((0, elements))
            && tensor.bytes().len() == elements * tensor.dtype().size();
        if alone {
            return Self::first(tensor);
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
        Self::first(FlexTensor::new(bytes, layout, tensor.dtype()))
    }

    fn first(flex: FlexTensor) -> Self {
        CpuTensor {
            flex,
            dims_of_last: None,
        }
    }

    /// The primitive of a tensor whose channels lie first.
    pub(super) fn flex(&self) -> &FlexTensor {
        debug_assert_eq!(self.order(), Order::First);
        &self.flex
    }

    /// The same, for operators that work in place when nobody else holds it.
    pub(super) fn into_flex(self) -> FlexTensor {
        self.in_order(Order::First).flex
    }

    /// The order of its elements.
    pub(super) fn order(&self) -> Order {
        match self.dims_of_last {
            None => Order::First,
            Some(_) => Order::Last,
        }
    }

    /// The same tensor in an order; a copy where it lies in the other one.
    pub(super) fn in_order(self, order: Order) -> Self {
        let order = order.of(self.dims());
        if self.order() == order {
            return self;
        }
        let (dims, moved) = (self.dims().to_vec(), self.turned());
        match order {
            Order::First => moved,
            Order::Last => moved.with_last(&dims),
        }
    }

    /// Its elements in the other order, as if that were channels first.
    fn turned(&self) -> Self {
        let sizes = self.flex.layout().shape().as_slice();
        let (images, rows) = (sizes[0], sizes[1]);
        let inner: usize = sizes[2..].iter().product();
        let [images, rows, columns] = match self.order() {
            Order::First => [images, rows, inner],
            // `[N, ..., C]`.
            Order::Last => {
                let channels = sizes[sizes.len() - 1];
                [images, rows * inner / channels, channels]
            }
        };
        let to: Vec<usize> = match self.order() {
            Order::First => last_of(sizes),
            Order::Last => self.dims().to_vec(),
        };
        if self.dtype() == DType::F32 {
            let mut out = vec![0.0; self.elements()];
            kernels::turn(self.f32s(), rows, columns, &mut out, kernels::Isa::best());
            return Self::from_f32(&to, out);
        }
        let strides = [rows * columns, 1, columns].map(usize::cast_signed);
        let layout = Layout::new(
            Shape::from(vec![images, columns, rows]),
            strides.to_vec(),
            0,
        );
        let turned = Self::from_flex(self.flex.clone().with_layout(layout));
        let layout = Layout::contiguous(Shape::from(to));
        Self::first(turned.flex.with_layout(layout))
    }

    /// Takes `[N, ..., C]`, made as channels first, for `dims` with the channels last.
    fn with_last(mut self, dims: &[usize]) -> Self {
        debug_assert_eq!(self.flex.layout().shape().as_slice(), last_of(dims));
        self.dims_of_last = Some(dims.into());
        self
    }

    /// An `f32` tensor of `dims` whose elements lie in `order`.
    pub(super) fn from_f32_in(order: Order, dims: &[usize], elements: Vec<f32>) -> Self {
        match order.of(dims) {
            Order::First => Self::from_f32(dims, elements),
            Order::Last => Self::from_f32(&last_of(dims), elements).with_last(dims),
        }
    }

    /// A tensor of `dims` whose elements lie in `order` in recycled memory.
    pub(super) fn from_recycled(
        dtype: DType,
        order: Order,
        dims: &[usize],
        elements: Recycled,
    ) -> Self {
        let bytes = elements.into_bytes();
        match order.of(dims) {
            Order::First => Self::new(dims, bytes, dtype),
            Order::Last => Self::new(&last_of(dims), bytes, dtype).with_last(dims),
        }
    }

    /// An `f32` tensor of this one's shape and order.
    pub(super) fn like(&self, elements: Vec<f32>) -> Self {
        Self::from_f32_in(self.order(), self.dims(), elements)
    }

    fn new(dims: &[usize], bytes: Bytes, dtype: DType) -> Self {
        let layout = Layout::contiguous(Shape::from(dims.to_vec()));
        Self::first(FlexTensor::new(bytes, layout, burn_type(dtype)))
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
        if self.order() == Order::Last {
            return self.turned().download();
        }
        let dtype = self.dtype();
        let bytes = if cfg!(target_endian = "little") {
            self.flex.bytes().to_vec()
        } else {
            let mut bytes = self.flex.bytes().to_vec();
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
        match &self.dims_of_last {
            Some(dims) => dims,
            None => self.flex.layout().shape().as_slice(),
        }
    }

    /// Number of elements.
    pub(super) fn elements(&self) -> usize {
        self.flex.layout().num_elements()
    }

    /// Element type.
    pub(super) fn dtype(&self) -> DType {
        match self.flex.dtype() {
            BurnType::F16 => DType::F16,
            BurnType::BF16 => DType::BF16,
            BurnType::I64 => DType::I64,
            BurnType::Bool(_) => DType::Bool,
            // No other type is ever made: see `burn_type`.
            _ => DType::F32,
        }
    }

    /// The elements of an `f32` tensor, in its order.
    pub(super) fn f32s(&self) -> &[f32] {
        self.flex.storage()
    }

    /// The elements of an `i64` tensor.
    pub(super) fn i64s(&self) -> &[i64] {
        self.flex.storage()
    }

    /// The elements of a `bool` tensor, 0 or 1.
    pub(super) fn bools(&self) -> &[u8] {
        self.flex.bytes()
    }

    /// The bytes of any tensor, in the machine's order.
    pub(super) fn bytes(&self) -> &[u8] {
        self.flex.bytes()
    }

    /// The elements of an `f32` tensor to be changed in place; `None` when someone else holds it too.
    pub(super) fn f32s_mut(&mut self) -> Option<&mut [f32]> {
        self.flex.try_storage_mut()
    }

    /// The elements of an `f32` tensor to be changed in place, copied first when someone else holds it too.
    pub(super) fn f32s_unshared(&mut self) -> &mut [f32] {
        self.flex.storage_mut()
    }

    /// The same elements in another shape of the same size; copies nothing.
    pub(super) fn reshaped(self, dims: &[usize]) -> Self {
        debug_assert_eq!(self.elements(), dims.iter().product::<usize>());
        let layout = Layout::contiguous(Shape::from(dims.to_vec()));
        Self::first(self.in_order(Order::First).flex.with_layout(layout))
    }
}

/// `[N, C, ...]` as `[N, ..., C]`.
fn last_of(dims: &[usize]) -> Vec<usize> {
    let mut last = dims.to_vec();
    if let Some(from_channels) = last.get_mut(1..) {
        from_channels.rotate_left(1);
    }
    last
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
