//! Sums and means over dimensions.

use crate::{
    DType, Dim, Op, TensorType, ValueId,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    let ty = sweep.operand_type(node, 0)?;
    let gradient = match &node.op {
        Op::Sum { dims, .. } => spread(sweep, grad, &reduced(&ty, dims), &ty)?,
        Op::Mean { dims, .. } => {
            let dims = reduced(&ty, dims);
            let share = share(sweep, grad, &dims, &ty)?;
            spread(sweep, share, &dims, &ty)?
        }
        _ => return Err(rule.no_rule()),
    };
    Ok(rule.only([(0, Some(gradient))]))
}

/// The dimensions that are reduced: all of them when none is named, as in ATen.
fn reduced(ty: &TensorType, dims: &[usize]) -> Vec<usize> {
    if dims.is_empty() {
        (0..ty.dims.len()).collect()
    } else {
        dims.to_vec()
    }
}

/// Repeats the gradient of a reduction along the dimensions that it reduced.
fn spread(
    sweep: &mut Sweep,
    grad: ValueId,
    dims: &[usize],
    ty: &TensorType,
) -> Result<ValueId, AutodiffError> {
    let kept: Vec<Dim> = (ty.dims.iter().enumerate())
        .map(|(position, dim)| {
            if dims.contains(&position) {
                Dim::Fixed(1)
            } else {
                *dim
            }
        })
        .collect();
    let mut grad = grad;
    // A scalar expands to anything at once.
    let rank = sweep.ty(grad)?.dims.len();
    if rank > 0 && sweep.ty(grad)?.dims != kept {
        grad = sweep.push1(Op::View { shape: kept }, &[grad])?;
    }
    if sweep.ty(grad)?.dims != ty.dims {
        grad = sweep.push1(
            Op::Expand {
                shape: ty.dims.clone(),
            },
            &[grad],
        )?;
    }
    Ok(grad)
}

/// The gradient divided by the number of elements that were averaged, which may depend on the batch.
fn share(
    sweep: &mut Sweep,
    grad: ValueId,
    dims: &[usize],
    ty: &TensorType,
) -> Result<ValueId, AutodiffError> {
    let sizes = dims.iter().filter_map(|dim| ty.dims.get(*dim));
    let fixed: Option<f64> = sizes
        .map(|dim| match dim {
            Dim::Fixed(size) => Some(*size as f64),
            Dim::Batch(_) => None,
        })
        .product();
    match fixed {
        Some(count) => sweep.push1(
            Op::MulScalar {
                scalar: 1.0 / count,
            },
            &[grad],
        ),
        None => {
            let whole = spread(sweep, grad, dims, ty)?;
            let whole = sweep.push1(Op::Numel {}, &[whole])?;
            let kept = sweep.push1(Op::Numel {}, &[grad])?;
            let mut count = sweep.push1(Op::Div {}, &[whole, kept])?;
            if ty.dtype != DType::F32 {
                count = sweep.push1(Op::ToCopy { dtype: ty.dtype }, &[count])?;
            }
            sweep.push1(Op::Div {}, &[grad, count])
        }
    }
}
