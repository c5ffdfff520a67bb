//! `outboard demo`: the main job in two minutes, on images that ship with the program.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use outboard_data::{Loader, LoaderOptions};
use outboard_graph::{hex, weights_sha256};
use outboard_host::{Placement, Rehearsal, Run, RunOptions, StepReport, TraceWriter};
use outboard_plan::UseDevices;
use outboard_schedule::ScheduleKind;
use outboard_wire::{Optimizer, TensorEncoding};

use crate::arguments::{
    Conv, Demo, DeviceArguments, EngineArguments, PipelineArguments, Use, Wire, WorkArguments,
};
use crate::evaluation;
use crate::events::{Done, Event};
use crate::fleet::{self, Fleet};
use crate::optimizer::over_all_steps;
use crate::output::{self, Output};
use crate::planning;
use crate::resources;
use crate::train::steady_seconds;
use crate::work::Work;

const MODEL: &str = "resnet18";
const BATCH: u32 = 32;
const MICRO_BATCHES: u16 = 4;
/// Most devices that the demo starts by itself.
const MOST_DEVICES: usize = 4;
/// Steps measured on one device alone.
const ALONE_STEPS: u64 = 4;
/// Passes over the shipped training images.
const EPOCHS: u64 = 2;
const SEED: u64 = 1;
const LEARNING_RATE: f64 = 0.02;
const OPTIMIZER: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 5e-4,
    nesterov: false,
};

/// Shows the main job.
pub(crate) fn run(arguments: &Demo, output: &Output) -> Result<()> {
    let count = arguments
        .devices
        .map_or_else(|| resources::cores().min(MOST_DEVICES), usize::from);
    let work = Work::open(&WorkArguments {
        model: MODEL.to_owned(),
        data: "builtin".to_owned(),
        image_size: None,
        batch: BATCH,
    })?;
    output.say(format!(
        "{MODEL} on {} photos of clothes, over {count} device{} of one thread each: this process{}\n",
        work.train.len(),
        if count == 1 { "" } else { "s" },
        match count - 1 {
            0 => String::new(),
            1 => " and a worker process".to_owned(),
            workers => format!(" and {workers} worker processes"),
        }
    ));
    let devices = DeviceArguments {
        workers: u16::try_from(count - 1).unwrap_or(u16::MAX),
        devices: Vec::new(),
        worker_timeout: std::time::Duration::from_secs(10),
    };
    let engine = EngineArguments {
        threads: Some(1),
        memory: None,
        conv: Conv::Auto,
    };
    let fleet = Fleet::open(&devices, &engine, output)?;
    fleet.announce(output);

    let alone = measure_alone(&fleet, &work, output)?;
    output.say(format!(
        "1. alone: {} a step on one device",
        output::seconds(alone)
    ));

    let cache = resources::cache_folder(&arguments.cache);
    let pipeline = PipelineArguments {
        micro_batches: MICRO_BATCHES.to_string(),
        schedule: ScheduleKind::Auto.to_string(),
        cut: "auto".to_owned(),
        use_devices: Use::Auto,
        wire: Wire::F32,
    };
    let search = planning::search_options(&pipeline, BATCH as usize, 1)?;
    debug_assert!(search.use_devices == UseDevices::Auto);
    let steps = loader(&work)?.batches_per_epoch() * EPOCHS;
    let rehearsal = Rehearsal {
        steps: Some(steps),
        optimizer: OPTIMIZER,
        encoding: TensorEncoding::F32,
    };
    let planned = planning::plan(
        &fleet.host,
        &work,
        &search,
        &rehearsal,
        cache.as_deref(),
        output,
    )?;
    output.say(format!(
        "2. planned from measurements: {}\n{}",
        planned.summary(),
        planned.table()
    ));

    let mut run = start(&fleet, &work, planned.placement.clone(), output)?;
    let trained = train(&mut run, &fleet, &work, arguments.trace.as_deref(), output)?;
    let measured = steady_seconds(&trained.seconds).context("the demo took no step")?;
    output.say(format!(
        "3. trained {} steps, loss {:.2} -> {:.2}. A step on the clock ({}), then as predicted ({}):\n",
        trained.seconds.len(),
        trained.first_loss,
        trained.last.loss,
        output::seconds(trained.last.seconds),
        output::seconds(planned.plan.predicted_step_seconds)
    ));
    let terminal = output.terminal();
    let timeline = trained.last.timeline(&planned.placement.devices);
    output.say(planned.draw(&timeline, &terminal));
    output.say(planned.drawing(&terminal));

    let (accuracy, _) = evaluation::accuracy(&mut run, &work, BATCH as usize, output)?;
    output.say(format!(
        "4. inference on the test images: {:.1}% told right\n",
        accuracy * 100.0
    ));

    let weights = run.weights()?;
    run.finish()?;
    let speedup = alone / measured;
    output.say(format!(
        "{speedup:.2}x the speed of one device: {} -> {} a step (predicted {}, {:+.0}% off)",
        output::seconds(alone),
        output::seconds(measured),
        output::seconds(planned.plan.predicted_step_seconds),
        (planned.plan.predicted_step_seconds / measured - 1.0) * 100.0
    ));
    output.say("next: outboard worker on another computer, then outboard train --help here");
    output.event(&Event::Done(Done {
        steps: Some(trained.seconds.len() as u64),
        final_loss: Some(trained.last.loss),
        weights_sha256: Some(hex(&weights_sha256(&weights))),
        seconds_per_step: Some(measured),
        predicted_seconds_per_step: Some(planned.plan.predicted_step_seconds),
        schedule: Some(planned.plan.schedule.name.clone()),
        stages: Some(planned.stages()),
        test_accuracy: Some(accuracy),
        speedup: Some(speedup),
        devices: Some(count),
        ..Done::default()
    }));
    Ok(())
}

fn start(fleet: &Fleet, work: &Work, placement: Placement, output: &Output) -> Result<Run> {
    let bar = output.progress(0, "start");
    let options = RunOptions {
        graph: work.graph.clone(),
        placement,
        weights: work.initial_weights(SEED)?,
        optimizer: Some(OPTIMIZER),
        optimizer_state: Default::default(),
        first_step: 0,
        seed: SEED,
        encoding: TensorEncoding::F32,
        clip_norm: None,
        largest_batch: BATCH as usize,
    };
    let run = fleet
        .host
        .start(options, |progress| fleet::show(&bar, &progress));
    bar.finish_and_clear();
    Ok(run?)
}

/// Seconds of a step on the first device alone, the median of a few.
fn measure_alone(fleet: &Fleet, work: &Work, output: &Output) -> Result<f64> {
    let placement = Placement::by_hand(Vec::new(), &[0], ScheduleKind::OneFOneB, MICRO_BATCHES)?;
    let mut run = start(fleet, work, placement, output)?;
    let bar = output.progress(ALONE_STEPS, "alone");
    let mut seconds = Vec::new();
    for batch in loader(work)?.take(ALONE_STEPS as usize) {
        let batch = batch?;
        let tensors = vec![
            (work.images.clone(), batch.images),
            (work.targets.clone(), batch.targets),
        ];
        seconds.push(run.step(tensors, LEARNING_RATE)?.seconds);
        bar.inc(1);
    }
    bar.finish_and_clear();
    run.finish()?;
    steady_seconds(&seconds).context("no step was measured")
}

fn loader(work: &Work) -> Result<Loader> {
    let mut options = LoaderOptions::new(BATCH as usize, SEED, work.transform.clone());
    options.epochs = Some(EPOCHS);
    Ok(Loader::new(work.train.clone(), options)?)
}

/// What training gave.
struct Trained {
    seconds: Vec<f64>,
    first_loss: f64,
    last: StepReport,
}

fn train(
    run: &mut Run,
    fleet: &Fleet,
    work: &Work,
    trace: Option<&Path>,
    output: &Output,
) -> Result<Trained> {
    let mut trace = match trace {
        Some(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            let names: Vec<String> = fleet
                .host
                .devices()
                .iter()
                .map(|device| device.name.clone())
                .collect();
            Some(TraceWriter::new(BufWriter::new(file), &names)?)
        }
        None => None,
    };
    let loader = loader(work)?;
    let steps = loader.batches_per_epoch() * EPOCHS;
    let bar = output.progress(steps, "train");
    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    let mut last: Option<StepReport> = None;
    let mut take = |report: StepReport| -> Result<()> {
        bar.inc(1);
        bar.set_message(format!(
            "loss {:.3}, {} a step",
            report.loss,
            output::seconds(report.seconds)
        ));
        output.event(&Event::Step {
            step: report.step,
            loss: report.loss,
            seconds: report.seconds,
            learning_rate: report.learning_rate,
            gradient_norm: report.grad_norm,
        });
        if let Some(trace) = &mut trace {
            trace.step(&report)?;
        }
        seconds.push(report.seconds);
        losses.push(report.loss);
        // The last step of a pass has a smaller batch; the picture is of a full one.
        let samples = |report: &StepReport| report.sizes.iter().sum::<u32>();
        if last
            .as_ref()
            .is_none_or(|last| samples(&report) >= samples(last))
        {
            last = Some(report);
        }
        Ok(())
    };
    for batch in loader {
        let batch = batch?;
        if run.pending() >= 2 {
            take(run.wait()?)?;
        }
        let tensors = vec![
            (work.images.clone(), batch.images),
            (work.targets.clone(), batch.targets),
        ];
        let rate = over_all_steps(LEARNING_RATE, run.next_step(), steps);
        run.submit(tensors, rate)?;
    }
    while run.pending() > 0 {
        take(run.wait()?)?;
    }
    bar.finish_and_clear();
    if let Some(trace) = trace {
        trace.finish()?;
    }
    let first_loss = *losses.first().context("the demo took no step")?;
    Ok(Trained {
        seconds,
        first_loss,
        last: last.context("the demo took no step")?,
    })
}
