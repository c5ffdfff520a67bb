//! A run on this worker: from its assignment to its end.

mod accept;
mod results;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use outboard_schedule::{Action, Kind};
use outboard_wire::{
    Assign, DataKind, FailureKind, SharedWeight, StateKind, StepMode, TensorEncoding, WeightSpec,
};
use sha2::{Digest, Sha256};

use crate::event::{Act, Job};
use crate::list;
use crate::mailbox::{Address, Mailbox};
use crate::stage::Signature;
use crate::step::{Normalisable, Phase, Ready, Step};
use crate::windows::Windows;

/// Steps of training that may be open at once: the one that runs, and the next one whose inputs come ahead.
const TRAINING_STEPS: usize = 2;

/// Steps and fetches that may wait at once.
const WORK: usize = 64;

/// Lists that may be kept, one for each number of micro-batches.
const LISTS: usize = 16;

/// Why a run is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) step: Option<u64>,
    pub(crate) stage: Option<u16>,
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn order(message: impl Into<String>) -> Self {
        Failure {
            step: None,
            stage: None,
            kind: FailureKind::Order,
            message: message.into(),
        }
    }

    pub(crate) fn at(self, step: u64) -> Self {
        Failure {
            step: Some(step),
            ..self
        }
    }
}

/// What a job of the run is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Doing {
    Prepare,
    Load { frame_bytes: u64 },
    Normalise { step: u64, micro_batch: u16 },
    Act { step: u64, action: Action },
    Share { step: u64 },
    Finish { step: u64 },
    Update { step: u64 },
    List,
    Export,
}

impl Doing {
    /// The step to name when it fails.
    pub(crate) fn step(self) -> Option<u64> {
        match self {
            Doing::Normalise { step, .. }
            | Doing::Act { step, .. }
            | Doing::Share { step }
            | Doing::Finish { step }
            | Doing::Update { step } => Some(step),
            Doing::Prepare | Doing::Load { .. } | Doing::List | Doing::Export => None,
        }
    }

    /// The stage to name when it fails.
    pub(crate) fn stage(self) -> Option<u16> {
        match self {
            Doing::Act { action, .. } => Some(action.stage),
            _ => None,
        }
    }

    /// What to say before the reason when it fails.
    pub(crate) fn context(self) -> String {
        match self {
            Doing::Normalise { step, micro_batch } => {
                format!("loss weight of micro-batch {micro_batch} in step {step}: ")
            }
            Doing::Act { step, action } => format!("{action} of step {step}: "),
            Doing::Share { step } | Doing::Finish { step } => {
                format!("gradients of step {step}: ")
            }
            Doing::Update { step } => format!("optimizer in step {step}: "),
            Doing::Prepare | Doing::Load { .. } | Doing::List | Doing::Export => String::new(),
        }
    }
}

/// How far the run has come.
#[derive(Debug)]
enum State {
    /// The assignment waits for the compute side.
    Assigned(Box<Assign>),
    /// The compute side checks it; weights may arrive.
    Preparing,
    /// Checked; not all weights are there.
    Loading,
    /// `Ready` has been sent.
    Ready,
}

/// Something the host asked for, done in the order of asking.
#[derive(Debug)]
enum Work {
    Step(Step),
    Fetch {
        state: StateKind,
        /// What is still to be exported; `None` until the compute side has named it.
        names: Option<VecDeque<(u16, String)>>,
        sent: u32,
    },
}

/// A weight that came and is not loaded yet.
#[derive(Debug)]
struct ArrivedWeight {
    stage: u16,
    spec: WeightSpec,
    payload: Bytes,
    frame_bytes: u64,
}

/// A run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) id: u32,
    state: State,
    encoding: TensorEncoding,
    most_micro_batches: u16,
    largest_micro_batch: u32,
    trains: bool,
    shared: Vec<SharedWeight>,
    /// The uses of shared weights that others send, by the stage they are sent to.
    awaited_uses: Vec<(u16, String, Vec<u64>)>,
    /// Whether other workers need gradients of this one.
    shares: bool,
    /// Weights that have not come.
    awaited_weights: HashMap<(u16, StateKind, String), WeightSpec>,
    arrived_weights: VecDeque<ArrivedWeight>,
    weights_sha256: [u8; 32],
    /// Shape of each weight, by stage and name.
    weight_dims: BTreeMap<(u16, String), Vec<u64>>,
    planned_bytes: u64,
    windows: Windows,
    stages: BTreeMap<u16, Signature>,
    lists: BTreeMap<u16, Arc<[Action]>>,
    work: VecDeque<Work>,
    mailbox: Mailbox,
    /// Optimizer steps taken, those before this run too.
    updates: u64,
    /// Bytes of each stream's window to give back.
    released: Vec<(DataKind, u64)>,
}

impl Run {
    pub(crate) fn new(assign: Box<Assign>) -> Self {
        let mut digest = Sha256::new();
        let mut awaited_weights = HashMap::new();
        let mut weight_dims = BTreeMap::new();
        for stage in &assign.stages {
            for spec in &stage.weights {
                digest.update(spec.sha256);
                let key = (stage.stage, spec.state, spec.name.clone());
                awaited_weights.insert(key, spec.clone());
                weight_dims.insert((stage.stage, spec.name.clone()), spec.dims.clone());
            }
        }
        Run {
            id: assign.run,
            encoding: assign.encoding,
            most_micro_batches: assign.most_micro_batches,
            largest_micro_batch: assign.largest_micro_batch,
            trains: assign.optimizer.is_some(),
            shared: assign.shared.clone(),
            awaited_uses: Vec::new(),
            shares: false,
            awaited_weights,
            arrived_weights: VecDeque::new(),
            weights_sha256: digest.finalize().into(),
            weight_dims,
            planned_bytes: 0,
            windows: Windows::BASE,
            stages: BTreeMap::new(),
            lists: BTreeMap::new(),
            work: VecDeque::new(),
            mailbox: Mailbox::default(),
            updates: assign.first_step,
            released: Vec::new(),
            state: State::Assigned(assign),
        }
    }

    /// The windows that the run needs, once it is checked.
    pub(crate) fn windows(&self) -> Windows {
        self.windows
    }

    /// Bytes of receive windows that are free again since the last call.
    pub(crate) fn take_released(&mut self) -> Vec<(DataKind, u64)> {
        std::mem::take(&mut self.released)
    }

    /// Everything that the run still holds of the receive windows, when it is over.
    pub(crate) fn release_all(mut self) -> Vec<(DataKind, u64)> {
        let letters = self.mailbox.clear();
        let kinds = letters
            .into_iter()
            .map(|letter| (letter.arrived.header.kind, letter.frame_bytes));
        self.released.extend(kinds);
        self.released.extend(
            self.arrived_weights
                .iter()
                .map(|weight| (DataKind::Weight, weight.frame_bytes)),
        );
        self.released
    }

    fn holds_loss(&self) -> Option<&Signature> {
        self.stages
            .values()
            .find(|signature| signature.normaliser.is_some())
    }

    fn not_ready(&self) -> Option<Failure> {
        (!matches!(self.state, State::Ready))
            .then(|| Failure::order("the run is not ready: wait for `Ready` first"))
    }

    /// Takes a list of actions.
    pub(crate) fn schedule(
        &mut self,
        micro_batches: u16,
        actions: Vec<Action>,
    ) -> Result<(), Failure> {
        if let Some(failure) = self.not_ready() {
            return Err(failure);
        }
        if micro_batches == 0 || micro_batches > self.most_micro_batches {
            return Err(Failure::order(format!(
                "a list for {micro_batches} micro-batches; the assignment has 1 to {}",
                self.most_micro_batches
            )));
        }
        if self.lists.len() >= LISTS && !self.lists.contains_key(&micro_batches) {
            return Err(Failure::order(format!(
                "more than {LISTS} lists of actions"
            )));
        }
        // A worker that only evaluates follows `F` in the order of micro-batches whatever the list says.
        if self.stages.values().any(|stage| stage.train.is_some()) {
            list::check(&actions, micro_batches, &self.stages).map_err(Failure::order)?;
        }
        self.lists.insert(micro_batches, actions.into());
        Ok(())
    }

    /// Opens a step.
    pub(crate) fn open(
        &mut self,
        number: u64,
        mode: StepMode,
        sizes: Vec<u32>,
    ) -> Result<(), Failure> {
        let wrong = |message: String| Err(Failure::order(message).at(number));
        if let Some(failure) = self.not_ready() {
            return Err(failure.at(number));
        }
        let Some(micro_batches) = u16::try_from(sizes.len())
            .ok()
            .filter(|count| (1..=self.most_micro_batches).contains(count))
        else {
            return wrong(format!(
                "a step of {} micro-batches; the assignment has 1 to {}",
                sizes.len(),
                self.most_micro_batches
            ));
        };
        let largest = self.largest_micro_batch;
        if let Some(size) = sizes.iter().find(|size| !(1..=largest).contains(*size)) {
            return wrong(format!(
                "a micro-batch of {size} samples; the assignment has 1 to {largest}"
            ));
        }
        let steps = || {
            self.work.iter().filter_map(|work| match work {
                Work::Step(step) => Some(step),
                Work::Fetch { .. } => None,
            })
        };
        if steps().any(|step| step.number == number) {
            return wrong(format!("step {number} is open already"));
        }
        if self.work.len() >= WORK {
            return wrong(format!("more than {WORK} steps and fetches wait"));
        }
        let list: Arc<[Action]> = match mode {
            StepMode::Train => {
                if !self.trains || self.stages.values().any(|stage| stage.train.is_none()) {
                    return wrong(
                        "a step of training, but the run was assigned for evaluation".to_owned(),
                    );
                }
                let open = steps().filter(|step| step.mode == StepMode::Train).count();
                if open >= TRAINING_STEPS {
                    return wrong(format!("{open} steps of training are open already"));
                }
                match self.lists.get(&micro_batches) {
                    Some(list) => list.clone(),
                    None => {
                        return wrong(format!(
                            "no list of actions for {micro_batches} micro-batches"
                        ));
                    }
                }
            }
            StepMode::Evaluate => {
                if self.stages.values().any(|stage| stage.evaluate.is_none()) {
                    return wrong(
                        "a step of evaluation, but no program was assigned for it".to_owned(),
                    );
                }
                self.evaluation(micro_batches)
            }
        };
        let step = Step::new(number, mode, sizes, list, self.holds_loss().is_some());
        self.work.push_back(Work::Step(step));
        Ok(())
    }

    /// The actions of an evaluation: what is furthest through the stages first, so that values between them are few.
    /// Whatever of it is ready runs, so a tensor never waits behind one that cannot be taken yet.
    fn evaluation(&self, micro_batches: u16) -> Arc<[Action]> {
        (0..micro_batches)
            .flat_map(|micro_batch| {
                self.stages.keys().rev().map(move |&stage| Action {
                    stage,
                    kind: Kind::Forward,
                    micro_batch,
                })
            })
            .collect()
    }

    /// Takes the host's word that all gradients are finite.
    pub(crate) fn commit(
        &mut self,
        number: u64,
        learning_rate: f64,
        gradient_scale: f32,
    ) -> Result<(), Failure> {
        match self.work.front_mut() {
            Some(Work::Step(step))
                if step.number == number && step.phase == Phase::AwaitingCommit =>
            {
                step.phase = Phase::Committed {
                    learning_rate,
                    gradient_scale,
                };
                Ok(())
            }
            Some(Work::Step(step)) if step.number == number => {
                let waits = match step.waits_for() {
                    Some(action) => format!("it waits for {action}"),
                    None => "its gradients are being added up".to_owned(),
                };
                Err(Failure::order(format!("a commit of step {number}, but {waits}")).at(number))
            }
            _ => Err(
                Failure::order(format!("a commit of step {number}, which is not at work"))
                    .at(number),
            ),
        }
    }

    /// Queues a fetch.
    pub(crate) fn fetch(&mut self, state: StateKind) -> Result<(), Failure> {
        if let Some(failure) = self.not_ready() {
            return Err(failure);
        }
        if self.work.len() >= WORK {
            return Err(Failure::order(format!(
                "more than {WORK} steps and fetches wait"
            )));
        }
        self.work.push_back(Work::Fetch {
            state,
            names: None,
            sent: 0,
        });
        Ok(())
    }

    /// The next job that can be done now. `may_send` is false while too much waits to be sent: then nothing starts that
    /// would add to it.
    pub(crate) fn next_job(
        &mut self,
        budget_bytes: u64,
        granted: Windows,
        may_send: bool,
    ) -> Option<(Doing, Job)> {
        match std::mem::replace(&mut self.state, State::Preparing) {
            State::Assigned(assign) => {
                let job = Job::Prepare {
                    assign,
                    budget_bytes,
                    granted,
                };
                return Some((Doing::Prepare, job));
            }
            State::Preparing => return None,
            other => self.state = other,
        }
        if let Some(weight) = self.arrived_weights.pop_front() {
            let doing = Doing::Load {
                frame_bytes: weight.frame_bytes,
            };
            let job = Job::LoadWeight {
                stage: weight.stage,
                spec: weight.spec,
                payload: weight.payload,
            };
            return Some((doing, job));
        }
        match self.work.front_mut()? {
            Work::Fetch { state, names, .. } => match names {
                None => Some((Doing::List, Job::List(*state))),
                Some(names) if may_send => {
                    let (stage, name) = names.pop_front()?;
                    let job = Job::Export {
                        stage,
                        state: *state,
                        name,
                    };
                    Some((Doing::Export, job))
                }
                Some(_) => None,
            },
            Work::Step(step) if step.mode == StepMode::Train => self.train(may_send),
            Work::Step(_) => may_send.then(|| self.evaluate()).flatten(),
        }
    }

    /// The next job of the evaluation steps at the head of the queue.
    fn evaluate(&mut self) -> Option<(Doing, Job)> {
        for work in &self.work {
            let step = match work {
                Work::Step(step) if step.mode == StepMode::Evaluate => step,
                _ => return None,
            };
            if let Some(Ready { act, released }) = step.ready(&self.stages, &mut self.mailbox) {
                self.released.extend(released);
                return Some(doing(act));
            }
        }
        None
    }

    /// The next job of the training step at the head of the queue.
    fn train(&mut self, may_send: bool) -> Option<(Doing, Job)> {
        let Some(Work::Step(step)) = self.work.front_mut() else {
            return None;
        };
        let number = step.number;
        match step.phase {
            Phase::Acting => {
                for signature in self.stages.values() {
                    if let Some(Normalisable {
                        micro_batch,
                        arrived,
                        released,
                    }) = step.normalisable(signature, &mut self.mailbox)
                    {
                        self.released.extend(released);
                        let job = Job::Normalise {
                            stage: signature.stage,
                            micro_batch,
                            samples: step.samples(micro_batch)?,
                            arrived,
                        };
                        let step = number;
                        return Some((Doing::Normalise { step, micro_batch }, job));
                    }
                }
                if step.list_is_done() {
                    step.phase = Phase::Sharing;
                    if self.shares {
                        return Some((Doing::Share { step: number }, Job::ShareGradients));
                    }
                    return self.finish(number);
                }
                if !may_send {
                    return None;
                }
                let Ready { act, released } = step.ready(&self.stages, &mut self.mailbox)?;
                self.released.extend(released);
                Some(doing(act))
            }
            Phase::Sharing => self.finish(number),
            Phase::AwaitingCommit => None,
            Phase::Committed {
                learning_rate,
                gradient_scale,
            } => {
                let job = Job::Update {
                    updates: self.updates,
                    learning_rate,
                    gradient_scale,
                };
                Some((Doing::Update { step: number }, job))
            }
        }
    }

    /// The job that adds up gradients, once others' are here.
    fn finish(&mut self, step: u64) -> Option<(Doing, Job)> {
        let addresses: Vec<Address> = self
            .awaited_uses
            .iter()
            .map(|(stage, name, _)| Address {
                step,
                stage: *stage,
                kind: DataKind::SharedGradient,
                micro_batch: 0,
                name: name.clone(),
            })
            .collect();
        if !addresses.iter().all(|address| self.mailbox.has(address)) {
            return None;
        }
        let mut arrived = Vec::new();
        for address in &addresses {
            let letter = self.mailbox.take(address)?;
            self.released.push((address.kind, letter.frame_bytes));
            arrived.push(letter.arrived);
        }
        Some((Doing::Finish { step }, Job::FinishGradients { arrived }))
    }
}

fn doing(act: Act) -> (Doing, Job) {
    let doing = Doing::Act {
        step: act.step,
        action: act.action,
    };
    (doing, Job::Act(act))
}
