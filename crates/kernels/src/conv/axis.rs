//! Where the taps of a position look, along one axis.

use super::Convolution;

/// One axis: where the taps of a position look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// Positions.
    pub(super) positions: usize,
    /// From a position to the next in the source.
    pub(super) walk: usize,
    /// Taps that count, each with its number in the kernel: `first_tap`, `first_tap + tap_step`, ...
    pub(super) taps: usize,
    pub(super) first_tap: usize,
    pub(super) tap_step: usize,
    /// Where the first tap of position 0 looks, and how much further each next one.
    pub(super) first: isize,
    pub(super) step: isize,
    /// Size of the source.
    pub(super) source: usize,
    /// Where position 0 lies in the target, how far the next one is, and the target's size.
    pub(super) base: usize,
    pub(super) base_step: usize,
    pub(super) target: usize,
}

impl Axis {
    /// The source pixel of a tap, if there is one.
    #[inline(always)]
    pub(super) fn look(&self, position: usize, tap: usize) -> Option<usize> {
        let at = (position * self.walk) as isize + self.first + tap as isize * self.step;
        (at >= 0 && (at as usize) < self.source).then_some(at as usize)
    }

    /// Whether all taps of a position look at pixels, and at which one the first does.
    #[inline(always)]
    pub(super) fn inside(&self, position: usize) -> Option<usize> {
        let first = (position * self.walk) as isize + self.first;
        let last = first + (self.taps as isize - 1) * self.step;
        let (least, most) = (first.min(last), first.max(last));
        (self.taps > 0 && least >= 0 && most < self.source as isize).then_some(first as usize)
    }

    /// Of the forward pass.
    pub(super) fn forward(g: &Convolution, axis: usize) -> Self {
        Axis {
            positions: g.output[axis],
            walk: g.stride[axis],
            taps: g.kernel[axis],
            first_tap: 0,
            tap_step: 1,
            first: -(g.padding[axis] as isize),
            step: g.dilation[axis] as isize,
            source: g.input[axis],
            base: 0,
            base_step: 1,
            target: g.output[axis],
        }
    }

    /// Of the input gradient, for inputs `remainder`, `remainder + stride`, ...: tap `k` of input `i` looks at output
    /// `(i + padding - k * dilation) / stride` where that is whole.
    pub(super) fn input_grad(g: &Convolution, axis: usize, remainder: usize) -> Self {
        let (stride, dilation) = (g.stride[axis], g.dilation[axis]);
        let start = remainder + g.padding[axis];
        // Whole numbers of strides apart, whichever is ahead.
        let is_whole = |tap: &usize| start % stride == tap * dilation % stride;
        let mut whole = (0..g.kernel[axis]).filter(is_whole);
        let (first, second) = (whole.next(), whole.next());
        let first_tap = first.unwrap_or(0);
        let tap_step = second.map_or(g.kernel[axis], |second| second - first_tap);
        Axis {
            positions: g.input[axis].saturating_sub(remainder).div_ceil(stride),
            walk: 1,
            taps: first.map_or(0, |first| (g.kernel[axis] - 1 - first) / tap_step + 1),
            first_tap,
            tap_step,
            first: (start as isize - (first_tap * dilation) as isize).div_euclid(stride as isize),
            step: -((tap_step * dilation / stride) as isize),
            source: g.output[axis],
            base: remainder,
            base_step: stride,
            target: g.input[axis],
        }
    }
}
