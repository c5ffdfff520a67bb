//! Pooling over planes.

use crate::{
    Op,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    let input_shape = sweep.operand_type(node, 0)?.dims;
    let gradient = match node.op.clone() {
        Op::MaxPool2d {
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        } => {
            let indices = sweep.result(node, 1)?;
            let op = Op::MaxPool2dGrad {
                input_shape,
                kernel_size,
                stride,
                padding,
                dilation,
                ceil_mode,
            };
            sweep.push1(op, &[grad, indices])?
        }
        Op::AvgPool2d {
            kernel_size,
            stride,
            padding,
            ceil_mode,
            count_include_pad,
            divisor_override,
        } => {
            let op = Op::AvgPool2dGrad {
                input_shape,
                kernel_size,
                stride,
                padding,
                ceil_mode,
                count_include_pad,
                divisor_override,
            };
            sweep.push1(op, &[grad])?
        }
        Op::AdaptiveAvgPool2d { .. } => {
            sweep.push1(Op::AdaptiveAvgPool2dGrad { input_shape }, &[grad])?
        }
        _ => return Err(rule.no_rule()),
    };
    Ok(rule.only([(0, Some(gradient))]))
}
