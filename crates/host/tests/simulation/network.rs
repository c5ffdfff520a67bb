//! A network on virtual time: the core on one side, scripted workers on the other, links with latency and bandwidth between.
//! Each link keeps its order; links overtake each other. Everything follows from a seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use outboard_host::HostOptions;
use outboard_host::core::{Cause, Command, Core, DeviceId, Effect, Event, Report};
use outboard_wire::{
    DataFrame, DataHeader, Frame, HostDecoder, HostMessage, WorkerMessage, encode_data,
};

use super::worker::{Conduct, FakeWorker, Out};

/// A small generator, the same everywhere (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.below(most))
    }
}

/// What happens at a time.
enum Happening {
    ToWorker(usize, HostMessage),
    DataToWorker(usize, DataFrame),
    ToCore(Event),
    /// A worker's computation is over.
    Woken(usize),
    /// A worker dies: its link is reset, or nobody hears from it again.
    Dies {
        device: usize,
        silently: bool,
    },
}

struct Entry {
    at: Duration,
    order: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The whole world.
pub(crate) struct Network {
    pub(crate) now: Duration,
    pub(crate) core: Core,
    pub(crate) workers: Vec<FakeWorker>,
    pub(crate) reports: Vec<(Duration, Report)>,
    /// Reports that a test has looked at.
    seen: usize,
    random: Random,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    timer: Option<Duration>,
    /// When each link, in each direction, is free again, and when what was sent last arrives.
    busy: BTreeMap<(usize, bool), (Duration, Duration)>,
    latency_micros: u64,
    pub(crate) closed_by_host: Vec<bool>,
}

impl Network {
    pub(crate) fn new(seed: u64, conducts: Vec<Conduct>, options: HostOptions) -> Self {
        let mut random = Random::new(seed);
        let count = conducts.len();
        let names = (0..count)
            .map(|index| format!("device {index}").into())
            .collect();
        let latency_micros = 1 + random.below(20_000);
        let mut network = Network {
            now: Duration::ZERO,
            core: Core::new(options, names),
            workers: conducts
                .into_iter()
                .enumerate()
                .map(|(index, conduct)| FakeWorker::new(index, count, conduct, random.next()))
                .collect(),
            reports: Vec::new(),
            seen: 0,
            random,
            queue: BinaryHeap::new(),
            order: 0,
            timer: None,
            busy: BTreeMap::new(),
            latency_micros,
            closed_by_host: vec![false; count],
        };
        for index in 0..count {
            network.push(
                Duration::ZERO,
                Happening::ToCore(Event::Opened {
                    device: DeviceId(index),
                }),
            );
        }
        network
    }

    fn push(&mut self, at: Duration, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Entry {
            at,
            order: self.order,
            what,
        }));
    }

    pub(crate) fn command(&mut self, command: Command) {
        self.handle(Event::Command(command));
    }

    pub(crate) fn kill(&mut self, after: Duration, device: usize, silently: bool) {
        self.push(self.now + after, Happening::Dies { device, silently });
    }

    /// When a message of so many bytes arrives that enters the link now.
    fn arrival(&mut self, device: usize, to_worker: bool, bytes: usize) -> (Duration, Duration) {
        let latency = self.random.micros(self.latency_micros);
        let (free, last) = self.busy.entry((device, to_worker)).or_default();
        // 50 MB/s.
        let left = (*free).max(self.now) + Duration::from_nanos(20 * bytes as u64);
        // The link keeps its order.
        let arrives = (left + latency).max(*last);
        (*free, *last) = (left, arrives);
        (left, arrives)
    }

    fn handle(&mut self, event: Event) {
        for effect in self.core.handle(self.now, event) {
            match effect {
                Effect::Send { device, message } => {
                    if self.closed_by_host[device.0] {
                        continue;
                    }
                    let (_, arrives) = self.arrival(device.0, true, 64);
                    self.push(arrives, Happening::ToWorker(device.0, message));
                }
                Effect::SendData {
                    device,
                    header,
                    payload,
                } => {
                    let pieces = encode_data(&header, payload.clone()).expect("a proper frame");
                    self.send_data(device.0, frame_of(header, payload, &pieces.concat()));
                }
                Effect::Forward { device, frame } => {
                    // What a worker would decode: the very bytes that another one sent.
                    let frame = decode(&frame);
                    self.send_data(device.0, frame);
                }
                Effect::Close { device } => self.closed_by_host[device.0] = true,
                Effect::SetTimer(at) => self.timer = Some(at),
                Effect::Report(report) => self.reports.push((self.now, report)),
            }
        }
    }

    fn send_data(&mut self, device: usize, frame: DataFrame) {
        if self.closed_by_host[device] {
            return;
        }
        let bytes = frame.frame.len();
        let (left, arrives) = self.arrival(device, true, bytes);
        self.push(
            left,
            Happening::ToCore(Event::Written {
                device: DeviceId(device),
            }),
        );
        self.push(arrives, Happening::DataToWorker(device, frame));
    }

    fn carry_from(&mut self, device: usize, outs: Vec<Out>) {
        for out in outs {
            if self.workers[device].is_dead() && !matches!(out, Out::Wake(_)) {
                continue;
            }
            match out {
                Out::Say(message) => {
                    let (_, arrives) = self.arrival(device, false, 64);
                    let event = Event::Message {
                        device: DeviceId(device),
                        message,
                    };
                    self.push(arrives, Happening::ToCore(event));
                }
                Out::Tensor(header, payload) => {
                    let pieces = encode_data(&header, payload.clone()).expect("a proper frame");
                    let frame = frame_of(header, payload, &pieces.concat());
                    let (_, arrives) = self.arrival(device, false, frame.frame.len());
                    let event = Event::Data {
                        device: DeviceId(device),
                        frame,
                    };
                    self.push(arrives, Happening::ToCore(event));
                }
                Out::Wake(after) => self.push(self.now + after, Happening::Woken(device)),
            }
        }
    }

    /// Does the next thing that happens; false when nothing more will.
    pub(crate) fn advance(&mut self) -> bool {
        let next = self.queue.peek().map(|Reverse(entry)| entry.at);
        if let Some(timer) = self.timer
            && next.is_none_or(|next| timer <= next)
        {
            self.now = self.now.max(timer);
            self.timer = None;
            self.handle(Event::Timer);
            return true;
        }
        let Some(Reverse(entry)) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(entry.at);
        match entry.what {
            Happening::ToWorker(device, message) => {
                let outs = self.workers[device].message(self.now, message);
                self.carry_from(device, outs);
            }
            Happening::DataToWorker(device, frame) => {
                let outs = self.workers[device].data(frame);
                self.carry_from(device, outs);
            }
            Happening::Woken(device) => {
                let outs = self.workers[device].woken();
                self.carry_from(device, outs);
            }
            Happening::ToCore(event) => {
                self.handle(event);
            }
            Happening::Dies { device, silently } => {
                self.workers[device].die();
                if !silently {
                    let (_, arrives) = self.arrival(device, false, 0);
                    let event = Event::Closed {
                        device: DeviceId(device),
                        cause: Cause::Link("connection reset by peer".into()),
                    };
                    self.push(arrives, Happening::ToCore(event));
                }
            }
        }
        true
    }

    /// Goes on until a report satisfies `until`, for at most `limit` of virtual time. Gives that report.
    pub(crate) fn run_until(
        &mut self,
        limit: Duration,
        mut until: impl FnMut(&Report) -> bool,
    ) -> Option<Report> {
        let end = self.now + limit;
        loop {
            while let Some((_, report)) = self.reports.get(self.seen) {
                self.seen += 1;
                if until(report) {
                    return Some(report.clone());
                }
            }
            if self.now > end || !self.advance() {
                return None;
            }
        }
    }

    pub(crate) fn idle(&mut self, time: Duration) {
        let _ = self.run_until(time, |_| false);
    }
}

fn frame_of(header: DataHeader, payload: Bytes, bytes: &[u8]) -> DataFrame {
    DataFrame {
        header,
        payload,
        frame: Bytes::copy_from_slice(bytes),
    }
}

/// Decodes one data frame by the host's decoder, after a greeting to open it.
fn decode(frame: &Bytes) -> DataFrame {
    use outboard_wire::ControlMessage;
    let mut decoder = HostDecoder::new();
    let hello = WorkerMessage::Hello(super::worker::hello(0));
    decoder.push(hello.encode().expect("a proper hello"));
    assert!(matches!(decoder.poll(), Ok(Some(Frame::Control(_)))));
    decoder.push(frame.clone());
    match decoder.poll() {
        Ok(Some(Frame::Data(frame))) => frame,
        other => panic!("a forwarded frame came out as {other:?}"),
    }
}
