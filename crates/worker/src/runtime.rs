//! The compute side: owns the engine and every tensor on the device, and does the core's jobs one after another.

mod act;
mod gradients;
mod load;
mod program;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use outboard_exec::{ExecError, Executor, UpdateRule};
use outboard_graph::Tensor;
use outboard_wire::{
    DataHeader, DataKind, FailureKind, SharedWeight, StateKind, TensorEncoding, decode_tensor,
    encode_tensor,
};

use crate::event::{Arrived, Departing, Job, JobError, JobOutput};
use crate::profile;
use crate::stage::{ProgramKind, Stage};

use program::Program;

/// An engine and the tensors of one run.
pub struct Runtime<E: Executor> {
    engine: E,
    run: Option<Loaded<E>>,
}

/// A tensor on the device and its size.
struct Kept<T> {
    tensor: T,
    bytes: u64,
}

/// Where a value goes from one stage of this worker to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Passage {
    step: u64,
    stage: u16,
    kind: DataKind,
    micro_batch: u16,
    name: String,
}

/// The tensors of a run.
struct Loaded<E: Executor> {
    seed: u64,
    encoding: TensorEncoding,
    rule: Option<UpdateRule>,
    shared: Vec<SharedWeight>,
    stages: BTreeMap<u16, Held<E>>,
    /// Values between stages of this worker.
    passing: HashMap<Passage, Kept<E::Tensor>>,
    /// Bytes of all tensors held, weights and optimizer state too.
    held_bytes: u64,
    /// The scratch memory of all programs, kept from one to the next.
    scratch_bytes: u64,
}

/// The tensors of a stage.
struct Held<E: Executor> {
    stage: Stage,
    programs: BTreeMap<ProgramKind, Program<E>>,
    /// Parameters, frozen weights and buffers, by name.
    weights: BTreeMap<String, Kept<E::Tensor>>,
    /// Tensors of the optimizer, by parameter, in the rule's order.
    optimizer: BTreeMap<String, Vec<E::Tensor>>,
    /// Optimizer tensors that came for a resumed run, by their whole name, until all are there.
    resumed: BTreeMap<String, Tensor>,
    /// Saved values, by micro-batch and name.
    saved: HashMap<(u16, String), Kept<E::Tensor>>,
    /// Sums over the step's micro-batches, by use.
    sums: BTreeMap<String, Kept<E::Tensor>>,
    /// The step's gradients, by parameter.
    gradients: BTreeMap<String, E::Tensor>,
}

impl<E: Executor> Runtime<E> {
    /// A compute side without a run.
    pub fn new(engine: E) -> Self {
        Runtime { engine, run: None }
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Whether tensors of a run are held.
    pub fn is_loaded(&self) -> bool {
        self.run.is_some()
    }

    /// Does a job. `clock` is read only to time profiles; `cancel` ends them early. A panic of the engine becomes an error.
    pub fn execute(
        &mut self,
        job: Job,
        cancel: &AtomicBool,
        clock: &dyn Fn() -> Duration,
    ) -> Result<JobOutput, JobError> {
        // After a panic the run is dropped whole, so nothing half-changed is seen.
        catch_unwind(AssertUnwindSafe(|| self.run_job(job, cancel, clock))).unwrap_or_else(
            |panic| {
                self.run = None;
                Err(JobError {
                    kind: FailureKind::Compute,
                    stage: None,
                    message: format!("the engine panicked: {}", panic_message(&*panic)),
                })
            },
        )
    }

    fn run_job(
        &mut self,
        job: Job,
        cancel: &AtomicBool,
        clock: &dyn Fn() -> Duration,
    ) -> Result<JobOutput, JobError> {
        match job {
            Job::Prepare {
                assign,
                budget_bytes,
                granted,
            } => {
                self.run = None;
                let (run, output) = load::prepare(&self.engine, *assign, budget_bytes, granted)?;
                self.run = Some(run);
                Ok(output)
            }
            Job::Profile {
                programs,
                budget_bytes,
            } => Ok(JobOutput::Profiled(profile::profile(
                &self.engine,
                &programs,
                budget_bytes,
                cancel,
                clock,
            ))),
            Job::DropRun => {
                self.run = None;
                Ok(JobOutput::Done)
            }
            job => {
                let run = self
                    .run
                    .as_mut()
                    .ok_or_else(|| compute("there is no run on the compute side"))?;
                run.job(&self.engine, job)
            }
        }
    }
}

impl<E: Executor> Loaded<E> {
    fn job(&mut self, engine: &E, job: Job) -> Result<JobOutput, JobError> {
        match job {
            Job::LoadWeight {
                stage,
                spec,
                payload,
            } => self.load_weight(engine, stage, &spec, payload),
            Job::Normalise {
                stage,
                micro_batch,
                samples,
                arrived,
            } => self.normalise(engine, stage, micro_batch, samples, arrived),
            Job::Act(act) => self.act(engine, act),
            Job::ShareGradients => self.share_gradients(engine),
            Job::FinishGradients { arrived } => self.finish_gradients(engine, arrived),
            Job::Update {
                updates,
                learning_rate,
                gradient_scale,
            } => self.update(engine, updates, learning_rate, gradient_scale),
            Job::List(state) => Ok(JobOutput::Listed(self.list(state))),
            Job::Export { stage, state, name } => self.export(engine, stage, state, &name),
            Job::Prepare { .. } | Job::Profile { .. } | Job::DropRun => {
                Err(compute("not a job of a run"))
            }
        }
    }

    fn held(&mut self, stage: u16) -> Result<&mut Held<E>, JobError> {
        self.stages
            .get_mut(&stage)
            .ok_or_else(|| compute(format!("stage {stage} is not here")))
    }

    /// All tensors of a kind, each named once: a shared weight by the first stage that holds it, on whatever worker.
    fn list(&self, state: StateKind) -> Vec<(u16, String)> {
        let mut all: Vec<(u16, String)> = Vec::new();
        let mut named = std::collections::BTreeSet::new();
        for (stage, held) in &self.stages {
            let reported = |name: &str| {
                self.shared
                    .iter()
                    .find(|shared| shared.name == name)
                    .is_none_or(|shared| shared.stages.first() == Some(stage))
            };
            let names: Vec<String> = match state {
                StateKind::Weights => held
                    .weights
                    .keys()
                    .filter(|name| reported(name))
                    .cloned()
                    .collect(),
                StateKind::Optimizer => {
                    let states = self.rule.map(|rule| rule.state_names()).unwrap_or_default();
                    held.optimizer
                        .iter()
                        .filter(|(name, _)| reported(name))
                        .flat_map(|(name, tensors)| {
                            states
                                .iter()
                                .zip(tensors)
                                .map(move |(state, _)| format!("{name}/{state}"))
                        })
                        .collect()
                }
            };
            all.extend(
                names
                    .into_iter()
                    .filter(|name| named.insert(name.clone()))
                    .map(|name| (*stage, name)),
            );
        }
        all
    }

    fn export(
        &mut self,
        engine: &E,
        stage: u16,
        state: StateKind,
        name: &str,
    ) -> Result<JobOutput, JobError> {
        let states = self.rule.map(|rule| rule.state_names()).unwrap_or_default();
        let held = self.held(stage)?;
        let (kind, tensor) = match state {
            StateKind::Weights => (
                DataKind::Weight,
                held.weights.get(name).map(|kept| &kept.tensor),
            ),
            StateKind::Optimizer => (
                DataKind::OptimizerState,
                name.rsplit_once('/').and_then(|(parameter, state)| {
                    let at = states.iter().position(|known| *known == state)?;
                    held.optimizer.get(parameter)?.get(at)
                }),
            ),
        };
        let tensor = tensor.ok_or_else(|| compute(format!("there is no {name:?} to export")))?;
        let tensor = depart(
            engine,
            tensor,
            kind,
            DataHeader::HOST,
            name.to_owned(),
            TensorEncoding::F32,
        )?;
        Ok(JobOutput::Exported(tensor))
    }
}

/// Brings a tensor to host memory, encoded for its way.
fn depart<E: Executor>(
    engine: &E,
    tensor: &E::Tensor,
    kind: DataKind,
    stage: u16,
    name: String,
    encoding: TensorEncoding,
) -> Result<Departing, JobError> {
    let tensor = engine.download(tensor)?;
    Ok(Departing {
        kind,
        stage,
        name,
        dtype: tensor.dtype(),
        dims: tensor.dims().to_vec(),
        encoding,
        payload: encode_tensor(&tensor, encoding),
    })
}

/// Brings a tensor that came over the link to the device.
fn upload<E: Executor>(engine: &E, arrived: &Arrived) -> Result<E::Tensor, JobError> {
    let tensor = decode_tensor(&arrived.header, &arrived.payload)
        .map_err(|error| compute(error.to_string()))?;
    Ok(engine.upload(&tensor)?)
}

/// A mistake while computing.
fn compute(message: impl Into<String>) -> JobError {
    JobError {
        kind: FailureKind::Compute,
        stage: None,
        message: message.into(),
    }
}

impl From<ExecError> for JobError {
    fn from(error: ExecError) -> Self {
        compute(error.to_string())
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
