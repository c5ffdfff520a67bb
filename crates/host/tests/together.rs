//! The real coordinator and real workers together, on virtual time: from every seed other links, other paces, other clocks,
//! another cut, and another moment of failure. `OUTBOARD_SEEDS` asks for more of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod models;
mod virtual_time;

use std::time::Duration;

use models::{by_hand, model, run_options};
use outboard_graph::Graph;
use outboard_graph::zoo::ZooOptions;
use outboard_host::{RunError, RunOptions, assign};
use outboard_schedule::{Limits, Schedule, ScheduleKind, validate};
use outboard_testkit::{Noise, tied};
use virtual_time::{Connected, Outcome, World, each_seed};

/// Within this time a device has ended its job and heard of whatever happened.
const SOON: Duration = Duration::from_secs(2);
/// Within this time a device counts a silent host as gone and has closed the link.
const LATER: Duration = Duration::from_secs(34);

/// The models, and what training each comes to on one device that is left in peace.
struct Models {
    all: Vec<(Graph, Outcome)>,
}

impl Models {
    fn new() -> Self {
        let graphs = [
            model("mlp", &ZooOptions::default()),
            tied(10).expect("a model"),
        ];
        let all = graphs.map(|graph| {
            let mut world = World::new(0, 1);
            let host = world.connect(&[0]);
            let options = run_options(&graph, by_hand(&graph, &[0], ScheduleKind::GPipe));
            let outcome = world.train(&host, &options).expect("nothing happens");
            assert!(outcome.losses.iter().all(|loss| loss.is_finite()));
            (graph, outcome)
        });
        Models { all: all.into() }
    }

    /// A model and what it must come to.
    fn pick(&self, seed: u64) -> (&Graph, &Outcome) {
        let (graph, outcome) = &self.all[(seed % self.all.len() as u64) as usize];
        (graph, outcome)
    }
}

/// A run on these devices of a host, by a schedule of this kind. Interleaved ones have two stages a device.
fn on(graph: &Graph, devices: &[usize], kind: ScheduleKind) -> RunOptions {
    let rounds = if kind == ScheduleKind::Interleaved {
        2
    } else {
        1
    };
    run_options(graph, by_hand(graph, &devices.repeat(rounds), kind))
}

/// The last batch of an epoch is smaller. An interleaved schedule of two micro-batches on three devices holds both of them in
/// the last stage at once, that of three never holds two there: such a run ended at its last batch.
#[test]
fn fewer_micro_batches_fit_the_memory_that_was_planned_for() {
    let graph = model("mlp", &ZooOptions::default());
    for kind in ScheduleKind::ALL {
        for devices in 1..=3 {
            let devices: Vec<usize> = (0..devices).collect();
            let options = on(&graph, &devices, kind);
            let planned = validate(&options.placement.schedule, &Limits::none()).unwrap();
            let (assignment, _) = assign(&options, devices.len()).unwrap();
            for micro_batches in 1..=3 {
                let fewer = assignment.schedule(micro_batches).unwrap();
                let schedule = Schedule {
                    micro_batches,
                    actions: fewer.actions.into_iter().map(|(_, list)| list).collect(),
                    ..options.placement.schedule.clone()
                };
                let needed = validate(&schedule, &Limits::none()).unwrap();
                let fits = needed.iter().zip(&planned).all(|(a, b)| a <= b);
                assert!(fits, "{kind} on {devices:?}: {needed:?} of {planned:?}");
            }
        }
    }
}

#[test]
fn training_comes_out_the_same_whatever_links_devices_cuts_and_schedules_do() {
    let models = Models::new();
    // Each model on one to three devices by each schedule.
    each_seed(36, |seed| {
        let (graph, expected) = models.pick(seed);
        let kind = ScheduleKind::ALL[(seed / 2 % 6) as usize];
        let devices: Vec<usize> = (0..1 + (seed / 12 % 3) as usize).collect();
        let mut world = World::new(seed, devices.len());
        let host = world.connect(&devices);
        let outcome = world.train(&host, &on(graph, &devices, kind));
        assert_eq!(outcome.as_ref(), Ok(expected), "{kind} on {devices:?}");
        assert!(world.frees(&devices, Duration::ZERO), "memory is held");
    });
}

/// What can happen to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Accident {
    /// Its process dies.
    Killed,
    /// Its cable is pulled.
    Cut,
    /// Nothing comes through any more, and nobody is told.
    Silenced,
}

/// A world at a moment during its run: the one of this seed, with the time that the run takes when nothing happens.
fn during(seed: u64, devices: &[usize], options: &RunOptions) -> (World, Connected, Duration) {
    let begin = || {
        let mut world = World::new(seed, devices.len());
        let host = world.connect(devices);
        (world, host)
    };
    let (mut world, host) = begin();
    let began = world.network.now();
    world.train(&host, options).expect("nothing happens");
    let takes = world.network.now() - began;
    let (world, host) = begin();
    let moment = began + Noise::new(seed ^ 0xacc1).duration(takes);
    (world, host, moment)
}

/// A run in whose middle something happens to a device; asserts all that has to follow. Gives the network's fingerprint.
fn lose_a_device(models: &Models, seed: u64) -> u64 {
    let mut noise = Noise::new(seed);
    let (graph, expected) = models.pick(seed);
    let accidents = [Accident::Killed, Accident::Cut, Accident::Silenced];
    let accident = accidents[(seed / 2 % 3) as usize];
    let devices: Vec<usize> = (0..1 + noise.below(3) as usize).collect();
    let victim = noise.below(devices.len() as u64) as usize;
    let kind = ScheduleKind::ALL[noise.below(6) as usize];
    let options = on(graph, &devices, kind);
    let (mut world, host, moment) = during(seed, &devices, &options);
    match accident {
        Accident::Killed => world.network.kill(world.devices[victim], moment),
        Accident::Cut => world.network.cut(host.links[victim], moment),
        Accident::Silenced => world.network.silence(host.links[victim], moment),
    }
    let what = format!("{accident:?} device {victim} of {devices:?}, {kind}");
    match world.train(&host, &options) {
        Err(RunError::DeviceLost { device, .. }) => {
            assert_eq!(device, format!("device {victim}"), "{what}");
            let told = world.reports(&host).last().expect("a report").0;
            let after = told.saturating_sub(moment);
            assert!(
                after <= Duration::from_secs(5),
                "{what}: told {after:?} after"
            );
        }
        // The run needed no more of it than had come by then.
        Ok(outcome) if accident != Accident::Killed => assert_eq!(&outcome, expected, "{what}"),
        other => panic!("{what}: {other:?}"),
    }
    let others: Vec<usize> = (devices.iter().copied())
        .filter(|device| *device != victim)
        .collect();
    assert!(world.frees(&others, SOON), "{what}: memory is held");
    // Those that are left take another run of the same host.
    if !others.is_empty() {
        let again = on(graph, &others, kind);
        let outcome = world.train(&host, &again);
        assert_eq!(outcome.as_ref(), Ok(expected), "{what}: on the others");
    }
    // The lost one frees everything by itself, and serves another host.
    if accident != Accident::Killed {
        let within = if accident == Accident::Cut {
            SOON
        } else {
            LATER
        };
        assert!(world.leaves(&[victim], within), "{what}: it does not leave");
        let other = world.connect(&[victim]);
        let outcome = world.train(&other, &on(graph, &[0], kind));
        assert_eq!(outcome.as_ref(), Ok(expected), "{what}: on itself");
    }
    world.network.fingerprint()
}

/// A run whose host dies in its middle; asserts all that has to follow. Gives the network's fingerprint.
fn lose_the_host(models: &Models, seed: u64) -> u64 {
    let mut noise = Noise::new(seed);
    let (graph, expected) = models.pick(seed);
    let devices: Vec<usize> = (0..1 + noise.below(3) as usize).collect();
    let kind = ScheduleKind::ALL[noise.below(6) as usize];
    let options = on(graph, &devices, kind);
    let (mut world, host, moment) = during(seed, &devices, &options);
    // Its process is killed, which closes its links, or its power fails, which nobody is told.
    let silently = seed / 2 % 2 == 1;
    if silently {
        for link in &host.links {
            world.network.silence(*link, moment);
        }
    }
    world.network.kill(host.node, moment);
    world.begin(&host, &options).expect("a run that fits");
    world.network.run_until(moment, |_| false);
    let within = if silently { LATER } else { SOON };
    assert!(
        world.leaves(&devices, within),
        "{kind} on {devices:?}: they hold on to the host"
    );
    // In another order, so that every device holds something else than before.
    let turned: Vec<usize> = devices.iter().rev().copied().collect();
    let next = world.connect(&turned);
    let outcome = world.train(&next, &options);
    assert_eq!(outcome.as_ref(), Ok(expected), "{kind} on {turned:?}");
    world.network.fingerprint()
}

#[test]
fn a_lost_device_is_named_in_time_and_all_others_train_again() {
    let models = Models::new();
    each_seed(90, |seed| {
        lose_a_device(&models, seed);
    });
}

#[test]
fn devices_that_lose_their_host_free_everything_and_serve_the_next() {
    let models = Models::new();
    each_seed(60, |seed| {
        lose_the_host(&models, seed);
    });
}

#[test]
fn everything_follows_from_the_seed() {
    let models = Models::new();
    let all = |seed| [lose_a_device, lose_the_host].map(|lose| lose(&models, seed));
    each_seed(6, |seed| {
        assert_eq!(all(seed), all(seed));
        assert_ne!(all(seed), all(seed + 6));
    });
}
