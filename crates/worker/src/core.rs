//! The conversation with one host: what came in, what goes out, what the compute side does next.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use outboard_graph::DType;
use outboard_wire::{
    DataFrame, DataHeader, DataKind, DeviceHello, FailureKind, HostMessage, PROTOCOL,
    ReceiveWindow, Stream, TensorEncoding, WorkerMessage,
};

use crate::event::{Effect, Event, Job, JobDone, JobId, JobOutput};
use crate::outbox::{Outbox, STREAMS};
use crate::run::{Doing, Failure, Run};
use crate::windows::Windows;

/// No action starts while more than this waits to be sent. Everything that waits can leave whatever this worker does: every
/// receiver's window holds a whole step, so the bound never closes a circle.
pub(crate) const BACKLOG_BYTES: u64 = 16 << 20;

/// Longest answer to a `Probe`.
const PROBE_BYTES: u32 = 64 << 20;

/// Requests for profiles that may wait.
const PROFILES: usize = 16;

/// What a worker is, and how patient.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreOptions {
    /// What it says of itself; `memory_bytes` is also the budget that assignments must fit.
    pub hello: DeviceHello,
    /// Time that a host has to say hello.
    pub hello_timeout: Duration,
    /// Silence after which a host counts as gone; hosts ping much more often.
    pub silence_timeout: Duration,
}

/// How far the conversation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The host has not said hello.
    Greeting,
    /// It has.
    Serving,
    /// The link is to close; what still comes in is not heard.
    Leaving,
    /// The link is gone.
    Gone,
}

/// What the compute side is busy with.
#[derive(Clone, Debug, PartialEq)]
enum Busy {
    /// A job of the run with this generation.
    Run(u64, Doing),
    Profile(u32),
    /// Freeing the last run's memory.
    Drop,
}

/// One device's side of one conversation. Pure: see [`Worker::handle`].
#[derive(Debug)]
pub struct Worker {
    options: CoreOptions,
    phase: Phase,
    heard: Duration,
    timer: Option<Duration>,
    next_job: u64,
    busy: Option<(JobId, Busy)>,
    /// Counts runs, so that the end of a job of a run that is over is not taken for one of the next.
    generation: u64,
    run: Option<Run>,
    /// The compute side still holds memory of a run that is over.
    must_drop: bool,
    /// The run to report as `Dropped` once it is.
    dropping: Option<u32>,
    /// The last run that ended: what was still on its way for it is no mistake of the host.
    ended: Option<u32>,
    profiles: VecDeque<(u32, Vec<String>)>,
    /// Windows granted: credit cannot be taken back, so they only grow.
    granted: Windows,
    /// In the order of [`STREAMS`].
    inbound: [ReceiveWindow; 3],
    outbox: Outbox,
}

impl Worker {
    /// A worker at the start of a connection.
    pub fn new(options: CoreOptions) -> Self {
        Worker {
            options,
            phase: Phase::Greeting,
            heard: Duration::ZERO,
            timer: None,
            next_job: 0,
            busy: None,
            generation: 0,
            run: None,
            must_drop: false,
            dropping: None,
            ended: None,
            profiles: VecDeque::new(),
            granted: Windows::BASE,
            inbound: STREAMS.map(|stream| ReceiveWindow::new(stream, Windows::BASE.get(stream))),
            outbox: Outbox::new(),
        }
    }

    /// Whether the conversation is over and the compute side has freed its memory: the next host may come.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Gone && self.busy.is_none() && !self.must_drop
    }

    /// Bytes of tensors that came and wait for the compute side.
    pub fn held_bytes(&self) -> u64 {
        self.inbound.iter().map(ReceiveWindow::held).sum()
    }

    /// Takes what happened at `now`, on the worker's own clock, and says what to do. The first event of a connection may
    /// be [`Event::Timer`]: it starts the clock.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Message(message) => {
                self.heard = now;
                self.message(now, message, &mut effects);
            }
            Event::Data(frame) => {
                self.heard = now;
                self.data(frame, &mut effects);
            }
            Event::Malformed { reason } => self.protocol(reason, &mut effects),
            Event::ComputeDone(done) => self.compute_done(done, &mut effects),
            Event::DataWritten => self.outbox.written(),
            Event::LinkClosed => self.link_closed(&mut effects),
            Event::Timer => self.timer(now, &mut effects),
        }
        self.advance(&mut effects);
        effects
    }

    fn message(&mut self, now: Duration, message: HostMessage, effects: &mut Vec<Effect>) {
        match (self.phase, message) {
            (Phase::Leaving | Phase::Gone, _) => {}
            (_, HostMessage::Bye) => self.leave(effects),
            (Phase::Greeting, HostMessage::Hello { protocol, .. }) => {
                if protocol == PROTOCOL {
                    self.phase = Phase::Serving;
                    let hello = self.options.hello.clone();
                    effects.push(Effect::Send(WorkerMessage::Hello(hello)));
                } else {
                    let reason = format!(
                        "the host speaks version {protocol} of the protocol, this worker {PROTOCOL}: \
                         run the same version of outboard on both"
                    );
                    self.protocol(reason, effects);
                }
            }
            (Phase::Greeting, _) => {
                self.protocol("the host said something before hello".to_owned(), effects);
            }
            (Phase::Serving, message) => self.serve(now, message, effects),
        }
    }

    fn serve(&mut self, now: Duration, message: HostMessage, effects: &mut Vec<Effect>) {
        match message {
            HostMessage::Ping { nonce } => effects.push(Effect::Send(WorkerMessage::Pong {
                nonce,
                clock_micros: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            })),
            HostMessage::Probe { nonce, bytes } => self.probe(nonce, bytes.min(PROBE_BYTES)),
            HostMessage::Profile { id, programs } => {
                if self.profiles.len() >= PROFILES {
                    let failure = Failure::order(format!("more than {PROFILES} profiles wait"));
                    self.failed(None, failure, effects);
                } else {
                    self.profiles.push_back((id, programs));
                }
            }
            HostMessage::Assign(assign) => {
                if let Some(run) = &self.run {
                    let old = run.id;
                    let failure = Failure::order(format!(
                        "run {} was assigned during run {old}: drop that first",
                        assign.run
                    ));
                    self.end_run(Some(failure), effects);
                } else {
                    self.generation = self.generation.saturating_add(1);
                    self.run = Some(Run::new(assign));
                }
            }
            HostMessage::Schedule {
                run,
                micro_batches,
                actions,
            } => self.on_run(run, effects, |run| run.schedule(micro_batches, actions)),
            HostMessage::Step {
                run,
                step,
                mode,
                sizes,
            } => self.on_run(run, effects, |run| run.open(step, mode, sizes)),
            HostMessage::Commit {
                run,
                step,
                learning_rate,
                gradient_scale,
            } => self.on_run(run, effects, |run| {
                run.commit(step, learning_rate, gradient_scale)
            }),
            HostMessage::Fetch { run, state } => {
                self.on_run(run, effects, |run| run.fetch(state));
            }
            HostMessage::DropRun { run: id } => match &self.run {
                Some(run) if run.id == id => {
                    self.end_run(None, effects);
                    self.dropping = Some(id);
                }
                // It failed, or was never there: either way it is gone.
                _ if self.must_drop => self.dropping = Some(id),
                _ => effects.push(Effect::Send(WorkerMessage::Dropped { run: id })),
            },
            HostMessage::Credit { stream, bytes } => {
                if let Err(error) = self.outbox.grant(stream, bytes) {
                    self.protocol(error.to_string(), effects);
                }
            }
            HostMessage::Hello { .. } => {
                self.protocol("the host said hello twice".to_owned(), effects);
            }
            HostMessage::Bye => self.leave(effects),
        }
    }

    /// Gives a message to the run it names; not to one that has ended meanwhile.
    fn on_run(
        &mut self,
        id: u32,
        effects: &mut Vec<Effect>,
        act: impl FnOnce(&mut Run) -> Result<(), Failure>,
    ) {
        match &mut self.run {
            Some(run) if run.id == id => {
                if let Err(failure) = act(run) {
                    self.end_run(Some(failure), effects);
                }
            }
            _ if self.ended == Some(id) => {}
            _ => {
                let failure = Failure::order(format!("run {id} is not assigned"));
                self.ended = Some(id);
                self.failed(Some(id), failure, effects);
            }
        }
    }

    fn data(&mut self, frame: DataFrame, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Leaving | Phase::Gone => return,
            Phase::Greeting => {
                return self.protocol("the host sent data before hello".to_owned(), effects);
            }
            Phase::Serving => {}
        }
        let frame_bytes = frame.frame.len() as u64;
        let kind = frame.header.kind;
        if let Err(error) = self.window(kind.stream()).arrived(frame_bytes) {
            return self.protocol(error.to_string(), effects);
        }
        let id = frame.header.run;
        match &mut self.run {
            _ if kind == DataKind::Probe => {
                let nonce = frame.header.micro_batch;
                effects.push(Effect::Send(WorkerMessage::ProbeReceived { nonce }));
                self.release(kind, frame_bytes);
            }
            Some(run) if run.id == id => {
                if let Err(failure) = run.accept(frame) {
                    self.release(kind, frame_bytes);
                    self.end_run(Some(failure), effects);
                }
            }
            _ => {
                self.release(kind, frame_bytes);
                if self.ended != Some(id) {
                    let failure = Failure::order(format!(
                        "{kind:?} {:?} came for run {id}, which is not assigned",
                        frame.header.name
                    ));
                    self.ended = Some(id);
                    self.failed(Some(id), failure, effects);
                }
            }
        }
    }

    fn probe(&mut self, nonce: u16, bytes: u32) {
        let header = DataHeader {
            run: 0,
            step: 0,
            kind: DataKind::Probe,
            stage: DataHeader::HOST,
            micro_batch: nonce,
            name: String::new(),
            dtype: DType::Bool,
            dims: vec![u64::from(bytes)],
            encoding: TensorEncoding::F32,
        };
        // A host that asks for more probes than it grants credit for does not make this side hold them all.
        if self.outbox.backlog() <= u64::from(PROBE_BYTES) {
            self.outbox
                .push(header, Bytes::from(vec![0; bytes as usize]));
        }
    }

    fn compute_done(&mut self, done: JobDone, effects: &mut Vec<Effect>) {
        let JobDone {
            id,
            started,
            took,
            result,
        } = done;
        let Some((_, busy)) = self.busy.take_if(|(busy, _)| *busy == id) else {
            return;
        };
        match busy {
            Busy::Drop => {
                self.must_drop = false;
                if let Some(run) = self.dropping.take() {
                    effects.push(Effect::Send(WorkerMessage::Dropped { run }));
                }
            }
            Busy::Profile(id) => {
                let seconds = match result {
                    Ok(JobOutput::Profiled(seconds)) => seconds,
                    Ok(_) => Vec::new(),
                    Err(error) => {
                        let failure = Failure {
                            step: None,
                            stage: None,
                            kind: error.kind,
                            message: format!("profile {id}: {error}"),
                        };
                        return self.failed(None, failure, effects);
                    }
                };
                effects.push(Effect::Send(WorkerMessage::Profiled { id, seconds }));
            }
            Busy::Run(generation, doing) => {
                if let Doing::Load { frame_bytes } = doing {
                    self.release(DataKind::Weight, frame_bytes);
                }
                let Some(run) = self.run.as_mut().filter(|_| generation == self.generation) else {
                    return;
                };
                let outcome = match result {
                    Ok(output) => run.done(doing, started, took, output, &mut self.outbox, effects),
                    Err(error) => Err(Failure {
                        step: doing.step(),
                        stage: error.stage.or(doing.stage()),
                        kind: error.kind,
                        message: format!("{}{}", doing.context(), error.message),
                    }),
                };
                if doing == Doing::Prepare && outcome.is_ok() {
                    self.widen();
                }
                if let Err(failure) = outcome {
                    self.end_run(Some(failure), effects);
                }
            }
        }
    }

    /// Grants the run's windows.
    fn widen(&mut self) {
        if let Some(run) = &self.run {
            self.granted = run.windows();
        }
        for (stream, window) in STREAMS.into_iter().zip(&mut self.inbound) {
            window.resize(self.granted.get(stream));
        }
    }

    /// Ends the run, if there is one, telling the host why.
    fn end_run(&mut self, failure: Option<Failure>, effects: &mut Vec<Effect>) {
        let Some(run) = self.run.take() else {
            return;
        };
        let id = run.id;
        self.ended = Some(id);
        self.must_drop = true;
        self.outbox.forget_run(id);
        for (kind, bytes) in run.release_all() {
            self.release(kind, bytes);
        }
        if matches!(self.busy, Some((_, Busy::Run(..)))) {
            effects.push(Effect::CancelCompute);
        }
        if let Some(failure) = failure {
            self.failed(Some(id), failure, effects);
        }
    }

    fn failed(&mut self, run: Option<u32>, failure: Failure, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Serving | Phase::Greeting) {
            effects.push(Effect::Send(WorkerMessage::Failed {
                run,
                step: failure.step,
                stage: failure.stage,
                kind: failure.kind,
                message: failure.message,
            }));
        }
    }

    /// Nothing more can be understood of the host: says why and leaves.
    fn protocol(&mut self, reason: String, effects: &mut Vec<Effect>) {
        let failure = Failure {
            step: None,
            stage: None,
            kind: FailureKind::Protocol,
            message: reason,
        };
        self.failed(None, failure, effects);
        self.leave(effects);
    }

    fn leave(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Serving | Phase::Greeting) {
            self.end_run(None, effects);
            self.profiles.clear();
            self.cancel_profile(effects);
            self.phase = Phase::Leaving;
            effects.push(Effect::CloseLink);
        }
    }

    fn link_closed(&mut self, effects: &mut Vec<Effect>) {
        self.end_run(None, effects);
        self.profiles.clear();
        self.cancel_profile(effects);
        self.phase = Phase::Gone;
    }

    fn cancel_profile(&self, effects: &mut Vec<Effect>) {
        if matches!(self.busy, Some((_, Busy::Profile(_)))) {
            effects.push(Effect::CancelCompute);
        }
    }

    fn timer(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let limit = match self.phase {
            Phase::Greeting => self.options.hello_timeout,
            Phase::Serving => self.options.silence_timeout,
            Phase::Leaving | Phase::Gone => return,
        };
        if self.timer.is_none() {
            self.heard = now;
        }
        let deadline = self.heard.saturating_add(limit);
        if deadline > now {
            self.timer = Some(deadline);
            effects.push(Effect::SetTimer(deadline));
            return;
        }
        let reason = format!(
            "nothing was heard of the host for {} s",
            limit.as_secs_f64()
        );
        effects.push(Effect::Send(WorkerMessage::Bye { reason }));
        self.leave(effects);
    }

    fn window(&mut self, stream: Stream) -> &mut ReceiveWindow {
        let [stage, samples, bulk] = &mut self.inbound;
        match stream {
            Stream::Stage => stage,
            Stream::Samples => samples,
            Stream::Bulk => bulk,
        }
    }

    fn release(&mut self, kind: DataKind, frame_bytes: u64) {
        let released = self.window(kind.stream()).released(frame_bytes);
        debug_assert!(released.is_ok(), "released what was not held: {released:?}");
    }

    /// Starts the next job, gives credit back and hands out what may go.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        if self.busy.is_none()
            && let Some((busy, job)) = self.next_job()
        {
            let id = JobId(self.next_job);
            self.next_job = self.next_job.saturating_add(1);
            self.busy = Some((id, busy));
            effects.push(Effect::Compute(id, job));
        }
        let released = self.run.as_mut().map(Run::take_released);
        for (kind, bytes) in released.into_iter().flatten() {
            self.release(kind, bytes);
        }
        if self.phase != Phase::Serving {
            return;
        }
        let mut grants = Vec::new();
        for (stream, window) in STREAMS.into_iter().zip(&mut self.inbound) {
            if let Some(bytes) = window.take_grant() {
                grants.push(Effect::Send(WorkerMessage::Credit { stream, bytes }));
            }
        }
        // Windows are granted before `Ready` is said.
        let at = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Send(WorkerMessage::Ready { .. })))
            .unwrap_or(effects.len());
        effects.splice(at..at, grants);
        self.outbox.flush(effects);
    }

    fn next_job(&mut self) -> Option<(Busy, Job)> {
        if self.must_drop {
            return Some((Busy::Drop, Job::DropRun));
        }
        let budget_bytes = self.options.hello.memory_bytes;
        let may_send = self.outbox.backlog() <= BACKLOG_BYTES;
        if let Some(run) = &mut self.run
            && let Some((doing, job)) = run.next_job(budget_bytes, self.granted, may_send)
        {
            return Some((Busy::Run(self.generation, doing), job));
        }
        let (id, programs) = self.profiles.pop_front()?;
        let job = Job::Profile {
            programs,
            budget_bytes,
        };
        Some((Busy::Profile(id), job))
    }
}
