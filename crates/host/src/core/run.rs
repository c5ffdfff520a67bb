//! A run: assign, do steps, fetch, drop.
//!
//! ```text
//! Assigning --Ready from all--> Working --Drop--> Dropping --Dropped from all--> over
//!                               |  ^  |
//!                     Step ... (in flight) ; Fetch when nothing is
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_wire::{Assign, DataFrame, DataKind, HostMessage, StateKind, StepMode, WorkerMessage};
use sha2::{Digest, Sha256};

use super::fetch::Fetch;
use super::flow::Sent;
use super::net::{Address, Fault, Net};
use super::step::{Gradients, Step, timed};
use super::{Cargo, DeviceId, Report, RunSpec, ScheduleSpec, StepSpec};
use crate::report::{DeviceStep, Transfer};
use crate::{HostOptions, RunError};

/// Training steps that are open at once: the inputs of the next travel while the last one computes.
const TRAINING_IN_FLIGHT: usize = 2;
/// Bytes of weights between two reports of progress.
const PROGRESS_BYTES: u64 = 4 << 20;

/// What the run is doing.
#[derive(Debug)]
enum Phase {
    Assigning { ready: BTreeMap<DeviceId, u64> },
    Working,
    Fetching(Fetch),
    Dropping { waiting: BTreeSet<DeviceId> },
    Over,
}

/// What the application asked for and has not begun.
#[derive(Debug)]
enum Wish {
    Schedule(ScheduleSpec),
    Step(StepSpec),
    Fetch(StateKind),
    Drop,
}

/// Bytes of weights on their way to a device.
#[derive(Clone, Copy, Debug, Default)]
struct Upload {
    sent: u64,
    reported: u64,
    total: u64,
}

/// A run on some of the devices.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: u32,
    pub(super) spec: RunSpec,
    phase: Phase,
    wishes: VecDeque<Wish>,
    pub(super) steps: VecDeque<Step>,
    /// The training step that opens next.
    next_step: u64,
    uploads: BTreeMap<DeviceId, Upload>,
    /// When each device last was given a tensor, and when it last said or sent anything of the run.
    exchanges: BTreeMap<DeviceId, (Duration, Duration)>,
    /// When something last advanced, or was last asked for.
    progress: Duration,
    stall_timeout: Duration,
    pub(super) previous_end: Duration,
}

impl Run {
    /// Sends every assignment and queues its weights.
    pub(super) fn start(net: &mut Net, id: u32, mut spec: RunSpec, options: &HostOptions) -> Self {
        for (device, assign) in &mut spec.assigns {
            assign.run = id;
            net.send(*device, HostMessage::Assign(Box::new(assign.clone())));
        }
        let mut uploads: BTreeMap<DeviceId, Upload> = BTreeMap::new();
        for (device, tensors) in std::mem::take(&mut spec.uploads) {
            let upload = uploads.entry(device).or_default();
            for tensor in tensors {
                upload.total += tensor.tensor.data().len() as u64;
                let kind = match tensor.state {
                    StateKind::Weights => DataKind::Weight,
                    StateKind::Optimizer => DataKind::OptimizerState,
                };
                let address = Address {
                    run: id,
                    step: spec.first_step(),
                    kind,
                    stage: tensor.stage,
                    micro_batch: 0,
                    name: tensor.name,
                };
                net.push_tensor(device, address, &tensor.tensor);
            }
        }
        Run {
            id,
            next_step: spec.first_step(),
            spec,
            phase: Phase::Assigning {
                ready: BTreeMap::new(),
            },
            wishes: VecDeque::new(),
            steps: VecDeque::new(),
            uploads,
            exchanges: BTreeMap::new(),
            progress: net.now,
            stall_timeout: options.stall_timeout,
            previous_end: net.now,
        }
    }

    /// Its devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.spec.assigns.iter().map(|(device, _)| *device)
    }

    /// The training step that is lost if the run fails now: the oldest that is not done, or the one to come.
    pub(super) fn step_in_progress(&self) -> Option<u64> {
        match self.steps.front() {
            None => self.trains().then_some(self.next_step),
            Some(step) if step.mode == StepMode::Train => Some(step.step),
            Some(_) => None,
        }
    }

    fn trains(&self) -> bool {
        let mut assigns = self.spec.assigns.iter();
        assigns.any(|(_, assign)| assign.optimizer.is_some())
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub(super) fn schedule(&mut self, schedule: ScheduleSpec) {
        self.wishes.push_back(Wish::Schedule(schedule));
    }

    pub(super) fn submit(&mut self, step: StepSpec) {
        self.wishes.push_back(Wish::Step(step));
    }

    pub(super) fn fetch(&mut self, state: StateKind) {
        self.wishes.push_back(Wish::Fetch(state));
    }

    pub(super) fn drop_run(&mut self) {
        self.wishes.push_back(Wish::Drop);
    }

    /// Begins what may begin.
    pub(super) fn advance(&mut self, net: &mut Net, options: &HostOptions) {
        while matches!(self.phase, Phase::Working) {
            let idle = self.steps.is_empty();
            let may = match self.wishes.front() {
                None => return,
                Some(Wish::Schedule(_)) => true,
                Some(Wish::Step(step)) => self.may_open(step.mode, options),
                Some(Wish::Fetch(_) | Wish::Drop) => idle,
            };
            if !may {
                return;
            }
            if idle {
                self.progress = net.now;
            }
            match self.wishes.pop_front() {
                None => return,
                Some(Wish::Schedule(schedule)) => {
                    for (device, actions) in schedule.actions {
                        let message = HostMessage::Schedule {
                            run: self.id,
                            micro_batches: schedule.micro_batches,
                            actions,
                        };
                        net.send(device, message);
                    }
                }
                Some(Wish::Step(step)) => self.open(net, step),
                Some(Wish::Fetch(state)) => {
                    for device in self.devices() {
                        net.send(
                            device,
                            HostMessage::Fetch {
                                run: self.id,
                                state,
                            },
                        );
                    }
                    self.phase = Phase::Fetching(Fetch::new(state));
                }
                Some(Wish::Drop) => {
                    self.send_drop(net);
                    self.phase = Phase::Dropping {
                        waiting: self.devices().collect(),
                    };
                }
            }
        }
    }

    /// Steps of one kind may be in flight together; the other kind waits until they are done.
    fn may_open(&self, mode: StepMode, options: &HostOptions) -> bool {
        let most = match mode {
            StepMode::Train => TRAINING_IN_FLIGHT,
            StepMode::Evaluate => options.evaluations_in_flight.max(1),
        };
        self.steps.len() < most && self.steps.iter().all(|step| step.mode == mode)
    }

    fn open(&mut self, net: &mut Net, spec: StepSpec) {
        if spec.mode == StepMode::Train {
            self.next_step = spec.step + 1;
        }
        for device in self.devices() {
            let message = HostMessage::Step {
                run: self.id,
                step: spec.step,
                mode: spec.mode,
                sizes: spec.sizes.clone(),
            };
            net.send(device, message);
        }
        for input in spec.inputs {
            let Some(device) = self.spec.device_of_stage.get(usize::from(input.stage)) else {
                continue;
            };
            let address = Address {
                run: self.id,
                step: spec.step,
                kind: DataKind::Input,
                stage: input.stage,
                micro_batch: input.micro_batch,
                name: input.name,
            };
            net.push_tensor(*device, address, &input.tensor);
        }
        self.steps.push_back(Step::new(
            spec.step,
            spec.mode,
            spec.sizes,
            spec.learning_rate,
            net.now,
        ));
    }

    fn heard(&mut self, net: &Net, device: DeviceId) {
        self.progress = net.now;
        self.exchanges.entry(device).or_default().1 = net.now;
    }

    fn protocol(&self, net: &Net, device: DeviceId, what: impl Into<String>) -> Fault {
        net.protocol(device, self.step_in_progress(), what)
    }

    /// A message of this run.
    pub(super) fn message(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        message: WorkerMessage,
    ) -> Result<(), Fault> {
        if !self.devices().any(|member| member == device) {
            return Err(self.protocol(net, device, "a message of a run it has no part in"));
        }
        self.heard(net, device);
        match message {
            WorkerMessage::Ready {
                planned_bytes,
                weights_sha256,
                ..
            } => self.ready(net, device, planned_bytes, weights_sha256),
            WorkerMessage::Gradients {
                step,
                loss_sums,
                loss_weights,
                squares,
                not_finite,
                ..
            } => {
                let said = Gradients {
                    loss_sums,
                    loss_weights,
                    squares,
                    not_finite,
                };
                self.gradients(net, device, step, said)
            }
            WorkerMessage::StepDone {
                step,
                times,
                update_seconds,
                peak_bytes,
                heat,
                ..
            } => {
                let actions = timed(&times, |micros| net.on_host_clock(device, micros));
                let done = DeviceStep {
                    device,
                    actions,
                    update_seconds,
                    peak_bytes,
                    heat,
                };
                self.step_done(net, step, done)
            }
            WorkerMessage::Fetched { state, tensors, .. } => match &mut self.phase {
                Phase::Fetching(fetch) if fetch.state == state => {
                    fetch
                        .device_done(device, tensors)
                        .map_err(|what| net.protocol(device, None, what))?;
                    self.fetched(net)
                }
                _ => Err(self.protocol(net, device, "Fetched without Fetch")),
            },
            WorkerMessage::Dropped { .. } => match &mut self.phase {
                Phase::Dropping { waiting } => {
                    waiting.remove(&device);
                    if waiting.is_empty() {
                        self.phase = Phase::Over;
                    }
                    Ok(())
                }
                _ => Err(self.protocol(net, device, "Dropped without DropRun")),
            },
            _ => Err(self.protocol(net, device, "a message that belongs to no run")),
        }
    }

    fn ready(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        planned_bytes: u64,
        weights_sha256: [u8; 32],
    ) -> Result<(), Fault> {
        let assigned = self
            .spec
            .assigns
            .iter()
            .find(|(member, _)| *member == device);
        if assigned.is_some_and(|(_, assign)| weights_digest(assign) != weights_sha256) {
            return Err(Fault {
                device: Some(device),
                gone: false,
                error: RunError::Weights {
                    device: net.name(device),
                    what: "the hash over all of them differs".into(),
                },
            });
        }
        let members = self.spec.assigns.len();
        let Phase::Assigning { ready } = &mut self.phase else {
            return Err(self.protocol(net, device, "Ready twice"));
        };
        if ready.insert(device, planned_bytes).is_some() {
            return Err(self.protocol(net, device, "Ready twice"));
        }
        if ready.len() == members {
            let planned_bytes = std::mem::take(ready).into_iter().collect();
            self.phase = Phase::Working;
            self.previous_end = net.now;
            net.report(Report::Started { planned_bytes });
        }
        Ok(())
    }

    fn fetched(&mut self, net: &mut Net) -> Result<(), Fault> {
        let Phase::Fetching(fetch) = &self.phase else {
            return Ok(());
        };
        if fetch.devices_done() < self.spec.assigns.len() {
            return Ok(());
        }
        fetch.check(net, &self.spec)?;
        let Phase::Fetching(fetch) = std::mem::replace(&mut self.phase, Phase::Working) else {
            return Ok(());
        };
        net.report(Report::Fetched {
            state: fetch.state,
            tensors: fetch.into_tensors(),
        });
        Ok(())
    }

    /// A data frame of this run.
    pub(super) fn data(
        &mut self,
        net: &mut Net,
        device: DeviceId,
        frame: DataFrame,
    ) -> Result<(), Fault> {
        self.heard(net, device);
        if Cargo::of(frame.header.kind).is_some() {
            return self.relay(net, device, frame);
        }
        let (stream, cost) = (frame.header.kind.stream(), frame.frame.len() as u64);
        net.release(device, stream, cost);
        match frame.header.kind {
            DataKind::Result => self.result(net, device, &frame),
            DataKind::Weight | DataKind::OptimizerState => match &mut self.phase {
                Phase::Fetching(fetch) => fetch
                    .tensor(device, &frame, &self.spec)
                    .map_err(|what| net.protocol(device, None, what)),
                _ => Err(self.protocol(net, device, "weights that nobody asked for")),
            },
            _ => Err(self.protocol(net, device, format!("{:?} data", frame.header.kind))),
        }
    }

    /// A data frame of this run has left the host.
    pub(super) fn written(&mut self, net: &mut Net, device: DeviceId, sent: &Sent) {
        self.progress = net.now;
        self.exchanges.entry(device).or_default().0 = net.now;
        let header = &sent.header;
        if matches!(header.kind, DataKind::Weight | DataKind::OptimizerState) {
            let Some(upload) = self.uploads.get_mut(&device) else {
                return;
            };
            upload.sent += header.payload_bytes().unwrap_or(0);
            if upload.sent >= upload.total || upload.sent >= upload.reported + PROGRESS_BYTES {
                upload.reported = upload.sent;
                let Upload { sent, total, .. } = *upload;
                net.report(Report::Uploading {
                    device,
                    sent,
                    total,
                });
            }
            return;
        }
        if let Some(step) = self.steps.iter_mut().find(|step| step.step == header.step) {
            step.transfers.push(Transfer {
                from: sent.origin,
                to: Some(device),
                kind: header.kind,
                stage: header.stage,
                micro_batch: header.micro_batch,
                bytes: sent.cost,
                queued: sent.queued,
                written: net.now,
            });
        }
    }

    pub(super) fn last_stage(&self) -> u16 {
        u16::try_from(self.spec.device_of_stage.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    /// Whom the run waits for, and for what: of all that are not done, the first that was given something and has not said
    /// anything since.
    fn waiting(&self) -> Option<(DeviceId, &'static str)> {
        let missing = |done: &dyn Fn(DeviceId) -> bool, what| {
            let owes = |device: &DeviceId| {
                self.exchanges
                    .get(device)
                    .is_some_and(|(given, said)| given > said)
            };
            let mut missing = self.devices().filter(|device| !done(*device));
            let first = missing.next()?;
            let debtor = if owes(&first) {
                None
            } else {
                missing.find(owes)
            };
            Some((debtor.unwrap_or(first), what))
        };
        match &self.phase {
            Phase::Assigning { ready } => missing(
                &|device| ready.contains_key(&device),
                "it to load its stages",
            ),
            Phase::Fetching(fetch) => missing(&|device| fetch.is_done(device), "its weights"),
            Phase::Dropping { waiting } => {
                missing(&|device| !waiting.contains(&device), "it to free the run")
            }
            Phase::Over => None,
            Phase::Working => {
                let step = self.steps.front()?;
                if step.mode == StepMode::Train && step.verdict.is_none() {
                    missing(
                        &|device| step.gradients.contains_key(&device),
                        "its gradients",
                    )
                } else {
                    missing(
                        &|device| step.done.contains_key(&device),
                        "the end of its step",
                    )
                }
            }
        }
    }

    /// When the run counts as stalled, if it waits for something.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.waiting().map(|_| self.progress + self.stall_timeout)
    }

    pub(super) fn check_stall(&self, net: &Net) -> Result<(), Fault> {
        match self.waiting() {
            Some((device, waiting)) if self.progress + self.stall_timeout <= net.now => {
                Err(Fault {
                    device: Some(device),
                    gone: false,
                    error: RunError::Stalled {
                        device: net.name(device),
                        step: self.step_in_progress(),
                        waiting: waiting.to_owned(),
                        seconds: self.stall_timeout.as_secs(),
                    },
                })
            }
            _ => Ok(()),
        }
    }

    /// Frees the run on every device that still answers.
    pub(super) fn abort(self, net: &mut Net) {
        for device in self.devices() {
            net.clear(device);
        }
        self.send_drop(net);
    }

    fn send_drop(&self, net: &mut Net) {
        for device in self.devices() {
            if net.is_up(device) {
                net.send(device, HostMessage::DropRun { run: self.id });
            }
        }
    }
}

/// SHA-256 over the hashes of all weights of an assignment, in its order: what `Ready` has to say.
pub(super) fn weights_digest(assign: &Assign) -> [u8; 32] {
    let mut digest = Sha256::new();
    for weight in assign.stages.iter().flat_map(|stage| &stage.weights) {
        digest.update(weight.sha256);
    }
    digest.finalize().into()
}
