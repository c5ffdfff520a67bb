//! Convolution and its two gradients: columns of a tile of positions, then a matrix product.
//!
//! Tiles follow each other; within one, the columns and the product run on all threads. So the scratch memory is that of
//! one tile whatever the number of threads, and no sum is ever cut by threads.

use super::columns::{Geometry, collect, gather, scatter_add, spread};
use super::matmul::{View, product};
use super::tensor::CpuTensor;

/// Elements of a column matrix that are aimed at: what a second-level cache holds.
const TILE_ELEMENTS: usize = 1 << 18;
/// Fewest positions of a tile: below it, reading the weights outweighs using them.
const TILE_POSITIONS: usize = 512;
/// Most positions of a tile.
const MAX_TILE_POSITIONS: usize = 4096;

/// Positions of a tile.
pub(super) fn tile(g: &Geometry) -> usize {
    (TILE_ELEMENTS / g.rows())
        .clamp(TILE_POSITIONS, MAX_TILE_POSITIONS)
        .min(g.positions())
}

fn tiles(g: &Geometry) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (positions, tile) = (g.positions(), tile(g));
    (0..positions)
        .step_by(tile)
        .map(move |start| (start, (start + tile).min(positions)))
}

/// A buffer for the columns of a tile, used again for the next one.
fn buffer(rows: usize, columns: usize) -> CpuTensor {
    CpuTensor::from_f32(&[rows, columns], vec![0.0; rows * columns])
}

/// `convolution`: `input [N, C, ...]`, `weight [O, C / groups, ...]`, `bias [O]`.
pub(super) fn forward(
    g: &Geometry,
    input: &CpuTensor,
    weight: &CpuTensor,
    bias: Option<&CpuTensor>,
    out_dims: &[usize],
) -> CpuTensor {
    let bias = bias.map(CpuTensor::f32s);
    if g.is_pointwise() {
        return pointwise(g, input, weight, false, bias, out_dims);
    }
    let (rows, plane) = (g.rows(), g.out_plane());
    let group_out = g.out_channels / g.groups;
    let mut out = vec![0.0; g.images * g.out_channels * plane];
    let mut columns = buffer(rows, tile(g));
    for (start, end) in tiles(g) {
        let length = end - start;
        for group in 0..g.groups {
            let filled = &mut columns.f32s_unshared()[..rows * length];
            gather(g, group, input.f32s(), (start, end), filled);
            let result = product(
                View {
                    tensor: weight,
                    offset: group * group_out * rows,
                    dims: &[group_out, rows],
                    strides: &[rows, 1],
                },
                View {
                    tensor: &columns,
                    offset: 0,
                    dims: &[rows, length],
                    strides: &[length, 1],
                },
            );
            let channels = group * group_out..(group + 1) * group_out;
            let range = (start, end);
            spread(
                result.f32s(),
                g.out_channels,
                plane,
                channels,
                range,
                bias,
                &mut out,
            );
        }
    }
    CpuTensor::from_f32(out_dims, out)
}

/// A 1x1 convolution of stride 1: one product an image and group, straight from the input; with `transposed` weights,
/// its input gradient.
fn pointwise(
    g: &Geometry,
    input: &CpuTensor,
    weight: &CpuTensor,
    transposed: bool,
    bias: Option<&[f32]>,
    out_dims: &[usize],
) -> CpuTensor {
    let plane = g.out_plane();
    let (group_in, group_out) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let strides = if transposed {
        [0, group_in * group_out, 1, group_out]
    } else {
        [0, group_in * group_out, group_in, 1]
    };
    let out = product(
        View {
            tensor: weight,
            offset: 0,
            dims: &[1, g.groups, group_out, group_in],
            strides: &strides,
        },
        View {
            tensor: input,
            offset: 0,
            dims: &[g.images, g.groups, group_in, plane],
            strides: &[g.in_channels * plane, group_in * plane, plane, 1],
        },
    );
    let mut out = out.reshaped(out_dims);
    if let Some(bias) = bias {
        let planes = out.f32s_unshared().chunks_exact_mut(plane);
        for (out, bias) in planes.zip(bias.iter().cycle()) {
            out.iter_mut().for_each(|out| *out += bias);
        }
    }
    out
}

/// `convolution_backward.input`: from `grad [N, O, ...]` and `weight`.
pub(super) fn input_grad(
    g: &Geometry,
    grad: &CpuTensor,
    weight: &CpuTensor,
    input_dims: &[usize],
) -> CpuTensor {
    if let Some(transposed) = g.transposed() {
        if g.is_pointwise() {
            return pointwise(&transposed, grad, weight, true, None, input_dims);
        }
        let weight = turned(g, weight.f32s());
        return forward(&transposed, grad, &weight, None, input_dims);
    }
    let (rows, plane) = (g.rows(), g.out_plane());
    let group_out = g.out_channels / g.groups;
    let mut out = vec![0.0; g.images * g.in_channels * g.in_plane()];
    let mut grads = buffer(group_out, tile(g));
    for (start, end) in tiles(g) {
        let length = end - start;
        for group in 0..g.groups {
            let channels = group * group_out..(group + 1) * group_out;
            let collected = &mut grads.f32s_unshared()[..group_out * length];
            let range = (start, end);
            collect(
                grad.f32s(),
                g.out_channels,
                plane,
                channels,
                range,
                collected,
            );
            let columns = product(
                View {
                    tensor: weight,
                    offset: group * group_out * rows,
                    dims: &[rows, group_out],
                    strides: &[1, rows],
                },
                View {
                    tensor: &grads,
                    offset: 0,
                    dims: &[group_out, length],
                    strides: &[length, 1],
                },
            );
            scatter_add(g, group, columns.f32s(), range, &mut out);
        }
    }
    CpuTensor::from_f32(input_dims, out)
}

/// The weights of [`Geometry::transposed`]: input and output channels swapped within each group, taps reversed.
fn turned(g: &Geometry, weight: &[f32]) -> CpuTensor {
    let taps = g.taps();
    let (group_in, group_out) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let mut out = vec![0.0; weight.len()];
    for (index, turned) in out.chunks_exact_mut(taps).enumerate() {
        let (channel, output) = (index / group_out, index % group_out);
        let (group, input) = (channel / group_in, channel % group_in);
        let from = ((group * group_out + output) * group_in + input) * taps;
        let kernel = &weight[from..][..taps];
        (turned.iter_mut().zip(kernel.iter().rev())).for_each(|(out, w)| *out = *w);
    }
    CpuTensor::from_f32(&[g.in_channels, group_out * taps], out)
}

/// `convolution_backward.weight`: from `grad [N, O, ...]` and `input [N, C, ...]`.
///
/// Tiles are added in order. Each gives `columns @ grad^T`, the transposed gradient: so the smaller matrix is the one
/// that the product has to rearrange.
pub(super) fn weight_grad(
    g: &Geometry,
    grad: &CpuTensor,
    input: &CpuTensor,
    weight_dims: &[usize],
) -> CpuTensor {
    let (rows, plane) = (g.rows(), g.out_plane());
    let group_out = g.out_channels / g.groups;
    let mut out = vec![0.0; g.out_channels * rows];
    let mut columns = buffer(rows, tile(g));
    let mut grads = buffer(group_out, tile(g));
    for (start, end) in tiles(g) {
        let (length, range) = (end - start, (start, end));
        for group in 0..g.groups {
            let channels = group * group_out..(group + 1) * group_out;
            let filled = &mut columns.f32s_unshared()[..rows * length];
            gather(g, group, input.f32s(), range, filled);
            let collected = &mut grads.f32s_unshared()[..group_out * length];
            collect(
                grad.f32s(),
                g.out_channels,
                plane,
                channels,
                range,
                collected,
            );
            let result = product(
                View {
                    tensor: &columns,
                    offset: 0,
                    dims: &[rows, length],
                    strides: &[length, 1],
                },
                View {
                    tensor: &grads,
                    offset: 0,
                    dims: &[length, group_out],
                    strides: &[1, length],
                },
            );
            let out = &mut out[group * group_out * rows..][..group_out * rows];
            add_transposed(result.f32s(), rows, group_out, out);
        }
    }
    CpuTensor::from_f32(weight_dims, out)
}

/// `out [columns, rows] += matrix [rows, columns]^T`, in blocks that stay in cache.
fn add_transposed(matrix: &[f32], rows: usize, columns: usize, out: &mut [f32]) {
    const BLOCK: usize = 16;
    for first_row in (0..rows).step_by(BLOCK) {
        let last_row = (first_row + BLOCK).min(rows);
        for (column, out) in out.chunks_exact_mut(rows).enumerate() {
            for (row, out) in (first_row..last_row).zip(&mut out[first_row..last_row]) {
                *out += matrix[row * columns + column];
            }
        }
    }
}
