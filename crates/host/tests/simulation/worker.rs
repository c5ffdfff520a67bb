//! A scripted worker with one stage of a toy model, and the ways in which it may misbehave.
//!
//! The toy: stage `s` holds the weight `w{s}`, adds it to what comes in and passes it on. The last stage's loss sum is what
//! comes out; the gradient of every weight is the number of samples. An evaluation gives what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use outboard_graph::{DType, Tensor};
use outboard_schedule::Action;
use outboard_wire::{
    ActionTime, DataFrame, DataHeader, DataKind, DeviceHello, FailureKind, HostMessage, PROTOCOL,
    StateKind, StepMode, Stream, TensorEncoding, WorkerMessage,
};
use sha2::{Digest, Sha256};

use super::network::Random;

/// Elements of an activation.
pub(crate) const WIDTH: usize = 64;

/// How a worker behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// As it should.
    #[default]
    Right,
    /// Answers pings and nothing else once a step has begun.
    Lazy,
    /// Sends messages of a run that never was.
    WrongRun,
    /// Sends an activation that nobody expects.
    BogusActivation,
    /// Sends the same activation twice.
    Twice,
    /// Reports another number of losses, or losses without holding the loss.
    BogusLosses,
    /// Reports a gradient of somebody else's weight.
    BogusGradient,
    /// Says that its step is done before it may be.
    Early,
    /// Has lost bits of its weights.
    WrongHash,
    /// Does not have the memory.
    Refuses,
    /// Speaks another version.
    OldVersion,
    /// Has a gradient that is not finite, in this step.
    NotFinite,
    /// Never says hello.
    Mute,
}

/// What it does.
pub(crate) enum Out {
    Say(WorkerMessage),
    Tensor(DataHeader, Bytes),
    Wake(Duration),
}

struct Step {
    number: u64,
    mode: StepMode,
    sizes: Vec<u32>,
    incoming: BTreeMap<u16, Tensor>,
    forwarded: BTreeSet<u16>,
    cotangents: BTreeSet<u16>,
    returned: BTreeSet<u16>,
    sums: BTreeMap<u16, f32>,
    gradients_sent: bool,
}

/// A worker.
pub(crate) struct FakeWorker {
    index: usize,
    conduct: Conduct,
    random: Random,
    dead: bool,
    pub(crate) run: Option<u32>,
    stages: u16,
    expected: Vec<[u8; 32]>,
    weight: Option<Tensor>,
    pub(crate) value: f32,
    steps: Vec<Step>,
    pub(crate) committed: Vec<u64>,
    pub(crate) drops: Vec<u32>,
    later: Vec<Out>,
}

pub(crate) fn hello(index: usize) -> DeviceHello {
    DeviceHello {
        protocol: PROTOCOL,
        build: "test".into(),
        name: format!("device {index}"),
        device_id: format!("id {index}"),
        engine: "toy".into(),
        hardware: "none".into(),
        threads: 1,
        memory_bytes: 1 << 30,
    }
}

impl FakeWorker {
    pub(crate) fn new(index: usize, stages: usize, conduct: Conduct, seed: u64) -> Self {
        FakeWorker {
            index,
            conduct,
            random: Random::new(seed),
            dead: false,
            run: None,
            stages: stages as u16,
            expected: Vec::new(),
            weight: None,
            value: 0.0,
            steps: Vec::new(),
            committed: Vec::new(),
            drops: Vec::new(),
            later: Vec::new(),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(crate) fn die(&mut self) {
        self.dead = true;
        self.later.clear();
    }

    fn stage(&self) -> u16 {
        self.index as u16
    }

    fn is_last(&self) -> bool {
        self.stage() + 1 == self.stages
    }

    pub(crate) fn message(&mut self, now: Duration, message: HostMessage) -> Vec<Out> {
        if self.dead {
            return Vec::new();
        }
        let say = |message| vec![Out::Say(message)];
        match message {
            HostMessage::Hello { .. } => {
                let mut hello = hello(self.index);
                match self.conduct {
                    Conduct::Mute => return Vec::new(),
                    Conduct::OldVersion => hello.protocol = 0,
                    _ => {}
                }
                let mut outs = say(WorkerMessage::Hello(hello));
                for stream in [Stream::Samples, Stream::Bulk] {
                    outs.push(Out::Say(WorkerMessage::Credit {
                        stream,
                        bytes: 4096,
                    }));
                }
                outs
            }
            HostMessage::Ping { nonce } => {
                // Its clock is an hour ahead and some more for each device.
                let clock = now + Duration::from_secs(3600 * (1 + self.index as u64));
                say(WorkerMessage::Pong {
                    nonce,
                    clock_micros: clock.as_micros() as u64,
                })
            }
            HostMessage::Probe { nonce, bytes } => {
                let mut header = self.header(0, 0, DataKind::Probe, 0, "");
                header.micro_batch = nonce;
                header.dtype = DType::Bool;
                header.dims = vec![u64::from(bytes)];
                vec![Out::Tensor(header, vec![0; bytes as usize].into())]
            }
            HostMessage::Profile { id, programs } => say(WorkerMessage::Profiled {
                id,
                seconds: programs
                    .iter()
                    .map(|text| (text != "?").then_some(0.5))
                    .collect(),
            }),
            HostMessage::Assign(assign) => {
                if self.conduct == Conduct::Refuses {
                    return say(WorkerMessage::Failed {
                        run: Some(assign.run),
                        step: None,
                        stage: Some(self.stage()),
                        kind: FailureKind::Memory,
                        message: "stage needs 3.1 GiB of 2.0 GiB".into(),
                    });
                }
                self.run = Some(assign.run);
                self.expected = assign.stages[0]
                    .weights
                    .iter()
                    .map(|weight| weight.sha256)
                    .collect();
                Vec::new()
            }
            HostMessage::Schedule { .. } | HostMessage::Bye => Vec::new(),
            HostMessage::Step {
                run,
                step,
                mode,
                sizes,
            } => {
                assert_eq!(Some(run), self.run, "a step of another run");
                self.steps.push(Step {
                    number: step,
                    mode,
                    sizes,
                    incoming: BTreeMap::new(),
                    forwarded: BTreeSet::new(),
                    cotangents: BTreeSet::new(),
                    returned: BTreeSet::new(),
                    sums: BTreeMap::new(),
                    gradients_sent: false,
                });
                match self.conduct {
                    Conduct::WrongRun => say(WorkerMessage::StepDone {
                        run: 4711,
                        step,
                        times: Vec::new(),
                        update_seconds: 0.0,
                        peak_bytes: 0,
                        heat: None,
                    }),
                    Conduct::BogusActivation => {
                        self.tensor(step, DataKind::Activation, 0, "%99", 1.0)
                    }
                    Conduct::Early => vec![Out::Say(self.step_done(step, mode))],
                    _ => Vec::new(),
                }
            }
            HostMessage::Commit {
                run,
                step,
                learning_rate,
                gradient_scale,
            } => {
                assert_eq!(Some(run), self.run, "a commit of another run");
                let at = self
                    .steps
                    .iter()
                    .position(|open| open.number == step)
                    .expect("open");
                assert!(
                    self.steps[at].gradients_sent,
                    "a commit before the gradients"
                );
                let done = self.steps.remove(at);
                let samples: u32 = done.sizes.iter().sum();
                self.value -= learning_rate as f32 * gradient_scale * samples as f32;
                self.committed.push(step);
                let mut outs = vec![Out::Say(self.step_done(step, StepMode::Train))];
                outs.extend(self.work());
                outs
            }
            HostMessage::Fetch { run, state } => {
                assert_eq!(Some(run), self.run, "a fetch of another run");
                let mut outs = Vec::new();
                if state == StateKind::Weights {
                    let name = format!("w{}", self.index);
                    let mut header = self.header(0, DataHeader::HOST, DataKind::Weight, 0, &name);
                    header.dims = vec![1];
                    outs.push(Out::Tensor(
                        header,
                        self.value.to_le_bytes().to_vec().into(),
                    ));
                }
                let tensors = outs.len() as u32;
                outs.push(Out::Say(WorkerMessage::Fetched {
                    run,
                    state,
                    tensors,
                }));
                outs
            }
            HostMessage::DropRun { run } => {
                self.drops.push(run);
                self.run = None;
                self.steps.clear();
                self.later.clear();
                say(WorkerMessage::Dropped { run })
            }
            HostMessage::Credit { .. } => Vec::new(),
        }
    }

    pub(crate) fn data(&mut self, frame: DataFrame) -> Vec<Out> {
        if self.dead {
            return Vec::new();
        }
        let mut outs = vec![Out::Say(WorkerMessage::Credit {
            stream: frame.header.kind.stream(),
            bytes: frame.frame.len() as u64,
        })];
        let header = &frame.header;
        match header.kind {
            DataKind::Probe => {
                outs.push(Out::Say(WorkerMessage::ProbeReceived {
                    nonce: header.micro_batch,
                }));
                return outs;
            }
            _ if Some(header.run) != self.run => return outs, // It was on its way when the run was dropped.
            DataKind::Weight => {
                let tensor = tensor_of(&frame);
                self.value = tensor.to_f32_vec().unwrap()[0];
                assert_eq!(
                    <[u8; 32]>::from(Sha256::digest(&frame.payload)),
                    self.expected[0]
                );
                self.weight = Some(tensor);
                let mut digest = Sha256::new();
                if self.conduct == Conduct::WrongHash {
                    digest.update([1]);
                }
                digest.update(self.expected[0]);
                outs.push(Out::Say(WorkerMessage::Credit {
                    stream: Stream::Stage,
                    bytes: 1 << 14,
                }));
                outs.push(Out::Say(WorkerMessage::Ready {
                    run: header.run,
                    planned_bytes: 100,
                    weights_sha256: digest.finalize().into(),
                }));
                return outs;
            }
            _ => {}
        }
        assert_eq!(header.stage, self.stage(), "a tensor for another stage");
        let step = self
            .steps
            .iter_mut()
            .find(|step| step.number == header.step)
            .expect("a tensor before its step");
        match header.kind {
            DataKind::Input | DataKind::Activation => {
                let twice = step.incoming.insert(header.micro_batch, tensor_of(&frame));
                assert!(twice.is_none(), "an activation twice");
            }
            DataKind::Cotangent => assert!(step.cotangents.insert(header.micro_batch)),
            other => panic!("{other:?} for a worker"),
        }
        if self.conduct != Conduct::Lazy {
            outs.extend(self.work());
        }
        outs
    }

    /// Does what can be done; what comes of it leaves after some time of computing.
    fn work(&mut self) -> Vec<Out> {
        let mut outs = Vec::new();
        let training = self
            .steps
            .iter()
            .find(|step| step.mode == StepMode::Train)
            .map(|step| step.number);
        for at in 0..self.steps.len() {
            let step = &self.steps[at];
            // One training step at a time; evaluations as their tensors come.
            if step.mode == StepMode::Train && Some(step.number) != training {
                continue;
            }
            let (number, mode, count) = (step.number, step.mode, step.sizes.len() as u16);
            for micro_batch in 0..count {
                let step = &mut self.steps[at];
                if let Some(tensor) = step.incoming.get(&micro_batch)
                    && step.forwarded.insert(micro_batch)
                {
                    let sum = tensor.to_f32_vec().unwrap()[0] + self.value;
                    step.sums.insert(micro_batch, sum);
                    match (self.is_last(), mode) {
                        (false, _) => {
                            let copies = if self.conduct == Conduct::Twice { 2 } else { 1 };
                            for _ in 0..copies {
                                let next = self.stage() + 1;
                                outs.extend(self.tensor_for(
                                    next,
                                    number,
                                    DataKind::Activation,
                                    micro_batch,
                                    "%1",
                                    sum,
                                ));
                            }
                        }
                        (true, StepMode::Train) if self.stages > 1 => {
                            let lower = self.stage() - 1;
                            outs.extend(self.tensor_for(
                                lower,
                                number,
                                DataKind::Cotangent,
                                micro_batch,
                                "%1",
                                1.0,
                            ));
                        }
                        (true, StepMode::Train) => {}
                        (true, StepMode::Evaluate) => {
                            outs.extend(self.tensor_for(
                                DataHeader::HOST,
                                number,
                                DataKind::Result,
                                micro_batch,
                                "y",
                                sum,
                            ));
                        }
                    }
                }
                let step = &mut self.steps[at];
                // The cotangent goes on to the stage before.
                if step.cotangents.contains(&micro_batch)
                    && step.returned.insert(micro_batch)
                    && let Some(lower) = self.stage().checked_sub(1)
                {
                    outs.extend(self.tensor_for(
                        lower,
                        number,
                        DataKind::Cotangent,
                        micro_batch,
                        "%1",
                        1.0,
                    ));
                }
            }
            let step = &self.steps[at];
            let forward = step.forwarded.len() == usize::from(count);
            let backward = self.is_last() || step.cotangents.len() == usize::from(count);
            if mode == StepMode::Evaluate && forward {
                outs.push(Out::Say(self.step_done(number, mode)));
            } else if mode == StepMode::Train && forward && backward && !step.gradients_sent {
                outs.push(Out::Say(self.gradients(at)));
                self.steps[at].gradients_sent = true;
            }
        }
        let finished: Vec<u64> = outs
            .iter()
            .filter_map(|out| match out {
                Out::Say(WorkerMessage::StepDone { step, .. }) => Some(*step),
                _ => None,
            })
            .collect();
        self.steps
            .retain(|step| step.mode == StepMode::Train || !finished.contains(&step.number));
        if outs.is_empty() {
            return outs;
        }
        self.later.extend(outs);
        vec![Out::Wake(self.random.micros(30_000))]
    }

    /// The computation is over: what came of it leaves.
    pub(crate) fn woken(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.later)
    }

    fn gradients(&self, at: usize) -> WorkerMessage {
        let step = &self.steps[at];
        let count = step.sizes.len() as u16;
        let holds_loss = self.is_last() != (self.conduct == Conduct::BogusLosses);
        let of_losses = |value: &dyn Fn(u16) -> f32| -> Vec<f32> {
            if holds_loss {
                (0..count).map(value).collect()
            } else {
                Vec::new()
            }
        };
        let samples: u32 = step.sizes.iter().sum();
        let owner = if self.conduct == Conduct::BogusGradient {
            self.index + 1
        } else {
            self.index
        };
        let square = f64::from(samples).powi(2);
        WorkerMessage::Gradients {
            run: self.run.unwrap(),
            step: step.number,
            loss_sums: of_losses(&|mb| {
                step.sums.get(&mb).copied().unwrap_or(0.0) * step.sizes[usize::from(mb)] as f32
            }),
            loss_weights: of_losses(&|mb| step.sizes[usize::from(mb)] as f32),
            squares: vec![(format!("w{owner}"), square)],
            not_finite: (self.conduct == Conduct::NotFinite && step.number == 2)
                .then(|| (self.stage(), format!("w{}", self.index))),
        }
    }

    fn step_done(&self, step: u64, mode: StepMode) -> WorkerMessage {
        let action = Action {
            stage: self.stage(),
            kind: outboard_schedule::Kind::Forward,
            micro_batch: 0,
        };
        WorkerMessage::StepDone {
            run: self.run.unwrap(),
            step,
            times: vec![ActionTime {
                action,
                start_micros: 0,
                micros: 5,
            }],
            update_seconds: if mode == StepMode::Train { 0.25 } else { 0.0 },
            peak_bytes: 1000,
            heat: Some(1),
        }
    }

    fn header(
        &self,
        step: u64,
        stage: u16,
        kind: DataKind,
        micro_batch: u16,
        name: &str,
    ) -> DataHeader {
        DataHeader {
            run: self.run.unwrap_or(0),
            step,
            kind,
            stage,
            micro_batch,
            name: name.into(),
            dtype: DType::F32,
            dims: vec![WIDTH as u64],
            encoding: TensorEncoding::F32,
        }
    }

    fn tensor(
        &self,
        step: u64,
        kind: DataKind,
        micro_batch: u16,
        name: &str,
        value: f32,
    ) -> Vec<Out> {
        self.tensor_for(self.stage() + 1, step, kind, micro_batch, name, value)
    }

    fn tensor_for(
        &self,
        stage: u16,
        step: u64,
        kind: DataKind,
        micro_batch: u16,
        name: &str,
        value: f32,
    ) -> Vec<Out> {
        let header = self.header(step, stage, kind, micro_batch, name);
        let payload: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), WIDTH)
            .flatten()
            .collect();
        vec![Out::Tensor(header, payload.into())]
    }
}

fn tensor_of(frame: &DataFrame) -> Tensor {
    let dims: Vec<usize> = frame.header.dims.iter().map(|dim| *dim as usize).collect();
    Tensor::from_bytes(frame.header.dtype, dims, frame.payload.clone()).expect("a proper tensor")
}
