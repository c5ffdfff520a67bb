//! All devices and what goes out to them.

use std::time::Duration;

use bytes::Bytes;
use outboard_graph::Tensor;
use outboard_wire::{
    DataFrame, DataHeader, DataKind, DeviceHello, HostMessage, PROTOCOL, Stream, TensorEncoding,
    decode_tensor,
};

use super::device::{Device, DeviceName, Stand};
use super::flow::{Body, Outgoing, Sent};
use super::{DeviceId, Effect, Report};
use crate::{HostOptions, RunError};

/// Something that ends a run, a measurement or a device.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Whose it is; `None` where the application's.
    pub(super) device: Option<DeviceId>,
    /// Whether the device can be of no more use.
    pub(super) gone: bool,
    /// What to tell.
    pub(super) error: RunError,
}

impl Fault {
    /// The application's, or the model's.
    pub(super) fn of(error: RunError) -> Self {
        Fault {
            device: None,
            gone: false,
            error,
        }
    }
}

/// The devices; all effects leave through here.
#[derive(Debug)]
pub(super) struct Net {
    devices: Vec<Device>,
    pub(super) out: Vec<Effect>,
    pub(super) now: Duration,
}

impl Net {
    pub(super) fn new(names: Vec<DeviceName>, receive_window_bytes: u64) -> Self {
        Net {
            devices: names
                .into_iter()
                .map(|name| Device::new(name, receive_window_bytes))
                .collect(),
            out: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(device.0)
    }

    fn device_mut(&mut self, device: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(device.0)
    }

    /// Its name for people.
    pub(super) fn name(&self, device: DeviceId) -> String {
        self.device(device).map_or_else(
            || format!("device {}", device.0),
            |device| device.name.text.clone(),
        )
    }

    pub(super) fn stand(&self, device: DeviceId) -> Option<&Stand> {
        self.device(device).map(|device| &device.stand)
    }

    pub(super) fn is_up(&self, device: DeviceId) -> bool {
        self.device(device).is_some_and(Device::is_up)
    }

    pub(super) fn is_gone(&self, device: DeviceId) -> bool {
        !self
            .device(device)
            .is_some_and(|device| !matches!(device.stand, Stand::Gone { .. }))
    }

    /// Whether it ever said a proper hello.
    pub(super) fn was_up(&self, device: DeviceId) -> bool {
        self.device(device)
            .is_some_and(|device| device.hello.is_some())
    }

    /// The link is there: hello goes out.
    pub(super) fn open(&mut self, device: DeviceId, options: &HostOptions) {
        let now = self.now;
        let Some(state) = self.device_mut(device) else {
            return;
        };
        if state.stand != Stand::Dialling {
            return;
        }
        state.stand = Stand::Greeting {
            until: now + options.connect_timeout,
        };
        state.heard = now;
        self.send(
            device,
            HostMessage::Hello {
                protocol: PROTOCOL,
                build: env!("CARGO_PKG_VERSION").to_owned(),
                name: options.name.clone(),
            },
        );
    }

    /// Its hello came: it takes part, and may send. False when it had said it before.
    pub(super) fn greeted(&mut self, device: DeviceId, hello: DeviceHello) -> bool {
        let now = self.now;
        let Some(state) = self.device_mut(device) else {
            return false;
        };
        if !matches!(state.stand, Stand::Greeting { .. }) {
            return false;
        }
        state.stand = Stand::Up;
        state.hello = Some(hello.clone());
        let ping = state.ping_now(now);
        self.send(device, ping);
        self.grant(device);
        self.adopt_name(device, &hello.name);
        let name = self.name(device);
        self.report(Report::Connected {
            device,
            name,
            hello,
        });
        true
    }

    /// Calls a device by its own name if it was given none. Should two say the same, the later one's address follows it.
    fn adopt_name(&mut self, device: DeviceId, own: &str) {
        let own: String = own.chars().filter(|char| !char.is_control()).collect();
        let own = own.trim();
        let is_taken = (self.devices.iter().enumerate())
            .any(|(index, other)| index != device.0 && other.name.text == own);
        if let Some(state) = self.device_mut(device)
            && state.name.until_hello
            && !own.is_empty()
        {
            state.name.text = if is_taken {
                format!("{own} ({})", state.name.text)
            } else {
                own.to_owned()
            };
        }
    }

    pub(super) fn heard(&mut self, device: DeviceId) {
        let now = self.now;
        if let Some(device) = self.device_mut(device) {
            device.heard = now;
        }
    }

    pub(super) fn pong(&mut self, device: DeviceId, nonce: u64, clock_micros: u64) {
        let now = self.now;
        if let Some(device) = self.device_mut(device) {
            device.pong(now, nonce, clock_micros);
        }
    }

    /// Pings now, whether or not it is time.
    pub(super) fn ping(&mut self, device: DeviceId) {
        let now = self.now;
        if let Some(ping) = self.device_mut(device).map(|device| device.ping_now(now)) {
            self.send(device, ping);
        }
    }

    /// Pings every device whose time has come.
    pub(super) fn ping_due(&mut self, every: Duration) {
        let now = self.now;
        for (index, device) in self.devices.iter_mut().enumerate() {
            if let Some(message) = device.ping(now, every) {
                self.out.push(Effect::Send {
                    device: DeviceId(index),
                    message,
                });
            }
        }
    }

    pub(super) fn round_trip(&self, device: DeviceId) -> Option<Duration> {
        self.device(device).and_then(Device::round_trip)
    }

    pub(super) fn on_host_clock(&self, device: DeviceId, clock_micros: u64) -> Duration {
        self.device(device)
            .map_or(Duration::ZERO, |device| device.on_host_clock(clock_micros))
    }

    /// The host itself was held up: every device gets its whole time again.
    pub(super) fn forgive(&mut self) {
        for device in &mut self.devices {
            device.heard = self.now;
        }
    }

    /// A device that has been silent for too long, and what that means.
    pub(super) fn silent(&self, options: &HostOptions) -> Option<(DeviceId, String)> {
        self.devices.iter().enumerate().find_map(|(index, device)| {
            let cause = match &device.stand {
                Stand::Greeting { until } if *until <= self.now => format!(
                    "no hello within {} s; does `outboard worker` listen there?",
                    options.connect_timeout.as_secs_f64()
                ),
                Stand::Up if device.heard + options.worker_timeout <= self.now => {
                    format!("not a byte for {} s", options.worker_timeout.as_secs_f64())
                }
                _ => return None,
            };
            Some((DeviceId(index), cause))
        })
    }

    /// When a device next needs attention.
    pub(super) fn deadline(&self, options: &HostOptions) -> Option<Duration> {
        self.devices
            .iter()
            .filter_map(|device| device.deadline(options.worker_timeout))
            .min()
    }

    /// A broken protocol: the device is of no more use.
    pub(super) fn protocol(
        &self,
        device: DeviceId,
        step: Option<u64>,
        what: impl Into<String>,
    ) -> Fault {
        Fault {
            device: Some(device),
            gone: true,
            error: RunError::Protocol {
                device: self.name(device),
                step,
                what: what.into(),
            },
        }
    }

    pub(super) fn send(&mut self, device: DeviceId, message: HostMessage) {
        self.out.push(Effect::Send { device, message });
    }

    pub(super) fn report(&mut self, report: Report) {
        self.out.push(Effect::Report(report));
    }

    /// Queues a data frame; [`Net::pump`] sends it when the window allows.
    pub(super) fn push(&mut self, device: DeviceId, outgoing: Outgoing) {
        if let Some(device) = self.device_mut(device) {
            device.outbox.push(outgoing);
        }
    }

    /// Queues a tensor of the host's own.
    pub(super) fn push_tensor(&mut self, to: DeviceId, address: Address, tensor: &Tensor) {
        let queued = self.now;
        self.push(
            to,
            Outgoing {
                header: DataHeader {
                    run: address.run,
                    step: address.step,
                    kind: address.kind,
                    stage: address.stage,
                    micro_batch: address.micro_batch,
                    name: address.name,
                    dtype: tensor.dtype(),
                    dims: tensor.dims().iter().map(|dim| *dim as u64).collect(),
                    encoding: TensorEncoding::F32,
                },
                body: Body::Payload(tensor.data().clone()),
                origin: None,
                queued,
            },
        );
    }

    /// A grant from the device (edge 4 of `flow`).
    pub(super) fn credit(
        &mut self,
        device: DeviceId,
        stream: Stream,
        bytes: u64,
    ) -> Result<(), String> {
        self.device_mut(device)
            .map_or(Ok(()), |device| device.outbox.credit(stream, bytes))
            .map_err(|error| error.to_string())
    }

    /// A data frame came (edge 2).
    pub(super) fn arrived(
        &mut self,
        device: DeviceId,
        stream: Stream,
        cost: u64,
    ) -> Result<(), String> {
        self.device_mut(device)
            .map_or(Ok(()), |device| device.inbox.arrived(stream, cost))
            .map_err(|error| error.to_string())
    }

    /// A frame of the device is in memory no more.
    pub(super) fn release(&mut self, device: DeviceId, stream: Stream, cost: u64) {
        if let Some(device) = self.device_mut(device) {
            device.inbox.released(stream, cost);
        }
    }

    /// The oldest frame towards the device has left (edge 6).
    pub(super) fn written(&mut self, device: DeviceId) -> Option<Sent> {
        let sent = self.device_mut(device)?.outbox.written()?;
        if let Some(origin) = sent.origin {
            self.release(origin, sent.header.kind.stream(), sent.cost);
        }
        Some(sent)
    }

    fn grant(&mut self, device: DeviceId) {
        if let Some(state) = self.devices.get_mut(device.0) {
            let grants = state
                .inbox
                .grants()
                .map(|message| Effect::Send { device, message });
            self.out.extend(grants);
        }
    }

    /// Forgets what waits for the device; its sender's windows open again.
    pub(super) fn clear(&mut self, device: DeviceId) {
        let Some(state) = self.device_mut(device) else {
            return;
        };
        for outgoing in state.outbox.clear() {
            if let Some(origin) = outgoing.origin {
                self.release(origin, outgoing.stream(), outgoing.cost());
            }
        }
    }

    /// The device is gone for good.
    pub(super) fn lose(&mut self, device: DeviceId, cause: String) {
        if self.is_gone(device) {
            return;
        }
        self.clear(device);
        let Some(state) = self.device_mut(device) else {
            return;
        };
        state.stand = Stand::Gone { cause };
        for sent in state.outbox.abandon() {
            if let Some(origin) = sent.origin {
                self.release(origin, sent.header.kind.stream(), sent.cost);
            }
        }
        self.out.push(Effect::Close { device });
    }

    /// Takes leave of every device.
    pub(super) fn bye(&mut self) {
        for index in 0..self.devices.len() {
            let device = DeviceId(index);
            if self.is_up(device) {
                self.send(device, HostMessage::Bye);
            }
            self.lose(device, "the host took leave of it".to_owned());
        }
    }

    /// Hands out all data frames that may go, and all grants that are due.
    pub(super) fn pump(&mut self) {
        for index in 0..self.devices.len() {
            let device = DeviceId(index);
            if !self.is_up(device) {
                continue;
            }
            self.grant(device);
            let Some(state) = self.devices.get_mut(index) else {
                continue;
            };
            while let Some(outgoing) = state.outbox.pop() {
                self.out.push(match outgoing.body {
                    Body::Payload(payload) => Effect::SendData {
                        device,
                        header: outgoing.header,
                        payload,
                    },
                    Body::Frame(frame) => Effect::Forward { device, frame },
                });
            }
        }
    }
}

/// Where a tensor of the host's own goes.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) run: u32,
    pub(super) step: u64,
    pub(super) kind: DataKind,
    pub(super) stage: u16,
    pub(super) micro_batch: u16,
    pub(super) name: String,
}

/// Zeros, as probes carry them.
pub(super) fn zeros(bytes: usize) -> Bytes {
    Bytes::from(vec![0; bytes])
}

/// The tensor of a frame for the host: results and weights always travel exactly.
pub(super) fn tensor_of(frame: &DataFrame) -> Result<Tensor, String> {
    let header = &frame.header;
    if header.encoding != TensorEncoding::F32 {
        return Err(format!(
            "`{}` comes in {:?}, not exactly",
            header.name, header.encoding
        ));
    }
    decode_tensor(header, &frame.payload).map_err(|error| error.to_string())
}
