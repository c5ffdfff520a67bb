//! A worker's process: what the worker's `driver.rs` does with sockets and threads, done with the network's events. Jobs are
//! computed at once, and are over as much later as the fake device takes for them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use outboard_exec::CpuExecutor;
use outboard_testkit as testkit;
use outboard_testkit::{FakeDevice, LinkId};
use outboard_wire::{
    ControlMessage, DeviceHello, FailureKind, Frame, PROTOCOL, WorkerDecoder, WorkerMessage,
    encode_data,
};
use outboard_worker::{CoreOptions, Effect, Event, Job, JobDone, JobId, Runtime, Worker};

/// How long a host has to close its side of a link that the worker closes.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// A worker that serves one host after another.
pub(crate) struct Device {
    options: CoreOptions,
    runtime: Runtime<CpuExecutor>,
    pace: FakeDevice,
    /// Its clock is this much ahead of the network's.
    ahead: Duration,
    conversation: Option<Conversation>,
    /// The job in progress and what will have come of it.
    computing: Option<(u64, JobDone)>,
    /// Tells what it waits for apart.
    tickets: u64,
}

struct Conversation {
    link: LinkId,
    core: Worker,
    decoder: WorkerDecoder,
    /// Ends the link once the worker has closed it and the host does not.
    farewell: Option<u64>,
}

impl Device {
    pub(crate) fn new(name: String, pace: FakeDevice, ahead: Duration) -> Self {
        Device {
            options: CoreOptions {
                hello: DeviceHello {
                    protocol: PROTOCOL,
                    build: "test".into(),
                    device_id: format!("id of {name}"),
                    name,
                    engine: "cpu".into(),
                    hardware: "none".into(),
                    threads: 1,
                    memory_bytes: 1 << 30,
                },
                hello_timeout: Duration::from_secs(10),
                silence_timeout: Duration::from_secs(30),
            },
            runtime: Runtime::new(CpuExecutor::with_threads(1)),
            pace,
            ahead,
            conversation: None,
            computing: None,
            tickets: 0,
        }
    }

    /// Whether it would serve the next host.
    pub(crate) fn is_free(&self) -> bool {
        self.conversation.is_none()
    }

    /// Whether nothing of any run is in its memory, neither what came for one nor what was made of it.
    pub(crate) fn is_empty(&self) -> bool {
        let held = self
            .conversation
            .as_ref()
            .map_or(0, |c| c.core.held_bytes());
        held == 0 && !self.runtime.is_loaded()
    }

    pub(crate) fn handle(&mut self, now: Duration, event: testkit::Event) -> Vec<testkit::Effect> {
        let serves = |link: LinkId| {
            let serving = self.conversation.as_ref();
            serving.is_some_and(|conversation| conversation.link == link)
        };
        match event {
            testkit::Event::Opened { link } if self.is_free() => self.serve(now, link),
            testkit::Event::Opened { link } => refuse(link),
            testkit::Event::Bytes { link, bytes } if serves(link) => {
                if let Some(conversation) = &mut self.conversation {
                    conversation.decoder.push(bytes);
                }
                self.read(now)
            }
            testkit::Event::Sent { link, .. } if serves(link) => self.core(now, Event::DataWritten),
            testkit::Event::Closed { link } if serves(link) => self.core(now, Event::LinkClosed),
            testkit::Event::Timer => self.core(now, Event::Timer),
            testkit::Event::Done { job } => self.done(now, job),
            // Of a host that was refused, or has gone already.
            testkit::Event::Bytes { .. }
            | testkit::Event::Sent { .. }
            | testkit::Event::Closed { .. } => Vec::new(),
        }
    }

    fn serve(&mut self, now: Duration, link: LinkId) -> Vec<testkit::Effect> {
        self.conversation = Some(Conversation {
            link,
            core: Worker::new(self.options.clone()),
            decoder: WorkerDecoder::new(),
            farewell: None,
        });
        self.core(now, Event::Timer)
    }

    /// Every frame that is whole, until the worker closes the link.
    fn read(&mut self, now: Duration) -> Vec<testkit::Effect> {
        let mut effects = Vec::new();
        while let Some(conversation) = &mut self.conversation
            && conversation.farewell.is_none()
        {
            let event = match conversation.decoder.poll() {
                Ok(None) => break,
                Ok(Some(Frame::Control(message))) => Event::Message(message),
                Ok(Some(Frame::Data(frame))) => Event::Data(frame),
                Err(error) => panic!("the host is not understood: {error}"),
            };
            effects.extend(self.core(now, event));
        }
        effects
    }

    /// What it waited for has come: the end of the job, or of the host's patience.
    fn done(&mut self, now: Duration, ticket: u64) -> Vec<testkit::Effect> {
        if let Some((_, done)) = self.computing.take_if(|(job, _)| *job == ticket) {
            return self.core(now, Event::ComputeDone(done));
        }
        let leaving = self.conversation.as_ref();
        if leaving.is_some_and(|conversation| conversation.farewell == Some(ticket)) {
            return self.core(now, Event::LinkClosed);
        }
        Vec::new()
    }

    fn core(&mut self, now: Duration, event: Event) -> Vec<testkit::Effect> {
        let clock = now + self.ahead;
        let Some(mut conversation) = self.conversation.take() else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        for effect in conversation.core.handle(clock, event) {
            let link = conversation.link;
            let effect = match effect {
                Effect::Send(message) => testkit::Effect::Send {
                    link,
                    pieces: vec![message.encode().expect("a message that fits a frame")],
                    token: None,
                },
                Effect::SendData { header, payload } => testkit::Effect::Send {
                    link,
                    pieces: encode_data(&header, payload)
                        .expect("a tensor that fits a frame")
                        .into(),
                    token: Some(0),
                },
                Effect::Compute(id, job) => self.compute(now, id, job),
                // What was computed at once cannot end earlier.
                Effect::CancelCompute => continue,
                Effect::SetTimer(at) => testkit::Effect::SetTimer(at.saturating_sub(self.ahead)),
                Effect::CloseLink => {
                    self.tickets += 1;
                    conversation.farewell = Some(self.tickets);
                    effects.push(testkit::Effect::Close { link });
                    testkit::Effect::Compute {
                        job: self.tickets,
                        takes: Some(CLOSE_TIME),
                    }
                }
            };
            effects.push(effect);
        }
        if !conversation.core.is_over() {
            self.conversation = Some(conversation);
        }
        effects
    }

    fn compute(&mut self, now: Duration, id: JobId, job: Job) -> testkit::Effect {
        assert!(self.computing.is_none(), "two jobs at once");
        let started = now + self.ahead;
        let takes = self.pace.takes(now, &name_of(&job));
        let result = (self.runtime).execute(job, &AtomicBool::new(false), &|| started);
        self.tickets += 1;
        let done = JobDone {
            id,
            started,
            took: takes.unwrap_or_default(),
            result,
        };
        self.computing = Some((self.tickets, done));
        testkit::Effect::Compute {
            job: self.tickets,
            takes,
        }
    }
}

/// What a fake device calls a job: `1F` for the forward pass of stage 1.
fn name_of(job: &Job) -> String {
    match job {
        Job::Act(act) => format!("{}{}", act.action.stage, act.action.kind.letter()),
        Job::Prepare { .. } => "prepare".to_owned(),
        Job::Update { .. } => "update".to_owned(),
        _ => String::new(),
    }
}

/// Tells a host that another one is served.
fn refuse(link: LinkId) -> Vec<testkit::Effect> {
    let message = WorkerMessage::Failed {
        run: None,
        step: None,
        stage: None,
        kind: FailureKind::Busy,
        message: "this worker serves another host".to_owned(),
    };
    let frame = message.encode().expect("a message that fits a frame");
    vec![
        testkit::Effect::Send {
            link,
            pieces: vec![frame],
            token: None,
        },
        testkit::Effect::Close { link },
    ]
}
