//! Which nodes are constants or change nothing: only where the bits are the same on every engine.

use crate::{DType, Op, TensorType};

/// What a node amounts to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Folded {
    /// Itself.
    No,
    /// Every element of its result is this.
    Constant(f64),
    /// Its first operand.
    Operand,
}

/// Folds a node of one result. `constants` holds, for operands that are constant, the value of all their elements.
///
/// Arithmetic is done in `f32`, where IEEE 754 defines sums, products, quotients and square roots to the last bit;
/// `exp`, `pow` and the like are left to the engine.
pub(crate) fn fold(
    op: &Op,
    operands: &[Option<TensorType>],
    constants: &[Option<f64>],
    result: &TensorType,
) -> Folded {
    let first = operands.first().and_then(Option::as_ref);
    let same_type = first == Some(result);
    let constant = |index: usize| constants.get(index).copied().flatten();
    let identity = match op {
        Op::Clone {} => true,
        Op::View { .. } | Op::Expand { .. } | Op::ToCopy { .. } => same_type,
        Op::Squeeze { .. } | Op::Slice { .. } | Op::ConstantPad { .. } => {
            same_type && moves_nothing(op)
        }
        Op::Permute { dims } => dims.iter().enumerate().all(|(to, &from)| to == from),
        Op::Cat { .. } => operands.len() == 1,
        Op::MulScalar { scalar } => *scalar == 1.0,
        _ => false,
    };
    if identity {
        return Folded::Operand;
    }
    match op {
        Op::View { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Select { .. }
        | Op::Squeeze { .. }
        | Op::Unsqueeze { .. } => constant(0).map_or(Folded::No, Folded::Constant),
        Op::Numel {} => match first.and_then(TensorType::concrete) {
            // The number itself rounds to `f32` as the engine rounds it.
            Some(sizes) => {
                let elements: Option<usize> =
                    (sizes.iter()).try_fold(1_usize, |product, &size| product.checked_mul(size));
                elements.map_or(Folded::No, |n| Folded::Constant(f64::from(n as f32)))
            }
            None => Folded::No,
        },
        _ if result.dtype == DType::F32 => arithmetic(op, constant(0), constant(1)),
        _ => Folded::No,
    }
}

/// Whether an operator whose result has its operand's type keeps every element in place.
fn moves_nothing(op: &Op) -> bool {
    match op {
        Op::Slice { start, step, .. } => *start == 0 && *step == 1,
        Op::ConstantPad { pad, .. } => pad.iter().all(|&pad| pad == 0),
        _ => true,
    }
}

fn arithmetic(op: &Op, a: Option<f64>, b: Option<f64>) -> Folded {
    let a = a.map(|a| a as f32);
    let b = b.map(|b| b as f32);
    let value = match (op, a, b) {
        (Op::Neg {}, Some(a), _) => -a,
        (Op::Sqrt {}, Some(a), _) => a.sqrt(),
        (Op::AddScalar { scalar }, Some(a), _) => a + *scalar as f32,
        (Op::MulScalar { scalar }, Some(a), _) => a * *scalar as f32,
        (Op::Add { alpha: 1.0 }, Some(a), Some(b)) => a + b,
        (Op::Sub { alpha: 1.0 }, Some(a), Some(b)) => a - b,
        (Op::Mul {}, Some(a), Some(b)) => a * b,
        (Op::Div {}, Some(a), Some(b)) => a / b,
        _ => return Folded::No,
    };
    // A constant that is not a number is a mistake better seen where it is made.
    if value.is_nan() {
        return Folded::No;
    }
    Folded::Constant(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    #[test]
    fn scalars_fold_in_f32() {
        let ty = TensorType::new(DType::F32, [Dim::B]);
        let operands = [Some(ty.clone())];
        let third = f64::from(1.0_f32 / 3.0);
        assert_eq!(
            fold(
                &Op::AddScalar { scalar: 0.1 },
                &operands,
                &[Some(third)],
                &ty
            ),
            Folded::Constant(f64::from(1.0_f32 / 3.0 + 0.1_f32))
        );
        assert_eq!(
            fold(&Op::Exp {}, &operands, &[Some(third)], &ty),
            Folded::No
        );
        assert_eq!(
            fold(&Op::Sqrt {}, &operands, &[Some(-1.0)], &ty),
            Folded::No
        );
    }

    #[test]
    fn what_moves_elements_is_no_identity() {
        let ty = TensorType::fixed(DType::F32, &[4, 4]);
        let operands = [Some(ty.clone())];
        let dims = vec![1, 0];
        assert_eq!(
            fold(&Op::Permute { dims }, &operands, &[None], &ty),
            Folded::No
        );
        let pad = vec![1, -1];
        assert_eq!(
            fold(
                &Op::ConstantPad { pad, value: 0.0 },
                &operands,
                &[None],
                &ty
            ),
            Folded::No
        );
        let dims = vec![0, 1];
        assert_eq!(
            fold(&Op::Permute { dims }, &operands, &[None], &ty),
            Folded::Operand
        );
    }
}
