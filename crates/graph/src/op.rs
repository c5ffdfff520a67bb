//! The operators: one table that defines each operator's variant, ATen name and attributes.

use std::fmt;

use crate::text::{Attribute, Reader, SyntaxError};
use crate::{DType, Dim};

/// How a loss is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// One loss a sample.
    None,
    /// The sum.
    Sum,
    /// The sum divided by the number of elements, or by the total weight.
    Mean,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Reduction; 3] = [Reduction::None, Reduction::Sum, Reduction::Mean];

    /// The name in the text form: `none`, `sum`, `mean`.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::None => "none",
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
        }
    }
}

/// Declares [`Op`], its names, and the printing, parsing and changing of its attributes by name, from one table.
macro_rules! operators {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal { $( $field:ident : $type:ty ),* } )*) => {
        /// An operator with its attributes, under ATen's name and with ATen's semantics.
        ///
        /// Displays as in the text form, without operands: `sum.dim_IntList(dims=[1], keepdim=true)`.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "attributes have ATen's names and meaning")]
        pub enum Op {
            $( $(#[$doc])* $variant { $( $field: $type ),* }, )*
        }

        impl Op {
            /// ATen's name, as the text form prints it.
            pub fn name(&self) -> &'static str {
                match self { $( Op::$variant { .. } => $name, )* }
            }

            /// All names, in the table's order.
            pub const NAMES: &'static [&'static str] = &[ $( $name ),* ];

            /// Visits the attributes in the table's order.
            pub(crate) fn visit_attributes(&self, visit: &mut dyn FnMut(&'static str, &dyn Attribute)) {
                match self { $( Op::$variant { $( $field ),* } => { $( visit(stringify!($field), $field); )* } )* }
                // Operators without attributes do not use it.
                let _ = visit;
            }

            /// Visits the attributes in the table's order, to change them.
            pub(crate) fn visit_attributes_mut(
                &mut self,
                visit: &mut dyn FnMut(&'static str, &mut dyn Attribute),
            ) {
                match self { $( Op::$variant { $( $field ),* } => { $( visit(stringify!($field), $field); )* } )* }
                let _ = visit;
            }

            /// Reads the attributes of the operator of this name; `None` when there is no such operator.
            pub(crate) fn read(name: &str, reader: &mut Reader<'_>) -> Result<Option<Op>, SyntaxError> {
                match name {
                    $( $name => {
                        $( let $field: $type = reader.attribute(stringify!($field))?; )*
                        Ok(Some(Op::$variant { $( $field ),* }))
                    } )*
                    _ => Ok(None),
                }
            }
        }
    };
}

operators! {
    // Products.

    /// `(input, weight, bias?)`.
    Convolution = "convolution" { stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize }
    /// `(bias, a, b)`: `bias + a @ b`.
    Addmm = "addmm" {}
    /// `(a, b)`.
    Mm = "mm" {}
    /// `(a, b)`, the first dimension is a batch.
    Bmm = "bmm" {}
    /// `(weight, indices)`.
    Embedding = "embedding" { padding_idx: Option<usize> }

    // Normalisation.

    /// `(input, weight?, bias?, running_mean, running_var)` to `(output, save_mean, save_rstd, new_mean, new_var)`;
    /// statistics of the micro-batch, the running variance is updated with the unbiased one.
    BatchNormTraining = "_native_batch_norm_legit_functional" { momentum: f64, eps: f64 }
    /// `(input, weight?, bias?, running_mean, running_var)` to `(output)`.
    BatchNormInference = "_native_batch_norm_legit_no_training" { momentum: f64, eps: f64 }
    /// `(input, weight?, bias?)` to `(output, mean, rstd)`.
    LayerNorm = "native_layer_norm" { normalized_shape: Vec<usize>, eps: f64 }
    Softmax = "_softmax" { dim: usize }
    LogSoftmax = "_log_softmax" { dim: usize }

    // Pooling.

    /// `(input)` to `(output, indices)`; an index counts within the input's plane, row-major.
    MaxPool2d = "max_pool2d_with_indices" { kernel_size: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, ceil_mode: bool }
    AvgPool2d = "avg_pool2d" { kernel_size: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, ceil_mode: bool, count_include_pad: bool, divisor_override: Option<usize> }
    AdaptiveAvgPool2d = "_adaptive_avg_pool2d" { output_size: Vec<usize> }

    // Element by element, with broadcasting.

    Relu = "relu" {}
    /// The tanh approximation, or the exact form with erf.
    Gelu = "gelu" { tanh: bool }
    Sigmoid = "sigmoid" {}
    Tanh = "tanh" {}
    Exp = "exp" {}
    Log = "log" {}
    Sqrt = "sqrt" {}
    Rsqrt = "rsqrt" {}
    Neg = "neg" {}
    /// `a + alpha * b`.
    Add = "add.Tensor" { alpha: f64 }
    /// `a - alpha * b`.
    Sub = "sub.Tensor" { alpha: f64 }
    Mul = "mul.Tensor" {}
    Div = "div.Tensor" {}
    /// Floats, or `i64` with a whole scalar.
    AddScalar = "add.Scalar" { scalar: f64 }
    MulScalar = "mul.Scalar" { scalar: f64 }
    PowScalar = "pow.Tensor_Scalar" { exponent: f64 }
    /// Converts the element type.
    ToCopy = "_to_copy" { dtype: DType }
    /// `(input)` to `(output, mask)`. `key` tells this dropout from all others of the model.
    Dropout = "native_dropout" { p: f64, key: u64 }

    // Reductions.

    Sum = "sum.dim_IntList" { dims: Vec<usize>, keepdim: bool }
    Mean = "mean.dim" { dims: Vec<usize>, keepdim: bool }

    // Layout.

    View = "view" { shape: Vec<Dim> }
    Permute = "permute" { dims: Vec<usize> }
    Expand = "expand" { shape: Vec<Dim> }
    Clone = "clone" {}
    /// Any number of operands.
    Cat = "cat" { dim: usize }
    Slice = "slice.Tensor" { dim: usize, start: usize, end: usize, step: usize }
    Select = "select.int" { dim: usize, index: usize }
    /// One result for each size.
    Split = "split_with_sizes" { sizes: Vec<usize>, dim: usize }
    Squeeze = "squeeze.dims" { dims: Vec<usize> }
    Unsqueeze = "unsqueeze" { dim: usize }
    /// `pad` as in ATen: pairs from the last dimension backwards; negative crops.
    ConstantPad = "constant_pad_nd" { pad: Vec<i64>, value: f64 }

    // Sources.

    Full = "full" { shape: Vec<Dim>, value: f64, dtype: DType }
    /// `(input)` to `f32[]`: its number of elements, known once the batch is.
    Numel = "sym_numel" {}

    // Losses.

    /// `(log_probabilities, target, class_weight?)` to `(output, total_weight)`.
    NllLoss = "nll_loss_forward" { reduction: Reduction, ignore_index: i64 }

    // Gradients.

    /// `(grad, weight)`: the gradient of a convolution's input.
    ConvolutionInputGrad = "convolution_backward.input" { input_shape: Vec<Dim>, stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize }
    /// `(grad, input)`: the gradient of a convolution's weight.
    ConvolutionWeightGrad = "convolution_backward.weight" { weight_shape: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, groups: usize }
    /// `(grad, weight_indices)`.
    EmbeddingGrad = "embedding_dense_backward" { num_weights: usize, padding_idx: Option<usize> }
    /// `(grad, input, weight?, save_mean, save_rstd)` to `(input_grad, weight_grad, bias_grad)`.
    BatchNormGrad = "native_batch_norm_backward" { eps: f64 }
    /// `(grad, input, mean, rstd, weight?)` to `(input_grad, weight_grad, bias_grad)`.
    LayerNormGrad = "native_layer_norm_backward" { normalized_shape: Vec<usize> }
    /// `(grad, output)`.
    SoftmaxGrad = "_softmax_backward_data" { dim: usize }
    /// `(grad, output)`.
    LogSoftmaxGrad = "_log_softmax_backward_data" { dim: usize }
    /// `(grad, indices)`.
    MaxPool2dGrad = "max_pool2d_with_indices_backward" { input_shape: Vec<Dim>, kernel_size: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, dilation: Vec<usize>, ceil_mode: bool }
    /// `(grad)`.
    AvgPool2dGrad = "avg_pool2d_backward" { input_shape: Vec<Dim>, kernel_size: Vec<usize>, stride: Vec<usize>, padding: Vec<usize>, ceil_mode: bool, count_include_pad: bool, divisor_override: Option<usize> }
    /// `(grad)`.
    AdaptiveAvgPool2dGrad = "_adaptive_avg_pool2d_backward" { input_shape: Vec<Dim> }
    /// `(grad, self)`: `grad` where `self > threshold`, else zero.
    ThresholdGrad = "threshold_backward" { threshold: f64 }
    /// `(grad, self)`.
    GeluGrad = "gelu_backward" { tanh: bool }
    /// `(grad, output)`.
    SigmoidGrad = "sigmoid_backward" {}
    /// `(grad, output)`.
    TanhGrad = "tanh_backward" {}
    /// `(grad, mask)`.
    DropoutGrad = "native_dropout_backward" { scale: f64 }
    /// `(grad, log_probabilities, target, class_weight?, total_weight)`.
    NllLossGrad = "nll_loss_backward" { reduction: Reduction, ignore_index: i64 }
    /// `(grad)`: zeros of `input_shape` with `grad` in the slice.
    SliceGrad = "slice_backward" { input_shape: Vec<Dim>, dim: usize, start: usize, end: usize, step: usize }
    /// `(grad)`: zeros of `input_shape` with `grad` in the selected plane.
    SelectGrad = "select_backward" { input_shape: Vec<Dim>, dim: usize, index: usize }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        crate::text::print_call(&mut text, self, &[]);
        f.write_str(&text)
    }
}
