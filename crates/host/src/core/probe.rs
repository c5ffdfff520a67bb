//! Measuring: the latency and bandwidth of a link, and the state of a profile in progress.
//!
//! A probe sends ever larger frames until one takes long enough to be measured, first to the worker, then back:
//!
//! ```text
//! ping, pong          x 4                     latency: half of the shortest round trip
//! 64 KiB -> received, 256 KiB -> received ... bandwidth to the worker
//! probe -> 64 KiB,    probe -> 256 KiB    ... bandwidth to the host
//! ```

use std::time::Duration;

use outboard_wire::{DataFrame, DataHeader, DataKind, HostMessage, TensorEncoding};

use super::flow::{Body, Outgoing};
use super::net::{Net, zeros};
use super::{DeviceId, LinkMeasure};

const PINGS: u32 = 4;
const SMALLEST_BYTES: u32 = 64 << 10;
const LARGEST_BYTES: u32 = 4 << 20;
/// A transfer this long measures well enough.
const LONG_ENOUGH: Duration = Duration::from_millis(50);
/// No larger transfer begins after so long in one direction.
const BUDGET: Duration = Duration::from_millis(200);

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Pings { left: u32 },
    ToWorker { bytes: u32, sent: Duration },
    ToHost { bytes: u32, sent: Duration },
    Done,
}

/// A probe of one link.
#[derive(Debug)]
pub(super) struct Probe {
    device: DeviceId,
    /// It counts as stalled then.
    pub(super) until: Duration,
    phase: Phase,
    nonce: u16,
    /// When the direction that is being measured was begun.
    began: Duration,
    to_worker: f64,
    to_host: f64,
    latency: Duration,
}

impl Probe {
    pub(super) fn start(net: &mut Net, device: DeviceId, timeout: Duration) -> Self {
        net.ping(device);
        Probe {
            device,
            until: net.now + timeout,
            phase: Phase::Pings { left: PINGS },
            nonce: 0,
            began: net.now,
            to_worker: 0.0,
            to_host: 0.0,
            latency: Duration::ZERO,
        }
    }

    pub(super) fn pong(&mut self, net: &mut Net) {
        let Phase::Pings { left } = self.phase else {
            return;
        };
        if left > 1 {
            self.phase = Phase::Pings { left: left - 1 };
            net.ping(self.device);
            return;
        }
        self.latency = net.round_trip(self.device).unwrap_or_default() / 2;
        self.began = net.now;
        self.send(net, SMALLEST_BYTES);
    }

    pub(super) fn received(&mut self, net: &mut Net, nonce: u16) {
        let Phase::ToWorker { bytes, sent } = self.phase else {
            return;
        };
        if nonce != self.nonce {
            return;
        }
        let took = net.now.saturating_sub(sent);
        self.to_worker = rate(u64::from(bytes), took, self.latency);
        match self.larger(net.now, bytes, took) {
            Some(bytes) => self.send(net, bytes),
            None => {
                self.began = net.now;
                self.ask(net, SMALLEST_BYTES);
            }
        }
    }

    pub(super) fn data(&mut self, net: &mut Net, frame: &DataFrame) {
        let Phase::ToHost { bytes, sent } = self.phase else {
            return;
        };
        if frame.header.micro_batch != self.nonce {
            return;
        }
        let took = net.now.saturating_sub(sent);
        self.to_host = rate(frame.frame.len() as u64, took, self.latency);
        // A worker may send less than it was asked for; then there is no point in asking for more.
        let bounded = frame.payload.len() < bytes as usize;
        match self.larger(net.now, bytes, took) {
            Some(bytes) if !bounded => self.ask(net, bytes),
            _ => self.phase = Phase::Done,
        }
    }

    pub(super) fn result(&self) -> Option<LinkMeasure> {
        (self.phase == Phase::Done).then_some(LinkMeasure {
            latency_seconds: self.latency.as_secs_f64(),
            to_worker_bytes_per_second: self.to_worker,
            to_host_bytes_per_second: self.to_host,
        })
    }

    /// The next size in this direction, if the last one was over too soon to tell.
    fn larger(&self, now: Duration, bytes: u32, took: Duration) -> Option<u32> {
        let over = now.saturating_sub(self.began) >= BUDGET;
        (took < LONG_ENOUGH && bytes < LARGEST_BYTES && !over).then_some(bytes * 4)
    }

    fn send(&mut self, net: &mut Net, bytes: u32) {
        self.nonce = self.nonce.wrapping_add(1);
        self.phase = Phase::ToWorker {
            bytes,
            sent: net.now,
        };
        let header = DataHeader {
            run: 0,
            step: 0,
            kind: DataKind::Probe,
            stage: 0,
            micro_batch: self.nonce,
            name: String::new(),
            dtype: outboard_graph::DType::Bool,
            dims: vec![u64::from(bytes)],
            encoding: TensorEncoding::F32,
        };
        net.push(
            self.device,
            Outgoing {
                header,
                body: Body::Payload(zeros(bytes as usize)),
                origin: None,
                queued: net.now,
            },
        );
    }

    fn ask(&mut self, net: &mut Net, bytes: u32) {
        self.nonce = self.nonce.wrapping_add(1);
        self.phase = Phase::ToHost {
            bytes,
            sent: net.now,
        };
        net.send(
            self.device,
            HostMessage::Probe {
                nonce: self.nonce,
                bytes,
            },
        );
    }
}

/// Bytes a second, of a transfer that took so long from its beginning to the other side's answer: a round trip of the
/// smallest frame is taken off, but never more than nine tenths, as latencies vary.
fn rate(bytes: u64, took: Duration, latency: Duration) -> f64 {
    let took = took.as_secs_f64().max(1e-6);
    bytes as f64 / (took - 2.0 * latency.as_secs_f64()).max(took / 10.0)
}

/// A profile in progress.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) id: u32,
    pub(super) programs: usize,
    /// It counts as stalled then.
    pub(super) until: Duration,
}
