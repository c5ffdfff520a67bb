//! The discrete-event engine: devices run actions, links carry what they send. What a device runs next is a policy's
//! choice, so the same engine replays a given schedule and makes new ones.
//!
//! ```text
//!   device a            host            device b
//!  [ action ]--up(a)-->( o )--down(b)-->[ action ]      transfers of one direction of a link take turns;
//!                                                       latency passes after the last byte has left
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::simulate::{Carries, Span, Transfer, Way};
use crate::{Action, CostModel, Kind};

/// Decides what an idle device runs next.
pub(crate) trait Policy {
    /// An action that is [ready](State::ready) on this device, or nothing to wait for the next event.
    fn pick(&mut self, device: usize, state: &State<'_>) -> Option<Action>;

    /// Called when every device waits and nothing is under way: a last chance to go on.
    fn stalled(&mut self, _state: &State<'_>) -> Option<(usize, Action)> {
        None
    }
}

/// What has happened so far. Actions of one kind and stage run in the order of micro-batches, so counters say it all.
pub(crate) struct State<'a> {
    pub(crate) model: &'a CostModel,
    pub(crate) device_of_stage: &'a [usize],
    pub(crate) stages_of_device: Vec<Vec<usize>>,
    pub(crate) micro_batches: u16,
    started: Vec<[u16; 3]>,
    ended: Vec<[u16; 3]>,
    /// Tensors that have arrived on each stage: data inputs, activations, cotangents.
    arrived: Vec<[u16; 3]>,
    saved_bytes: Vec<u64>,
}

impl State<'_> {
    pub(crate) fn stages(&self) -> usize {
        self.device_of_stage.len()
    }

    /// The next action of this kind on a stage, if all that it needs is there.
    pub(crate) fn ready(&self, stage: usize, kind: Kind) -> Option<Action> {
        let (started, ended, arrived) = (
            self.started.get(stage)?,
            self.ended.get(stage)?,
            self.arrived.get(stage)?,
        );
        let micro_batch = started[kind.index()];
        let there = |count: u16| count > micro_batch;
        let ready = micro_batch < self.micro_batches
            && match kind {
                Kind::Forward => there(arrived[0]) && (stage == 0 || there(arrived[1])),
                Kind::Backward => {
                    there(ended[0]) && (stage + 1 == self.stages() || there(arrived[2]))
                }
                Kind::Weight => there(ended[1]),
            };
        let stage = u16::try_from(stage).ok()?;
        ready.then_some(Action {
            stage,
            kind,
            micro_batch,
        })
    }

    /// Micro-batches whose `F` has started and whose `W` has not ended.
    pub(crate) fn in_flight(&self, stage: usize) -> usize {
        let count =
            |list: &[[u16; 3]], kind: Kind| list.get(stage).map_or(0, |kinds| kinds[kind.index()]);
        usize::from(count(&self.started, Kind::Forward) - count(&self.ended, Kind::Weight))
    }

    /// Bytes saved for micro-batches in flight on a device.
    pub(crate) fn saved_bytes(&self, device: usize) -> u64 {
        self.saved_bytes.get(device).copied().unwrap_or(0)
    }

    fn finished(&self, kinds: &[Kind]) -> bool {
        let done = |kinds_of_stage: &[u16; 3]| {
            kinds
                .iter()
                .all(|kind| kinds_of_stage[kind.index()] == self.micro_batches)
        };
        self.ended.iter().all(done)
    }
}

/// Everything that happened in a run.
pub(crate) struct Outcome {
    /// Each device's spans in order of time.
    pub(crate) spans: Vec<Vec<Span>>,
    /// Transfers of all links in order of their start.
    pub(crate) transfers: Vec<Transfer>,
    /// Most bytes saved at once on each device.
    pub(crate) peak_saved_bytes: Vec<u64>,
    /// Whether every action ran.
    pub(crate) finished: bool,
}

/// Runs the policy to the end, or until nothing moves. The model has passed [`CostModel::check`].
pub(crate) fn run(
    policy: &mut dyn Policy,
    device_of_stage: &[usize],
    devices: usize,
    micro_batches: u16,
    kinds: &[Kind],
    model: &CostModel,
) -> Outcome {
    let stages = device_of_stage.len();
    let mut stages_of_device = vec![Vec::new(); devices];
    for (stage, device) in device_of_stage.iter().enumerate() {
        if let Some(list) = stages_of_device.get_mut(*device) {
            list.push(stage);
        }
    }
    let state = State {
        model,
        device_of_stage,
        stages_of_device,
        micro_batches,
        started: vec![[0; 3]; stages],
        ended: vec![[0; 3]; stages],
        arrived: vec![[0; 3]; stages],
        saved_bytes: vec![0; devices],
    };
    let outcome = Outcome {
        spans: vec![Vec::new(); devices],
        transfers: Vec::new(),
        peak_saved_bytes: vec![0; devices],
        finished: false,
    };
    let mut engine = Engine {
        state,
        outcome,
        now: 0.0,
        events: BinaryHeap::new(),
        sequence: 0,
        busy: vec![false; devices],
        stolen_seconds: vec![0.0; devices],
        links: (0..2 * devices).map(|_| LinkState::default()).collect(),
        trains: kinds.len() > 1,
    };
    engine.deliver_inputs();
    loop {
        engine.start_idle(policy);
        if !engine.advance() {
            match policy.stalled(&engine.state) {
                Some((device, action)) => engine.start(device, action),
                None => break,
            }
        }
    }
    engine.outcome.finished = engine.state.finished(kinds);
    engine.outcome
}

/// A tensor set on its way to a stage.
#[derive(Clone, Copy)]
struct Message {
    carries: Carries,
    to_stage: usize,
    micro_batch: u16,
    bytes: u64,
    /// The link it still has to go down after the one it is on.
    then_down: Option<usize>,
}

enum Event {
    Ended { device: usize, action: Action },
    LinkFree { link: usize },
    Arrived { link: usize, message: Message },
}

/// Events in order of time; those of the same time in the order in which they were caused.
struct Scheduled {
    at: f64,
    sequence: u64,
    event: Event,
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at
            .total_cmp(&other.at)
            .then(self.sequence.cmp(&other.sequence))
    }
}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Scheduled {}

/// One direction of one device's link.
#[derive(Default)]
struct LinkState {
    busy: bool,
    queue: VecDeque<Message>,
}

/// Index of a direction of a device's link.
fn link_index(device: usize, way: Way) -> usize {
    2 * device + usize::from(way == Way::Down)
}

struct Engine<'a> {
    state: State<'a>,
    outcome: Outcome,
    now: f64,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    busy: Vec<bool>,
    /// Compute time that traffic took from each device and that its next action still has to pay.
    stolen_seconds: Vec<f64>,
    links: Vec<LinkState>,
    trains: bool,
}

impl Engine<'_> {
    fn after(&mut self, seconds: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Scheduled {
            at: self.now + seconds,
            sequence: self.sequence,
            event,
        }));
    }

    /// Handles all events of the next instant that has any; `false` when there is none.
    fn advance(&mut self) -> bool {
        let Some(Reverse(first)) = self.events.pop() else {
            return false;
        };
        self.now = first.at;
        self.handle(first.event);
        while let Some(Reverse(next)) = self.events.peek()
            && next.at <= self.now
        {
            if let Some(Reverse(next)) = self.events.pop() {
                self.handle(next.event);
            }
        }
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ended { device, action } => self.end(device, action),
            Event::LinkFree { link } => {
                if let Some(state) = self.links.get_mut(link) {
                    state.busy = false;
                }
                self.pump(link);
            }
            Event::Arrived { link, message } => {
                self.steal(link / 2, message.bytes);
                match message.then_down {
                    Some(device) => self.send_on(
                        device,
                        Way::Down,
                        Message {
                            then_down: None,
                            ..message
                        },
                    ),
                    None => self.arrive(message),
                }
            }
        }
    }

    /// The host sends the data inputs of all micro-batches, in order, when the step begins.
    fn deliver_inputs(&mut self) {
        for micro_batch in 0..self.state.micro_batches {
            for to_stage in 0..self.state.stages() {
                let bytes = self
                    .state
                    .model
                    .cost(to_stage, micro_batch.into())
                    .input_bytes;
                let message = Message {
                    carries: Carries::Input,
                    to_stage,
                    micro_batch,
                    bytes,
                    then_down: None,
                };
                let device = self
                    .state
                    .device_of_stage
                    .get(to_stage)
                    .copied()
                    .unwrap_or(0);
                match self.state.model.link(device) {
                    Some(_) if bytes > 0 => self.send_on(device, Way::Down, message),
                    _ => self.arrive(message),
                }
            }
        }
    }

    fn start_idle(&mut self, policy: &mut dyn Policy) {
        for device in 0..self.busy.len() {
            if self.busy.get(device) == Some(&false)
                && let Some(action) = policy.pick(device, &self.state)
            {
                self.start(device, action);
            }
        }
    }

    fn start(&mut self, device: usize, action: Action) {
        let cost = self
            .state
            .model
            .cost(action.stage.into(), action.micro_batch.into());
        let stolen = self
            .stolen_seconds
            .get_mut(device)
            .map_or(0.0, std::mem::take);
        let seconds = cost.seconds[action.kind.index()] + stolen;
        if let Some(started) = self.state.started.get_mut(usize::from(action.stage)) {
            started[action.kind.index()] += 1;
        }
        if let Some(busy) = self.busy.get_mut(device) {
            *busy = true;
        }
        if let Some(spans) = self.outcome.spans.get_mut(device) {
            spans.push(Span {
                action,
                start_seconds: self.now,
                end_seconds: self.now + seconds,
            });
        }
        if self.trains && action.kind == Kind::Forward {
            self.hold(device, |saved| saved.saturating_add(cost.saved_bytes));
        }
        self.after(seconds, Event::Ended { device, action });
    }

    fn hold(&mut self, device: usize, change: impl Fn(u64) -> u64) {
        if let (Some(saved), Some(peak)) = (
            self.state.saved_bytes.get_mut(device),
            self.outcome.peak_saved_bytes.get_mut(device),
        ) {
            *saved = change(*saved);
            *peak = (*saved).max(*peak);
        }
    }

    fn end(&mut self, device: usize, action: Action) {
        let stage = usize::from(action.stage);
        if let Some(busy) = self.busy.get_mut(device) {
            *busy = false;
        }
        if let Some(ended) = self.state.ended.get_mut(stage) {
            ended[action.kind.index()] += 1;
        }
        let cost = self.state.model.cost(stage, action.micro_batch.into());
        let (carries, to_stage, bytes) = match action.kind {
            Kind::Forward => (
                Carries::Activation,
                stage.checked_add(1),
                cost.activation_bytes,
            ),
            Kind::Backward => (
                Carries::Cotangent,
                stage.checked_sub(1),
                cost.cotangent_bytes,
            ),
            Kind::Weight => {
                self.hold(device, |saved| saved.saturating_sub(cost.saved_bytes));
                return;
            }
        };
        let Some((to_stage, to)) = to_stage
            .and_then(|to_stage| Some((to_stage, *self.state.device_of_stage.get(to_stage)?)))
        else {
            return;
        };
        let message = Message {
            carries,
            to_stage,
            micro_batch: action.micro_batch,
            bytes,
            then_down: None,
        };
        let (up, down) = (
            self.state.model.link(device).is_some(),
            self.state.model.link(to).is_some(),
        );
        match (up, down) {
            _ if device == to || bytes == 0 => self.arrive(message),
            (true, _) => self.send_on(
                device,
                Way::Up,
                Message {
                    then_down: down.then_some(to),
                    ..message
                },
            ),
            (false, true) => self.send_on(to, Way::Down, message),
            (false, false) => self.arrive(message),
        }
    }

    fn send_on(&mut self, device: usize, way: Way, message: Message) {
        let link = link_index(device, way);
        if let Some(state) = self.links.get_mut(link) {
            state.queue.push_back(message);
        }
        self.pump(link);
    }

    /// Starts the next transfer of a link that is free.
    fn pump(&mut self, link: usize) {
        let device = link / 2;
        let way = if link.is_multiple_of(2) {
            Way::Up
        } else {
            Way::Down
        };
        let Some(cost) = self.state.model.link(device) else {
            return;
        };
        let direction = match way {
            Way::Up => cost.up,
            Way::Down => cost.down,
        };
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        if state.busy {
            return;
        }
        let Some(message) = state.queue.pop_front() else {
            return;
        };
        state.busy = true;
        let seconds = message.bytes as f64 / direction.bytes_per_second;
        self.outcome.transfers.push(Transfer {
            device,
            way,
            carries: message.carries,
            to_stage: u16::try_from(message.to_stage).unwrap_or(u16::MAX),
            micro_batch: message.micro_batch,
            bytes: message.bytes,
            start_seconds: self.now,
            end_seconds: self.now + seconds,
        });
        self.after(seconds, Event::LinkFree { link });
        self.after(
            seconds + direction.latency_seconds,
            Event::Arrived { link, message },
        );
    }

    /// Charges a transfer's compute time to the device of the link and to the device on the host's processor.
    fn steal(&mut self, device: usize, bytes: u64) {
        let bytes = bytes as f64;
        let on_device = self
            .state
            .model
            .link(device)
            .map_or(0.0, |link| link.device_seconds_per_byte);
        let host = self.state.model.host;
        for (device, seconds_per_byte) in [
            (Some(device), on_device),
            (host.device, host.seconds_per_byte),
        ] {
            if let Some(stolen) = device.and_then(|device| self.stolen_seconds.get_mut(device)) {
                *stolen += bytes * seconds_per_byte;
            }
        }
    }

    fn arrive(&mut self, message: Message) {
        if let Some(arrived) = self.state.arrived.get_mut(message.to_stage) {
            arrived[match message.carries {
                Carries::Input => 0,
                Carries::Activation => 1,
                Carries::Cotangent => 2,
            }] += 1;
        }
    }
}
