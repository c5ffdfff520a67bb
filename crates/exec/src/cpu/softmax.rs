//! Softmax and its logarithm along a dimension, forward and backward.

use rayon::prelude::*;

use super::parallel::CHUNK;
use super::tensor::CpuTensor;

/// Calls `f` with each line along `dim`, gathered when its elements do not lie side by side; `f` rewrites the line `out`
/// and may read the same lines of `others`.
fn lines<const N: usize>(
    mut out: CpuTensor,
    others: [&CpuTensor; N],
    dim: usize,
    f: impl Fn(&mut [f32], [&[f32]; N]) + Sync,
) -> CpuTensor {
    let dims = out.dims();
    let length = dims.get(dim).copied().unwrap_or(1);
    let inner: usize = dims.iter().skip(dim + 1).product();
    let others = others.map(CpuTensor::f32s);
    let elements = out.f32s_unshared();
    if inner == 1 {
        let at_once = CHUNK.div_ceil(length) * length;
        (elements.par_chunks_mut(at_once).enumerate()).for_each(|(chunk, part)| {
            for (index, line) in part.chunks_exact_mut(length).enumerate() {
                let start = chunk * at_once + index * length;
                f(line, others.map(|other| &other[start..][..length]));
            }
        });
        return out;
    }
    let block = length * inner;
    (elements.par_chunks_mut(block).enumerate()).for_each(|(outer, part)| {
        let mut line = vec![0.0; length];
        let mut gathered = [(); N].map(|()| vec![0.0; length]);
        for column in 0..inner {
            for (other, gathered) in others.iter().zip(&mut gathered) {
                let from = other[outer * block + column..].iter().step_by(inner);
                gathered.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
            }
            let from = part[column..].iter().step_by(inner);
            line.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
            f(&mut line, std::array::from_fn(|i| &gathered[i][..]));
            let to = part[column..].iter_mut().step_by(inner);
            to.zip(&line).for_each(|(to, x)| *to = *x);
        }
    });
    out
}

/// The greatest element; NaN when one is NaN.
fn greatest(line: &[f32]) -> f32 {
    line.iter().fold(f32::NEG_INFINITY, |max, &x| {
        if x > max || x.is_nan() || max.is_nan() {
            if max.is_nan() { max } else { x }
        } else {
            max
        }
    })
}

/// `_softmax`.
pub(super) fn softmax(x: CpuTensor, dim: usize) -> CpuTensor {
    lines(x, [], dim, |line, []| {
        let max = greatest(line);
        let mut total = 0.0_f64;
        for x in line.iter_mut() {
            *x = (*x - max).exp();
            total += f64::from(*x);
        }
        let total = total as f32;
        line.iter_mut().for_each(|x| *x /= total);
    })
}

/// `_log_softmax`.
pub(super) fn log_softmax(x: CpuTensor, dim: usize) -> CpuTensor {
    lines(x, [], dim, |line, []| {
        let max = greatest(line);
        let total: f64 = line.iter().map(|x| f64::from((x - max).exp())).sum();
        let log = total.ln() as f32;
        line.iter_mut().for_each(|x| *x = *x - max - log);
    })
}

/// `_softmax_backward_data`: `y * (dy - sum(dy * y))`.
pub(super) fn softmax_grad(grad: CpuTensor, output: &CpuTensor, dim: usize) -> CpuTensor {
    lines(grad, [output], dim, |line, [output]| {
        let pairs = line.iter().zip(output);
        let dot: f64 = pairs.map(|(dy, y)| f64::from(*dy) * f64::from(*y)).sum();
        let dot = dot as f32;
        (line.iter_mut().zip(output)).for_each(|(dy, y)| *dy = (*dy - dot) * y);
    })
}

/// `_log_softmax_backward_data`: `dy - exp(y) * sum(dy)`.
pub(super) fn log_softmax_grad(grad: CpuTensor, output: &CpuTensor, dim: usize) -> CpuTensor {
    lines(grad, [output], dim, |line, [output]| {
        let total = line.iter().map(|dy| f64::from(*dy)).sum::<f64>() as f32;
        (line.iter_mut().zip(output)).for_each(|(dy, y)| *dy -= y.exp() * total);
    })
}
