//! Element by element, with broadcasting.

use crate::{
    Op, ValueId,
    autodiff::{AutodiffError, Sweep},
};

use super::{Gradients, Rule};

pub(super) fn gradients(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    match rule.node.op {
        Op::Add { .. } | Op::Sub { .. } | Op::Mul {} | Op::Div {} => binary(sweep, rule),
        _ => Ok(rule.only([(0, Some(unary(sweep, rule)?))])),
    }
}

fn unary(sweep: &mut Sweep, rule: &Rule) -> Result<ValueId, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    match node.op {
        Op::Relu {} => {
            let output = sweep.result(node, 0)?;
            sweep.push1(Op::ThresholdGrad { threshold: 0.0 }, &[grad, output])
        }
        Op::Gelu { tanh } => {
            let input = sweep.operand(node, 0)?;
            sweep.push1(Op::GeluGrad { tanh }, &[grad, input])
        }
        Op::Sigmoid {} => {
            let output = sweep.result(node, 0)?;
            sweep.push1(Op::SigmoidGrad {}, &[grad, output])
        }
        Op::Tanh {} => {
            let output = sweep.result(node, 0)?;
            sweep.push1(Op::TanhGrad {}, &[grad, output])
        }
        Op::Exp {} => {
            let output = sweep.result(node, 0)?;
            sweep.push1(Op::Mul {}, &[grad, output])
        }
        Op::Log {} => {
            let input = sweep.operand(node, 0)?;
            sweep.push1(Op::Div {}, &[grad, input])
        }
        // d sqrt(x) = 1 / (2 sqrt(x))
        Op::Sqrt {} => {
            let output = sweep.result(node, 0)?;
            let twice = sweep.push1(Op::MulScalar { scalar: 2.0 }, &[output])?;
            sweep.push1(Op::Div {}, &[grad, twice])
        }
        // d x^(-1/2) = -1/2 x^(-3/2), and x^(-3/2) is the cube of the result.
        Op::Rsqrt {} => {
            let output = sweep.result(node, 0)?;
            let cube = sweep.push1(Op::PowScalar { exponent: 3.0 }, &[output])?;
            let scaled = sweep.push1(Op::MulScalar { scalar: -0.5 }, &[grad])?;
            sweep.push1(Op::Mul {}, &[scaled, cube])
        }
        Op::Neg {} => sweep.push1(Op::Neg {}, &[grad]),
        Op::AddScalar { .. } => Ok(grad),
        Op::MulScalar { scalar } => sweep.push1(Op::MulScalar { scalar }, &[grad]),
        Op::PowScalar { exponent } => power(sweep, rule, grad, exponent),
        Op::ToCopy { .. } => {
            let dtype = sweep.operand_type(node, 0)?.dtype;
            if sweep.ty(grad)?.dtype == dtype {
                return Ok(grad);
            }
            sweep.push1(Op::ToCopy { dtype }, &[grad])
        }
        Op::Dropout { p, .. } => {
            let mask = sweep.result(node, 1)?;
            let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
            sweep.push1(Op::DropoutGrad { scale }, &[grad, mask])
        }
        _ => Err(rule.no_rule()),
    }
}

/// `d x^e = e x^(e-1)`; zero everywhere, even at 0, where `e` is 0.
fn power(
    sweep: &mut Sweep,
    rule: &Rule,
    grad: ValueId,
    exponent: f64,
) -> Result<ValueId, AutodiffError> {
    if exponent == 0.0 {
        let ty = sweep.operand_type(rule.node, 0)?;
        return sweep.full(&ty, 0.0);
    }
    if exponent == 1.0 {
        return Ok(grad);
    }
    let input = sweep.operand(rule.node, 0)?;
    let power = if exponent == 2.0 {
        input
    } else {
        sweep.push1(
            Op::PowScalar {
                exponent: exponent - 1.0,
            },
            &[input],
        )?
    };
    let slope = sweep.push1(Op::MulScalar { scalar: exponent }, &[power])?;
    sweep.push1(Op::Mul {}, &[grad, slope])
}

fn binary(sweep: &mut Sweep, rule: &Rule) -> Result<Gradients, AutodiffError> {
    let grad = rule.cotangent()?;
    let node = rule.node;
    let mut sides = [None, None];
    for (side, slot) in sides.iter_mut().enumerate() {
        if !rule.wants(side) {
            continue;
        }
        let gradient = match (&node.op, side) {
            (Op::Add { .. } | Op::Sub { .. }, 0) => grad,
            (Op::Add { alpha }, _) => scaled(sweep, grad, *alpha)?,
            (Op::Sub { alpha }, _) => scaled(sweep, grad, -*alpha)?,
            (Op::Mul {}, _) => {
                let other = sweep.operand(node, 1 - side)?;
                sweep.push1(Op::Mul {}, &[grad, other])?
            }
            (Op::Div {}, 0) => {
                let divisor = sweep.operand(node, 1)?;
                sweep.push1(Op::Div {}, &[grad, divisor])?
            }
            // d (a / b) / db = -(a / b) / b
            (Op::Div {}, _) => {
                let divisor = sweep.operand(node, 1)?;
                let quotient = sweep.result(node, 0)?;
                let slope = sweep.push1(Op::Div {}, &[quotient, divisor])?;
                let slope = sweep.push1(Op::Neg {}, &[slope])?;
                sweep.push1(Op::Mul {}, &[grad, slope])?
            }
            _ => return Err(rule.no_rule()),
        };
        let ty = sweep.operand_type(node, side)?;
        *slot = Some(sweep.unbroadcast(gradient, &ty)?);
    }
    let [a, b] = sides;
    Ok(rule.only([(0, a), (1, b)]))
}

fn scaled(sweep: &mut Sweep, grad: ValueId, factor: f64) -> Result<ValueId, AutodiffError> {
    if factor == 1.0 {
        Ok(grad)
    } else if factor == -1.0 {
        sweep.push1(Op::Neg {}, &[grad])
    } else {
        sweep.push1(Op::MulScalar { scalar: factor }, &[grad])
    }
}
