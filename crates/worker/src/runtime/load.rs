//! From an assignment to a loaded run: checks, memory, compilation, weights.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use outboard_exec::{Executor, UpdateRule};
use outboard_graph::Tensor;
use outboard_wire::{Assign, FailureKind, Optimizer, StateKind, WeightSpec};
use sha2::{Digest, Sha256};

use super::program::Program;
use super::{Held, Kept, Loaded, compute};
use crate::core::BACKLOG_BYTES;
use crate::event::{JobError, JobOutput};
use crate::memory::{self, MemoryPlan};
use crate::stage::{ProgramKind, Signature, Stage, check_neighbours, refuse, split_use};
use crate::windows::{Windows, frames};

/// Checks everything about an assignment, in the order of cost: programs, then memory, before anything large is held.
pub(super) fn prepare<E: Executor>(
    engine: &E,
    assign: Assign,
    budget_bytes: u64,
    granted: Windows,
) -> Result<(Loaded<E>, JobOutput), JobError> {
    if assign.largest_micro_batch == 0 || assign.most_micro_batches == 0 {
        return Err(order("an assignment of empty micro-batches".to_owned()));
    }
    let rule = assign.optimizer.map(rule);
    let mut stages: BTreeMap<u16, Held<E>> = BTreeMap::new();
    let (mut largest_program, mut scratch_bytes) = (0, 0);
    for assignment in &assign.stages {
        let index = assignment.stage;
        let stage = Stage::new(assignment, assign.largest_micro_batch)?;
        check_optimizer(&stage, rule)?;
        let mut programs = BTreeMap::new();
        for kind in ProgramKind::ALL {
            let Some(graph) = stage.programs.get(kind) else {
                continue;
            };
            let mut program = Program::new(graph.clone());
            let runnable = program
                .at(engine, assign.largest_micro_batch)
                .map_err(|error| refuse(index, &graph.name, &error.message))?;
            largest_program = runnable.peak_bytes.max(largest_program);
            scratch_bytes = runnable.scratch_bytes.max(scratch_bytes);
            programs.insert(kind, program);
        }
        let held = Held {
            stage,
            programs,
            weights: BTreeMap::new(),
            optimizer: BTreeMap::new(),
            resumed: BTreeMap::new(),
            saved: HashMap::new(),
            sums: BTreeMap::new(),
            gradients: BTreeMap::new(),
        };
        if stages.insert(index, held).is_some() {
            return Err(order(format!("stage {index} is assigned twice")));
        }
    }
    for (before, after) in stages.values().zip(stages.values().skip(1)) {
        let (before, after) = (&before.stage.signature, &after.stage.signature);
        if before.stage.checked_add(1) == Some(after.stage) {
            check_neighbours(before, after)?;
        }
    }
    check_shared(&assign, &stages)?;

    let signatures: Vec<Signature> = stages
        .values()
        .map(|held| held.stage.signature.clone())
        .collect();
    let windows = Windows::of(&assign, &signatures)?.max(granted);
    let largest_program = largest_program.saturating_add(scratch_bytes);
    let memory = plan(&assign, &stages, rule, largest_program, windows)?;
    if memory.total() > budget_bytes {
        return Err(JobError {
            kind: FailureKind::Memory,
            stage: signatures.first().map(|signature| signature.stage),
            message: format!(
                "needs {memory}, the budget is {} (`--memory`): give this device fewer nodes, use smaller or fewer \
                 micro-batches in flight, or raise the budget",
                memory::Bytes(budget_bytes)
            ),
        });
    }
    let run = Loaded {
        seed: assign.seed,
        encoding: assign.encoding,
        rule,
        shared: assign.shared,
        stages,
        passing: HashMap::new(),
        held_bytes: 0,
        scratch_bytes,
    };
    let output = JobOutput::Prepared {
        signatures,
        windows,
        memory,
    };
    Ok((run, output))
}

fn order(message: String) -> JobError {
    JobError {
        kind: FailureKind::Order,
        stage: None,
        message,
    }
}

fn rule(optimizer: Optimizer) -> UpdateRule {
    match optimizer {
        Optimizer::Sgd {
            momentum,
            dampening,
            weight_decay,
            nesterov,
        } => UpdateRule::Sgd {
            momentum,
            dampening,
            weight_decay,
            nesterov,
        },
        Optimizer::Adam {
            betas,
            eps,
            weight_decay,
            amsgrad,
            decoupled: false,
        } => UpdateRule::Adam {
            betas,
            eps,
            weight_decay,
            amsgrad,
        },
        Optimizer::Adam {
            betas,
            eps,
            weight_decay,
            amsgrad,
            decoupled: true,
        } => UpdateRule::AdamW {
            betas,
            eps,
            weight_decay,
            amsgrad,
        },
    }
}

/// State that comes for a parameter is that of the optimizer's rule, and whole.
fn check_optimizer(stage: &Stage, rule: Option<UpdateRule>) -> Result<(), JobError> {
    let names = rule.map(|rule| rule.state_names()).unwrap_or_default();
    let mut states: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for spec in &stage.weights {
        if spec.state == StateKind::Optimizer
            && let Some((parameter, state)) = spec.name.rsplit_once('/')
        {
            states.entry(parameter).or_default().push(state);
        }
    }
    for (parameter, mut found) in states {
        found.sort_unstable();
        let mut wanted = names.to_vec();
        wanted.sort_unstable();
        if found != wanted {
            return Err(refuse(
                stage.signature.stage,
                "its optimizer state",
                &format!("{parameter:?} comes with {found:?}, the optimizer keeps {names:?}"),
            ));
        }
    }
    Ok(())
}

/// A shared weight names its gradients, and every gradient of it is among them.
fn check_shared<E: Executor>(
    assign: &Assign,
    stages: &BTreeMap<u16, Held<E>>,
) -> Result<(), JobError> {
    for shared in &assign.shared {
        for (index, held) in stages {
            let known = shared.stages.contains(index);
            let holds = held
                .stage
                .weights
                .iter()
                .any(|spec| spec.name == shared.name);
            if known != holds {
                return Err(order(format!(
                    "stage {index} {} the weight {:?}, which is shared by the stages {:?}",
                    if holds { "holds" } else { "does not hold" },
                    shared.name,
                    shared.stages
                )));
            }
            let stray = held.stage.signature.uses.iter().find(|port| {
                split_use(&port.name).is_some_and(|(name, _)| name == shared.name)
                    && !shared.uses.contains(&port.name)
            });
            if let Some(stray) = stray {
                return Err(order(format!(
                    "stage {index} gives {:?}, which is not among the uses {:?} of the shared weight",
                    stray.name, shared.uses
                )));
            }
        }
    }
    Ok(())
}

fn spec_bytes(spec: &WeightSpec) -> u64 {
    spec.dims
        .iter()
        .fold(spec.dtype.bytes() as u64, |bytes, dim| {
            bytes.saturating_mul(*dim)
        })
}

fn plan<E: Executor>(
    assign: &Assign,
    stages: &BTreeMap<u16, Held<E>>,
    rule: Option<UpdateRule>,
    program: u64,
    windows: Windows,
) -> Result<MemoryPlan, JobError> {
    let mut plan = MemoryPlan {
        program,
        windows: windows.total(),
        ..MemoryPlan::default()
    };
    let mut departing = 0_u64;
    for (index, held) in stages {
        let Stage {
            signature, weights, ..
        } = &held.stage;
        let too_large = || refuse(*index, "its values", "more than a machine can address");
        let trained = |name: &str| {
            signature
                .uses
                .iter()
                .any(|port| split_use(&port.name).is_some_and(|(used, _)| used == name))
        };
        for spec in weights
            .iter()
            .filter(|spec| spec.state == StateKind::Weights)
        {
            let bytes = spec_bytes(spec);
            plan.weights = plan.weights.saturating_add(bytes);
            if let Some(rule) = rule.filter(|_| trained(&spec.name)) {
                let states = bytes.saturating_mul(rule.state_names().len() as u64);
                plan.optimizer = plan.optimizer.saturating_add(states);
            }
        }
        for port in &signature.uses {
            let bytes = port.ty.bytes(1).ok_or_else(too_large)?;
            plan.gradients = plan.gradients.saturating_add(bytes);
        }
        let in_flight = u64::from(signature.in_flight).max(1);
        plan.saved = plan
            .saved
            .saturating_add(signature.saved_bytes.saturating_mul(in_flight));
        for ports in [&signature.train, &signature.evaluate]
            .into_iter()
            .flatten()
        {
            let borders = [
                (index.checked_add(1), &ports.activations_out),
                (index.checked_sub(1), &ports.cotangents_out),
            ];
            for (neighbour, ports) in borders {
                let bytes = frames(ports, assign.largest_micro_batch).ok_or_else(too_large)?;
                if neighbour.is_some_and(|neighbour| stages.contains_key(&neighbour)) {
                    plan.exchange = plan
                        .exchange
                        .saturating_add(bytes.saturating_mul(in_flight));
                } else {
                    departing = departing.max(bytes);
                }
            }
        }
    }
    if departing > 0 {
        let step = departing.saturating_mul(u64::from(assign.most_micro_batches));
        plan.sending = departing.saturating_add(BACKLOG_BYTES.min(step));
    }
    Ok(plan)
}

impl<E: Executor> Loaded<E> {
    /// Takes a weight whose hash is right.
    pub(super) fn load_weight(
        &mut self,
        engine: &E,
        stage: u16,
        spec: &WeightSpec,
        payload: Bytes,
    ) -> Result<JobOutput, JobError> {
        let found: [u8; 32] = Sha256::digest(&payload).into();
        if found != spec.sha256 {
            return Err(JobError {
                kind: FailureKind::Hash,
                stage: Some(stage),
                message: format!(
                    "the bytes of {:?} for stage {stage} are not those that were announced (SHA-256 {} instead of {}): \
                     the link or the host's memory is at fault; start the run again",
                    spec.name,
                    hex(&found),
                    hex(&spec.sha256)
                ),
            });
        }
        let dims: Vec<usize> = spec
            .dims
            .iter()
            .map(|dim| usize::try_from(*dim))
            .collect::<Result<_, _>>()
            .map_err(|_| compute(format!("{:?} is too large", spec.name)))?;
        let bytes = payload.len() as u64;
        let tensor = Tensor::from_bytes(spec.dtype, dims, payload)
            .map_err(|error| compute(format!("{:?}: {error}", spec.name)))?;
        let states = self.rule.map(|rule| rule.state_names()).unwrap_or_default();
        let held = self.held(stage)?;
        match spec.state {
            StateKind::Weights => {
                let tensor = engine.upload(&tensor)?;
                held.weights
                    .insert(spec.name.clone(), Kept { tensor, bytes });
            }
            StateKind::Optimizer => {
                held.resumed.insert(spec.name.clone(), tensor);
                let parameter = spec.name.rsplit_once('/').map_or("", |(name, _)| name);
                let full_name = |state: &&str| format!("{parameter}/{state}");
                if states
                    .iter()
                    .all(|state| held.resumed.contains_key(&full_name(state)))
                {
                    let tensors = states
                        .iter()
                        .filter_map(|state| held.resumed.remove(&full_name(state)))
                        .map(|tensor| engine.upload(&tensor))
                        .collect::<Result<Vec<_>, _>>()?;
                    held.optimizer.insert(parameter.to_owned(), tensors);
                }
            }
        }
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        Ok(JobOutput::Done)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
