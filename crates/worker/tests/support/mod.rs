//! A scripted host and its workers in one thread: cores and compute sides are real, links and time are not.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]
#![allow(unreachable_pub, reason = "test support has no public surface")]

pub mod faulty;
pub mod model;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use outboard_exec::{CpuExecutor, Executor};
use outboard_graph::Tensor;
use outboard_wire::{
    Assign, DataFrame, DataHeader, DataKind, DeviceHello, HostMessage, PROTOCOL, ReceiveWindow,
    SendWindow, StateKind, StepMode, Stream, TensorEncoding, WorkerMessage, decode_tensor,
    encode_data, encode_tensor,
};
use outboard_worker::{CoreOptions, Effect, Event, Job, JobDone, JobId, Runtime, Worker};

use model::{Part, Plan};

pub const RUN: u32 = 5;

pub fn core_options() -> CoreOptions {
    CoreOptions {
        hello: DeviceHello {
            protocol: PROTOCOL,
            build: "test".into(),
            name: "test".into(),
            device_id: "test".into(),
            engine: "reference".into(),
            hardware: "test".into(),
            threads: 1,
            memory_bytes: 1 << 30,
        },
        hello_timeout: Duration::from_secs(10),
        silence_timeout: Duration::from_secs(30),
    }
}

pub fn hello() -> HostMessage {
    HostMessage::Hello {
        protocol: PROTOCOL,
        build: "test".into(),
        name: "host".into(),
    }
}

pub fn frame(header: DataHeader, payload: Bytes) -> DataFrame {
    let [head, payload] = encode_data(&header, payload).unwrap();
    let mut frame = BytesMut::from(&head[..]);
    frame.extend_from_slice(&payload);
    DataFrame {
        header,
        payload,
        frame: frame.freeze(),
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Samples => 0,
        Stream::Stage => 1,
        Stream::Bulk => 2,
    }
}

const STREAMS: [Stream; 3] = [Stream::Samples, Stream::Stage, Stream::Bulk];

/// One worker as the host sees it.
pub struct Device<E: Executor = CpuExecutor> {
    pub worker: Worker,
    pub runtime: Runtime<E>,
    pub now: Duration,
    /// Control messages it sent.
    pub said: Vec<WorkerMessage>,
    /// Data it sent.
    pub sent: VecDeque<(DataHeader, Bytes)>,
    /// Data for it that waits for credit, in order on each stream.
    pub waiting: [VecDeque<(DataHeader, Bytes)>; 3],
    pub credit: [SendWindow; 3],
    pub windows: [ReceiveWindow; 3],
    /// The job in progress, where jobs are done by hand.
    pub held_job: Option<(JobId, Job)>,
    pub hold_jobs: bool,
    pub closed: bool,
    pub cancelled: bool,
}

impl Device {
    /// A worker on the engine of every real one. The reference engine will not do here: it keeps f64 between operators,
    /// so a cut, where values become f32, changes its bits.
    pub fn new() -> Self {
        Device::with(core_options(), CpuExecutor::with_threads(1), 1 << 20)
    }
}

impl<E: Executor> Device<E> {
    /// A worker whose host grants `window` bytes on each stream.
    pub fn with(options: CoreOptions, engine: E, window: u64) -> Self {
        Device {
            worker: Worker::new(options),
            runtime: Runtime::new(engine),
            now: Duration::ZERO,
            said: Vec::new(),
            sent: VecDeque::new(),
            waiting: Default::default(),
            credit: STREAMS.map(SendWindow::new),
            windows: STREAMS.map(|stream| ReceiveWindow::new(stream, window)),
            held_job: None,
            hold_jobs: false,
            closed: false,
            cancelled: false,
        }
    }

    /// Gives the worker an event and does what it asks for.
    pub fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.now += Duration::from_micros(10);
            for effect in self.worker.handle(self.now, event) {
                match effect {
                    Effect::Send(WorkerMessage::Credit { stream, bytes }) => {
                        self.credit[index(stream)].grant(bytes).unwrap();
                    }
                    Effect::Send(message) => self.said.push(message),
                    Effect::SendData { header, payload } => {
                        let bytes = header.frame_bytes().unwrap();
                        self.windows[index(header.kind.stream())]
                            .arrived(bytes)
                            .expect("the worker keeps to the host's credit");
                        self.sent.push_back((header, payload));
                        events.push_back(Event::DataWritten);
                    }
                    Effect::Compute(id, job) if self.hold_jobs => {
                        assert!(self.held_job.is_none(), "two jobs at once");
                        self.held_job = Some((id, job));
                    }
                    Effect::Compute(id, job) => events.push_back(self.compute(id, job)),
                    Effect::CancelCompute => self.cancelled = true,
                    Effect::CloseLink => self.closed = true,
                    Effect::SetTimer(_) => {}
                }
            }
        }
    }

    fn compute(&mut self, id: JobId, job: Job) -> Event {
        let now = self.now;
        let result = self.runtime.execute(job, &AtomicBool::new(false), &|| now);
        Event::ComputeDone(JobDone {
            id,
            started: now,
            took: Duration::from_micros(7),
            result,
        })
    }

    /// Does the job that was held back.
    pub fn do_held_job(&mut self) {
        let (id, job) = self.held_job.take().expect("a job is in progress");
        let done = self.compute(id, job);
        self.event(done);
    }

    pub fn say(&mut self, message: HostMessage) {
        self.event(Event::Message(message));
    }

    /// Says hello and grants windows.
    pub fn greet(&mut self) {
        self.say(hello());
        for (stream, window) in STREAMS.into_iter().zip(&mut self.windows) {
            let bytes = window.take_grant().unwrap();
            let credit = HostMessage::Credit { stream, bytes };
            self.worker.handle(self.now, Event::Message(credit));
        }
    }

    /// Queues a tensor for the worker.
    pub fn post(&mut self, header: DataHeader, payload: Bytes) {
        self.waiting[index(header.kind.stream())].push_back((header, payload));
    }

    /// Sends what credit allows; whether anything was sent.
    pub fn deliver(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.waiting.len() {
            while self.credit[at].may_send() {
                let Some((header, payload)) = self.waiting[at].pop_front() else {
                    break;
                };
                let frame = frame(header, payload);
                self.credit[at].spend(frame.frame.len() as u64).unwrap();
                self.event(Event::Data(frame));
                any = true;
            }
        }
        any
    }

    /// Takes a frame that the worker sent, and gives its credit back.
    pub fn take_sent(&mut self) -> Option<(DataHeader, Bytes)> {
        let (header, payload) = self.sent.pop_front()?;
        let stream = header.kind.stream();
        let window = &mut self.windows[index(stream)];
        window.released(header.frame_bytes().unwrap()).unwrap();
        if let Some(bytes) = window.take_grant() {
            self.say(HostMessage::Credit { stream, bytes });
        }
        Some((header, payload))
    }

    /// The last thing it said of a kind; panics with everything it said.
    pub fn heard<T>(&self, pick: impl Fn(&WorkerMessage) -> Option<T>) -> T {
        self.said
            .iter()
            .rev()
            .find_map(pick)
            .unwrap_or_else(|| panic!("not said, but: {:#?}", self.said))
    }

    /// The failure it told of.
    pub fn failure(&self) -> (outboard_wire::FailureKind, String) {
        self.heard(|message| match message {
            WorkerMessage::Failed { kind, message, .. } => Some((*kind, message.clone())),
            _ => None,
        })
    }
}

/// What a training step brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Stepped {
    pub loss_sums: Vec<f32>,
    pub loss_weights: Vec<f32>,
    pub squares: BTreeMap<String, f64>,
    pub not_finite: Option<(u16, String)>,
}

/// A host with its workers.
pub struct Host {
    pub devices: Vec<Device>,
    pub parts: Vec<Part>,
    pub plan: Plan,
    /// Results of evaluations, by step, micro-batch and name.
    pub results: BTreeMap<(u64, u16, String), Tensor>,
    fetched: BTreeMap<String, Tensor>,
}

impl Host {
    /// Assigns a model to new workers, one for each device of the plan, up to `Ready`.
    pub fn start(plan: Plan) -> Host {
        let devices = plan.device_of_stage.iter().max().unwrap() + 1;
        let devices = (0..devices).map(|_| Device::new()).collect();
        Host::start_on(plan, devices)
    }

    pub fn start_on(plan: Plan, devices: Vec<Device>) -> Host {
        let parts = plan.parts();
        let mut host = Host {
            devices,
            parts,
            plan,
            results: BTreeMap::new(),
            fetched: BTreeMap::new(),
        };
        for at in 0..host.devices.len() {
            host.devices[at].greet();
            let (assign, uploads) = host.plan.assign(&host.parts, at);
            let encoded: Vec<(DataHeader, Bytes)> = uploads;
            host.devices[at].say(HostMessage::Assign(Box::new(assign)));
            for (header, payload) in encoded {
                host.devices[at].post(header, payload);
            }
        }
        host.pump();
        for at in 0..host.devices.len() {
            host.devices[at].heard(|message| match message {
                WorkerMessage::Ready { run: RUN, .. } => Some(()),
                _ => None,
            });
            host.send_schedule(at, host.plan.micro_batches);
        }
        host
    }

    pub fn send_schedule(&mut self, at: usize, micro_batches: u16) {
        let actions = self.plan.actions(at, micro_batches);
        self.devices[at].say(HostMessage::Schedule {
            run: RUN,
            micro_batches,
            actions,
        });
    }

    /// Moves everything that can move, until nothing does.
    pub fn pump(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.devices.len() {
                moved |= self.devices[at].deliver();
                while let Some((header, payload)) = self.devices[at].take_sent() {
                    moved = true;
                    self.route(header, payload);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn route(&mut self, header: DataHeader, payload: Bytes) {
        if header.stage != DataHeader::HOST {
            let device = self.plan.device_of_stage[usize::from(header.stage)];
            self.devices[device].post(header, payload);
            return;
        }
        let tensor = decode_tensor(&header, &payload).unwrap();
        match header.kind {
            DataKind::Result => {
                let at = (header.step, header.micro_batch, header.name);
                assert!(self.results.insert(at, tensor).is_none());
            }
            DataKind::Weight | DataKind::OptimizerState => {
                assert!(self.fetched.insert(header.name, tensor).is_none());
            }
            other => panic!("{other:?} for the host"),
        }
    }

    /// Opens a step on all devices and queues its inputs, targets first.
    pub fn open(&mut self, step: u64, mode: StepMode, batch: &[BTreeMap<&str, Tensor>]) {
        let sizes: Vec<u32> = batch
            .iter()
            .map(|data| data["input"].dims()[0] as u32)
            .collect();
        for device in &mut self.devices {
            device.say(HostMessage::Step {
                run: RUN,
                step,
                mode,
                sizes: sizes.clone(),
            });
        }
        for name in ["target", "input"] {
            for (micro_batch, data) in (0_u16..).zip(batch) {
                for part in &self.parts {
                    if part.takes(mode, name) {
                        let header = header(
                            step,
                            DataKind::Input,
                            part.stage,
                            micro_batch,
                            name,
                            &data[name],
                        );
                        let device = self.plan.device_of_stage[usize::from(part.stage)];
                        let payload = encode_tensor(&data[name], TensorEncoding::F32);
                        self.devices[device].post(header, payload);
                    }
                }
            }
        }
    }

    /// Waits for the gradients of all devices.
    pub fn gradients(&mut self, step: u64) -> Stepped {
        self.pump();
        let mut stepped = Stepped {
            loss_sums: Vec::new(),
            loss_weights: Vec::new(),
            squares: BTreeMap::new(),
            not_finite: None,
        };
        for device in &self.devices {
            let (sums, weights, squares, not_finite) = device.heard(|message| match message {
                WorkerMessage::Gradients {
                    step: of,
                    loss_sums,
                    loss_weights,
                    squares,
                    not_finite,
                    ..
                } if *of == step => Some((
                    loss_sums.clone(),
                    loss_weights.clone(),
                    squares.clone(),
                    not_finite.clone(),
                )),
                _ => None,
            });
            stepped.loss_sums.extend(sums);
            stepped.loss_weights.extend(weights);
            for (name, square) in squares {
                assert!(
                    stepped.squares.insert(name, square).is_none(),
                    "reported twice"
                );
            }
            stepped.not_finite = stepped.not_finite.or(not_finite);
        }
        stepped
    }

    pub fn commit(&mut self, step: u64) {
        for device in &mut self.devices {
            device.say(HostMessage::Commit {
                run: RUN,
                step,
                learning_rate: 0.1,
                gradient_scale: 1.0,
            });
        }
        self.pump();
        for device in &self.devices {
            device.heard(|message| match message {
                WorkerMessage::StepDone { step: of, .. } if *of == step => Some(()),
                _ => None,
            });
        }
    }

    pub fn train(&mut self, step: u64, batch: &[BTreeMap<&str, Tensor>]) -> Stepped {
        self.open(step, StepMode::Train, batch);
        let stepped = self.gradients(step);
        self.commit(step);
        stepped
    }

    /// Everything of a kind, from all devices.
    pub fn fetch(&mut self, state: StateKind) -> BTreeMap<String, Tensor> {
        for device in &mut self.devices {
            device.say(HostMessage::Fetch { run: RUN, state });
        }
        self.pump();
        let announced: u32 = self
            .devices
            .iter()
            .map(|device| {
                device.heard(|message| match message {
                    WorkerMessage::Fetched {
                        state: of, tensors, ..
                    } if *of == state => Some(*tensors),
                    _ => None,
                })
            })
            .sum();
        let fetched = std::mem::take(&mut self.fetched);
        assert_eq!(fetched.len(), announced as usize);
        fetched
    }
}

pub fn header(
    step: u64,
    kind: DataKind,
    stage: u16,
    micro_batch: u16,
    name: &str,
    tensor: &Tensor,
) -> DataHeader {
    DataHeader {
        run: RUN,
        step,
        kind,
        stage,
        micro_batch,
        name: name.to_owned(),
        dtype: tensor.dtype(),
        dims: tensor.dims().iter().map(|dim| *dim as u64).collect(),
        encoding: TensorEncoding::F32,
    }
}

/// The assignment of a whole small model to one device.
pub fn small_assign() -> (Plan, Assign, Vec<(DataHeader, Bytes)>) {
    let plan = Plan::new(&[], &[0]);
    let (assign, uploads) = plan.assign(&plan.parts(), 0);
    (plan, assign, uploads)
}
