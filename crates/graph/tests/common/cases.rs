//! The inference table.

use outboard_graph::{Graph, TextError};

/// One line of the inference table: an operator on operands gives results.
pub(crate) struct Case {
    /// ATen's name.
    pub(crate) op: &'static str,
    /// Types or `none`, separated by spaces.
    pub(crate) operands: &'static str,
    /// Attributes as in the text form.
    pub(crate) attributes: &'static str,
    /// Types, separated by spaces.
    pub(crate) results: &'static str,
}

pub(crate) const fn case(
    op: &'static str,
    operands: &'static str,
    attributes: &'static str,
    results: &'static str,
) -> Case {
    Case {
        op,
        operands,
        attributes,
        results,
    }
}

impl Case {
    pub(crate) fn operands(&self) -> Vec<&'static str> {
        self.operands.split_whitespace().collect()
    }

    pub(crate) fn results(&self) -> Vec<&'static str> {
        self.results.split_whitespace().collect()
    }

    /// The case as the text of a graph of one node.
    pub(crate) fn text(&self) -> String {
        program(self.op, &self.operands(), self.attributes, &self.results())
    }
}

/// A graph of one node in the text form.
pub(crate) fn program(op: &str, operands: &[&str], attributes: &str, results: &[&str]) -> String {
    let mut text = String::from("graph \"case\" {\n");
    let mut arguments = Vec::new();
    let mut number = 0;
    for operand in operands {
        if *operand == "none" {
            arguments.push("none".to_owned());
            continue;
        }
        text.push_str(&format!("  %{number}: {operand} = data \"{number}\"\n"));
        arguments.push(format!("%{number}"));
        number += 1;
    }
    if !attributes.is_empty() {
        arguments.push(attributes.to_owned());
    }
    let mut definitions = Vec::new();
    for result in results {
        definitions.push(format!("%{number}: {result}"));
        number += 1;
    }
    text.push_str(&format!(
        "  {} = {op}({})\n  return\n}}\n",
        definitions.join(", "),
        arguments.join(", ")
    ));
    text
}

pub(crate) fn parse(text: &str) -> Result<Graph, TextError> {
    text.parse()
}

/// Shapes as PyTorch 2 gives them for every operator of the table; `B` stands for any batch.
pub(crate) const CASES: &[Case] = &[
    // Convolutions: 2d strided, grouped with dilation, depthwise, 1d with bias, 3d.
    case(
        "convolution",
        "f32[B,3,224,224] f32[64,3,7,7] none",
        "stride=[2,2], padding=[3,3], dilation=[1,1], groups=1",
        "f32[B,64,112,112]",
    ),
    case(
        "convolution",
        "f32[B,8,15,17] f32[12,4,3,5] f32[12]",
        "stride=[2,3], padding=[0,2], dilation=[2,1], groups=2",
        "f32[B,12,6,6]",
    ),
    case(
        "convolution",
        "f16[B,8,9,9] f16[8,1,3,3] f16[8]",
        "stride=[1,1], padding=[1,1], dilation=[1,1], groups=8",
        "f16[B,8,9,9]",
    ),
    case(
        "convolution",
        "f32[2,4,100] f32[6,4,5] f32[6]",
        "stride=[3], padding=[1], dilation=[1], groups=1",
        "f32[2,6,33]",
    ),
    case(
        "convolution",
        "f32[B,1,8,8,8] f32[2,1,2,2,2] none",
        "stride=[2,2,2], padding=[0,0,0], dilation=[1,1,1], groups=1",
        "f32[B,2,4,4,4]",
    ),
    case("addmm", "f32[10] f32[B,64] f32[64,10]", "", "f32[B,10]"),
    case("addmm", "f32[1,10] f32[B,64] f32[64,10]", "", "f32[B,10]"),
    case("mm", "f32[10,B] f32[B,64]", "", "f32[10,64]"),
    case(
        "bmm",
        "f32[3B,197,64] f32[3B,64,197]",
        "",
        "f32[3B,197,197]",
    ),
    case(
        "embedding",
        "f32[100,16] i64[B,7]",
        "padding_idx=3",
        "f32[B,7,16]",
    ),
    case(
        "embedding",
        "f32[100,16] i64[]",
        "padding_idx=none",
        "f32[16]",
    ),
    case(
        "_native_batch_norm_legit_functional",
        "f32[B,4,8,8] f32[4] f32[4] f32[4] f32[4]",
        "momentum=0.1, eps=1e-5",
        "f32[B,4,8,8] f32[4] f32[4] f32[4] f32[4]",
    ),
    case(
        "_native_batch_norm_legit_functional",
        "f32[B,4] none none f32[4] f32[4]",
        "momentum=0.1, eps=1e-5",
        "f32[B,4] f32[4] f32[4] f32[4] f32[4]",
    ),
    case(
        "_native_batch_norm_legit_no_training",
        "f32[1,4] f32[4] f32[4] f32[4] f32[4]",
        "momentum=0.1, eps=1e-5",
        "f32[1,4]",
    ),
    case(
        "native_layer_norm",
        "f32[B,197,192] f32[192] f32[192]",
        "normalized_shape=[192], eps=1e-6",
        "f32[B,197,192] f32[B,197,1] f32[B,197,1]",
    ),
    case(
        "native_layer_norm",
        "f32[B,5,6] none none",
        "normalized_shape=[5,6], eps=1e-5",
        "f32[B,5,6] f32[B,1,1] f32[B,1,1]",
    ),
    case("_softmax", "f32[3B,5,5]", "dim=2", "f32[3B,5,5]"),
    case("_log_softmax", "f32[B,10]", "dim=1", "f32[B,10]"),
    // Pooling: floor and ceil; the last window may not start in the right padding (the third, from 5 to 3, not 4).
    case(
        "max_pool2d_with_indices",
        "f32[B,64,112,112]",
        "kernel_size=[3,3], stride=[2,2], padding=[1,1], dilation=[1,1], ceil_mode=false",
        "f32[B,64,56,56] i64[B,64,56,56]",
    ),
    case(
        "max_pool2d_with_indices",
        "f32[B,1,6,7]",
        "kernel_size=[3,2], stride=[2,2], padding=[0,0], dilation=[1,2], ceil_mode=true",
        "f32[B,1,3,3] i64[B,1,3,3]",
    ),
    case(
        "max_pool2d_with_indices",
        "f32[B,1,5,5]",
        "kernel_size=[2,2], stride=[2,2], padding=[1,1], dilation=[1,1], ceil_mode=true",
        "f32[B,1,3,3] i64[B,1,3,3]",
    ),
    // A window larger than the input, hanging over by less than a stride.
    case(
        "max_pool2d_with_indices",
        "f32[B,1,2,2]",
        "kernel_size=[3,3], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=true",
        "f32[B,1,1,1] i64[B,1,1,1]",
    ),
    case(
        "avg_pool2d",
        "f32[B,8,7,7]",
        "kernel_size=[2,2], stride=[2,2], padding=[0,0], ceil_mode=true, count_include_pad=true, divisor_override=none",
        "f32[B,8,4,4]",
    ),
    case(
        "avg_pool2d",
        "f32[B,8,7,7]",
        "kernel_size=[3,3], stride=[1,1], padding=[1,1], ceil_mode=false, count_include_pad=false, divisor_override=5",
        "f32[B,8,7,7]",
    ),
    case(
        "_adaptive_avg_pool2d",
        "f32[B,512,7,7]",
        "output_size=[1,1]",
        "f32[B,512,1,1]",
    ),
    case("relu", "f32[B,4]", "", "f32[B,4]"),
    case("gelu", "bf16[B,4]", "tanh=true", "bf16[B,4]"),
    case("sigmoid", "f32[]", "", "f32[]"),
    case("tanh", "f32[B]", "", "f32[B]"),
    case("exp", "f32[B]", "", "f32[B]"),
    case("log", "f32[B]", "", "f32[B]"),
    case("sqrt", "f32[B]", "", "f32[B]"),
    case("rsqrt", "f32[B]", "", "f32[B]"),
    case("neg", "f32[B]", "", "f32[B]"),
    // Broadcasting from the last dimension backwards.
    case(
        "add.Tensor",
        "f32[B,197,192] f32[1,197,192]",
        "alpha=1.0",
        "f32[B,197,192]",
    ),
    case(
        "sub.Tensor",
        "f32[4,1] f32[B,1,5]",
        "alpha=2.5",
        "f32[B,4,5]",
    ),
    case(
        "mul.Tensor",
        "f32[B,8,7,7] f32[B,8,1,1]",
        "",
        "f32[B,8,7,7]",
    ),
    case("div.Tensor", "f32[] f32[2B,3]", "", "f32[2B,3]"),
    case("add.Scalar", "f32[B,4]", "scalar=-1.5", "f32[B,4]"),
    case("mul.Scalar", "f32[B,4]", "scalar=0.125", "f32[B,4]"),
    case("pow.Tensor_Scalar", "f32[B,4]", "exponent=2.0", "f32[B,4]"),
    case("_to_copy", "i64[B]", "dtype=f32", "f32[B]"),
    case(
        "native_dropout",
        "f32[B,4]",
        "p=0.1, key=7",
        "f32[B,4] bool[B,4]",
    ),
    case(
        "sum.dim_IntList",
        "f32[B,4,5]",
        "dims=[0,2], keepdim=true",
        "f32[1,4,1]",
    ),
    case(
        "sum.dim_IntList",
        "f32[B,4,5]",
        "dims=[], keepdim=false",
        "f32[]",
    ),
    case(
        "mean.dim",
        "f32[B,512,7,7]",
        "dims=[2,3], keepdim=false",
        "f32[B,512]",
    ),
    case("view", "f32[B,512,1,1]", "shape=[B,512]", "f32[B,512]"),
    case(
        "view",
        "f32[B,196,192]",
        "shape=[196B,192]",
        "f32[196B,192]",
    ),
    case(
        "view",
        "f32[B,196,3,4,16]",
        "shape=[12B,196,16]",
        "f32[12B,196,16]",
    ),
    case("permute", "f32[B,4,5]", "dims=[2,0,1]", "f32[5,B,4]"),
    case("expand", "f32[1,1,192]", "shape=[B,1,192]", "f32[B,1,192]"),
    case("expand", "f32[4]", "shape=[3,B,4]", "f32[3,B,4]"),
    case("clone", "bool[B,4]", "", "bool[B,4]"),
    case(
        "cat",
        "f32[B,1,192] f32[B,196,192]",
        "dim=1",
        "f32[B,197,192]",
    ),
    case("cat", "i64[B] i64[3B]", "dim=0", "i64[4B]"),
    // ATen clamps the end.
    case(
        "slice.Tensor",
        "f32[B,10]",
        "dim=1, start=1, end=9223372036854775807, step=4",
        "f32[B,3]",
    ),
    case(
        "select.int",
        "f32[B,197,192]",
        "dim=1, index=196",
        "f32[B,192]",
    ),
    case(
        "split_with_sizes",
        "f32[B,10]",
        "sizes=[3,7], dim=1",
        "f32[B,3] f32[B,7]",
    ),
    case(
        "squeeze.dims",
        "f32[B,512,1,1]",
        "dims=[1,2,3]",
        "f32[B,512]",
    ),
    case("unsqueeze", "f32[B,4]", "dim=2", "f32[B,4,1]"),
    case(
        "constant_pad_nd",
        "f32[B,3,8,8]",
        "pad=[1,-2,3,0], value=0.5",
        "f32[B,3,11,7]",
    ),
    case("full", "", "shape=[B,2], value=-inf, dtype=f32", "f32[B,2]"),
    case("sym_numel", "i64[B,3]", "", "f32[]"),
    case(
        "nll_loss_forward",
        "f32[B,10] i64[B] f32[10]",
        "reduction=sum, ignore_index=-100",
        "f32[] f32[]",
    ),
    case(
        "nll_loss_forward",
        "f32[B,10] i64[B] none",
        "reduction=none, ignore_index=-100",
        "f32[B] f32[]",
    ),
    case(
        "nll_loss_forward",
        "f32[10] i64[] none",
        "reduction=mean, ignore_index=3",
        "f32[] f32[]",
    ),
    case(
        "convolution_backward.input",
        "f32[B,64,112,112] f32[64,3,7,7]",
        "input_shape=[B,3,224,224], stride=[2,2], padding=[3,3], dilation=[1,1], groups=1",
        "f32[B,3,224,224]",
    ),
    case(
        "convolution_backward.weight",
        "f32[B,64,112,112] f32[B,3,224,224]",
        "weight_shape=[64,3,7,7], stride=[2,2], padding=[3,3], dilation=[1,1], groups=1",
        "f32[64,3,7,7]",
    ),
    case(
        "embedding_dense_backward",
        "f32[B,7,16] i64[B,7]",
        "num_weights=100, padding_idx=none",
        "f32[100,16]",
    ),
    case(
        "native_batch_norm_backward",
        "f32[B,4,8,8] f32[B,4,8,8] f32[4] f32[4] f32[4]",
        "eps=1e-5",
        "f32[B,4,8,8] f32[4] f32[4]",
    ),
    case(
        "native_layer_norm_backward",
        "f32[B,5,6] f32[B,5,6] f32[B,5,1] f32[B,5,1] f32[6]",
        "normalized_shape=[6]",
        "f32[B,5,6] f32[6] f32[6]",
    ),
    case(
        "_softmax_backward_data",
        "f32[B,4] f32[B,4]",
        "dim=1",
        "f32[B,4]",
    ),
    case(
        "_log_softmax_backward_data",
        "f32[B,4] f32[B,4]",
        "dim=1",
        "f32[B,4]",
    ),
    case(
        "max_pool2d_with_indices_backward",
        "f32[B,4,4,4] i64[B,4,4,4]",
        "input_shape=[B,4,8,8], kernel_size=[2,2], stride=[2,2], padding=[0,0], dilation=[1,1], ceil_mode=false",
        "f32[B,4,8,8]",
    ),
    case(
        "avg_pool2d_backward",
        "f32[B,4,4,4]",
        "input_shape=[B,4,8,8], kernel_size=[2,2], stride=[2,2], padding=[0,0], ceil_mode=false, count_include_pad=true, divisor_override=none",
        "f32[B,4,8,8]",
    ),
    case(
        "_adaptive_avg_pool2d_backward",
        "f32[B,4,1,1]",
        "input_shape=[B,4,7,7]",
        "f32[B,4,7,7]",
    ),
    case(
        "threshold_backward",
        "f32[B,4] f32[B,4]",
        "threshold=0.0",
        "f32[B,4]",
    ),
    case(
        "gelu_backward",
        "f32[B,4] f32[B,4]",
        "tanh=false",
        "f32[B,4]",
    ),
    case("sigmoid_backward", "f32[B,4] f32[B,4]", "", "f32[B,4]"),
    case("tanh_backward", "f32[B,4] f32[B,4]", "", "f32[B,4]"),
    case(
        "native_dropout_backward",
        "f32[B,4] bool[B,4]",
        "scale=2.0",
        "f32[B,4]",
    ),
    case(
        "nll_loss_backward",
        "f32[] f32[B,10] i64[B] f32[10] f32[]",
        "reduction=sum, ignore_index=-100",
        "f32[B,10]",
    ),
    case(
        "slice_backward",
        "f32[B,3]",
        "input_shape=[B,10], dim=1, start=1, end=10, step=4",
        "f32[B,10]",
    ),
    case(
        "select_backward",
        "f32[B,192]",
        "input_shape=[B,197,192], dim=1, index=0",
        "f32[B,197,192]",
    ),
];
