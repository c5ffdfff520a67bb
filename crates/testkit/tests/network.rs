//! The network keeps its own rules: order, bandwidth, faults, and the same story for the same seed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use outboard_testkit::{Effect, Event, FakeDevice, LinkId, LinkProfile, Network, Node, NodeId};
use outboard_wire::{ControlMessage, Frame, HostMessage, PROTOCOL, WorkerDecoder};

const MILLI: Duration = Duration::from_millis(1);

/// Writes down what it hears; a job follows on the first bytes of each link.
#[derive(Default)]
struct Recorder {
    bytes: BTreeMap<LinkId, Vec<u8>>,
    heard: Vec<(Duration, Event)>,
    device: Option<FakeDevice>,
}

impl Node for Recorder {
    fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Event::Bytes { link, bytes } = &event {
            let known = self.bytes.entry(*link).or_default();
            if known.is_empty()
                && let Some(device) = &mut self.device
            {
                let takes = device.takes(now, "job");
                effects.push(Effect::Compute { job: 7, takes });
            }
            known.extend_from_slice(bytes);
        }
        self.heard.push((now, event));
        effects
    }
}

fn pair(seed: u64, profile: LinkProfile) -> (Network<Recorder>, NodeId, NodeId, LinkId) {
    let mut network = Network::new(seed);
    let a = network.add(Recorder::default());
    let b = network.add(Recorder::default());
    let link = network.link(a, b, profile, Duration::ZERO);
    assert!(network.run_until(MILLI, |network| network.node(b).unwrap().heard.len() == 1));
    (network, a, b, link)
}

fn send(network: &mut Network<Recorder>, from: NodeId, link: LinkId, bytes: Vec<u8>) {
    network.act(from, |_, _| {
        vec![Effect::Send {
            link,
            pieces: vec![Bytes::from(bytes)],
            token: Some(1),
        }]
    });
}

fn finish(network: &mut Network<Recorder>) {
    while network.step() {}
}

#[test]
fn bytes_keep_their_order_and_take_their_time() {
    let profile = LinkProfile {
        latency: 10 * MILLI,
        jitter: Duration::ZERO,
        bytes_per_second: 1e6,
        piece_bytes: 100,
    };
    let (mut network, a, b, link) = pair(1, profile);
    let message: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
    let (first, second) = message.split_at(5000);
    send(&mut network, a, link, first.to_vec());
    send(&mut network, a, link, second.to_vec());
    finish(&mut network);
    assert_eq!(network.node(b).unwrap().bytes[&link], message);
    // (2) 5,000 bytes at 1 MB/s have left after 5 ms, all of them after 20; (3) the last arrives 10 ms later.
    let sent: Vec<u128> = network.node(a).unwrap().heard[1..]
        .iter()
        .map(|(at, _)| at.as_millis())
        .collect();
    assert_eq!(sent, [5, 20]);
    assert_eq!(network.now().as_millis(), 30);
}

#[test]
fn frames_survive_any_cut_of_the_stream() {
    for seed in 0..20 {
        let (mut network, a, b, link) = pair(seed, LinkProfile::WIRELESS);
        let messages: Vec<HostMessage> = std::iter::once(HostMessage::Hello {
            protocol: PROTOCOL,
            build: "1".into(),
            name: "a".into(),
        })
        .chain((0..30).map(|nonce| HostMessage::Ping { nonce }))
        .collect();
        for message in &messages {
            send(&mut network, a, link, message.encode().unwrap().to_vec());
        }
        finish(&mut network);
        let mut decoder = WorkerDecoder::new();
        let mut decoded = Vec::new();
        for (_, event) in &network.node(b).unwrap().heard {
            if let Event::Bytes { bytes, .. } = event {
                decoder.push(bytes.clone());
                while let Some(frame) = decoder.poll().unwrap() {
                    decoded.push(frame);
                }
            }
        }
        let expected: Vec<_> = messages.into_iter().map(Frame::Control).collect();
        assert_eq!(decoded, expected);
    }
}

#[test]
fn links_overtake_each_other_from_seeds() {
    let order = |seed| {
        let mut network = Network::new(seed);
        let hub = network.add(Recorder::default());
        let spokes: Vec<_> = (0..4).map(|_| network.add(Recorder::default())).collect();
        let links: Vec<_> = spokes
            .iter()
            .map(|spoke| network.link(*spoke, hub, LinkProfile::WIRELESS, Duration::ZERO))
            .collect();
        network.run_until(MILLI, |_| false);
        for (spoke, link) in spokes.iter().zip(&links) {
            send(&mut network, *spoke, *link, vec![1]);
        }
        finish(&mut network);
        let arrivals: Vec<LinkId> = network
            .node(hub)
            .unwrap()
            .heard
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Bytes { link, .. } => Some(*link),
                _ => None,
            })
            .collect();
        (arrivals, network.fingerprint())
    };
    assert_eq!(order(5), order(5));
    let orders: std::collections::BTreeSet<_> = (0..20).map(|seed| order(seed).0).collect();
    assert!(orders.len() > 5, "only {} orders in 20 seeds", orders.len());
}

fn last(network: &Network<Recorder>, node: NodeId) -> &Event {
    &network.node(node).unwrap().heard.last().unwrap().1
}

#[test]
fn a_closed_link_brings_what_was_sent_then_its_end() {
    let (mut network, a, b, link) = pair(2, LinkProfile::USB);
    send(&mut network, a, link, vec![9; 10_000]);
    network.act(a, |_, _| vec![Effect::Close { link }]);
    // Nothing can be said after that.
    send(&mut network, a, link, vec![8]);
    finish(&mut network);
    assert_eq!(network.node(b).unwrap().bytes[&link], [9; 10_000]);
    assert_eq!(*last(&network, a), Event::Closed { link });
    assert_eq!(*last(&network, b), Event::Closed { link });
}

#[test]
fn a_cut_loses_what_is_on_its_way_and_tells_both() {
    let (mut network, a, b, link) = pair(3, LinkProfile::USB);
    send(&mut network, a, link, vec![9; 32_000_000]);
    network.cut(link, 500 * MILLI);
    finish(&mut network);
    let arrived = network.node(b).unwrap().bytes[&link].len();
    assert!((8_000_000..16_100_000).contains(&arrived), "{arrived}");
    assert_eq!(*last(&network, a), Event::Closed { link });
    assert_eq!(*last(&network, b), Event::Closed { link });
}

#[test]
fn silence_tells_nobody() {
    let (mut network, a, b, link) = pair(4, LinkProfile::USB);
    network.silence(link, 2 * MILLI);
    network.run_until(2 * MILLI, |_| false);
    send(&mut network, a, link, vec![9; 10]);
    finish(&mut network);
    assert_eq!(*last(&network, a), Event::Opened { link });
    assert_eq!(*last(&network, b), Event::Opened { link });
}

#[test]
fn the_dead_hear_nothing_and_are_missed() {
    let (mut network, a, b, link) = pair(5, LinkProfile::USB);
    network.kill(b, 5 * MILLI);
    network.run_until(5 * MILLI, |_| false);
    send(&mut network, a, link, vec![9; 10]);
    finish(&mut network);
    assert_eq!(*last(&network, a), Event::Closed { link });
    assert_eq!(*last(&network, b), Event::Opened { link });
}

#[test]
fn timers_replace_each_other_and_dead_jobs_never_end() {
    let (mut network, a, b, link) = pair(6, LinkProfile::USB);
    network.act(a, |_, _| {
        vec![
            Effect::SetTimer(3 * MILLI),
            Effect::SetTimer(9 * MILLI),
            Effect::Compute {
                job: 1,
                takes: Some(4 * MILLI),
            },
        ]
    });
    network.act(b, |node, now| {
        node.device = Some(FakeDevice::new(0, MILLI).dead_from(now));
        Vec::new()
    });
    send(&mut network, a, link, vec![1]);
    finish(&mut network);
    let heard: Vec<_> = network.node(a).unwrap().heard[2..]
        .iter()
        .map(|(at, event)| (at.as_millis(), event.clone()))
        .collect();
    assert_eq!(heard, [(4, Event::Done { job: 1 }), (9, Event::Timer)]);
    assert!(matches!(last(&network, b), Event::Bytes { .. }));
}
