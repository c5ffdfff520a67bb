//! A square of as many rows as a vector has elements, turned in registers.

use pulp::Simd;

/// Rows of the widest square.
pub(crate) const WIDEST: usize = 16;

/// Turns a square: element `j` of row `i` becomes element `i` of row `j`. Only the first rows count, as many as a vector has
/// elements.
#[inline(always)]
pub(crate) fn turned<S: Simd>(s: S, rows: [S::f32s; WIDEST]) -> [S::f32s; WIDEST] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::any::TypeId;
        if TypeId::of::<S>() == TypeId::of::<pulp::x86::V4>() {
            // SAFETY: the two types are one, as the check says, and the vectors are its 16 elements.
            return unsafe {
                let simd = std::mem::transmute_copy::<S, pulp::x86::V4>(&s);
                let rows = std::mem::transmute_copy::<_, [_; WIDEST]>(&rows);
                let turned = x86::turned_16(simd, rows);
                std::mem::transmute_copy::<_, [S::f32s; WIDEST]>(&turned)
            };
        }
        if TypeId::of::<S>() == TypeId::of::<pulp::x86::V3>() {
            // SAFETY: the two types are one, as the check says, and the vectors are its 8 elements.
            return unsafe {
                let simd = std::mem::transmute_copy::<S, pulp::x86::V3>(&s);
                let rows = std::mem::transmute_copy::<_, [_; WIDEST]>(&rows);
                let turned = x86::turned_8(simd, rows);
                std::mem::transmute_copy::<_, [S::f32s; WIDEST]>(&turned)
            };
        }
    }
    let mut from = [[0.0_f32; WIDEST]; WIDEST];
    for (line, row) in from.iter_mut().zip(rows) {
        s.partial_store_f32s(&mut line[..S::F32_LANES], row);
    }
    let mut turned = [s.splat_f32s(0.0); WIDEST];
    for (column, row) in turned.iter_mut().enumerate().take(S::F32_LANES) {
        let mut line = [0.0_f32; WIDEST];
        for (to, from) in line.iter_mut().zip(&from).take(S::F32_LANES) {
            *to = from[column];
        }
        *row = s.partial_load_f32s(&line[..S::F32_LANES]);
    }
    turned
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use pulp::x86::{V3, V4};

    use super::WIDEST;

    /// Pairs of rows, then of pairs, then of quarters: what is far apart moves last.
    #[inline(always)]
    pub(super) fn turned_16(simd: V4, rows: [__m512; WIDEST]) -> [__m512; WIDEST] {
        let V4 { avx512f, .. } = simd;
        let (mut a, mut b) = (rows, rows);
        for i in (0..16).step_by(2) {
            b[i] = avx512f._mm512_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = avx512f._mm512_unpackhi_ps(a[i], a[i + 1]);
        }
        // Row `4 q + k` of `a`: in each quarter its column `k` of rows `4 q` to `4 q + 3`.
        for i in (0..16).step_by(4) {
            for k in 0..2 {
                let [low, high] = [b[i + k], b[i + k + 2]].map(|row| avx512f._mm512_castps_pd(row));
                let (even, odd) = (
                    avx512f._mm512_unpacklo_pd(low, high),
                    avx512f._mm512_unpackhi_pd(low, high),
                );
                a[i + 2 * k] = avx512f._mm512_castpd_ps(even);
                a[i + 2 * k + 1] = avx512f._mm512_castpd_ps(odd);
            }
        }
        for k in 0..4 {
            b[k] = avx512f._mm512_shuffle_f32x4::<0x88>(a[k], a[4 + k]);
            b[4 + k] = avx512f._mm512_shuffle_f32x4::<0x88>(a[8 + k], a[12 + k]);
            b[8 + k] = avx512f._mm512_shuffle_f32x4::<0xdd>(a[k], a[4 + k]);
            b[12 + k] = avx512f._mm512_shuffle_f32x4::<0xdd>(a[8 + k], a[12 + k]);
        }
        for k in 0..4 {
            a[k] = avx512f._mm512_shuffle_f32x4::<0x88>(b[k], b[4 + k]);
            a[4 + k] = avx512f._mm512_shuffle_f32x4::<0x88>(b[8 + k], b[12 + k]);
            a[8 + k] = avx512f._mm512_shuffle_f32x4::<0xdd>(b[k], b[4 + k]);
            a[12 + k] = avx512f._mm512_shuffle_f32x4::<0xdd>(b[8 + k], b[12 + k]);
        }
        a
    }

    /// The same for the first eight rows.
    #[inline(always)]
    pub(super) fn turned_8(simd: V3, rows: [__m256; WIDEST]) -> [__m256; WIDEST] {
        let V3 { avx, .. } = simd;
        let (mut a, mut b) = (rows, rows);
        for i in (0..8).step_by(2) {
            b[i] = avx._mm256_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = avx._mm256_unpackhi_ps(a[i], a[i + 1]);
        }
        for i in (0..8).step_by(4) {
            for k in 0..2 {
                a[i + 2 * k] = avx._mm256_shuffle_ps::<0x44>(b[i + k], b[i + k + 2]);
                a[i + 2 * k + 1] = avx._mm256_shuffle_ps::<0xee>(b[i + k], b[i + k + 2]);
            }
        }
        for k in 0..4 {
            b[k] = avx._mm256_permute2f128_ps::<0x20>(a[k], a[4 + k]);
            b[4 + k] = avx._mm256_permute2f128_ps::<0x31>(a[k], a[4 + k]);
        }
        b
    }
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::Isa;

    struct Case;

    impl WithSimd for Case {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) -> usize {
            let mut rows = [s.splat_f32s(f32::NAN); WIDEST];
            for (index, row) in rows.iter_mut().enumerate().take(S::F32_LANES) {
                let mut line = [0.0; WIDEST];
                for (column, element) in line.iter_mut().enumerate() {
                    *element = (100 * index + column) as f32;
                }
                *row = s.partial_load_f32s(&line[..S::F32_LANES]);
            }
            for (index, row) in turned(s, rows).into_iter().enumerate().take(S::F32_LANES) {
                let mut line = [0.0; WIDEST];
                s.partial_store_f32s(&mut line[..S::F32_LANES], row);
                for (column, element) in line.iter().enumerate().take(S::F32_LANES) {
                    assert_eq!(*element, (100 * column + index) as f32);
                }
            }
            S::F32_LANES
        }
    }

    #[test]
    fn squares_of_every_width_are_turned() {
        let mut widths: Vec<usize> = Isa::all().into_iter().map(|isa| isa.run(Case)).collect();
        widths.dedup();
        assert!(widths.contains(&1));
    }
}
