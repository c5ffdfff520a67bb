//! A run as the application sees it: submit batches, wait for steps, evaluate, fetch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outboard_graph::Tensor;
use outboard_wire::{StateKind, StepMode};

use crate::assign::assign;
use crate::assignment::{Assignment, Batch};
use crate::core::{Command, Report};
use crate::host::{Claim, DeviceInfo};
use crate::split::join;
use crate::{HostOptions, Progress, RunError, RunOptions, StepReport};

/// Training batches that may be submitted and not done: one computes, one has its inputs on their way, one waits.
const MOST_SUBMITTED: usize = 3;

/// A model on its devices. Dropping it frees them; [`Run::finish`] also tells whether that went well.
///
/// After the first error the run is over and every call gives that error again.
#[derive(Debug)]
pub struct Run {
    claim: Claim,
    names: Vec<String>,
    assignment: Assignment,
    scheduled: BTreeSet<u16>,
    next_step: u64,
    next_evaluation: u64,
    submitted: usize,
    finished: VecDeque<StepReport>,
    planned_bytes: Vec<(String, u64)>,
    /// What ended the run, for every later call.
    over: Option<RunError>,
    /// Whether the coordinator knows of no run any more.
    ended: bool,
}

impl Run {
    pub(crate) fn start(
        claim: Claim,
        devices: &[DeviceInfo],
        _options: &HostOptions,
        run: RunOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<Run, RunError> {
        let (assignment, spec) = assign(&run, devices.len())?;
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let mut this = Run {
            claim,
            assignment,
            scheduled: BTreeSet::new(),
            next_step: run.first_step,
            next_evaluation: 0,
            submitted: 0,
            finished: VecDeque::new(),
            planned_bytes: Vec::new(),
            over: None,
            ended: false,
            names,
        };
        this.claim.0.send(Command::Start(Box::new(spec)))?;
        loop {
            match this.receive()? {
                Report::Uploading {
                    device,
                    sent,
                    total,
                } => {
                    progress(Progress::Uploading {
                        device: this.name(device.0),
                        sent,
                        total,
                    });
                }
                Report::Started { planned_bytes } => {
                    this.planned_bytes = planned_bytes
                        .into_iter()
                        .map(|(device, bytes)| (this.name(device.0), bytes))
                        .collect();
                    return Ok(this);
                }
                _ => {}
            }
        }
    }

    fn name(&self, device: usize) -> String {
        self.names.get(device).cloned().unwrap_or_default()
    }

    /// Bytes that each device of the run planned for at the most.
    pub fn planned_bytes(&self) -> &[(String, u64)] {
        &self.planned_bytes
    }

    /// The number of the step that the next submitted batch gets: optimizer steps taken or submitted so far.
    pub fn next_step(&self) -> u64 {
        self.next_step
    }

    /// Steps submitted whose report has not been taken.
    pub fn pending(&self) -> usize {
        self.submitted + self.finished.len()
    }

    /// Submits a batch for training; its inputs travel while earlier ones compute. Returns the number of its step. Waits
    /// when three are under way.
    ///
    /// # Errors
    ///
    /// [`RunError::Batch`] when the batch does not fit the model; the run goes on then. Whatever ended the run otherwise.
    pub fn submit(&mut self, batch: Batch, learning_rate: f64) -> Result<u64, RunError> {
        self.check()?;
        if !self.assignment.trains {
            return Err(RunError::Usage(
                "this run has no optimizer; it only evaluates".to_owned(),
            ));
        }
        if !learning_rate.is_finite() {
            return Err(RunError::Usage(format!(
                "a learning rate of {learning_rate}"
            )));
        }
        let spec = self
            .assignment
            .step(self.next_step, StepMode::Train, &batch, learning_rate)?;
        while self.submitted >= MOST_SUBMITTED {
            let report = self.next_report()?;
            self.finished.push_back(report);
        }
        self.schedule(spec.sizes.len())?;
        self.send(Command::Step(Box::new(spec)))?;
        self.submitted += 1;
        self.next_step += 1;
        Ok(self.next_step - 1)
    }

    /// Waits for the oldest submitted step.
    ///
    /// # Errors
    ///
    /// Whatever ended the run: a lost device, a failure, [`RunError::NotFinite`]. [`RunError::Usage`] when nothing is
    /// under way.
    pub fn wait(&mut self) -> Result<StepReport, RunError> {
        if let Some(report) = self.finished.pop_front() {
            return Ok(report);
        }
        self.check()?;
        if self.submitted == 0 {
            return Err(RunError::Usage("no step is under way".to_owned()));
        }
        self.next_report()
    }

    /// Submits a batch and waits for its step. Steps that were submitted before must have been waited for.
    ///
    /// # Errors
    ///
    /// As [`Run::submit`] and [`Run::wait`].
    pub fn step(&mut self, batch: Batch, learning_rate: f64) -> Result<StepReport, RunError> {
        if self.pending() > 0 {
            return Err(RunError::Usage(
                "earlier steps have not been waited for".to_owned(),
            ));
        }
        self.submit(batch, learning_rate)?;
        self.wait()
    }

    /// Runs batches forward in evaluation mode, several in flight, and hands the model's results to `each` in the order of
    /// the batches: index, and results by name, micro-batches joined. An error of `each` is the caller's to keep.
    ///
    /// # Errors
    ///
    /// As [`Run::submit`]. Steps of training must have been waited for.
    pub fn evaluate(
        &mut self,
        batches: impl IntoIterator<Item = Batch>,
        in_flight: usize,
        mut each: impl FnMut(usize, BTreeMap<String, Tensor>),
    ) -> Result<(), RunError> {
        self.check()?;
        if self.pending() > 0 {
            return Err(RunError::Usage(
                "earlier steps have not been waited for".to_owned(),
            ));
        }
        let mut batches = batches.into_iter().fuse();
        let mut expected: VecDeque<(u64, Vec<usize>)> = VecDeque::new();
        let mut refused = None;
        let mut index = 0;
        loop {
            while refused.is_none()
                && expected.len() < in_flight.max(1)
                && let Some(batch) = batches.next()
            {
                match self.submit_evaluation(&batch) {
                    Ok(submitted) => expected.push_back(submitted),
                    // What is under way is still taken, so that the run can go on.
                    Err(error) => refused = Some(error),
                }
            }
            let Some((number, sizes)) = expected.pop_front() else {
                return refused.map_or(Ok(()), Err);
            };
            let results = loop {
                match self.receive()? {
                    Report::Evaluated { step, results } if step == number => break results,
                    _ => {}
                }
            };
            each(index, self.joined(&sizes, results)?);
            index += 1;
        }
    }

    /// Submits an evaluation; gives its number and the sizes of its micro-batches.
    fn submit_evaluation(&mut self, batch: &Batch) -> Result<(u64, Vec<usize>), RunError> {
        let number = self.next_evaluation;
        let spec = self
            .assignment
            .step(number, StepMode::Evaluate, batch, 0.0)?;
        let sizes = spec.sizes.iter().map(|size| *size as usize).collect();
        self.send(Command::Step(Box::new(spec)))?;
        self.next_evaluation += 1;
        Ok((number, sizes))
    }

    /// Every parameter, frozen weight and buffer by name, from the devices. Waits for all submitted steps first.
    ///
    /// # Errors
    ///
    /// Whatever ended the run; [`RunError::Weights`] when a weight is not finite.
    pub fn weights(&mut self) -> Result<BTreeMap<String, Tensor>, RunError> {
        let mut weights = self.fetch(StateKind::Weights)?;
        // Weights that no stage needs stay what they were.
        for (name, tensor) in &self.assignment.idle_weights {
            weights
                .entry(name.clone())
                .or_insert_with(|| tensor.clone());
        }
        Ok(weights)
    }

    /// The optimizer's state by `NAME/STATE`; empty before the first step.
    ///
    /// # Errors
    ///
    /// As [`Run::weights`].
    pub fn optimizer_state(&mut self) -> Result<BTreeMap<String, Tensor>, RunError> {
        self.fetch(StateKind::Optimizer)
    }

    /// Waits for all submitted steps and frees every device.
    ///
    /// # Errors
    ///
    /// Whatever ended the run before that.
    pub fn finish(mut self) -> Result<(), RunError> {
        self.check()?;
        self.send(Command::Drop)?;
        loop {
            if self.receive()? == Report::Dropped {
                self.ended = true;
                return Ok(());
            }
        }
    }

    fn fetch(&mut self, state: StateKind) -> Result<BTreeMap<String, Tensor>, RunError> {
        self.check()?;
        self.send(Command::Fetch(state))?;
        loop {
            match self.receive()? {
                Report::Stepped(report) => {
                    self.submitted = self.submitted.saturating_sub(1);
                    self.finished.push_back(*report);
                }
                Report::Fetched { tensors, .. } => return Ok(tensors),
                _ => {}
            }
        }
    }

    fn check(&self) -> Result<(), RunError> {
        self.over.clone().map_or(Ok(()), Err)
    }

    fn end(&mut self, error: RunError) -> RunError {
        self.over.get_or_insert(error).clone()
    }

    fn send(&mut self, command: Command) -> Result<(), RunError> {
        self.claim.0.send(command).map_err(|error| self.end(error))
    }

    fn receive(&mut self) -> Result<Report, RunError> {
        self.claim.0.receive().map_err(|error| {
            self.ended = true;
            self.end(error)
        })
    }

    fn next_report(&mut self) -> Result<StepReport, RunError> {
        loop {
            if let Report::Stepped(report) = self.receive()? {
                self.submitted = self.submitted.saturating_sub(1);
                return Ok(*report);
            }
        }
    }

    /// Gives every worker its list for this many micro-batches, once.
    fn schedule(&mut self, micro_batches: usize) -> Result<(), RunError> {
        let micro_batches = u16::try_from(micro_batches)
            .map_err(|_| RunError::Batch(format!("{micro_batches} micro-batches")))?;
        if !self.scheduled.insert(micro_batches) {
            return Ok(());
        }
        let schedule = self.assignment.schedule(micro_batches)?;
        self.send(Command::Schedule(schedule))
    }

    /// Results of an evaluation with their micro-batches joined.
    fn joined(
        &mut self,
        sizes: &[usize],
        results: Vec<BTreeMap<String, Tensor>>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let mut joined = BTreeMap::new();
        for (name, ty) in &self.assignment.results {
            let parts: Vec<&Tensor> = results
                .iter()
                .filter_map(|results| results.get(name))
                .collect();
            match join(name, ty, sizes, &parts) {
                Ok(tensor) => joined.insert(name.clone(), tensor),
                Err(error) => return Err(self.end(error)),
            };
        }
        Ok(joined)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended && self.send(Command::Drop).is_ok() {
            // The core bounds this wait; an error means that the run is over as well.
            while !matches!(self.receive(), Ok(Report::Dropped) | Err(_)) {}
        }
    }
}
