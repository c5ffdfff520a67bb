//! `outboard train`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use outboard_data::{Loader, LoaderOptions, OnCorrupt, Position};
use outboard_graph::{Graph, hex, weights_sha256};
use outboard_host::{Checkpoint, Rehearsal, Run, RunOptions, StepReport, TraceWriter};

use crate::arguments::{Corrupt, Train};
use crate::evaluation;
use crate::events::{Done, Event};
use crate::exit::{Usage, require};
use crate::fleet::{self, Fleet};
use crate::interrupt::Interrupt;
use crate::optimizer::Learning;
use crate::output::{self, Output};
use crate::planning::{self, Planned};
use crate::resources;
use crate::work::Work;

/// Steps whose inputs may be on their way while an earlier one computes.
const AHEAD: usize = 2;

/// Complete checkpoints that stay on disk.
const KEPT_CHECKPOINTS: usize = 2;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All steps were taken.
    Complete,
    /// The person asked to stop.
    Interrupted,
}

/// Trains.
pub(crate) fn run(arguments: &Train, output: &Output) -> Result<Ending> {
    let interrupt = Interrupt::listen()?;
    let learning = Learning::from_arguments(&arguments.optimizer)?;
    let work = Work::open(&arguments.work)?;
    let batch = arguments.work.batch as usize;
    let search = planning::search_options(&arguments.pipeline, batch, learning.state_tensors())?;
    let resumed = match &arguments.resume {
        Some(folder) => Some(resume(folder, &work.graph, arguments, &learning)?),
        None => None,
    };
    let cache = resources::cache_folder(&arguments.cache);
    let fleet = Fleet::open(&arguments.devices, &arguments.engine, output)?;
    fleet.announce(output);
    let first_step = resumed.as_ref().map_or(0, |checkpoint| checkpoint.step);
    let steps =
        last_step(arguments, work.train.len().div_ceil(batch) as u64).saturating_sub(first_step);
    let planned = planning::plan(
        &fleet.host,
        &work,
        &search,
        &Rehearsal {
            steps: Some(steps),
            optimizer: learning.optimizer,
            encoding: planning::encoding(arguments.pipeline.wire),
        },
        cache.as_deref(),
        output,
    )?;
    output.say(planned.table());
    output.say(planned.summary());

    let mut training = Training::start(
        arguments, &learning, &work, &fleet, &planned, resumed, output,
    )?;
    let ending = training.train(&interrupt)?;
    training.save_at_end()?;
    let accuracy = match ending {
        Ending::Complete if arguments.eval => Some(training.evaluate()?),
        _ => None,
    };
    training.finish(ending, accuracy, &planned)?;
    Ok(ending)
}

/// Loads the newest checkpoint and checks that it belongs to this command.
fn resume(
    folder: &Path,
    graph: &Graph,
    arguments: &Train,
    learning: &Learning,
) -> Result<Checkpoint> {
    let checkpoint = Checkpoint::load(folder)?;
    checkpoint.check_model(graph)?;
    require!(
        checkpoint.seed == arguments.seed,
        "the checkpoint was made with --seed {}, this command has --seed {}",
        checkpoint.seed,
        arguments.seed
    );
    require!(
        checkpoint.optimizer == learning.optimizer,
        "the checkpoint was made with another optimizer: {:?}, this command has {:?}",
        checkpoint.optimizer,
        learning.optimizer
    );
    Ok(checkpoint)
}

/// A run in progress and all that is kept beside it.
struct Training<'a> {
    arguments: &'a Train,
    output: &'a Output,
    learning: &'a Learning,
    work: &'a Work,
    run: Run,
    loader: std::iter::Peekable<Loader>,
    /// Where the data stands after each step submitted and not done, oldest first.
    submitted: VecDeque<Position>,
    /// Where the data stands after the last step that is done.
    position: Position,
    /// Steps taken, those before a resume included.
    steps: u64,
    /// The step to stop after.
    last_step: u64,
    /// The last step that a checkpoint holds; where the run began, before the first.
    saved_step: u64,
    final_loss: Option<f64>,
    seconds: Vec<f64>,
    corrupt: u64,
    trace: Option<(PathBuf, TraceWriter<BufWriter<File>>)>,
}

impl<'a> Training<'a> {
    fn start(
        arguments: &'a Train,
        learning: &'a Learning,
        work: &'a Work,
        fleet: &Fleet,
        planned: &Planned,
        resumed: Option<Checkpoint>,
        output: &'a Output,
    ) -> Result<Training<'a>> {
        let (weights, optimizer_state, steps, position) = match resumed {
            Some(checkpoint) => {
                let position = parse_position(&checkpoint.position)?;
                (
                    checkpoint.weights,
                    checkpoint.optimizer_state,
                    checkpoint.step,
                    position,
                )
            }
            None => (
                work.initial_weights(arguments.seed)?,
                Default::default(),
                0,
                Position::default(),
            ),
        };
        let batch = arguments.work.batch as usize;
        let mut options = LoaderOptions::new(
            batch,
            arguments.seed,
            work.training_transform(arguments.augment)?,
        );
        options.start = position;
        options.on_corrupt = match arguments.corrupt {
            Corrupt::Skip => OnCorrupt::Skip,
            Corrupt::Fail => OnCorrupt::Fail,
        };
        let loader = Loader::new(work.train.clone(), options)?;
        let last_step = last_step(arguments, loader.batches_per_epoch());
        let trace = match &arguments.trace {
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                let names: Vec<String> = fleet
                    .host
                    .devices()
                    .iter()
                    .map(|device| device.name.clone())
                    .collect();
                Some((
                    path.clone(),
                    TraceWriter::new(BufWriter::new(file), &names)?,
                ))
            }
            None => None,
        };
        let bar = output.progress(0, "start");
        let run = fleet.host.start(
            RunOptions {
                graph: work.graph.clone(),
                placement: planned.placement.clone(),
                weights,
                optimizer: Some(learning.optimizer),
                optimizer_state,
                first_step: steps,
                seed: arguments.seed,
                encoding: planning::encoding(arguments.pipeline.wire),
                clip_norm: learning.clip_norm,
                largest_batch: batch,
            },
            |progress| fleet::show(&bar, &progress),
        );
        bar.finish_and_clear();
        Ok(Training {
            arguments,
            output,
            learning,
            work,
            run: run?,
            loader: loader.peekable(),
            submitted: VecDeque::new(),
            position,
            steps,
            last_step,
            saved_step: steps,
            final_loss: None,
            seconds: Vec::new(),
            corrupt: 0,
            trace,
        })
    }

    fn train(&mut self, interrupt: &Interrupt) -> Result<Ending> {
        let bar = self.output.progress(self.last_step, "train");
        bar.set_position(self.steps);
        let ending = loop {
            // Nothing is submitted past a checkpoint before it is written, nor after the person has asked to stop.
            let boundary = self.next_boundary();
            while !interrupt.asked()
                && self.submitted.len() < AHEAD
                && self.steps + (self.submitted.len() as u64) < boundary
            {
                self.submit()?;
            }
            if self.submitted.is_empty() {
                if self.steps >= self.last_step {
                    break Ending::Complete;
                }
                if interrupt.asked() {
                    self.output.event(&Event::Interrupted { step: self.steps });
                    break Ending::Interrupted;
                }
                self.save()?;
                continue;
            }
            let report = self.run.wait()?;
            self.take(&report)?;
            bar.set_position(self.steps);
            bar.set_message(format!(
                "loss {:.4}, {} a step",
                report.loss,
                output::seconds(report.seconds)
            ));
        };
        bar.finish_and_clear();
        Ok(ending)
    }

    /// The next step after which nothing may be under way: a checkpoint or the end.
    fn next_boundary(&self) -> u64 {
        match self.arguments.checkpoint_every {
            Some(every) => ((self.saved_step / every + 1) * every).min(self.last_step),
            None => self.last_step,
        }
    }

    fn submit(&mut self) -> Result<()> {
        let batch = self
            .loader
            .next()
            .context("the data ended, though it begins again after each pass")??;
        for skipped in &batch.skipped {
            self.corrupt += 1;
            self.output
                .warn(format!("skipped an image: {}", skipped.reason));
            self.output.event(&Event::CorruptImage {
                reason: skipped.reason.clone(),
            });
        }
        let rate = self.learning.rate(self.run.next_step(), self.last_step);
        let tensors = vec![
            (self.work.images.clone(), batch.images),
            (self.work.targets.clone(), batch.targets),
        ];
        self.run.submit(tensors, rate)?;
        self.submitted.push_back(batch.next);
        Ok(())
    }

    /// Takes a step that is done.
    fn take(&mut self, report: &StepReport) -> Result<()> {
        self.position = self
            .submitted
            .pop_front()
            .context("a step was reported that was not submitted")?;
        self.steps = report.step + 1;
        self.final_loss = Some(report.loss);
        self.seconds.push(report.seconds);
        self.output.event(&Event::Step {
            step: report.step,
            loss: report.loss,
            seconds: report.seconds,
            learning_rate: report.learning_rate,
            gradient_norm: report.grad_norm,
        });
        if let Some((path, trace)) = &mut self.trace {
            trace
                .step(report)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Saves after the last step, unless that has been done.
    fn save_at_end(&mut self) -> Result<()> {
        if self.saved_step == self.steps {
            Ok(())
        } else {
            self.save()
        }
    }

    fn save(&mut self) -> Result<()> {
        let Some(folder) = &self.arguments.checkpoint else {
            return Ok(());
        };
        let checkpoint = Checkpoint {
            graph: self.work.graph.clone(),
            weights: self.run.weights()?,
            optimizer: self.learning.optimizer,
            optimizer_state: self.run.optimizer_state()?,
            step: self.steps,
            seed: self.arguments.seed,
            position: format!("{}/{}", self.position.epoch, self.position.batch),
        };
        let written = checkpoint.save(folder, KEPT_CHECKPOINTS)?;
        self.saved_step = self.steps;
        let folder = written.display().to_string();
        self.output.event(&Event::Checkpoint {
            step: self.steps,
            folder,
        });
        Ok(())
    }

    fn evaluate(&mut self) -> Result<f64> {
        let (accuracy, skipped) = evaluation::accuracy(
            &mut self.run,
            self.work,
            self.arguments.work.batch as usize,
            self.output,
        )?;
        self.corrupt += skipped;
        Ok(accuracy)
    }

    fn finish(mut self, ending: Ending, accuracy: Option<f64>, planned: &Planned) -> Result<()> {
        let weights = self.run.weights()?;
        let hash = hex(&weights_sha256(&weights));
        let measured = steady_seconds(&self.seconds);
        self.run.finish()?;
        if let Some((path, trace)) = self.trace {
            trace
                .finish()
                .with_context(|| format!("cannot write {}", path.display()))?;
            self.output.say(format!(
                "trace in {}: open it in ui.perfetto.dev",
                path.display()
            ));
        }
        if let Some(seconds) = measured {
            self.output.say(format!(
                "{} steps, {} a step (predicted {})",
                self.steps,
                output::seconds(seconds),
                output::seconds(planned.plan.predicted_step_seconds)
            ));
        }
        if let Some(loss) = self.final_loss {
            self.output.say(format!("final loss {loss:.4}"));
        }
        if self.corrupt > 0 {
            self.output.say(format!(
                "{} images could not be read and were left out",
                self.corrupt
            ));
        }
        if let Some(accuracy) = accuracy {
            self.output.say(format!(
                "{:.1}% of the test images are told right",
                accuracy * 100.0
            ));
        }
        self.output.say(format!("weights sha256 {hash}"));
        if ending == Ending::Complete {
            self.output.event(&Event::Done(Done {
                steps: Some(self.steps),
                final_loss: self.final_loss,
                weights_sha256: Some(hash),
                seconds_per_step: measured,
                predicted_seconds_per_step: Some(planned.plan.predicted_step_seconds),
                schedule: Some(planned.plan.schedule.name.clone()),
                stages: Some(planned.stages()),
                test_accuracy: accuracy,
                corrupt_images: Some(self.corrupt),
                ..Done::default()
            }));
        }
        Ok(())
    }
}

/// `EPOCH/BATCH`, as [`Training::save`] writes it.
fn parse_position(text: &str) -> Result<Position> {
    let parts = text.split_once('/').and_then(|(epoch, batch)| {
        Some(Position {
            epoch: epoch.parse().ok()?,
            batch: batch.parse().ok()?,
        })
    });
    parts.ok_or_else(|| {
        Usage(format!(
            "the checkpoint's place in the data is {text:?}; it was not made by `train`"
        ))
        .into()
    })
}

/// The step before which training ends.
fn last_step(arguments: &Train, batches_per_epoch: u64) -> u64 {
    let epochs = arguments.epochs.unwrap_or(1);
    (arguments.steps).unwrap_or_else(|| epochs.saturating_mul(batches_per_epoch))
}

/// The median of all steps but the first, which also fills caches; of the first when there is no other.
pub(crate) fn steady_seconds(seconds: &[f64]) -> Option<f64> {
    let mut steady: Vec<f64> = if seconds.len() > 1 {
        seconds[1..].to_vec()
    } else {
        seconds.to_vec()
    };
    steady.sort_by(f64::total_cmp);
    steady.get(steady.len() / 2).copied()
}
