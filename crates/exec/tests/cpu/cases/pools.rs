//! Pools and their gradients.

use outboard_graph::Op;

use super::case::{Case, Random, Rounding, f, fixed, index};

pub(super) fn pools(cases: &mut Vec<Case>, random: &mut Random) {
    for seed in 0..40 {
        let dilation = vec![1 + random.below(2), 1 + random.below(2)];
        let kernel_size = vec![1 + random.below(3), 1 + random.below(3)];
        let stride = vec![1 + random.below(3), 1 + random.below(3)];
        let (ceil_mode, max) = (random.below(2) == 1, random.below(2) == 1);
        let reach = |axis: usize| {
            let dilation = if max { dilation[axis] } else { 1 };
            (kernel_size[axis] - 1) * dilation + 1
        };
        let padding: Vec<usize> = (0..2).map(|a| random.below(reach(a) / 2 + 1)).collect();
        let size = |axis: usize, random: &mut Random| reach(axis) + random.below(6);
        let input = [
            1 + random.below(2),
            1 + random.below(3),
            size(0, random),
            size(1, random),
        ];
        let plane = input[2] * input[3];
        let case = |op: Op, operands, rounding| Case {
            op,
            operands,
            rounding,
            seed,
        };
        // The output's shape as inference gives it.
        let output = |case: &Case| {
            let graph = case.graph();
            graph
                .ty(graph.outputs[0].value)
                .unwrap()
                .concrete()
                .unwrap()
        };
        let terms = Rounding::Terms(2 + reach(0) * reach(1));
        if max {
            let forward = case(
                Op::MaxPool2d {
                    kernel_size: kernel_size.clone(),
                    stride: stride.clone(),
                    padding: padding.clone(),
                    dilation: dilation.clone(),
                    ceil_mode,
                },
                vec![f(&input)],
                Rounding::Exact,
            );
            let pooled = output(&forward);
            cases.push(forward);
            cases.push(case(
                Op::MaxPool2dGrad {
                    input_shape: fixed(&input),
                    kernel_size,
                    stride,
                    padding,
                    dilation,
                    ceil_mode,
                },
                vec![f(&pooled), index(&pooled, plane)],
                Rounding::Terms(pooled[2] * pooled[3]),
            ));
            continue;
        }
        let count_include_pad = random.below(2) == 1;
        let divisor_override = (random.below(3) == 0).then_some(3);
        let forward = case(
            Op::AvgPool2d {
                kernel_size: kernel_size.clone(),
                stride: stride.clone(),
                padding: padding.clone(),
                ceil_mode,
                count_include_pad,
                divisor_override,
            },
            vec![f(&input)],
            terms,
        );
        let pooled = output(&forward);
        cases.push(forward);
        cases.push(case(
            Op::AvgPool2dGrad {
                input_shape: fixed(&input),
                kernel_size,
                stride,
                padding,
                ceil_mode,
                count_include_pad,
                divisor_override,
            },
            vec![f(&pooled)],
            terms,
        ));
    }
    for (seed, [height, width, out_height, out_width]) in
        [[7, 7, 1, 1], [5, 8, 3, 3], [2, 3, 4, 7], [1, 1, 1, 1]]
            .into_iter()
            .enumerate()
    {
        let input = [2, 3, height, width];
        let pooled = [2, 3, out_height, out_width];
        let adaptive = |op, dims: &[usize]| Case {
            op,
            operands: vec![f(dims)],
            rounding: Rounding::Terms(2 + height * width * out_height * out_width),
            seed: seed as u64,
        };
        let output_size = vec![out_height, out_width];
        cases.push(adaptive(Op::AdaptiveAvgPool2d { output_size }, &input));
        let input_shape = fixed(&input);
        cases.push(adaptive(Op::AdaptiveAvgPool2dGrad { input_shape }, &pooled));
    }
}
