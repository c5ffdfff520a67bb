//! The coordinator's process: what the host's `driver.rs` does with sockets, done with the network's events.

use std::time::Duration;

use outboard_host::HostOptions;
use outboard_host::core::{Cause, Command, Core, DeviceId, Effect, Event, Report};
use outboard_testkit as testkit;
use outboard_testkit::LinkId;
use outboard_wire::{ControlMessage, Frame, HostDecoder, encode_data};

/// A host with one link to each device.
pub(crate) struct Host {
    core: Core,
    /// By [`DeviceId`].
    links: Vec<Link>,
    /// When it was started, on the network's clock; its own begins there.
    epoch: Duration,
    /// What its application was told, and when on the network's clock.
    pub(crate) reports: Vec<(Duration, Report)>,
}

struct Link {
    id: LinkId,
    decoder: HostDecoder,
}

impl Host {
    /// A host that starts at `epoch` and has links to devices of these names.
    pub(crate) fn new(epoch: Duration, names: Vec<String>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Host {
            core: Core::new(HostOptions::default(), names),
            links: Vec::new(),
            epoch,
            reports: Vec::new(),
        }
    }

    /// The link to the next device.
    pub(crate) fn add_link(&mut self, id: LinkId) {
        self.links.push(Link {
            id,
            decoder: HostDecoder::new(),
        });
    }

    /// The application wants something.
    pub(crate) fn command(&mut self, now: Duration, command: Command) -> Vec<testkit::Effect> {
        self.core(now, Event::Command(command))
    }

    pub(crate) fn handle(&mut self, now: Duration, event: testkit::Event) -> Vec<testkit::Effect> {
        match event {
            testkit::Event::Opened { link } => {
                let device = self.device(link);
                self.core(now, Event::Opened { device })
            }
            testkit::Event::Bytes { link, bytes } => {
                let device = self.device(link);
                self.links[device.0].decoder.push(bytes);
                self.read(now, device)
            }
            testkit::Event::Sent { link, .. } => {
                let device = self.device(link);
                self.core(now, Event::Written { device })
            }
            testkit::Event::Closed { link } => {
                let device = self.device(link);
                let cause = Cause::Link("it closed the connection".to_owned());
                self.core(now, Event::Closed { device, cause })
            }
            testkit::Event::Timer => self.core(now, Event::Timer),
            testkit::Event::Done { .. } => panic!("the host computes nothing"),
        }
    }

    fn device(&self, link: LinkId) -> DeviceId {
        let at = self.links.iter().position(|known| known.id == link);
        DeviceId(at.expect("a link of this host"))
    }

    /// Every frame that is whole.
    fn read(&mut self, now: Duration, device: DeviceId) -> Vec<testkit::Effect> {
        let mut effects = self.core(now, Event::Heard { device });
        loop {
            let event = match self.links[device.0].decoder.poll() {
                Ok(None) => return effects,
                Ok(Some(Frame::Control(message))) => Event::Message { device, message },
                Ok(Some(Frame::Data(frame))) => Event::Data { device, frame },
                Err(error) => panic!("{device:?} is not understood: {error}"),
            };
            effects.extend(self.core(now, event));
        }
    }

    fn core(&mut self, now: Duration, event: Event) -> Vec<testkit::Effect> {
        let effects = self.core.handle(now.saturating_sub(self.epoch), event);
        effects
            .into_iter()
            .filter_map(|effect| self.carry_out(now, effect))
            .collect()
    }

    fn carry_out(&mut self, now: Duration, effect: Effect) -> Option<testkit::Effect> {
        let send = |device: DeviceId, pieces, is_data: bool| {
            Some(testkit::Effect::Send {
                link: self.links[device.0].id,
                pieces,
                token: is_data.then_some(0),
            })
        };
        match effect {
            Effect::Send { device, message } => {
                let frame = message.encode().expect("a message that fits a frame");
                send(device, vec![frame], false)
            }
            Effect::SendData {
                device,
                header,
                payload,
            } => {
                let pieces = encode_data(&header, payload).expect("a tensor that fits a frame");
                send(device, pieces.into(), true)
            }
            Effect::Forward { device, frame } => send(device, vec![frame], true),
            Effect::Close { device } => Some(testkit::Effect::Close {
                link: self.links[device.0].id,
            }),
            Effect::SetTimer(at) => Some(testkit::Effect::SetTimer(self.epoch + at)),
            Effect::Report(report) => {
                self.reports.push((now, report));
                None
            }
        }
    }
}
