//! Memory that kernels work in.

use std::mem::MaybeUninit;

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; Line::ELEMENTS]);

impl Line {
    const ELEMENTS: usize = 16;
}

/// Scratch memory: aligned to cache lines, grown but never shrunk, its content of no meaning.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// What [`Scratch::bytes`] gives after so many were reserved.
    pub fn size_of(bytes: usize) -> usize {
        bytes.next_multiple_of(size_of::<Line>())
    }

    /// Room for at least some `f32` elements.
    pub fn reserve(&mut self, elements: usize) {
        let lines = elements.div_ceil(Line::ELEMENTS);
        if lines > self.0.len() {
            // The old content is not carried over, nor both held at once.
            self.0 = Vec::new();
            self.0.resize(lines, Line([0.0; Line::ELEMENTS]));
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }

    /// All of it, as `f32`.
    pub fn f32s(&mut self) -> &mut [f32] {
        // SAFETY: a line is 16 `f32` in C order, with no padding.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.0.as_mut_ptr().cast(),
                self.0.len() * Line::ELEMENTS,
            )
        }
    }

    /// All of it, as `i64`.
    pub fn i64s(&mut self) -> &mut [i64] {
        // SAFETY: a line is aligned for `i64` and holds 8; any bits are numbers.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.0.as_mut_ptr().cast(),
                self.0.len() * Line::ELEMENTS / 2,
            )
        }
    }

    /// All of it, as bytes for those who also read what is not initialised; this is.
    pub fn as_uninit_bytes(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: initialised bytes are bytes that may be uninitialised.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.bytes()) }
    }

    /// The same, to be changed.
    ///
    /// # Safety
    /// Only initialised bytes may be written.
    pub unsafe fn uninit_bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = self.bytes();
        // SAFETY: they stay initialised, by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) }
    }

    /// All of it, as `f64`.
    pub fn f64s(&mut self) -> &mut [f64] {
        // SAFETY: a line is aligned for `f64` and holds 8; any bits are numbers.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.0.as_mut_ptr().cast(),
                self.0.len() * Line::ELEMENTS / 2,
            )
        }
    }
}
