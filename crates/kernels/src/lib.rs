//! Hot kernels of training on a CPU: convolution, normalisation, pooling and products, forward and backward.
//!
//! This crate promises results that depend on the operands and the processor's instructions alone: not on the number of
//! threads (rayon's current pool) nor on what its scratch memory held. Results and scratch memory
//! come from the caller; only `gemm` takes memory of its own, for the matrices that it packs. It never knows graphs.
//!
//! Images lie in memory *channels last*, `[N, spatial axes, C]`: the channels of a pixel side by side, so that vectors hold
//! channels and no kernel cares for the width of an image.
#![allow(
    unsafe_code,
    reason = "kernels write to disjoint parts of a buffer from several threads, and read without bounds checks in inner loops"
)]

mod batch_norm;
mod conv;
mod crew;
mod gelu;
mod isa;
mod layer_norm;
mod matmul;
mod pool;
mod reorder;
mod scratch;
mod share;
mod softmax;
mod square;
mod sums;
mod tile;

pub use batch_norm::{
    Affine, Gradient, Input, Terms, batch_norm_scratch, gradient_sums, input_gradient, moments,
    normalise,
};
pub use conv::{Convolution, Method};
pub use gelu::{gelu, gelu_gradient, gelu_tanh, gelu_tanh_gradient};
pub use isa::Isa;
pub use layer_norm::{LayerNormGradient, layer_norm};
pub use matmul::{Matrix, matmul, matmul_bytes};
pub use pool::{
    Averaged, Pooling, Window, avg_pool, avg_pool_gradient, max_pool, max_pool_gradient,
};
pub use reorder::turn;
pub use scratch::Scratch;
pub use softmax::{Softmax, softmax, softmax_gradient};
pub use sums::sum;
