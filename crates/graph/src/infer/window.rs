//! Operators that slide a window: convolution and pooling.

use super::{InferError, Operands, attribute};
use crate::{DType, Dim, Op, TensorType};

pub(super) fn infer(op: &Op, operands: Operands<'_>) -> Result<Vec<TensorType>, InferError> {
    match op {
        Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        } => {
            let input = operands.float(0)?;
            let weight = operands.of_dtype(1, input.dtype)?;
            let weight = fixed_dims(operands, 1, weight)?;
            let window = Convolution {
                stride,
                padding,
                dilation,
                groups: *groups,
            };
            let dims = window.output(&input.dims, &weight).map_err(|error| {
                // The input is what a person changes; the message names both.
                error.at(operands, 0, 1)
            })?;
            let channels = dims.get(1).copied();
            operands.optional_of_type(2, &TensorType::new(input.dtype, channels))?;
            Ok(vec![TensorType::new(input.dtype, dims)])
        }
        Op::MaxPool2d {
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        } => {
            let input = operands.float(0)?;
            operands.expect_rank(0, 4)?;
            let pool = Pool {
                kernel_size,
                stride,
                padding,
                dilation,
                ceil_mode: *ceil_mode,
            };
            let dims = pool
                .output(&input.dims)
                .map_err(|error| error.at(operands, 0, 0))?;
            Ok(vec![
                TensorType::new(input.dtype, dims.clone()),
                TensorType::new(DType::I64, dims),
            ])
        }
        Op::AvgPool2d {
            kernel_size,
            stride,
            padding,
            ceil_mode,
            divisor_override,
            ..
        } => {
            let input = operands.float(0)?;
            operands.expect_rank(0, 4)?;
            if *divisor_override == Some(0) {
                return Err(attribute("divisor_override", "must not be zero"));
            }
            let pool = Pool {
                kernel_size,
                stride,
                padding,
                dilation: &[1, 1],
                ceil_mode: *ceil_mode,
            };
            let dims = pool
                .output(&input.dims)
                .map_err(|error| error.at(operands, 0, 0))?;
            Ok(vec![TensorType::new(input.dtype, dims)])
        }
        Op::AdaptiveAvgPool2d { output_size } => {
            let input = operands.float(0)?;
            operands.expect_rank(0, 4)?;
            operands.fixed_dim(0, 2)?;
            operands.fixed_dim(0, 3)?;
            let [height, width] = output_size[..] else {
                return Err(attribute("output_size", "must have 2 elements"));
            };
            let dims = input.dims.iter().copied().take(2);
            let dims = dims.chain([Dim::Fixed(height), Dim::Fixed(width)]);
            Ok(vec![TensorType::new(input.dtype, dims)])
        }
        _ => Err(attribute("op", "is not a window operator")),
    }
}

/// The sizes of an operand that must not depend on the batch.
pub(super) fn fixed_dims(
    operands: Operands<'_>,
    index: usize,
    ty: &TensorType,
) -> Result<Vec<usize>, InferError> {
    (0..ty.rank())
        .map(|dim| operands.fixed_dim(index, dim))
        .collect()
}

/// Why a window does not fit; becomes an [`InferError`] once it is known which operands it is about.
pub(super) enum WindowError {
    Attribute(&'static str, String),
    /// The spatial dimension that depends on the batch.
    Symbolic(usize),
    Input(String),
    Weight(String),
}

impl WindowError {
    pub(super) fn at(self, operands: Operands<'_>, input: usize, weight: usize) -> InferError {
        match self {
            WindowError::Attribute(name, reason) => attribute(name, reason),
            WindowError::Symbolic(dim) => InferError::Symbolic { index: input, dim },
            WindowError::Input(wanted) => operands.shape_error(input, wanted),
            WindowError::Weight(wanted) => operands.shape_error(weight, wanted),
        }
    }
}

/// Attributes of a convolution.
pub(super) struct Convolution<'a> {
    pub(super) stride: &'a [usize],
    pub(super) padding: &'a [usize],
    pub(super) dilation: &'a [usize],
    pub(super) groups: usize,
}

impl Convolution<'_> {
    /// The shape of `convolution(input, weight)` for `[N, C, ...]` and `[O, C / groups, ...]`, of one to three spatial
    /// dimensions.
    pub(super) fn output(&self, input: &[Dim], weight: &[usize]) -> Result<Vec<Dim>, WindowError> {
        let ([samples, channels, spatial @ ..], [out_channels, group_channels, kernel @ ..]) =
            (input, weight)
        else {
            return Err(WindowError::Input("at least 3 dimensions".into()));
        };
        let rank = spatial.len();
        if !(1..=3).contains(&rank) {
            return Err(WindowError::Input(
                "1 to 3 spatial dimensions after batch and channels".into(),
            ));
        }
        if kernel.len() != rank {
            return Err(WindowError::Weight(format!("{} dimensions", rank + 2)));
        }
        for (name, list) in [
            ("stride", self.stride),
            ("padding", self.padding),
            ("dilation", self.dilation),
        ] {
            check_length(name, list, rank)?;
        }
        if self.groups == 0 || !out_channels.is_multiple_of(self.groups) {
            return Err(WindowError::Attribute(
                "groups",
                format!(
                    "is {}, which does not divide {out_channels} channels",
                    self.groups
                ),
            ));
        }
        if group_channels.checked_mul(self.groups) != channels.fixed() {
            return Err(WindowError::Weight(format!(
                "{channels} input channels / {} groups in dimension 1",
                self.groups
            )));
        }
        let mut dims = vec![*samples, Dim::Fixed(*out_channels)];
        for axis in 0..rank {
            dims.push(Dim::Fixed(window_output(
                axis,
                spatial,
                kernel,
                self.stride,
                self.padding,
                self.dilation,
                false,
            )?));
        }
        Ok(dims)
    }
}

/// Attributes of a two-dimensional pooling.
pub(super) struct Pool<'a> {
    pub(super) kernel_size: &'a [usize],
    pub(super) stride: &'a [usize],
    pub(super) padding: &'a [usize],
    pub(super) dilation: &'a [usize],
    pub(super) ceil_mode: bool,
}

impl Pool<'_> {
    /// The shape of the pooled `[N, C, H, W]`.
    pub(super) fn output(&self, input: &[Dim]) -> Result<Vec<Dim>, WindowError> {
        let [samples, channels, spatial @ ..] = input else {
            return Err(WindowError::Input("4 dimensions".into()));
        };
        if spatial.len() != 2 {
            return Err(WindowError::Input("4 dimensions".into()));
        }
        for (name, list) in [
            ("kernel_size", self.kernel_size),
            ("stride", self.stride),
            ("padding", self.padding),
            ("dilation", self.dilation),
        ] {
            check_length(name, list, 2)?;
        }
        for ((&kernel, &padding), &dilation) in
            self.kernel_size.iter().zip(self.padding).zip(self.dilation)
        {
            // ATen: padding is at most half of the dilated kernel, so that no window lies in the padding alone.
            let effective = kernel
                .checked_sub(1)
                .and_then(|gaps| gaps.checked_mul(dilation)?.checked_add(1))
                .ok_or_else(|| out_of_range("kernel_size"))?;
            if padding > effective / 2 {
                return Err(WindowError::Attribute(
                    "padding",
                    format!("is {padding}, more than half of the kernel's {effective}"),
                ));
            }
        }
        let mut dims = vec![*samples, *channels];
        for axis in 0..2 {
            dims.push(Dim::Fixed(window_output(
                axis,
                spatial,
                self.kernel_size,
                self.stride,
                self.padding,
                self.dilation,
                self.ceil_mode,
            )?));
        }
        Ok(dims)
    }
}

fn check_length(name: &'static str, list: &[usize], wanted: usize) -> Result<(), WindowError> {
    if list.len() == wanted {
        return Ok(());
    }
    Err(WindowError::Attribute(
        name,
        format!("has {} elements, not {wanted}", list.len()),
    ))
}

fn out_of_range(name: &'static str) -> WindowError {
    WindowError::Attribute(name, "is out of range".into())
}

/// The output size along one spatial axis: `pooling_output_shape` of `ATen/native/Pool.h`, which for `ceil_mode ==
/// false` is the convolution's formula too.
fn window_output(
    axis: usize,
    spatial: &[Dim],
    kernel: &[usize],
    stride: &[usize],
    padding: &[usize],
    dilation: &[usize],
    ceil_mode: bool,
) -> Result<usize, WindowError> {
    let at = |name: &'static str, list: &[usize]| {
        list.get(axis).copied().ok_or_else(|| out_of_range(name))
    };
    let size = match spatial.get(axis) {
        Some(Dim::Fixed(size)) => *size,
        _ => return Err(WindowError::Symbolic(axis + 2)),
    };
    let kernel = at("kernel_size", kernel)?;
    let stride = at("stride", stride)?;
    let padding = at("padding", padding)?;
    let dilation = at("dilation", dilation)?;
    if kernel == 0 {
        return Err(WindowError::Attribute(
            "kernel_size",
            "must not be zero".into(),
        ));
    }
    if stride == 0 {
        return Err(WindowError::Attribute("stride", "must not be zero".into()));
    }
    if dilation == 0 {
        return Err(WindowError::Attribute(
            "dilation",
            "must not be zero".into(),
        ));
    }
    let effective = (kernel - 1)
        .checked_mul(dilation)
        .and_then(|reach| reach.checked_add(1))
        .ok_or_else(|| out_of_range("dilation"))?;
    let padded = padding
        .checked_mul(2)
        .and_then(|both| both.checked_add(size))
        .ok_or_else(|| out_of_range("padding"))?;
    // In ceil mode the last window may hang over the end by less than a stride, also when it is the only one.
    let overhang = if ceil_mode { stride - 1 } else { 0 };
    let reach = padded
        .checked_add(overhang)
        .ok_or_else(|| out_of_range("stride"))?;
    let travel = reach.checked_sub(effective).ok_or_else(|| {
        WindowError::Input(format!(
            "at least the window's {effective} elements in padded dimension {}, not {padded}",
            axis + 2
        ))
    })?;
    let last = travel / stride;
    // The last window must start inside the input or its left padding.
    if ceil_mode && last.saturating_mul(stride) >= size.saturating_add(padding) {
        return Ok(last);
    }
    last.checked_add(1).ok_or_else(|| out_of_range("padding"))
}
