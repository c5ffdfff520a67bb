//! Types of values: an element type and a shape whose dimensions are fixed or a multiple of the batch.

use std::fmt;
use std::str::FromStr;

/// Most dimensions of a shape.
pub const MAX_RANK: usize = 8;

/// Largest size of one dimension (and factor of the batch): what every engine can index.
pub const MAX_DIM: usize = i32::MAX as usize;

/// Most elements of one tensor, or elements a sample when the shape depends on the batch: 2^40.
pub const MAX_ELEMENTS: u64 = 1 << 40;

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
    /// All element types.
    pub const ALL: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::Bool];

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

    /// Whether values of this type have gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type or dimension that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct ParseTypeError {
    text: String,
    wanted: &'static str,
}

impl ParseTypeError {
    fn new(text: &str, wanted: &'static str) -> Self {
        // An error quotes at most a line's worth of what a stranger sent.
        ParseTypeError {
            text: text.chars().take(80).collect(),
            wanted,
        }
    }
}

impl FromStr for DType {
    type Err = ParseTypeError;

    fn from_str(text: &str) -> Result<Self, ParseTypeError> {
        DType::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| {
                ParseTypeError::new(text, "an element type (f32, f16, bf16, i64 or bool)")
            })
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

impl Dim {
    /// The batch itself.
    pub const B: Dim = Dim::Batch(1);

    /// The size when it does not depend on the batch.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(size) => Some(size),
            Dim::Batch(_) => None,
        }
    }

    /// Whether the size depends on the batch.
    pub fn is_batch(self) -> bool {
        matches!(self, Dim::Batch(_))
    }

    /// The size for this batch; `None` when it does not fit a machine word.
    pub fn at(self, batch: usize) -> Option<usize> {
        match self {
            Dim::Fixed(size) => Some(size),
            Dim::Batch(factor) => factor.checked_mul(batch),
        }
    }

    /// The size, or the factor of the batch.
    pub fn factor(self) -> usize {
        match self {
            Dim::Fixed(size) | Dim::Batch(size) => size,
        }
    }

    /// This dimension times a fixed number; `None` on overflow.
    pub fn times(self, factor: usize) -> Option<Dim> {
        Some(match self {
            Dim::Fixed(size) => Dim::Fixed(size.checked_mul(factor)?),
            Dim::Batch(size) => Dim::Batch(size.checked_mul(factor)?),
        })
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Self {
        Dim::Fixed(size)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(f, "{size}"),
            Dim::Batch(1) => f.write_str("B"),
            Dim::Batch(factor) => write!(f, "{factor}B"),
        }
    }
}

impl FromStr for Dim {
    type Err = ParseTypeError;

    fn from_str(text: &str) -> Result<Self, ParseTypeError> {
        let wrong = || ParseTypeError::new(text, "a dimension (`64`, `B` or `197B`)");
        let number = |digits: &str| {
            // `usize::from_str` would take a sign too, and leading zeros would print back differently.
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits == "0" || !digits.starts_with('0'));
            plain
                .then(|| digits.parse::<usize>().ok())
                .flatten()
                .ok_or_else(wrong)
        };
        match text.strip_suffix('B') {
            None => Ok(Dim::Fixed(number(text)?)),
            Some("") => Ok(Dim::B),
            Some(factor) => match number(factor)? {
                0 | 1 => Err(wrong()),
                factor => Ok(Dim::Batch(factor)),
            },
        }
    }
}

/// Element type and shape of a value. A shape without [`Dim::Batch`] is concrete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Shape, outermost dimension first.
    pub dims: Vec<Dim>,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = Dim>) -> Self {
        TensorType {
            dtype,
            dims: dims.into_iter().collect(),
        }
    }

    /// A concrete type.
    pub fn fixed(dtype: DType, dims: &[usize]) -> Self {
        TensorType::new(dtype, dims.iter().copied().map(Dim::Fixed))
    }

    /// A type whose first dimension is the batch.
    pub fn batched(dtype: DType, sample: &[usize]) -> Self {
        let sample = sample.iter().copied().map(Dim::Fixed);
        TensorType::new(dtype, std::iter::once(Dim::B).chain(sample))
    }

    /// A type without dimensions: one element.
    pub fn scalar(dtype: DType) -> Self {
        TensorType::new(dtype, [])
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Whether no dimension depends on the batch.
    pub fn is_concrete(&self) -> bool {
        !self.dims.iter().any(|dim| dim.is_batch())
    }

    /// The sizes, when none depends on the batch.
    pub fn concrete(&self) -> Option<Vec<usize>> {
        self.dims.iter().map(|dim| dim.fixed()).collect()
    }

    /// The sizes for this batch; `None` when one does not fit a machine word.
    pub fn sizes(&self, batch: usize) -> Option<Vec<usize>> {
        self.dims.iter().map(|dim| dim.at(batch)).collect()
    }

    /// Number of elements for this batch; `None` when it does not fit 64 bits.
    pub fn elements(&self, batch: usize) -> Option<u64> {
        self.dims.iter().try_fold(1_u64, |product, dim| {
            product.checked_mul(u64::try_from(dim.at(batch)?).ok()?)
        })
    }

    /// Bytes for this batch; `None` when they do not fit 64 bits.
    pub fn bytes(&self, batch: usize) -> Option<u64> {
        self.elements(batch)?.checked_mul(self.dtype.bytes() as u64)
    }

    /// This type with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        TensorType {
            dtype,
            dims: self.dims.clone(),
        }
    }

    /// Number of elements as `(factor, power)`: `factor * batch^power`; `None` when the factor does not fit 64 bits.
    pub(crate) fn symbolic_elements(dims: &[Dim]) -> Option<(u64, usize)> {
        let factor = dims.iter().try_fold(1_u64, |product, dim| {
            product.checked_mul(u64::try_from(dim.factor()).ok()?)
        })?;
        Some((factor, dims.iter().filter(|dim| dim.is_batch()).count()))
    }

    /// Whether the type keeps the limits of this crate: rank, size of each dimension, number of elements. Empty tensors
    /// are refused, so that no engine has to treat them.
    pub fn check_limits(&self) -> Result<(), LimitError> {
        if self.rank() > MAX_RANK {
            return Err(LimitError::Rank(self.rank()));
        }
        for (index, dim) in self.dims.iter().enumerate() {
            if dim.factor() == 0 {
                return Err(LimitError::Empty(index));
            }
            if dim.factor() > MAX_DIM {
                return Err(LimitError::Dim(index));
            }
        }
        match TensorType::symbolic_elements(&self.dims) {
            Some((elements, _)) if elements <= MAX_ELEMENTS => Ok(()),
            _ => Err(LimitError::Elements),
        }
    }
}

/// A type beyond what this crate accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too many dimensions.
    #[error("{0} dimensions, the most is {MAX_RANK}")]
    Rank(usize),
    /// A dimension of size zero.
    #[error("dimension {0} is empty")]
    Empty(usize),
    /// A dimension too large.
    #[error("dimension {0} is larger than {MAX_DIM}")]
    Dim(usize),
    /// Too many elements.
    #[error("more than {MAX_ELEMENTS} elements")]
    Elements,
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (index, dim) in self.dims.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

impl FromStr for TensorType {
    type Err = ParseTypeError;

    fn from_str(text: &str) -> Result<Self, ParseTypeError> {
        let wrong = || ParseTypeError::new(text, "a type such as `f32[B,3,224,224]`");
        let (dtype, rest) = text.split_once('[').ok_or_else(wrong)?;
        let dims = rest.strip_suffix(']').ok_or_else(wrong)?;
        let dtype = dtype.parse()?;
        if dims.is_empty() {
            return Ok(TensorType::scalar(dtype));
        }
        // Bounded before anything is collected: a type is at most a handful of dimensions.
        if dims.bytes().filter(|&byte| byte == b',').count() >= MAX_RANK {
            return Err(wrong());
        }
        let dims = dims.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(TensorType { dtype, dims })
    }
}
