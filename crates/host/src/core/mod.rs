//! The coordinator as a state machine: events and `now` in, effects out. No I/O, no clock, no threads.

mod collect;
mod device;
mod event;
mod fetch;
mod flow;
mod net;
mod probe;
mod relay;
mod run;
mod step;

use std::collections::BTreeMap;
use std::time::Duration;

pub use device::DeviceName;
pub use event::{
    Cargo, Cause, Command, DeviceId, Effect, Event, LinkMeasure, Report, Route, RunSpec,
    ScheduleSpec, StepInput, StepSpec, Upload,
};
use outboard_wire::{DataFrame, DataKind, DecodeError, HostMessage, PROTOCOL, WorkerMessage};

use self::device::Stand;
use self::net::{Fault, Net};
use self::probe::{Probe, Profile};
use self::run::Run;
use crate::{HostOptions, RunError};

/// A timer that comes later than this after its time tells that the host itself was held up: silence of the devices then
/// says nothing.
const HELD_UP: Duration = Duration::from_secs(1);

/// The coordinator of all devices and of at most one run.
#[derive(Debug)]
pub struct Core {
    options: HostOptions,
    net: Net,
    probes: BTreeMap<DeviceId, Probe>,
    profiles: BTreeMap<DeviceId, Profile>,
    run: Option<Run>,
    last_run: u32,
    last_profile: u32,
    timer: Option<Duration>,
}

impl Core {
    /// A coordinator of devices with these names.
    pub fn new(options: HostOptions, names: Vec<DeviceName>) -> Self {
        Core {
            net: Net::new(names, options.receive_window_bytes),
            options,
            probes: BTreeMap::new(),
            profiles: BTreeMap::new(),
            run: None,
            last_run: 0,
            last_profile: 0,
            timer: None,
        }
    }

    /// Takes one event; `now` never goes back.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.net.now = now;
        if let Err(fault) = self.dispatch(event) {
            self.fail(fault);
        }
        self.advance();
        self.net.pump();
        self.set_timer();
        std::mem::take(&mut self.net.out)
    }

    fn dispatch(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Opened { device } => {
                self.net.open(device, &self.options);
                Ok(())
            }
            Event::Heard { device } => {
                self.net.heard(device);
                Ok(())
            }
            Event::Message { device, message } => {
                if self.net.is_gone(device) {
                    return Ok(());
                }
                self.net.heard(device);
                self.message(device, message)
            }
            Event::Data { device, frame } => {
                if self.net.is_gone(device) {
                    return Ok(());
                }
                self.net.heard(device);
                self.data(device, frame)
            }
            Event::Written { device } => {
                self.net.heard(device);
                self.written(device);
                Ok(())
            }
            Event::Closed { device, cause } => {
                if self.net.is_gone(device) {
                    return Ok(());
                }
                Err(self.closed(device, cause))
            }
            Event::Timer => self.timer(),
            Event::Command(command) => self.command(command),
        }
    }

    fn lost(&self, device: DeviceId, cause: String) -> Fault {
        Fault {
            device: Some(device),
            gone: true,
            error: RunError::DeviceLost {
                device: self.net.name(device),
                step: self.step_in_progress(),
                cause,
            },
        }
    }

    fn closed(&self, device: DeviceId, cause: Cause) -> Fault {
        let name = self.net.name(device);
        let error = match cause {
            Cause::Link(cause) => return self.lost(device, cause),
            Cause::Dial { address, reason } => RunError::Unreachable {
                device: name,
                address,
                cause: reason,
            },
            Cause::Decode(DecodeError::Version { theirs, ours }) => RunError::Version {
                device: name,
                theirs,
                build: "unknown".into(),
                ours,
            },
            Cause::Decode(error) => return self.protocol(device, error.to_string()),
        };
        Fault {
            device: Some(device),
            gone: true,
            error,
        }
    }

    fn protocol(&self, device: DeviceId, what: impl Into<String>) -> Fault {
        self.net.protocol(device, self.step_in_progress(), what)
    }

    fn step_in_progress(&self) -> Option<u64> {
        self.run.as_ref().and_then(Run::step_in_progress)
    }

    fn message(&mut self, device: DeviceId, message: WorkerMessage) -> Result<(), Fault> {
        match message {
            WorkerMessage::Hello(hello) => {
                if hello.protocol != PROTOCOL {
                    return Err(Fault {
                        device: Some(device),
                        gone: true,
                        error: RunError::Version {
                            device: self.net.name(device),
                            theirs: hello.protocol,
                            build: hello.build,
                            ours: PROTOCOL,
                        },
                    });
                }
                if !self.net.greeted(device, hello) {
                    return Err(self.protocol(device, "a second hello"));
                }
                Ok(())
            }
            WorkerMessage::Failed {
                run,
                step,
                stage,
                kind,
                message,
            } => {
                let current = self.run.as_ref().map(|run| run.id);
                if run.is_some_and(|run| Some(run) != current && run <= self.last_run) {
                    return Ok(()); // Of a run that is over already.
                }
                Err(Fault {
                    device: Some(device),
                    gone: !self.net.is_up(device),
                    error: RunError::Failed {
                        device: self.net.name(device),
                        step,
                        stage,
                        kind,
                        message,
                    },
                })
            }
            WorkerMessage::Bye { reason } => Err(self.lost(device, format!("it left: {reason}"))),
            _ if !self.net.is_up(device) => {
                Err(self.protocol(device, "a message before its hello"))
            }
            WorkerMessage::Pong {
                nonce,
                clock_micros,
            } => {
                self.net.pong(device, nonce, clock_micros);
                if let Some(probe) = self.probes.get_mut(&device) {
                    probe.pong(&mut self.net);
                }
                self.finish_probe(device);
                Ok(())
            }
            WorkerMessage::Credit { stream, bytes } => self
                .net
                .credit(device, stream, bytes)
                .map_err(|what| self.protocol(device, what)),
            WorkerMessage::ProbeReceived { nonce } => {
                if let Some(probe) = self.probes.get_mut(&device) {
                    probe.received(&mut self.net, nonce);
                }
                self.finish_probe(device);
                Ok(())
            }
            WorkerMessage::Profiled { id, seconds } => match self.profiles.get(&device) {
                Some(profile) if profile.id == id => {
                    if profile.programs != seconds.len() {
                        return Err(self.protocol(device, "times of another number of programs"));
                    }
                    self.profiles.remove(&device);
                    self.net.report(Report::Profiled { device, seconds });
                    Ok(())
                }
                _ if id <= self.last_profile => Ok(()), // Of a profile that was given up.
                _ => Err(self.protocol(device, "times that nobody asked for")),
            },
            WorkerMessage::Ready { run, .. }
            | WorkerMessage::Dropped { run }
            | WorkerMessage::Gradients { run, .. }
            | WorkerMessage::StepDone { run, .. }
            | WorkerMessage::Fetched { run, .. } => match &mut self.run {
                Some(current) if current.id == run => {
                    current.message(&mut self.net, device, message)
                }
                _ if run <= self.last_run => Ok(()), // It had not heard of the end yet.
                _ => Err(self.protocol(device, format!("a message of run {run}, which never was"))),
            },
        }
    }

    fn data(&mut self, device: DeviceId, frame: DataFrame) -> Result<(), Fault> {
        if !self.net.is_up(device) {
            return Err(self.protocol(device, "data before its hello"));
        }
        let stream = frame.header.kind.stream();
        let cost = frame.frame.len() as u64;
        self.net
            .arrived(device, stream, cost)
            .map_err(|what| self.protocol(device, what))?;
        if frame.header.kind == DataKind::Probe {
            self.net.release(device, stream, cost);
            if let Some(probe) = self.probes.get_mut(&device) {
                probe.data(&mut self.net, &frame);
            }
            self.finish_probe(device);
            return Ok(());
        }
        let run = frame.header.run;
        match &mut self.run {
            Some(current) if current.id == run => current.data(&mut self.net, device, frame),
            _ if run <= self.last_run => {
                self.net.release(device, stream, cost);
                Ok(())
            }
            _ => Err(self.protocol(device, format!("data of run {run}, which never was"))),
        }
    }

    /// The oldest data frame towards `device` has left.
    fn written(&mut self, device: DeviceId) {
        let Some(sent) = self.net.written(device) else {
            return;
        };
        if let Some(run) = &mut self.run
            && run.id == sent.header.run
        {
            run.written(&mut self.net, device, &sent);
        }
    }

    fn finish_probe(&mut self, device: DeviceId) {
        if let Some(link) = self.probes.get(&device).and_then(Probe::result) {
            self.probes.remove(&device);
            self.net.report(Report::Probed { device, link });
        }
    }

    fn command(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Probe(device) => {
                self.need(device)?;
                let probe = Probe::start(&mut self.net, device, self.options.worker_timeout);
                self.probes.insert(device, probe);
                Ok(())
            }
            Command::Profile { device, programs } => {
                self.need(device)?;
                self.last_profile += 1;
                self.profiles.insert(
                    device,
                    Profile {
                        id: self.last_profile,
                        programs: programs.len(),
                        until: self.net.now + self.options.stall_timeout,
                    },
                );
                self.net.send(
                    device,
                    HostMessage::Profile {
                        id: self.last_profile,
                        programs,
                    },
                );
                Ok(())
            }
            Command::Start(spec) => {
                if self.run.is_some() {
                    return Err(Fault::of(RunError::Usage(
                        "a run is going on already; finish it first".into(),
                    )));
                }
                for (device, _) in &spec.assigns {
                    self.need(*device)?;
                }
                self.last_run += 1;
                self.run = Some(Run::start(
                    &mut self.net,
                    self.last_run,
                    *spec,
                    &self.options,
                ));
                Ok(())
            }
            // Without a run these come from an application that has not heard of its end yet.
            Command::Schedule(schedule) => {
                if let Some(run) = &mut self.run {
                    run.schedule(schedule);
                }
                Ok(())
            }
            Command::Step(step) => {
                if let Some(run) = &mut self.run {
                    run.submit(*step);
                }
                Ok(())
            }
            Command::Fetch(state) => {
                if let Some(run) = &mut self.run {
                    run.fetch(state);
                }
                Ok(())
            }
            Command::Drop => {
                if let Some(run) = &mut self.run {
                    run.drop_run();
                }
                Ok(())
            }
            Command::Bye => {
                self.run = None;
                self.net.bye();
                Ok(())
            }
        }
    }

    /// An error unless the device takes part.
    fn need(&self, device: DeviceId) -> Result<(), Fault> {
        match self.net.stand(device) {
            Some(Stand::Up) => Ok(()),
            Some(Stand::Gone { cause }) => Err(Fault::of(self.lost(device, cause.clone()).error)),
            _ => Err(Fault::of(RunError::Usage(format!(
                "device {} is not connected",
                device.0
            )))),
        }
    }

    fn timer(&mut self) -> Result<(), Fault> {
        let now = self.net.now;
        if self.timer.take().is_some_and(|due| now > due + HELD_UP) {
            self.net.forgive();
        }
        if let Some((device, cause)) = self.net.silent(&self.options) {
            return Err(self.lost(device, cause));
        }
        self.net.ping_due(self.options.worker_timeout / 4);
        let overdue = self
            .probes
            .iter()
            .map(|(device, probe)| (*device, probe.until))
            .chain(
                self.profiles
                    .iter()
                    .map(|(device, profile)| (*device, profile.until)),
            )
            .find(|(_, until)| *until <= now);
        if let Some((device, _)) = overdue {
            return Err(Fault {
                device: Some(device),
                gone: true,
                error: RunError::Stalled {
                    device: self.net.name(device),
                    step: None,
                    waiting: "a measurement".into(),
                    seconds: self.options.stall_timeout.as_secs(),
                },
            });
        }
        match &mut self.run {
            Some(run) => run.check_stall(&self.net),
            None => Ok(()),
        }
    }

    fn advance(&mut self) {
        let Some(run) = &mut self.run else { return };
        run.advance(&mut self.net, &self.options);
        if run.is_over() {
            self.run = None;
            self.net.report(Report::Dropped);
        }
    }

    /// Ends what the fault ends, frees the other devices, and tells the application if it waits for what has ended.
    fn fail(&mut self, fault: Fault) {
        let Fault {
            device,
            gone,
            error,
        } = fault;
        let greeting = device.is_some_and(|device| !self.net.was_up(device));
        if let Some(device) = device
            && gone
        {
            self.net.lose(device, error.to_string());
        }
        let touches = |other: DeviceId| device.is_none_or(|device| device == other);
        let of_run = self
            .run
            .as_ref()
            .is_some_and(|run| run.devices().any(touches));
        if of_run && let Some(run) = self.run.take() {
            run.abort(&mut self.net);
        }
        let of_measurement = self
            .probes
            .keys()
            .chain(self.profiles.keys())
            .any(|other| touches(*other));
        if of_measurement {
            self.probes.clear();
            self.profiles.clear();
        }
        // An idle device that goes is remembered and told of when it is next asked for.
        if of_run || of_measurement || greeting || device.is_none() {
            self.net.report(Report::Failed(error));
        }
    }

    fn set_timer(&mut self) {
        let due = self
            .net
            .deadline(&self.options)
            .into_iter()
            .chain(self.probes.values().map(|probe| probe.until))
            .chain(self.profiles.values().map(|profile| profile.until))
            .chain(self.run.as_ref().and_then(Run::deadline))
            .min();
        if due != self.timer
            && let Some(due) = due
        {
            self.net.out.push(Effect::SetTimer(due));
        }
        self.timer = due;
    }
}
