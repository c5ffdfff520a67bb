//! Loops over slices in chunks of fixed size, so that the number of threads never changes a bit.

use rayon::prelude::*;

use super::tensor::CpuTensor;

/// Elements that one thread takes at a time: 64 KiB of f32, long enough to outweigh a hand-over.
pub(super) const CHUNK: usize = 1 << 14;

/// `f` of every element; in place when nobody else holds `x`.
pub(super) fn map(mut x: CpuTensor, f: impl Fn(f32) -> f32 + Sync) -> CpuTensor {
    if let Some(elements) = x.f32s_mut() {
        elements.par_chunks_mut(CHUNK).for_each(|chunk| {
            for element in chunk {
                *element = f(*element);
            }
        });
        return x;
    }
    let mut out = vec![0.0; x.elements()];
    (out.par_chunks_mut(CHUNK))
        .zip(x.f32s().par_chunks(CHUNK))
        .for_each(|(out, x)| {
            for (out, x) in out.iter_mut().zip(x) {
                *out = f(*x);
            }
        });
    x.like(out)
}

/// `f` of every pair of elements of two tensors of one shape; in place of the one that nobody else holds.
pub(super) fn zip(
    mut a: CpuTensor,
    mut b: CpuTensor,
    f: impl Fn(f32, f32) -> f32 + Sync,
) -> CpuTensor {
    if let Some(out) = a.f32s_mut() {
        (out.par_chunks_mut(CHUNK))
            .zip(b.f32s().par_chunks(CHUNK))
            .for_each(|(a, b)| {
                for (a, b) in a.iter_mut().zip(b) {
                    *a = f(*a, *b);
                }
            });
        return a;
    }
    if let Some(out) = b.f32s_mut() {
        (out.par_chunks_mut(CHUNK))
            .zip(a.f32s().par_chunks(CHUNK))
            .for_each(|(b, a)| {
                for (b, a) in b.iter_mut().zip(a) {
                    *b = f(*a, *b);
                }
            });
        return b;
    }
    let mut out = vec![0.0; a.elements()];
    (out.par_chunks_mut(CHUNK))
        .zip(a.f32s().par_chunks(CHUNK))
        .zip(b.f32s().par_chunks(CHUNK))
        .for_each(|((out, a), b)| {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b);
            }
        });
    a.like(out)
}

/// Sums `f` of every element in f64, in eight interleaved strands that the compiler keeps in vector registers.
pub(super) fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    let mut strands = [0.0; 8];
    let (blocks, rest) = x.as_chunks::<8>();
    for block in blocks {
        for (strand, x) in strands.iter_mut().zip(block) {
            *strand += f(f64::from(*x));
        }
    }
    for (strand, x) in strands.iter_mut().zip(rest) {
        *strand += f(f64::from(*x));
    }
    strands.iter().sum()
}

/// Sums `f` of every pair of elements in f64, as [`sum`] does.
pub(super) fn sum2(x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> f64) -> f64 {
    let mut strands = [0.0; 8];
    let (x_blocks, x_rest) = x.as_chunks::<8>();
    let (y_blocks, y_rest) = y.as_chunks::<8>();
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for ((strand, x), y) in strands.iter_mut().zip(x).zip(y) {
            *strand += f(f64::from(*x), f64::from(*y));
        }
    }
    for ((strand, x), y) in strands.iter_mut().zip(x_rest).zip(y_rest) {
        *strand += f(f64::from(*x), f64::from(*y));
    }
    strands.iter().sum()
}
