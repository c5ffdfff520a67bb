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
