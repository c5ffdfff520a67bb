//! Operators that compute: products, normalisation, element by element, reductions, losses.

use super::{InferError, Operands, attribute, check_dim, dim_flags};
use crate::{DType, Dim, Op, Reduction, TensorType};

pub(super) fn infer(op: &Op, operands: Operands<'_>) -> Result<Vec<TensorType>, InferError> {
    match op {
        Op::Addmm {} => {
            let a = operands.float(1)?;
            let product = matrix_product(operands, 1, 2)?;
            let bias = operands.of_dtype(0, a.dtype)?;
            let fits = bias.rank() <= 2
                && (bias.dims.iter().rev())
                    .zip(product.dims.iter().rev())
                    .all(|(from, to)| from == to || *from == Dim::Fixed(1));
            if !fits {
                return Err(operands.shape_error(0, format!("a shape that expands to {product}")));
            }
            Ok(vec![product])
        }
        Op::Mm {} => Ok(vec![matrix_product(operands, 0, 1)?]),
        Op::Bmm {} => {
            let a = operands.float(0)?;
            let b = operands.of_dtype(1, a.dtype)?;
            operands.expect_rank(0, 3)?;
            operands.expect_rank(1, 3)?;
            match (&a.dims[..], &b.dims[..]) {
                ([batch, rows, inner], [batch_b, inner_b, columns])
                    if batch == batch_b && inner == inner_b =>
                {
                    Ok(vec![TensorType::new(a.dtype, [*batch, *rows, *columns])])
                }
                _ => Err(operands.shape_error(1, format!("a right factor of {a}"))),
            }
        }
        Op::Embedding { padding_idx } => {
            let weight = operands.float(0)?;
            operands.expect_rank(0, 2)?;
            let rows = operands.fixed_dim(0, 0)?;
            let width = operands.dim(0, 1)?;
            let indices = operands.of_dtype(1, DType::I64)?;
            if padding_idx.is_some_and(|index| index >= rows) {
                return Err(attribute("padding_idx", format!("must be below {rows}")));
            }
            let dims = indices.dims.iter().copied().chain([width]);
            Ok(vec![TensorType::new(weight.dtype, dims)])
        }
        Op::BatchNormTraining { eps, momentum } => {
            check_finite("momentum", *momentum)?;
            check_eps(*eps)?;
            let input = operands.float(0)?;
            let stats = batch_norm_operands(operands)?;
            check_values_per_channel(input)?;
            Ok(vec![
                input.clone(),
                stats.clone(),
                stats.clone(),
                stats.clone(),
                stats,
            ])
        }
        Op::BatchNormInference { eps, momentum } => {
            check_finite("momentum", *momentum)?;
            check_eps(*eps)?;
            batch_norm_operands(operands)?;
            Ok(vec![operands.float(0)?.clone()])
        }
        Op::LayerNorm {
            normalized_shape,
            eps,
        } => {
            check_eps(*eps)?;
            let input = operands.float(0)?;
            let (stats, weight) = layer_norm_types(operands, 0, normalized_shape)?;
            operands.optional_of_type(1, &weight)?;
            operands.optional_of_type(2, &weight)?;
            Ok(vec![input.clone(), stats.clone(), stats])
        }
        Op::Softmax { dim } | Op::LogSoftmax { dim } => {
            let input = operands.float(0)?;
            check_dim("dim", *dim, input.rank())?;
            Ok(vec![input.clone()])
        }
        Op::Relu {}
        | Op::Gelu { .. }
        | Op::Sigmoid {}
        | Op::Tanh {}
        | Op::Exp {}
        | Op::Log {}
        | Op::Sqrt {}
        | Op::Rsqrt {}
        | Op::Neg {} => Ok(vec![operands.float(0)?.clone()]),
        // Counters (`num_batches_tracked`) are integers; a whole scalar keeps them so.
        Op::AddScalar { scalar } if operands.any(0)?.dtype == DType::I64 => {
            check_finite("scalar", *scalar)?;
            if scalar.fract() != 0.0 || scalar.abs() > (1_u64 << 53) as f64 {
                return Err(attribute(
                    "scalar",
                    format!("is {scalar}, not a whole number"),
                ));
            }
            Ok(vec![operands.any(0)?.clone()])
        }
        Op::AddScalar { scalar } | Op::MulScalar { scalar } => {
            check_finite("scalar", *scalar)?;
            Ok(vec![operands.float(0)?.clone()])
        }
        Op::PowScalar { exponent } => {
            check_finite("exponent", *exponent)?;
            Ok(vec![operands.float(0)?.clone()])
        }
        Op::Add { alpha } | Op::Sub { alpha } => {
            check_finite("alpha", *alpha)?;
            Ok(vec![broadcast(operands)?])
        }
        Op::Mul {} | Op::Div {} => Ok(vec![broadcast(operands)?]),
        Op::ToCopy { dtype } => Ok(vec![operands.any(0)?.with_dtype(*dtype)]),
        Op::Dropout { p, .. } => {
            if !(0.0..=1.0).contains(p) {
                return Err(attribute("p", format!("is {p}, not a probability")));
            }
            let input = operands.float(0)?;
            Ok(vec![input.clone(), input.with_dtype(DType::Bool)])
        }
        Op::Sum { dims, keepdim } | Op::Mean { dims, keepdim } => {
            let input = operands.float(0)?;
            // ATen reduces over all dimensions when none is named.
            let mut reduced = dim_flags("dims", dims, input.rank())?;
            if dims.is_empty() {
                reduced.fill(true);
            }
            let dims = (input.dims.iter().zip(reduced)).filter_map(|(&size, reduced)| {
                match (reduced, keepdim) {
                    (false, _) => Some(size),
                    (true, true) => Some(Dim::Fixed(1)),
                    (true, false) => None,
                }
            });
            Ok(vec![TensorType::new(input.dtype, dims)])
        }
        Op::Numel {} => {
            operands.any(0)?;
            Ok(vec![TensorType::scalar(DType::F32)])
        }
        Op::NllLoss { reduction, .. } => {
            let output = nll_loss_output(operands, 0, *reduction)?;
            let total_weight = TensorType::scalar(output.dtype);
            Ok(vec![output, total_weight])
        }
        _ => Err(attribute("op", "is not an arithmetic operator")),
    }
}

fn check_finite(name: &'static str, value: f64) -> Result<(), InferError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(attribute(name, format!("is {value}")))
}

fn check_eps(eps: f64) -> Result<(), InferError> {
    if eps.is_finite() && eps >= 0.0 {
        return Ok(());
    }
    Err(attribute("eps", format!("is {eps}")))
}

/// `[n, m] @ [m, p]`.
fn matrix_product(
    operands: Operands<'_>,
    left: usize,
    right: usize,
) -> Result<TensorType, InferError> {
    let a = operands.float(left)?;
    let b = operands.of_dtype(right, a.dtype)?;
    operands.expect_rank(left, 2)?;
    operands.expect_rank(right, 2)?;
    match (&a.dims[..], &b.dims[..]) {
        ([rows, inner], [inner_b, columns]) if inner == inner_b => {
            Ok(TensorType::new(a.dtype, [*rows, *columns]))
        }
        _ => Err(operands.shape_error(right, format!("a right factor of {a}"))),
    }
}

/// The common shape of operands 0 and 1: from the last dimension backwards, equal or one of them 1.
fn broadcast(operands: Operands<'_>) -> Result<TensorType, InferError> {
    let a = operands.float(0)?;
    let b = operands.of_dtype(1, a.dtype)?;
    let rank = a.rank().max(b.rank());
    let padded = |ty: &TensorType| {
        let ones = std::iter::repeat_n(Dim::Fixed(1), rank - ty.rank());
        ones.chain(ty.dims.iter().copied()).collect::<Vec<_>>()
    };
    let mut dims = Vec::with_capacity(rank);
    for (a_dim, b_dim) in padded(a).into_iter().zip(padded(b)) {
        dims.push(match (a_dim, b_dim) {
            (a_dim, b_dim) if a_dim == b_dim => a_dim,
            (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => other,
            _ => return Err(operands.shape_error(1, format!("a shape that broadcasts with {a}"))),
        });
    }
    Ok(TensorType::new(a.dtype, dims))
}

/// Checks `(input, weight?, bias?, running_mean, running_var)`; gives the type of the four: `[C]`.
fn batch_norm_operands(operands: Operands<'_>) -> Result<TensorType, InferError> {
    let input = operands.float(0)?;
    let channels = operands.fixed_dim(0, 1)?;
    let stats = TensorType::fixed(input.dtype, &[channels]);
    operands.optional_of_type(1, &stats)?;
    operands.optional_of_type(2, &stats)?;
    operands.of_type(3, &stats)?;
    operands.of_type(4, &stats)?;
    Ok(stats)
}

/// Refuses one value a channel, as `torch.nn.functional.batch_norm` does in training mode.
pub(super) fn check_values_per_channel(input: &TensorType) -> Result<(), InferError> {
    let others = input.dims.iter().enumerate().filter(|(dim, _)| *dim != 1);
    let one = others.into_iter().all(|(_, &size)| size == Dim::Fixed(1));
    if one {
        return Err(InferError::OneValuePerChannel(input.clone()));
    }
    Ok(())
}

/// The types of a layer norm's statistics and of its weight.
pub(super) fn layer_norm_types(
    operands: Operands<'_>,
    input: usize,
    normalized_shape: &[usize],
) -> Result<(TensorType, TensorType), InferError> {
    let ty = operands.float(input)?;
    let outer = ty
        .rank()
        .checked_sub(normalized_shape.len())
        .filter(|_| !normalized_shape.is_empty())
        .ok_or_else(|| {
            attribute(
                "normalized_shape",
                format!("must name 1 to {} dimensions", ty.rank()),
            )
        })?;
    let inner = ty.dims.iter().skip(outer);
    if !inner
        .zip(normalized_shape)
        .all(|(dim, size)| *dim == Dim::Fixed(*size))
    {
        return Err(operands.shape_error(input, format!("last dimensions {normalized_shape:?}")));
    }
    let stats = (ty.dims.iter().enumerate())
        .map(|(dim, &size)| if dim < outer { size } else { Dim::Fixed(1) });
    Ok((
        TensorType::new(ty.dtype, stats),
        TensorType::fixed(ty.dtype, normalized_shape),
    ))
}

/// Checks `(log_probabilities, target, class_weight?)` from operand `first` on; gives the type of the loss.
pub(super) fn nll_loss_output(
    operands: Operands<'_>,
    first: usize,
    reduction: Reduction,
) -> Result<TensorType, InferError> {
    let log_probabilities = operands.float(first)?;
    let samples: &[Dim] = match &log_probabilities.dims[..] {
        [_] => &[],
        [samples, _] => std::slice::from_ref(samples),
        _ => return Err(operands.shape_error(first, "[classes] or [samples, classes]")),
    };
    let classes = operands.fixed_dim(first, log_probabilities.rank() - 1)?;
    operands.of_type(
        first + 1,
        &TensorType::new(DType::I64, samples.iter().copied()),
    )?;
    operands.optional_of_type(
        first + 2,
        &TensorType::fixed(log_probabilities.dtype, &[classes]),
    )?;
    let dims = match reduction {
        Reduction::None => samples,
        Reduction::Sum | Reduction::Mean => &[],
    };
    Ok(TensorType::new(
        log_probabilities.dtype,
        dims.iter().copied(),
    ))
}
