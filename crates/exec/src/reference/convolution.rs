//! Convolution in any number of dimensions, and its two gradients.
//!
//! All three visit the same triples (input element, weight element, output element) that multiply; they differ in
//! which of the three is the sum.

use super::array::{Array, flat, for_each_index, strides};
use super::{Call, Fault};

/// The attributes of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) stride: &'a [usize],
    pub(super) padding: &'a [usize],
    pub(super) dilation: &'a [usize],
    pub(super) groups: usize,
}

impl Window<'_> {
    /// Calls `visit(input, weight, output)` with the flat positions of all elements that meet.
    fn for_each_product(
        self,
        input: &[usize],
        weight: &[usize],
        output: &[usize],
        mut visit: impl FnMut(usize, usize, usize),
    ) -> Result<(), Fault> {
        let misfit = || {
            Fault(format!(
                "input {input:?}, weight {weight:?} and output {output:?} do not fit together"
            ))
        };
        let [batch, in_channels, input_space @ ..] = input else {
            return Err(misfit());
        };
        let [out_channels, group_inputs, kernel @ ..] = weight else {
            return Err(misfit());
        };
        let [out_batch, result_channels, output_space @ ..] = output else {
            return Err(misfit());
        };
        let rank = kernel.len();
        let ranks = [
            input_space.len(),
            output_space.len(),
            self.stride.len(),
            self.padding.len(),
            self.dilation.len(),
        ];
        if ranks != [rank; 5]
            || out_batch != batch
            || result_channels != out_channels
            || self.groups == 0
            || group_inputs * self.groups != *in_channels
            || out_channels % self.groups != 0
        {
            return Err(misfit());
        }
        let group_outputs = out_channels / self.groups;
        let (input_strides, output_strides, kernel_strides) =
            (strides(input_space), strides(output_space), strides(kernel));
        let (input_plane, output_plane, kernel_plane): (usize, usize, usize) = (
            input_space.iter().product(),
            output_space.iter().product(),
            kernel.iter().product(),
        );
        for_each_index(kernel, |tap| {
            for_each_index(output_space, |position| {
                let mut source = 0;
                for axis in 0..rank {
                    let padded =
                        position[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
                    match padded.checked_sub(self.padding[axis]) {
                        Some(at) if at < input_space[axis] => source += at * input_strides[axis],
                        _ => return,
                    }
                }
                let (tap, position) = (flat(tap, &kernel_strides), flat(position, &output_strides));
                for sample in 0..*batch {
                    for out_channel in 0..*out_channels {
                        let first_input = out_channel / group_outputs * group_inputs;
                        for channel in 0..*group_inputs {
                            visit(
                                (sample * in_channels + first_input + channel) * input_plane
                                    + source,
                                (out_channel * group_inputs + channel) * kernel_plane + tap,
                                (sample * out_channels + out_channel) * output_plane + position,
                            );
                        }
                    }
                }
            });
        });
        Ok(())
    }
}

/// `(input, weight, bias?)`.
pub(super) fn convolution(call: &Call<'_>, window: Window<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (input, weight) = (call.floats(0)?, call.floats(1)?);
    let mut values = vec![0.0; shape.elements()];
    window.for_each_product(call.dims(0)?, call.dims(1)?, &shape.dims, |i, w, o| {
        values[o] += input[i] * weight[w];
    })?;
    if let (Some(bias), [_, _, space @ ..]) = (call.optional_floats(2)?, &shape.dims[..]) {
        let plane = space.iter().product::<usize>().max(1);
        for (plane, bias) in values.chunks_mut(plane).zip(bias.iter().cycle()) {
            plane.iter_mut().for_each(|value| *value += bias);
        }
    }
    Ok(vec![Array::floats(shape, values)])
}

/// `(grad, weight)`.
pub(super) fn input_grad(call: &Call<'_>, window: Window<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (grad, weight) = (call.floats(0)?, call.floats(1)?);
    let mut values = vec![0.0; shape.elements()];
    window.for_each_product(&shape.dims, call.dims(1)?, call.dims(0)?, |i, w, o| {
        values[i] += grad[o] * weight[w];
    })?;
    Ok(vec![Array::floats(shape, values)])
}

/// `(grad, input)`.
pub(super) fn weight_grad(call: &Call<'_>, window: Window<'_>) -> Result<Vec<Array>, Fault> {
    let shape = call.result(0)?;
    let (grad, input) = (call.floats(0)?, call.floats(1)?);
    let mut values = vec![0.0; shape.elements()];
    window.for_each_product(call.dims(1)?, &shape.dims, call.dims(0)?, |i, w, o| {
        values[w] += grad[o] * input[i];
    })?;
    Ok(vec![Array::floats(shape, values)])
}
