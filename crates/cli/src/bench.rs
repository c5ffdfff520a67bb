//! `outboard bench`: how fast this computer's engine is, without a pipeline.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use outboard_exec::{CpuExecutor, Executor, Step};
use outboard_graph::{DType, Graph, InputKind, Op, Stage, Tensor, init, stage_programs};

use crate::arguments::{Bench, BenchWork};
use crate::events::{Done, Event};
use crate::output::{self, Output};
use crate::resources;
use crate::work;

/// Runs a benchmark.
pub(crate) fn run(arguments: &Bench, output: &Output) -> Result<()> {
    match arguments {
        Bench::Step(step) => {
            let work = &step.work;
            within_threads(work, |engine| {
                time_step(engine, work, step.inference, step.repetitions, output)
            })
        }
        Bench::Ops(ops) => within_threads(&ops.work, |engine| time_ops(engine, &ops.work, output)),
    }
}

/// Runs `f` on as many threads as asked for, with an engine for them.
fn within_threads(
    work: &BenchWork,
    f: impl FnOnce(&CpuExecutor) -> Result<()> + Send,
) -> Result<()> {
    let share = resources::share(&work.engine, 1);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(share.threads)
        .build()
        .context("cannot start the engine's threads")?;
    let engine = CpuExecutor::with_threads(share.threads).convolving(work.engine.conv.into());
    pool.install(|| f(&engine))
}

/// Times steps of a whole model and tells the medians.
fn time_step(
    engine: &CpuExecutor,
    arguments: &BenchWork,
    inference: bool,
    repetitions: u32,
    output: &Output,
) -> Result<()> {
    let graph = work::zoo_model(&arguments.model, arguments.image_size as usize)?;
    let batch = arguments.batch as usize;
    let weights = init::weights(&graph, 0)?;
    let step = if inference {
        let graph = work::for_inference(&graph)?;
        Step::inference(engine, &graph, weights, data(&graph, batch)?, batch)?
    } else {
        let data = data(&graph, batch)?;
        let programs = stage_programs(&Stage::whole(graph))?;
        Step::training(engine, &programs, weights, data, batch)?
    };
    let bar = output.progress(u64::from(repetitions) + 1, "steps");
    // The first one finds nothing in memory.
    step.run(engine)?;
    bar.inc(1);
    let (mut forwards, mut backwards, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let time = step.run(engine)?;
        forwards.push(time.forward);
        backwards.push(time.backward);
        steps.push(time.step());
        bar.inc(1);
    }
    bar.finish_and_clear();
    let [forward, backward, whole] = [&mut forwards, &mut backwards, &mut steps].map(|times| {
        times.sort_unstable();
        [times.get(times.len() / 2), times.first(), times.last()]
            .map(|time| time.copied().unwrap_or_default().as_secs_f64())
    });
    let info = engine.info();
    output.say(format!(
        "{}, {} images of {} x {} pixels, {} thread{} on {}, {repetitions} repetitions",
        arguments.model,
        arguments.batch,
        arguments.image_size,
        arguments.image_size,
        info.threads,
        if info.threads == 1 { "" } else { "s" },
        info.device,
    ));
    let mut table = Table::new();
    (table.load_style(presets::UTF8_HORIZONTAL_ONLY))
        .set_header(["", "median", "fastest", "slowest"]);
    let mut row = |name: &str, times: [f64; 3]| {
        let [median, fastest, slowest] = times.map(output::seconds);
        table.add_row([name.to_owned(), median, fastest, slowest]);
    };
    row("forward", forward);
    if !inference {
        row("backward", backward);
        row("step", whole);
    }
    output.say(table.to_string());
    let peak = step.peak_bytes(engine);
    output.say(format!(
        "memory of a program at most {}",
        output::bytes(peak)
    ));
    output.event(&Event::Done(Done {
        forward_seconds: Some(forward[0]),
        backward_seconds: (!inference).then_some(backward[0]),
        step_seconds: Some(whole[0]),
        peak_bytes: Some(peak),
        threads: Some(info.threads),
        device: Some(info.device),
        ..Done::default()
    }));
    Ok(())
}

/// Images that are not all alike, and the first class.
fn data(graph: &Graph, batch: usize) -> Result<Vec<(String, Tensor)>> {
    let mut data = Vec::new();
    for input in graph
        .inputs
        .iter()
        .filter(|input| input.kind == InputKind::Data)
    {
        let ty = graph.ty(input.value).context("an input without a type")?;
        let dims: Vec<usize> = ty.dims.iter().filter_map(|dim| dim.at(batch)).collect();
        let count = dims.iter().product();
        let tensor = match ty.dtype {
            DType::I64 => Tensor::from_i64(dims.clone(), &vec![0; count])?,
            _ => {
                let pixels = (0..count).map(|i| ((i * 7919) % 1013) as f32 / 506.5 - 1.0);
                Tensor::from_f32(dims.clone(), &pixels.collect::<Vec<_>>())?
            }
        };
        data.push((input.name.clone(), tensor));
    }
    Ok(data)
}

/// The sizes of a convolution: those of its input and of its weight, and its attributes as the graph prints them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    input: Vec<usize>,
    weight: Vec<usize>,
    attributes: String,
}

/// A convolution and its gradients.
#[derive(Default)]
struct Passes {
    /// How often the model has it.
    count: usize,
    multiply_adds: f64,
    /// Programs of one node: forward, input gradient, weight gradient.
    programs: [Option<Graph>; 3],
}

/// Times every convolution shape of a model.
fn time_ops(engine: &CpuExecutor, arguments: &BenchWork, output: &Output) -> Result<()> {
    let graph = work::zoo_model(&arguments.model, arguments.image_size as usize)?;
    let programs = stage_programs(&Stage::whole(graph))?;
    let mut shapes: BTreeMap<Shape, Passes> = BTreeMap::new();
    for program in [&programs.forward, &programs.backward, &programs.weight] {
        collect(&program.instantiate(arguments.batch as usize)?, &mut shapes);
    }
    let mut rows: Vec<_> = shapes.into_iter().collect();
    rows.sort_by_key(|(shape, _)| std::cmp::Reverse(shape.input.get(2).copied()));
    let bar = output.progress(rows.len() as u64, "convolutions");
    let start = Instant::now();
    let clock = || start.elapsed();
    let budget = resources::share(&arguments.engine, 1).memory;
    let mut table = Table::new();
    (table.load_style(presets::UTF8_HORIZONTAL_ONLY)).set_header([
        "input",
        "weight",
        "",
        "times",
        "forward",
        "input gradient",
        "weight gradient",
    ]);
    for (shape, passes) in rows {
        let timed = passes.programs.map(|graph| {
            let text = graph?.to_string();
            let never = AtomicBool::new(false);
            let times = outboard_worker::profile(engine, &[text], budget, &never, &clock);
            let seconds = times.first().copied().flatten()?;
            Some(2.0 * passes.multiply_adds / seconds / 1e9)
        });
        let rate =
            |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0} GF/s"));
        table.add_row([
            sizes(&shape.input),
            sizes(&shape.weight),
            shape.attributes.clone(),
            passes.count.to_string(),
            rate(timed[0]),
            rate(timed[1]),
            rate(timed[2]),
        ]);
        let [forward, input_gradient, weight_gradient] = timed;
        output.event(&Event::Convolution {
            input: shape.input,
            weight: shape.weight,
            attributes: shape.attributes,
            count: passes.count,
            forward_gflops: forward,
            input_gradient_gflops: input_gradient,
            weight_gradient_gflops: weight_gradient,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    output.say(table.to_string());
    output.event(&Event::Done(Done {
        threads: Some(engine.info().threads),
        device: Some(engine.info().device),
        ..Done::default()
    }));
    Ok(())
}

fn sizes(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    dims.join("x")
}

/// Adds a program's convolutions; of each shape the first of each pass is kept.
fn collect(program: &Graph, shapes: &mut BTreeMap<Shape, Passes>) {
    for (index, node) in program.nodes.iter().enumerate() {
        let dims = |value: Option<outboard_graph::ValueId>| {
            value.and_then(|value| program.ty(value)?.concrete())
        };
        let operand = |index: usize| dims(node.operands.get(index).copied().flatten());
        let result = dims(node.results.first().copied());
        let (pass, input, weight, output) = match &node.op {
            Op::Convolution { .. } => (0, operand(0), operand(1), result),
            Op::ConvolutionInputGrad { .. } => (1, result, operand(1), operand(0)),
            Op::ConvolutionWeightGrad { .. } => (2, operand(1), result, operand(0)),
            _ => continue,
        };
        let (Op::Convolution {
            stride,
            padding,
            dilation,
            groups,
        }
        | Op::ConvolutionInputGrad {
            stride,
            padding,
            dilation,
            groups,
            ..
        }
        | Op::ConvolutionWeightGrad {
            stride,
            padding,
            dilation,
            groups,
            ..
        }) = &node.op
        else {
            continue;
        };
        let (Some(input), Some(weight), Some(output)) = (input, weight, output) else {
            continue;
        };
        let mut attributes = format!("stride {} padding {}", sizes(stride), sizes(padding));
        if dilation.iter().any(|&dilation| dilation > 1) {
            attributes += &format!(" dilation {}", sizes(dilation));
        }
        if *groups > 1 {
            attributes += &format!(" groups {groups}");
        }
        let taps: usize = weight.iter().skip(1).product();
        let multiply_adds = output.iter().product::<usize>() as f64 * taps as f64;
        let shape = Shape {
            input,
            weight,
            attributes,
        };
        let passes = shapes.entry(shape).or_default();
        passes.multiply_adds = multiply_adds;
        passes.count += usize::from(pass == 0);
        if passes.programs[pass].is_none() {
            passes.programs[pass] = program.single_node(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_convolution_is_found_in_each_pass() {
        let graph = work::zoo_model("resnet18", 64).unwrap();
        let programs = stage_programs(&Stage::whole(graph)).unwrap();
        let mut shapes = BTreeMap::new();
        for program in [&programs.forward, &programs.backward, &programs.weight] {
            collect(&program.instantiate(2).unwrap(), &mut shapes);
        }
        assert_eq!(
            shapes.values().map(|passes| passes.count).sum::<usize>(),
            20
        );
        for (shape, passes) in &shapes {
            let [forward, input_gradient, weight_gradient] = &passes.programs;
            assert!(forward.is_some() && weight_gradient.is_some());
            // Nothing needs the gradient of the images.
            assert_eq!(input_gradient.is_some(), shape.weight[1] != 3);
        }
        let stem = shapes
            .iter()
            .find(|(shape, _)| shape.weight[1] == 3)
            .unwrap();
        assert_eq!(stem.1.multiply_adds, (2 * 64 * 32 * 32 * 3 * 49) as f64);
    }
}
