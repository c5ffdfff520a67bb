//! Shape and element type inference: the results of an operator from its operands, exactly as ATen gives them.
//!
//! Where ATen would promote, broadcast the batch against a fixed size, or return an empty tensor, inference refuses:
//! such a model says something that depends on how large the batch happens to be.

mod arithmetic;
mod gradient;
mod layout;
mod window;

use crate::types::LimitError;
use crate::{DType, Dim, Op, TensorType};

/// Most operands of one node; only `cat` comes near.
pub const MAX_OPERANDS: usize = 4096;

/// Why an operator does not take its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// The wrong number of operands.
    #[error("takes {wanted} operands, not {found}")]
    Count {
        /// How many the operator takes.
        wanted: String,
        /// How many there are.
        found: usize,
    },
    /// An operand that must not be left out.
    #[error("operand {0} must not be `none`")]
    Missing(usize),
    /// An operand of the wrong element type.
    #[error("operand {index} is {found}, not {wanted}; insert `_to_copy`")]
    DType {
        /// Which operand.
        index: usize,
        /// Its element type.
        found: DType,
        /// What it must be.
        wanted: &'static str,
    },
    /// An operand with the wrong number of dimensions.
    #[error("operand {index} has {found} dimensions, not {wanted}")]
    Rank {
        /// Which operand.
        index: usize,
        /// Its dimensions.
        found: usize,
        /// How many it must have.
        wanted: String,
    },
    /// Operands whose shapes do not fit together.
    #[error("operand {index} is {found}, expected {wanted}")]
    Shape {
        /// Which operand.
        index: usize,
        /// Its type.
        found: TensorType,
        /// What would fit.
        wanted: String,
    },
    /// An attribute out of range.
    #[error("attribute `{name}` {reason}")]
    Attribute {
        /// ATen's name of the attribute.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A dimension that depends on the batch where the operator needs a fixed one.
    #[error("dimension {dim} of operand {index} depends on the batch and must be fixed here")]
    Symbolic {
        /// Which operand.
        index: usize,
        /// Which of its dimensions.
        dim: usize,
    },
    /// A batch norm over a single value a channel, whose variance is undefined.
    #[error("expected more than 1 value per channel when training, got {0}; use a larger batch")]
    OneValuePerChannel(TensorType),
    /// A result beyond the limits.
    #[error("result {index}: {error}")]
    Limit {
        /// Which result.
        index: usize,
        /// What is wrong with it.
        error: LimitError,
    },
}

/// The types of the results of `op` on operands of these types.
///
/// `operands` are in ATen's order, `None` for an optional one left out.
pub fn infer(op: &Op, operands: &[Option<&TensorType>]) -> Result<Vec<TensorType>, InferError> {
    let operands = Operands(operands);
    operands.check_count(op)?;
    let results = match op {
        Op::Convolution { .. }
        | Op::MaxPool2d { .. }
        | Op::AvgPool2d { .. }
        | Op::AdaptiveAvgPool2d { .. } => window::infer(op, operands)?,
        Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Clone {}
        | Op::Cat { .. }
        | Op::Slice { .. }
        | Op::Select { .. }
        | Op::Split { .. }
        | Op::Squeeze { .. }
        | Op::Unsqueeze { .. }
        | Op::ConstantPad { .. }
        | Op::Full { .. } => layout::infer(op, operands)?,
        Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionWeightGrad { .. }
        | Op::EmbeddingGrad { .. }
        | Op::BatchNormGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::AvgPool2dGrad { .. }
        | Op::AdaptiveAvgPool2dGrad { .. }
        | Op::ThresholdGrad { .. }
        | Op::GeluGrad { .. }
        | Op::SigmoidGrad {}
        | Op::TanhGrad {}
        | Op::DropoutGrad { .. }
        | Op::NllLossGrad { .. }
        | Op::SliceGrad { .. }
        | Op::SelectGrad { .. } => gradient::infer(op, operands)?,
        _ => arithmetic::infer(op, operands)?,
    };
    for (index, result) in results.iter().enumerate() {
        result
            .check_limits()
            .map_err(|error| InferError::Limit { index, error })?;
    }
    Ok(results)
}

/// How many operands an operator takes; `None` is any number from one to [`MAX_OPERANDS`].
fn arity(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Cat { .. } => return None,
        Op::Full { .. } => 0,
        Op::Convolution { .. } | Op::Addmm {} | Op::LayerNorm { .. } | Op::NllLoss { .. } => 3,
        Op::Mm {}
        | Op::Bmm {}
        | Op::Embedding { .. }
        | Op::Add { .. }
        | Op::Sub { .. }
        | Op::Mul {}
        | Op::Div {}
        | Op::ConvolutionInputGrad { .. }
        | Op::ConvolutionWeightGrad { .. }
        | Op::EmbeddingGrad { .. }
        | Op::SoftmaxGrad { .. }
        | Op::LogSoftmaxGrad { .. }
        | Op::MaxPool2dGrad { .. }
        | Op::ThresholdGrad { .. }
        | Op::GeluGrad { .. }
        | Op::SigmoidGrad {}
        | Op::TanhGrad {}
        | Op::DropoutGrad { .. } => 2,
        Op::BatchNormTraining { .. }
        | Op::BatchNormInference { .. }
        | Op::BatchNormGrad { .. }
        | Op::LayerNormGrad { .. }
        | Op::NllLossGrad { .. } => 5,
        _ => 1,
    })
}

/// The operands of one node, with the checks that all operators share.
#[derive(Clone, Copy)]
struct Operands<'a>(&'a [Option<&'a TensorType>]);

impl<'a> Operands<'a> {
    fn check_count(self, op: &Op) -> Result<(), InferError> {
        let found = self.0.len();
        let fits = match arity(op) {
            Some(wanted) => found == wanted,
            None => (1..=MAX_OPERANDS).contains(&found),
        };
        if fits {
            return Ok(());
        }
        let wanted = match arity(op) {
            Some(wanted) => wanted.to_string(),
            None => format!("1 to {MAX_OPERANDS}"),
        };
        Err(InferError::Count { wanted, found })
    }

    fn all(self) -> impl Iterator<Item = (usize, Option<&'a TensorType>)> {
        self.0.iter().copied().enumerate()
    }

    fn optional(self, index: usize) -> Option<&'a TensorType> {
        self.0.get(index).copied().flatten()
    }

    fn any(self, index: usize) -> Result<&'a TensorType, InferError> {
        self.optional(index).ok_or(InferError::Missing(index))
    }

    fn float(self, index: usize) -> Result<&'a TensorType, InferError> {
        let ty = self.any(index)?;
        if ty.dtype.is_float() {
            Ok(ty)
        } else {
            Err(InferError::DType {
                index,
                found: ty.dtype,
                wanted: "a float",
            })
        }
    }

    fn of_dtype(self, index: usize, dtype: DType) -> Result<&'a TensorType, InferError> {
        let ty = self.any(index)?;
        if ty.dtype == dtype {
            Ok(ty)
        } else {
            Err(InferError::DType {
                index,
                found: ty.dtype,
                wanted: dtype.name(),
            })
        }
    }

    /// Operand `index`, whose type must be this one.
    fn of_type(self, index: usize, wanted: &TensorType) -> Result<&'a TensorType, InferError> {
        let ty = self.of_dtype(index, wanted.dtype)?;
        if ty == wanted {
            Ok(ty)
        } else {
            Err(InferError::Shape {
                index,
                found: ty.clone(),
                wanted: wanted.to_string(),
            })
        }
    }

    /// Optional operand `index`, whose type must be this one when it is there.
    fn optional_of_type(self, index: usize, wanted: &TensorType) -> Result<(), InferError> {
        match self.optional(index) {
            None => Ok(()),
            Some(_) => self.of_type(index, wanted).map(|_| ()),
        }
    }

    fn shape_error(self, index: usize, wanted: impl Into<String>) -> InferError {
        match self.optional(index) {
            None => InferError::Missing(index),
            Some(found) => InferError::Shape {
                index,
                found: found.clone(),
                wanted: wanted.into(),
            },
        }
    }

    fn expect_rank(self, index: usize, wanted: usize) -> Result<(), InferError> {
        let found = self.any(index)?.rank();
        if found == wanted {
            return Ok(());
        }
        Err(InferError::Rank {
            index,
            found,
            wanted: wanted.to_string(),
        })
    }

    /// The size of a dimension that must be fixed and there.
    fn fixed_dim(self, index: usize, dim: usize) -> Result<usize, InferError> {
        let ty = self.any(index)?;
        match ty.dims.get(dim) {
            Some(Dim::Fixed(size)) => Ok(*size),
            Some(Dim::Batch(_)) => Err(InferError::Symbolic { index, dim }),
            None => Err(InferError::Rank {
                index,
                found: ty.rank(),
                wanted: format!("more than {dim}"),
            }),
        }
    }

    /// A dimension that must be there.
    fn dim(self, index: usize, dim: usize) -> Result<Dim, InferError> {
        let ty = self.any(index)?;
        ty.dims.get(dim).copied().ok_or_else(|| InferError::Rank {
            index,
            found: ty.rank(),
            wanted: format!("more than {dim}"),
        })
    }
}

fn attribute(name: &'static str, reason: impl Into<String>) -> InferError {
    InferError::Attribute {
        name,
        reason: reason.into(),
    }
}

/// Checks that an attribute names a dimension of a tensor of this rank.
fn check_dim(name: &'static str, dim: usize, rank: usize) -> Result<(), InferError> {
    if dim < rank {
        return Ok(());
    }
    Err(attribute(
        name,
        format!("is {dim}, the operand has {rank} dimensions"),
    ))
}

/// Which dimensions a list names, as flags; each at most once.
fn dim_flags(name: &'static str, dims: &[usize], rank: usize) -> Result<Vec<bool>, InferError> {
    let mut flags = vec![false; rank];
    for &dim in dims {
        check_dim(name, dim, rank)?;
        match flags.get_mut(dim) {
            Some(flag) if !*flag => *flag = true,
            _ => return Err(attribute(name, format!("names dimension {dim} twice"))),
        }
    }
    Ok(flags)
}
