//! Nodes, the links between them, and the order of everything that happens.
//!
//! ```text
//!   sender                         link                             receiver
//!     | Send --(1)--> [busy until] --(2) bytes / bandwidth--> Sent
//!     |                            --(3) latency + jitter---> Bytes, in pieces
//! ```
//!
//! 1. A direction carries one frame after another.
//! 2. `Sent` comes when the last byte has left.
//! 3. Pieces never overtake each other on a link; those of different links do.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::Noise;

/// A node, by the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// A link, by the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A link to another node is up.
    Opened {
        /// Link.
        link: LinkId,
    },
    /// Bytes came, cut anywhere.
    Bytes {
        /// Link.
        link: LinkId,
        /// The next bytes.
        bytes: Bytes,
    },
    /// The last byte of a send with this token has left.
    Sent {
        /// Link.
        link: LinkId,
        /// From [`Effect::Send`].
        token: u64,
    },
    /// The link is gone.
    Closed {
        /// Link.
        link: LinkId,
    },
    /// The time of the last [`Effect::SetTimer`] has come.
    Timer,
    /// A job is done.
    Done {
        /// From [`Effect::Compute`].
        job: u64,
    },
}

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send bytes.
    Send {
        /// Link.
        link: LinkId,
        /// The bytes, in order.
        pieces: Vec<Bytes>,
        /// Comes back in [`Event::Sent`], where one is asked for.
        token: Option<u64>,
    },
    /// Close a link once what was sent before has left. Both ends hear [`Event::Closed`].
    Close {
        /// Link.
        link: LinkId,
    },
    /// Send [`Event::Timer`] at this time, instead of any time asked for before.
    SetTimer(Duration),
    /// Send [`Event::Done`] after this time; never without one.
    Compute {
        /// Comes back.
        job: u64,
        /// How long it takes; see [`crate::FakeDevice::takes`].
        takes: Option<Duration>,
    },
}

/// A state machine without I/O and clock.
pub trait Node {
    /// Takes what happened at `now` (since the start of the simulation) and says what to do.
    fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect>;
}

/// What a link is like, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProfile {
    /// From the last byte's leaving to its arrival.
    pub latency: Duration,
    /// At the most this much is added to the latency, at random.
    pub jitter: Duration,
    /// Bandwidth.
    pub bytes_per_second: f64,
    /// Pieces have up to this many bytes (of a long frame up to an eighth of it).
    pub piece_bytes: u64,
}

impl LinkProfile {
    /// A cable like USB 2 to a phone: 1 ms, 32 MB/s.
    pub const USB: Self = Self {
        latency: Duration::from_millis(1),
        jitter: Duration::from_micros(200),
        bytes_per_second: 32e6,
        piece_bytes: 4096,
    };

    /// A busy wireless network: 5 ms and up to 50 more, 5 MB/s.
    pub const WIRELESS: Self = Self {
        latency: Duration::from_millis(5),
        jitter: Duration::from_millis(50),
        bytes_per_second: 5e6,
        piece_bytes: 1500,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not up yet.
    Waiting,
    Open,
    /// Takes bytes and loses them, without a word.
    Silent,
    Closed,
}

#[derive(Debug)]
struct Link {
    ends: [NodeId; 2],
    profile: LinkProfile,
    state: State,
    /// By sending end.
    lanes: [Lane; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    busy_until: Duration,
    last_arrival: Duration,
    /// The sender has closed: nothing more goes this way.
    closed: bool,
}

#[derive(Debug)]
enum Happening {
    Open(LinkId),
    Deliver(NodeId, Event),
    Timer(NodeId, u64),
    /// Both ends lose the link now; what is on its way is lost.
    Cut(LinkId),
    Silence(LinkId),
    Kill(NodeId),
}

struct Slot<N> {
    node: N,
    alive: bool,
    /// Counts `SetTimer`s: an older timer does not fire.
    timer: u64,
}

/// Nodes and links on virtual time.
pub struct Network<N> {
    now: Duration,
    noise: Noise,
    slots: Vec<Slot<N>>,
    links: Vec<Link>,
    /// What is to happen, by time, then by the order of scheduling.
    queue: BTreeMap<(Duration, u64), Happening>,
    scheduled: u64,
    fingerprint: DefaultHasher,
}

impl<N: Node> Network<N> {
    /// A network without nodes at time zero.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::ZERO,
            noise: Noise::new(seed),
            slots: Vec::new(),
            links: Vec::new(),
            queue: BTreeMap::new(),
            scheduled: 0,
            fingerprint: DefaultHasher::new(),
        }
    }

    /// Adds a node.
    pub fn add(&mut self, node: N) -> NodeId {
        self.slots.push(Slot {
            node,
            alive: true,
            timer: 0,
        });
        NodeId(self.slots.len() - 1)
    }

    /// Links two nodes; both hear [`Event::Opened`] at this time, the first one first.
    pub fn link(&mut self, a: NodeId, b: NodeId, profile: LinkProfile, at: Duration) -> LinkId {
        self.links.push(Link {
            ends: [a, b],
            profile,
            state: State::Waiting,
            lanes: [Lane::default(); 2],
        });
        let link = LinkId(self.links.len() - 1);
        self.schedule(at, Happening::Open(link));
        link
    }

    /// The cable is pulled at this time: both ends hear [`Event::Closed`], what is on its way is lost.
    pub fn cut(&mut self, link: LinkId, at: Duration) {
        self.schedule(at, Happening::Cut(link));
    }

    /// From this time on everything sent on the link is lost and nobody is told: power loss, a dead radio.
    pub fn silence(&mut self, link: LinkId, at: Duration) {
        self.schedule(at, Happening::Silence(link));
    }

    /// The node's process is killed at this time: it handles nothing more, and the other ends of its links hear
    /// [`Event::Closed`].
    pub fn kill(&mut self, node: NodeId, at: Duration) {
        self.schedule(at, Happening::Kill(node));
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// A node, by its id.
    pub fn node(&self, node: NodeId) -> Option<&N> {
        self.slots.get(node.0).map(|slot| &slot.node)
    }

    /// Lets the test's application act on a node, now.
    pub fn act(&mut self, node: NodeId, action: impl FnOnce(&mut N, Duration) -> Vec<Effect>) {
        let now = self.now;
        if let Some(slot) = self.slots.get_mut(node.0)
            && slot.alive
        {
            let effects = action(&mut slot.node, now);
            self.carry_out(node, effects);
        }
    }

    /// Lets the next thing happen; `false` when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let Some(((at, _), happening)) = self.queue.pop_first() else {
            return false;
        };
        self.now = at;
        self.happen(happening);
        true
    }

    /// Goes on until `done` says so, and tells whether it did before the time was over or nothing was left to happen.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            match self.queue.first_key_value() {
                Some(((at, _), _)) if *at <= limit => self.step(),
                _ => return false,
            };
        }
    }

    /// A hash of everything that nodes heard, and when: two runs with one seed have the same.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.finish()
    }

    fn schedule(&mut self, at: Duration, happening: Happening) {
        self.scheduled += 1;
        self.queue
            .insert((at.max(self.now), self.scheduled), happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Open(link) => {
                let Some(ends) = self.links.get_mut(link.0).map(|known| {
                    known.state = State::Open;
                    known.ends
                }) else {
                    return;
                };
                for end in ends {
                    self.hear(end, Event::Opened { link });
                }
            }
            Happening::Deliver(node, event) => {
                let lost = match &event {
                    Event::Bytes { link, .. } | Event::Sent { link, .. } => self
                        .links
                        .get(link.0)
                        .is_none_or(|link| link.state != State::Open),
                    Event::Closed { link } => self
                        .links
                        .get(link.0)
                        .is_none_or(|link| matches!(link.state, State::Closed | State::Silent)),
                    Event::Opened { .. } | Event::Timer | Event::Done { .. } => false,
                };
                if !lost {
                    self.hear(node, event);
                }
            }
            Happening::Timer(node, timer) => {
                if self
                    .slots
                    .get(node.0)
                    .is_some_and(|slot| slot.timer == timer)
                {
                    self.hear(node, Event::Timer);
                }
            }
            Happening::Cut(link) => self.close_both(link),
            Happening::Silence(link) => {
                if let Some(link) = self.links.get_mut(link.0)
                    && link.state == State::Open
                {
                    link.state = State::Silent;
                }
            }
            Happening::Kill(node) => {
                if let Some(slot) = self.slots.get_mut(node.0) {
                    slot.alive = false;
                }
                let links: Vec<LinkId> = self
                    .links
                    .iter()
                    .enumerate()
                    .filter(|(_, link)| link.ends.contains(&node))
                    .map(|(index, _)| LinkId(index))
                    .collect();
                for link in links {
                    self.close_both(link);
                }
            }
        }
    }

    fn close_both(&mut self, link: LinkId) {
        let Some(known) = self.links.get_mut(link.0) else {
            return;
        };
        if known.state != State::Open {
            return;
        }
        known.state = State::Closed;
        for end in known.ends {
            self.hear(end, Event::Closed { link });
        }
    }

    fn hear(&mut self, node: NodeId, event: Event) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(node.0).filter(|slot| slot.alive) else {
            return;
        };
        (now, node, &event).hash(&mut self.fingerprint);
        let effects = slot.node.handle(now, event);
        self.carry_out(node, effects);
    }

    fn carry_out(&mut self, node: NodeId, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send {
                    link,
                    pieces,
                    token,
                } => self.send(node, link, pieces, token),
                Effect::Close { link } => self.close(node, link),
                Effect::SetTimer(at) => {
                    if let Some(slot) = self.slots.get_mut(node.0) {
                        slot.timer += 1;
                        let timer = slot.timer;
                        self.schedule(at, Happening::Timer(node, timer));
                    }
                }
                Effect::Compute { job, takes } => {
                    if let Some(takes) = takes {
                        let at = self.now.saturating_add(takes);
                        self.schedule(at, Happening::Deliver(node, Event::Done { job }));
                    }
                }
            }
        }
    }

    fn send(&mut self, node: NodeId, id: LinkId, pieces: Vec<Bytes>, token: Option<u64>) {
        let now = self.now;
        let Some(link) = self.links.get_mut(id.0) else {
            return;
        };
        let (lane, peer) = match link.ends {
            [a, b] if a == node => (&mut link.lanes[0], b),
            [a, b] if b == node => (&mut link.lanes[1], a),
            _ => return,
        };
        if link.state != State::Open || lane.closed {
            return;
        }
        let mut bytes = BytesMut::new();
        for piece in &pieces {
            bytes.extend_from_slice(piece);
        }
        let mut rest = bytes.freeze();
        let profile = link.profile;
        let largest = profile.piece_bytes.max(rest.len() as u64 / 8).max(1);
        let mut leaves = lane.busy_until.max(now);
        let mut arrivals = Vec::new();
        while !rest.is_empty() {
            let length = usize::try_from(1 + self.noise.below(largest)).unwrap_or(usize::MAX);
            let piece = rest.split_to(length.min(rest.len()));
            let seconds = piece.len() as f64 / profile.bytes_per_second;
            leaves = leaves
                .saturating_add(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
            let travels = profile.latency + self.noise.duration(profile.jitter);
            let arrives = leaves.saturating_add(travels).max(lane.last_arrival);
            lane.last_arrival = arrives;
            arrivals.push((arrives, piece));
        }
        lane.busy_until = leaves;
        for (arrives, bytes) in arrivals {
            let event = Event::Bytes { link: id, bytes };
            self.schedule(arrives, Happening::Deliver(peer, event));
        }
        if let Some(token) = token {
            let event = Event::Sent { link: id, token };
            self.schedule(leaves, Happening::Deliver(node, event));
        }
    }

    fn close(&mut self, node: NodeId, id: LinkId) {
        let now = self.now;
        let Some(link) = self.links.get_mut(id.0) else {
            return;
        };
        let Some(lane) = link.ends.iter().position(|end| *end == node) else {
            return;
        };
        let Some(lane) = link.lanes.get_mut(lane) else {
            return;
        };
        if lane.closed {
            return;
        }
        lane.closed = true;
        // The other end hears everything that was sent, then the end of it; then the link is gone for both.
        let gone = lane
            .last_arrival
            .max(now)
            .saturating_add(link.profile.latency);
        self.schedule(gone, Happening::Cut(id));
    }
}
