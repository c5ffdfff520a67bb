//! Sums over dimensions, in f64 and in an order that the shape alone decides.

use rayon::prelude::*;

use super::tensor::CpuTensor;

/// Outputs that a thread sums at a time.
const OUTPUTS: usize = 256;

/// Neighbouring dimensions that are reduced, or kept, alike; ones of size 1 are left out.
fn groups(dims: &[usize], reduced: &[bool]) -> Vec<(usize, bool)> {
    let mut groups: Vec<(usize, bool)> = Vec::new();
    for (&size, &reduced) in dims.iter().zip(reduced).filter(|(size, _)| **size != 1) {
        match groups.last_mut() {
            Some((total, same)) if *same == reduced => *total *= size,
            _ => groups.push((size, reduced)),
        }
    }
    groups
}

/// Bytes of f64 that [`sum`] holds at once.
pub(super) fn scratch(dims: &[usize], over: &[usize]) -> u64 {
    let groups = groups(dims, &flags(dims.len(), over));
    let mut elements: u64 = groups.iter().map(|(size, _)| *size as u64).product();
    // The first step leaves the most; the second reads it and writes less.
    let mut bytes = 0;
    for (size, _) in groups.iter().rev().filter(|(_, reduced)| *reduced) {
        elements /= *size as u64;
        bytes += 8 * elements;
    }
    bytes
}

fn flags(rank: usize, over: &[usize]) -> Vec<bool> {
    // ATen reduces over all dimensions when none is named.
    (0..rank)
        .map(|dim| over.is_empty() || over.contains(&dim))
        .collect()
}

/// `sum.dim_IntList`, times `scale`.
pub(super) fn sum(x: &CpuTensor, over: &[usize], out_dims: &[usize], mean: bool) -> CpuTensor {
    let mut groups = groups(x.dims(), &flags(x.dims().len(), over));
    let count = x.elements() / out_dims.iter().product::<usize>();
    let finish = |sums: &[f64]| {
        let scaled = sums.iter().map(|sum| {
            if mean {
                (sum / count as f64) as f32
            } else {
                *sum as f32
            }
        });
        CpuTensor::from_f32(out_dims, scaled.collect())
    };
    let mut sums: Option<Vec<f64>> = None;
    while let Some(last) = groups.iter().rposition(|(_, reduced)| *reduced) {
        let length = groups[last].0;
        let outer = groups[..last].iter().map(|(size, _)| size).product();
        let inner = groups[last + 1..].iter().map(|(size, _)| size).product();
        sums = Some(match &sums {
            None => step(x.f32s(), outer, length, inner),
            Some(sums) => step(sums, outer, length, inner),
        });
        groups.remove(last);
    }
    match sums {
        Some(sums) => finish(&sums),
        None => CpuTensor::from_f32(out_dims, x.f32s().to_vec()),
    }
}

/// Sums `[outer, length, inner]` over its middle.
fn step<T: Copy + Into<f64> + Sync>(
    x: &[T],
    outer: usize,
    length: usize,
    inner: usize,
) -> Vec<f64> {
    let mut out = vec![0.0; outer * inner];
    (out.par_chunks_mut(OUTPUTS).enumerate()).for_each(|(chunk, sums)| {
        let first = chunk * OUTPUTS;
        if inner == 1 {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = strands(&x[(first + index) * length..][..length]);
            }
            return;
        }
        let mut sums = sums;
        let mut at = first;
        while !sums.is_empty() {
            let (block, column) = (at / inner, at % inner);
            let run = (inner - column).min(sums.len());
            let (part, rest) = sums.split_at_mut(run);
            for row in 0..length {
                let row = &x[(block * length + row) * inner + column..][..run];
                (part.iter_mut().zip(row)).for_each(|(sum, x)| *sum += (*x).into());
            }
            sums = rest;
            at += run;
        }
    });
    out
}

/// A sum in eight interleaved strands.
fn strands<T: Copy + Into<f64>>(x: &[T]) -> f64 {
    let mut strands = [0.0; 8];
    for block in x.chunks(8) {
        for (strand, x) in strands.iter_mut().zip(block) {
            *strand += (*x).into();
        }
    }
    strands.iter().sum()
}
