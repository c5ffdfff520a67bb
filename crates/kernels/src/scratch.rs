//! Memory that kernels work in.

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
