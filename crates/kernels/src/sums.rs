//! Sums in f64, in eight interleaved strands that stay in vector registers.

/// Sums `f` of every element.
#[inline(always)]
pub fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
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

/// Sums `f` of every pair of elements.
#[inline(always)]
pub(crate) fn sum_of_pairs(x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> f64) -> f64 {
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
