//! Convolution and its gradients: which way each goes, and what scratch memory it takes.

mod axis;
mod depthwise;
mod gather;
mod gather_weight;
mod transform;
mod winograd;
mod winograd_weight;

use crate::Isa;

/// A convolution's sizes, with three spatial axes; missing ones come first and are 1. None is 0, channels divide by groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Images.
    pub images: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Groups: each sees its share of the input's channels and makes its share of the output's.
    pub groups: usize,
    /// Input sizes.
    pub input: [usize; 3],
    /// Output sizes.
    pub output: [usize; 3],
    /// Kernel sizes.
    pub kernel: [usize; 3],
    /// Strides.
    pub stride: [usize; 3],
    /// Zeros on either side of the input.
    pub padding: [usize; 3],
    /// From a tap to the next.
    pub dilation: [usize; 3],
}

/// How to convolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Method {
    /// By Winograd's filtering where it is faster.
    #[default]
    Auto,
    /// Without it: errors of about 2e-7 instead of 1e-6 (relative L2).
    Direct,
}

/// Fewest channels on either side for which Winograd's filtering pays.
const WINOGRAD_CHANNELS: usize = 16;
/// Fewest tiles: below, transforming weights outweighs all.
const WINOGRAD_TILES: usize = 8;

impl Convolution {
    fn is_winograd(&self, method: Method) -> bool {
        let tiles = self.images * self.output[1].div_ceil(4) * self.output[2].div_ceil(4);
        method == Method::Auto
            && self.groups == 1
            && (self.input[0], self.kernel, self.stride) == (1, [1, 3, 3], [1; 3])
            && self.padding[0] == 0
            && self.dilation[1..] == [1, 1]
            && self.in_channels.min(self.out_channels) >= WINOGRAD_CHANNELS
            && tiles >= WINOGRAD_TILES
    }

    /// The convolution over this one's output gradient that gives its input gradient, by turned kernels; where no input is
    /// skipped and the padding does not reach beyond the kernel.
    fn transposed(&self) -> Option<Self> {
        let mut padding = [0; 3];
        for (axis, padding) in padding.iter_mut().enumerate() {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis];
            *padding = reach.checked_sub(self.padding[axis])?;
        }
        (self.stride == [1; 3]).then_some(Convolution {
            in_channels: self.out_channels,
            out_channels: self.in_channels,
            input: self.output,
            output: self.input,
            padding,
            ..*self
        })
    }

    /// The transposed convolution, where Winograd's filtering computes it.
    fn winograd_input_grad(&self, method: Method) -> Option<Self> {
        self.transposed().filter(|g| g.is_winograd(method))
    }

    /// Elements of scratch memory that [`Convolution::forward`] takes on a pool of some threads.
    pub fn forward_scratch(&self, method: Method, threads: usize, isa: Isa) -> usize {
        if depthwise::applies(self) {
            depthwise::scratch(self)
        } else if self.is_winograd(method) {
            winograd::scratch(self, threads, isa)
        } else {
            gather::forward_scratch(self, threads, isa)
        }
    }

    /// Elements of scratch memory that [`Convolution::input_grad`] takes.
    pub fn input_grad_scratch(&self, method: Method, threads: usize, isa: Isa) -> usize {
        if depthwise::applies(self) {
            depthwise::scratch(self)
        } else if let Some(transposed) = self.winograd_input_grad(method) {
            winograd::scratch(&transposed, threads, isa)
        } else {
            gather::input_grad_scratch(self, threads, isa)
        }
    }

    /// Elements of scratch memory that [`Convolution::weight_grad`] takes.
    pub fn weight_grad_scratch(&self, method: Method, threads: usize, isa: Isa) -> usize {
        if depthwise::applies(self) {
            0
        } else if self.is_winograd(method) {
            winograd_weight::scratch(self, threads, isa)
        } else {
            gather_weight::scratch(self, threads, isa)
        }
    }

    /// `out [N, ..., O]` of `input [N, ..., C]`, `weight [O, C / groups, ...]` and `bias [O]`, channels last.
    ///
    /// # Panics
    /// When a slice is too short for its shape, or the scratch memory for one thread.
    #[expect(
        clippy::too_many_arguments,
        reason = "operands, result, scratch memory and how"
    )]
    pub fn forward(
        &self,
        method: Method,
        input: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
        isa: Isa,
    ) {
        self.check(input, weight, out);
        assert!(
            bias.is_none_or(|bias| bias.len() == self.out_channels),
            "bias"
        );
        if depthwise::applies(self) {
            depthwise::run(self, true, input, weight, bias, out, scratch, isa);
        } else if self.is_winograd(method) {
            winograd::run(self, false, input, weight, bias, out, scratch, isa);
        } else {
            gather::forward(self, input, weight, bias, out, scratch, isa);
        }
    }

    /// `out [N, ..., C]` of `grad [N, ..., O]` and `weight [O, C / groups, ...]`, channels last.
    ///
    /// # Panics
    /// When a slice is too short for its shape, or the scratch memory for one thread.
    pub fn input_grad(
        &self,
        method: Method,
        grad: &[f32],
        weight: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
        isa: Isa,
    ) {
        self.check(out, weight, grad);
        if depthwise::applies(self) {
            depthwise::run(self, false, grad, weight, None, out, scratch, isa);
        } else if let Some(transposed) = self.winograd_input_grad(method) {
            winograd::run(&transposed, true, grad, weight, None, out, scratch, isa);
        } else {
            gather::input_grad(self, grad, weight, out, scratch, isa);
        }
    }

    /// `out [O, C / groups, ...]` of `grad [N, ..., O]` and `input [N, ..., C]`, channels last.
    ///
    /// # Panics
    /// When a slice is too short for its shape, or the scratch memory for one thread.
    pub fn weight_grad(
        &self,
        method: Method,
        grad: &[f32],
        input: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
        isa: Isa,
    ) {
        self.check(input, out, grad);
        if depthwise::applies(self) {
            depthwise::weight_grad(self, input, grad, out, isa);
        } else if self.is_winograd(method) {
            winograd_weight::run(self, input, grad, out, scratch, isa);
        } else {
            gather_weight::weight_grad(self, input, grad, out, scratch, isa);
        }
    }

    /// Kernels read without bounds checks: sizes are checked here, once.
    fn check(&self, input: &[f32], weight: &[f32], output: &[f32]) {
        let plane = |sizes: &[usize; 3]| sizes.iter().product::<usize>();
        assert_eq!(
            input.len(),
            self.images * plane(&self.input) * self.in_channels,
            "input"
        );
        assert_eq!(
            output.len(),
            self.images * plane(&self.output) * self.out_channels,
            "output"
        );
        let weights = self.out_channels * (self.in_channels / self.groups) * plane(&self.kernel);
        assert_eq!(weight.len(), weights, "weight");
        for axis in 0..3 {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            let padded = self.input[axis] + 2 * self.padding[axis];
            assert!(reach <= padded, "the kernel is larger than the input");
            let output = (padded - reach) / self.stride[axis] + 1;
            assert_eq!(self.output[axis], output, "output size");
        }
    }
}
