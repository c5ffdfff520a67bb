//! How long one micro-batch takes on this processor: `step MODEL IMAGE_SIZE BATCH THREADS [ROUNDS]`.

#![expect(clippy::print_stdout, reason = "it is a program that prints a table")]

use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use outboard_exec::{CpuExecutor, CpuTensor, Executor, RandomKey};
use outboard_graph::{Graph, InputKind, OutputKind, Stage, Tensor, init, stage_programs, zoo};

type Values = HashMap<(InputKind, String), CpuTensor>;

fn run(engine: &CpuExecutor, program: &Graph, values: &mut Values) -> Result<f64, Box<dyn Error>> {
    let plan = engine.compile(program)?;
    let mut inputs = Vec::new();
    for input in &program.inputs {
        let value = values.get(&(input.kind, input.name.clone()));
        inputs.push(
            value
                .ok_or_else(|| format!("no {} {}", input.kind, input.name))?
                .clone(),
        );
    }
    let start = Instant::now();
    let outputs = engine.run(&plan, inputs, RandomKey::default())?;
    let seconds = start.elapsed().as_secs_f64();
    for (output, tensor) in program.outputs.iter().zip(outputs) {
        if output.kind == OutputKind::Saved {
            values.insert((InputKind::Saved, output.name.clone()), tensor);
        }
    }
    Ok(seconds)
}

fn measure(
    model: &str,
    image_size: usize,
    batch: usize,
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let engine = CpuExecutor::new();
    let options = zoo::ZooOptions {
        image_size,
        ..Default::default()
    };
    let stage = Stage::whole(zoo::build(model, &options)?);
    let programs = stage_programs(&stage)?;
    let weights = init::weights(&stage.graph, 0)?;
    let mut values = Values::new();
    for input in &stage.graph.inputs {
        let tensor = match weights.get(&input.name) {
            Some(tensor) => tensor.clone(),
            None if input.name == zoo::INPUT => {
                let dims = [batch, options.channels, image_size, image_size];
                let count: usize = dims.iter().product();
                let pixels = (0..count).map(|i| (i * 7919 % 1013) as f32 / 1013.0);
                Tensor::from_f32(dims, &pixels.collect::<Vec<_>>())?
            }
            None => Tensor::from_i64([batch], &vec![1; batch])?,
        };
        values.insert((input.kind, input.name.clone()), engine.upload(&tensor)?);
    }
    let loss = engine.upload(&Tensor::scalar(1.0 / batch as f32))?;
    values.insert((InputKind::Cotangent, "loss".into()), loss);
    let forward = programs.forward.instantiate(batch)?;
    let backward = programs.backward.instantiate(batch)?;
    let weight = programs.weight.instantiate(batch)?;
    for round in 0..rounds {
        let mut seconds = [0.0; 3];
        for (seconds, program) in seconds.iter_mut().zip([&forward, &backward, &weight]) {
            *seconds = run(&engine, program, &mut values)?;
        }
        values.retain(|(kind, _), _| *kind != InputKind::Saved);
        let [f, b, w] = seconds.map(|s| s * 1e3);
        println!(
            "round {round}: F {f:.1} ms, B {b:.1} ms, W {w:.1} ms, together {:.1} ms",
            f + b + w
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, image_size, batch, threads, rounds @ ..] = &arguments[..] else {
        return Err("usage: step MODEL IMAGE_SIZE BATCH THREADS [ROUNDS]".into());
    };
    let rounds = rounds.first().map_or(Ok(3), |rounds| rounds.parse())?;
    let (image_size, batch) = (image_size.parse()?, batch.parse()?);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.parse()?)
        .build()?;
    pool.install(|| measure(model, image_size, batch, rounds).map_err(|error| error.to_string()))?;
    Ok(())
}
