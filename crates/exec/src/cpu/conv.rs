//! Convolution and its two gradients: columns of a tile of positions, then matrix products.
//!
//! Tiles follow each other; within one, the columns and the products run on all threads. So the scratch memory is that
//! of one tile whatever the number of threads, and no sum is ever cut by threads.
//!
//! `gemm` is twice as fast when it may rearrange the smaller matrix once, ahead of the product. It does so when that
//! matrix has at most a few hundred rows that lie along the inner dimension. Hence the shape of all products here: the
//! larger matrix on the left, on the right [`blocks`] of a matrix whose rows are transposed by strides alone.

use super::columns::{
    Geometry, collect, collect_transposed, gather, scatter_add, spread_transposed,
};
use super::matmul::{BLOCK, View, blocks, product};
use super::tensor::CpuTensor;

/// Elements of a column matrix that are aimed at: what a second-level cache holds.
const TILE_ELEMENTS: usize = 1 << 18;
/// Fewest positions of a tile: below it, reading the weights outweighs using them.
const TILE_POSITIONS: usize = 512;
/// Most positions of a tile.
const MAX_TILE_POSITIONS: usize = 4096;

/// Up to this many positions a matrix of weights is so much larger than one of positions that it is moved as little as can
/// be, whatever shape of product that takes.
const FEW_POSITIONS: usize = 128;

/// Positions of a tile.
pub(super) fn tile(g: &Geometry) -> usize {
    if g.is_pointwise() {
        return g.out_plane();
    }
    (TILE_ELEMENTS / g.rows())
        .clamp(TILE_POSITIONS, MAX_TILE_POSITIONS)
        .min(g.positions())
}

/// Positions of a tile of the input gradient where the convolution skips inputs: there they are the smaller matrix.
pub(super) fn skipping_tile(g: &Geometry) -> usize {
    BLOCK.min(g.positions())
}

fn tiles(g: &Geometry, tile: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let positions = g.positions();
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
    let (rows, plane) = (g.rows(), g.out_plane());
    let (group_in, group_out) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let mut out = vec![0.0; g.images * g.out_channels * plane];
    let pointwise = g.is_pointwise();
    let mut columns = (!pointwise).then(|| buffer(rows, tile(g)));
    for range @ (start, end) in tiles(g, tile(g)) {
        let length = end - start;
        for group in 0..g.groups {
            let (tensor, offset) = match &mut columns {
                // An image's planes are its columns.
                None => {
                    let channel = start / plane * g.in_channels + group * group_in;
                    (input, channel * plane)
                }
                Some(columns) => {
                    let filled = &mut columns.f32s_unshared()[..rows * length];
                    gather(g, group, input.f32s(), range, filled);
                    (&*columns, 0)
                }
            };
            for (from, to) in blocks(group_out) {
                let first = group * group_out + from;
                let result = product(
                    View {
                        tensor,
                        offset,
                        dims: &[length, rows],
                        strides: &[1, length],
                    },
                    View {
                        tensor: weight,
                        offset: first * rows,
                        dims: &[rows, to - from],
                        strides: &[1, rows],
                    },
                );
                let channels = first..group * group_out + to;
                let (all, result) = (g.out_channels, result.f32s());
                spread_transposed(result, all, plane, channels, range, bias, &mut out);
            }
        }
    }
    CpuTensor::from_f32(out_dims, out)
}

/// `convolution_backward.input`: from `grad [N, O, ...]` and `weight`.
pub(super) fn input_grad(
    g: &Geometry,
    grad: &CpuTensor,
    weight: &CpuTensor,
    input_dims: &[usize],
) -> CpuTensor {
    if let Some(transposed) = as_forward(g) {
        let weight = turned(g, weight.f32s());
        return forward(&transposed, grad, &weight, None, input_dims);
    }
    let (rows, plane) = (g.rows(), g.out_plane());
    let group_out = g.out_channels / g.groups;
    let mut out = vec![0.0; g.images * g.in_channels * g.in_plane()];
    let mut grads = buffer(skipping_tile(g), group_out);
    for range @ (start, end) in tiles(g, skipping_tile(g)) {
        let length = end - start;
        for group in 0..g.groups {
            let channels = group * group_out..(group + 1) * group_out;
            let collected = &mut grads.f32s_unshared()[..group_out * length];
            collect_transposed(
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
                    strides: &[1, group_out],
                },
            );
            scatter_add(g, group, columns.f32s(), range, &mut out);
        }
    }
    CpuTensor::from_f32(input_dims, out)
}

/// The convolution of turned weights that gives the input gradient, where that is the faster way: for few positions, turning
/// the weights would take longer than adding up columns.
pub(super) fn as_forward(g: &Geometry) -> Option<Geometry> {
    g.transposed().filter(|_| g.positions() > FEW_POSITIONS)
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

/// `convolution_backward.weight`: from `grad [N, O, ...]` and `input [N, C, ...]`. Tiles are added in order.
pub(super) fn weight_grad(
    g: &Geometry,
    grad: &CpuTensor,
    input: &CpuTensor,
    weight_dims: &[usize],
) -> CpuTensor {
    let (rows, plane) = (g.rows(), g.out_plane());
    let group_out = g.out_channels / g.groups;
    let is_direct = is_weight_grad_direct(g);
    let mut out = vec![0.0; if is_direct { 0 } else { g.out_channels * rows }];
    let mut columns = buffer(rows, tile(g));
    let mut grads = buffer(group_out, tile(g));
    for range @ (start, end) in tiles(g, tile(g)) {
        let length = end - start;
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
            if is_direct {
                let result = product(
                    View {
                        tensor: &grads,
                        offset: 0,
                        dims: &[group_out, length],
                        strides: &[length, 1],
                    },
                    View {
                        tensor: &columns,
                        offset: 0,
                        dims: &[length, rows],
                        strides: &[1, length],
                    },
                );
                return result.reshaped(weight_dims);
            }
            for (from, to) in blocks(group_out) {
                let result = product(
                    View {
                        tensor: &columns,
                        offset: 0,
                        dims: &[rows, length],
                        strides: &[length, 1],
                    },
                    View {
                        tensor: &grads,
                        offset: from * length,
                        dims: &[length, to - from],
                        strides: &[1, length],
                    },
                );
                let first = group * group_out + from;
                let out = &mut out[first * rows..(first + to - from) * rows];
                add_transposed(result.f32s(), rows, to - from, out);
            }
        }
    }
    CpuTensor::from_f32(weight_dims, out)
}

/// Whether the weight gradient is one product, which needs neither turning nor adding.
pub(super) fn is_weight_grad_direct(g: &Geometry) -> bool {
    g.groups == 1 && g.positions() <= FEW_POSITIONS.min(tile(g))
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
