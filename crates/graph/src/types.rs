//! Types of values: an element type and a shape whose dimensions are fixed or a multiple of the batch.

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32, the type of all training arithmetic.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    BF16,
    /// Signed 64-bit integers: class indices, pooling indices.
    I64,
    /// One byte an element, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::I64 => 8,
            DType::Bool => 1,
        }
    }

    /// The name in the text form: `f32`, `f16`, `bf16`, `i64`, `bool`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::Bool => "bool",
        }
    }
}

/// One dimension of a shape: fixed, or a multiple of the batch size.
///
/// In text `64` is fixed, `B` is the batch and `197B` is 197 times the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number of elements that does not depend on the batch.
    Fixed(usize),
    /// This many elements for each sample of the batch; never zero.
    Batch(usize),
}

/// Element type and shape of a value. A shape without [`Dim::Batch`] is concrete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Shape, outermost dimension first.
    pub dims: Vec<Dim>,
}
