//! Which vector instructions a kernel is compiled for.
//!
//! A kernel is written once, over `pulp::Simd`, and compiled for each set of instructions; [`Isa`] picks one at run time.

use pulp::{Arch, Simd, WithSimd};

/// A set of vector instructions that this processor has.
#[derive(Clone, Copy, Debug)]
pub struct Isa(Arch);

/// What a register tile of the products is made of: see [`crate::tile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocking {
    /// Elements of a vector.
    pub(crate) lanes: usize,
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Vectors across a tile.
    pub(crate) vectors: usize,
}

impl Blocking {
    /// Columns of a tile.
    pub(crate) fn columns(&self) -> usize {
        self.lanes * self.vectors
    }
}

impl Isa {
    /// The widest set of this processor: AVX-512, AVX2 with FMA, NEON, or plain Rust.
    pub fn best() -> Self {
        Isa(Arch::new())
    }

    /// Every set that this processor has, plain Rust among them; for tests.
    pub fn all() -> Vec<Self> {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        {
            let mut all = vec![Isa(Arch::Scalar)];
            all.extend(pulp::x86::V3::try_new().map(|simd| Isa(Arch::V3(simd))));
            all.extend(pulp::x86::V4::try_new().map(|simd| Isa(Arch::V4(simd))));
            all
        }
        #[cfg(target_arch = "aarch64")]
        {
            let mut all = vec![Isa(Arch::Scalar)];
            all.extend(pulp::aarch64::Neon::try_new().map(|simd| Isa(Arch::Neon(simd))));
            all
        }
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
        {
            vec![Self::best()]
        }
    }

    /// Name, for reports.
    pub fn name(self) -> &'static str {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        match (self.0.dispatch(Lanes), cfg!(target_arch = "x86_64")) {
            (16, _) => "avx512",
            (8, _) => "avx2",
            (4, false) if cfg!(target_arch = "aarch64") => "neon",
            (4, false) => "simd128",
            _ => "plain",
        }
    }

    pub(crate) fn blocking(self) -> Blocking {
        struct Of;
        impl WithSimd for Of {
            type Output = Blocking;
            fn with_simd<S: Simd>(self, _: S) -> Blocking {
                blocking::<S>()
            }
        }
        self.0.dispatch(Of)
    }

    /// Runs a kernel, compiled for this set.
    pub(crate) fn run<T: WithSimd>(self, kernel: T) -> T::Output {
        self.0.dispatch(kernel)
    }
}

/// Tiles that leave registers for a row of the right matrix and an element of the left one.
pub(crate) const fn blocking<S: Simd>() -> Blocking {
    let (rows, vectors) = match S::F32_LANES {
        // 32 registers.
        16 => (ROWS_OF_16, 2),
        // 16 registers.
        8 => (ROWS_OF_8, 2),
        // 32 registers with NEON.
        4 => (ROWS_OF_4, 2),
        _ => (ROWS_OF_1, 4),
    };
    Blocking {
        lanes: S::F32_LANES,
        rows,
        vectors,
    }
}

pub(crate) const ROWS_OF_16: usize = 14;
pub(crate) const ROWS_OF_8: usize = 6;
pub(crate) const ROWS_OF_4: usize = 8;
pub(crate) const ROWS_OF_1: usize = 2;
