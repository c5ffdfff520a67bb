//! The transforms of F(4x4, 3x3) in one dimension; two dimensions are one after the other.
//!
//! ```text
//!   B^T d   inputs  6 -> 6     A^T m   products  6 -> 4 outputs      G g     weights   3 -> 6
//!                              A dy    gradients 4 -> 6              G^T m   products  6 -> 3 weights
//! ```
//!
//! The interpolation points are 0, +-sqrt(1/2), +-sqrt(2) and infinity: symmetric, so that the transforms share sums, and
//! with products close to 1, which halves the rounding error of the textbook's 0, +-1, +-2.

use pulp::Simd;

/// The points' squares; their product is 1.
const A2: f32 = 0.5;
const B2: f32 = 2.0;
const A: f32 = std::f32::consts::FRAC_1_SQRT_2;
const B: f32 = std::f32::consts::SQRT_2;
/// `a^3` and `b^3`.
const A3: f32 = A * A2;
const B3: f32 = B * B2;
/// The squares' sum.
const SUM: f32 = A2 + B2;
/// `1 / (2 a^2 (a^2 - b^2))` and `1 / (2 b^2 (b^2 - a^2))`.
const NA: f32 = -2.0 / 3.0;
const NB: f32 = 1.0 / 6.0;

/// A transform of a line. Types instead of functions: a call through a function's address would not be inlined, and so not be
/// compiled for the vector instructions of its caller.
pub(super) trait Transform<const N: usize, const M: usize> {
    /// Transforms a line.
    fn apply<S: Simd>(s: S, line: [S::f32s; N]) -> [S::f32s; M];

    /// Transforms the columns of a tile, then its rows.
    #[inline(always)]
    fn both<S: Simd>(s: S, tile: [[S::f32s; N]; N]) -> [[S::f32s; M]; M] {
        let zero = s.splat_f32s(0.0);
        let mut half = [[zero; N]; M];
        for column in 0..N {
            let mut line = [zero; N];
            for (value, row) in line.iter_mut().zip(tile) {
                *value = row[column];
            }
            for (row, value) in half.iter_mut().zip(Self::apply(s, line)) {
                row[column] = value;
            }
        }
        let mut out = [[zero; M]; M];
        for (out, half) in out.iter_mut().zip(half) {
            *out = Self::apply(s, half);
        }
        out
    }
}

/// Points of a tile.
pub(super) const POINTS: usize = 36;

/// `B^T d`.
pub(super) struct Input;

impl Transform<6, 6> for Input {
    #[inline(always)]
    fn apply<S: Simd>(s: S, d: [S::f32s; 6]) -> [S::f32s; 6] {
        let c = |x: f32| s.splat_f32s(x);
        let even_a = s.mul_add_e_f32s(c(-B2), d[2], d[4]);
        let odd_a = s.mul_add_e_f32s(c(-B2), d[1], d[3]);
        let even_b = s.mul_add_e_f32s(c(-A2), d[2], d[4]);
        let odd_b = s.mul_add_e_f32s(c(-A2), d[1], d[3]);
        [
            s.mul_add_e_f32s(c(-SUM), d[2], s.add_f32s(d[0], d[4])),
            s.mul_add_e_f32s(c(A), odd_a, even_a),
            s.mul_add_e_f32s(c(-A), odd_a, even_a),
            s.mul_add_e_f32s(c(B), odd_b, even_b),
            s.mul_add_e_f32s(c(-B), odd_b, even_b),
            s.mul_add_e_f32s(c(-SUM), d[3], s.add_f32s(d[1], d[5])),
        ]
    }
}

/// `A^T m`.
pub(super) struct Output;

impl Transform<6, 4> for Output {
    #[inline(always)]
    fn apply<S: Simd>(s: S, m: [S::f32s; 6]) -> [S::f32s; 4] {
        let c = |x: f32| s.splat_f32s(x);
        let (sum_a, sum_b) = (s.add_f32s(m[1], m[2]), s.add_f32s(m[3], m[4]));
        let (diff_a, diff_b) = (s.sub_f32s(m[1], m[2]), s.sub_f32s(m[3], m[4]));
        [
            s.add_f32s(m[0], s.add_f32s(sum_a, sum_b)),
            s.mul_add_e_f32s(c(A), diff_a, s.mul_f32s(c(B), diff_b)),
            s.mul_add_e_f32s(c(A2), sum_a, s.mul_f32s(c(B2), sum_b)),
            s.mul_add_e_f32s(c(A3), diff_a, s.mul_add_e_f32s(c(B3), diff_b, m[5])),
        ]
    }
}

/// `G g`.
pub(super) struct Weight;

impl Transform<3, 6> for Weight {
    #[inline(always)]
    fn apply<S: Simd>(s: S, g: [S::f32s; 3]) -> [S::f32s; 6] {
        let c = |x: f32| s.splat_f32s(x);
        let even_a = s.mul_f32s(c(NA), s.mul_add_e_f32s(c(A2), g[2], g[0]));
        let even_b = s.mul_f32s(c(NB), s.mul_add_e_f32s(c(B2), g[2], g[0]));
        [
            g[0],
            s.mul_add_e_f32s(c(NA * A), g[1], even_a),
            s.mul_add_e_f32s(c(-NA * A), g[1], even_a),
            s.mul_add_e_f32s(c(NB * B), g[1], even_b),
            s.mul_add_e_f32s(c(-NB * B), g[1], even_b),
            g[2],
        ]
    }
}

/// `A dy`.
pub(super) struct Gradient;

impl Transform<4, 6> for Gradient {
    #[inline(always)]
    fn apply<S: Simd>(s: S, y: [S::f32s; 4]) -> [S::f32s; 6] {
        let c = |x: f32| s.splat_f32s(x);
        let even_a = s.mul_add_e_f32s(c(A2), y[2], y[0]);
        let odd_a = s.mul_add_e_f32s(c(A2), y[3], y[1]);
        let even_b = s.mul_add_e_f32s(c(B2), y[2], y[0]);
        let odd_b = s.mul_add_e_f32s(c(B2), y[3], y[1]);
        [
            y[0],
            s.mul_add_e_f32s(c(A), odd_a, even_a),
            s.mul_add_e_f32s(c(-A), odd_a, even_a),
            s.mul_add_e_f32s(c(B), odd_b, even_b),
            s.mul_add_e_f32s(c(-B), odd_b, even_b),
            y[3],
        ]
    }
}

/// `G^T m`.
pub(super) struct Product;

impl Transform<6, 3> for Product {
    #[inline(always)]
    fn apply<S: Simd>(s: S, m: [S::f32s; 6]) -> [S::f32s; 3] {
        let c = |x: f32| s.splat_f32s(x);
        let (sum_a, sum_b) = (s.add_f32s(m[1], m[2]), s.add_f32s(m[3], m[4]));
        let (diff_a, diff_b) = (s.sub_f32s(m[1], m[2]), s.sub_f32s(m[3], m[4]));
        [
            s.mul_add_e_f32s(c(NA), sum_a, s.mul_add_e_f32s(c(NB), sum_b, m[0])),
            s.mul_add_e_f32s(c(NA * A), diff_a, s.mul_f32s(c(NB * B), diff_b)),
            s.mul_add_e_f32s(c(NA * A2), sum_a, s.mul_add_e_f32s(c(NB * B2), sum_b, m[5])),
        ]
    }
}
