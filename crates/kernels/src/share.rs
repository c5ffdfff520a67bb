//! One buffer, written by several threads in places that do not overlap.

use std::marker::PhantomData;

/// A buffer whose parts are handed to threads by address. Every write is unsafe: the writer says why no one else is there.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    start: *mut f32,
    length: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: the addresses alone are shared; whoever dereferences them answers for it.
unsafe impl Send for Shared<'_> {}
// SAFETY: the same.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(buffer: &'a mut [f32]) -> Self {
        Shared {
            start: buffer.as_mut_ptr(),
            length: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// The address of an element.
    ///
    /// # Safety
    /// `index` is at most the buffer's length.
    #[inline(always)]
    pub(crate) unsafe fn at(self, index: usize) -> *mut f32 {
        debug_assert!(index <= self.length, "{index} of {}", self.length);
        // SAFETY: the caller's.
        unsafe { self.start.add(index) }
    }

    /// All of it, to be read.
    ///
    /// # Safety
    /// Nobody writes it any more.
    #[inline(always)]
    pub(crate) unsafe fn all(self) -> &'a [f32] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// A part of the buffer.
    ///
    /// # Safety
    /// The part lies within the buffer, and nobody else reads or writes it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn part(self, from: usize, length: usize) -> &'a mut [f32] {
        debug_assert!(
            from + length <= self.length,
            "{from}+{length} of {}",
            self.length
        );
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), length) }
    }
}
