//! Operators that move elements and change none.

use crate::{
    Dim, Op, ValueId,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let node = rule.node;
    let gradient = match &node.op {
        Op::Cat { dim } => return cat(sweep, rule, *dim),
        Op::Split { dim, sizes } => split(sweep, rule, *dim, sizes)?,
        // The same elements in the same order.
        Op::View { .. } | Op::Squeeze { .. } | Op::Unsqueeze { .. } => {
            let shape = sweep.operand_type(node, 0)?.dims;
            sweep.push1(Op::View { shape }, &[rule.cotangent()?])?
        }
        Op::Permute { dims } => {
            let mut inverse = vec![0; dims.len()];
            for (position, dim) in dims.iter().enumerate() {
                match inverse.get_mut(*dim) {
                    Some(slot) => *slot = position,
                    None => {
                        return Err(
                            sweep.unsupported(node, "it permutes a dimension that is not there")
                        );
                    }
                }
            }
            sweep.permute(rule.cotangent()?, &inverse)?
        }
        Op::Expand { .. } => {
            let ty = sweep.operand_type(node, 0)?;
            sweep.unbroadcast(rule.cotangent()?, &ty)?
        }
        Op::Clone {} => rule.cotangent()?,
        Op::Slice {
            dim,
            start,
            end,
            step,
        } => {
            let op = Op::SliceGrad {
                input_shape: sweep.operand_type(node, 0)?.dims,
                dim: *dim,
                start: *start,
                end: *end,
                step: *step,
            };
            sweep.push1(op, &[rule.cotangent()?])?
        }
        Op::Select { dim, index } => {
            let op = Op::SelectGrad {
                input_shape: sweep.operand_type(node, 0)?.dims,
                dim: *dim,
                index: *index,
            };
            sweep.push1(op, &[rule.cotangent()?])?
        }
        // Padding the other way crops what was padded and pads what was cropped with zeros.
        Op::ConstantPad { pad, .. } => {
            let pad = pad.iter().map(|amount| amount.saturating_neg()).collect();
            sweep.push1(Op::ConstantPad { pad, value: 0.0 }, &[rule.cotangent()?])?
        }
        _ => return Err(rule.no_rule()),
    };
    Ok(rule.only([(0, Some(gradient))]))
}

/// Each operand's gradient is its slice of the gradient.
fn cat(sweep: &mut Sweep, rule: &Rule, dim: usize) -> Result<Gradients, AutodiffError> {
    let node = rule.node;
    let grad = rule.cotangent()?;
    let mut gradients = rule.only([]);
    let mut start: usize = 0;
    for (operand, slot) in gradients.iter_mut().enumerate() {
        let Some(Dim::Fixed(size)) = sweep.operand_type(node, operand)?.dims.get(dim).copied()
        else {
            return Err(sweep.unsupported(
                node,
                "concatenation along the batch mixes samples; concatenate along another dimension",
            ));
        };
        let Some(end) = start.checked_add(size) else {
            return Err(sweep.unsupported(node, "the result is too large"));
        };
        if rule.wants(operand) {
            let op = Op::Slice {
                dim,
                start,
                end,
                step: 1,
            };
            *slot = Some(sweep.push1(op, &[grad])?);
        }
        start = end;
    }
    Ok(gradients)
}

/// The gradients of the pieces, put together again; a piece that nobody used counts as zeros.
fn split(
    sweep: &mut Sweep,
    rule: &Rule,
    dim: usize,
    sizes: &[usize],
) -> Result<ValueId, AutodiffError> {
    let node = rule.node;
    let ty = sweep.operand_type(node, 0)?;
    let mut present = (rule.cotangents.iter().zip(sizes)).scan(0_usize, |start, (grad, size)| {
        let from = *start;
        *start = from.checked_add(*size)?;
        Some((*grad, from, *start))
    });
    let used = rule.cotangents.iter().flatten().count();
    if used == 1
        && let Some((Some(grad), start, end)) = present.find(|(grad, _, _)| grad.is_some())
    {
        let op = Op::SliceGrad {
            input_shape: ty.dims,
            dim,
            start,
            end,
            step: 1,
        };
        return sweep.push1(op, &[grad]);
    }
    let mut pieces = Vec::with_capacity(sizes.len());
    for (grad, size) in rule.cotangents.iter().zip(sizes) {
        let piece = match grad {
            Some(grad) => *grad,
            None => {
                let mut piece = ty.clone();
                if let Some(slot) = piece.dims.get_mut(dim) {
                    *slot = Dim::Fixed(*size);
                }
                sweep.full(&piece, 0.0)?
            }
        };
        pieces.push(piece);
    }
    sweep.push1(Op::Cat { dim }, &pieces)
}
