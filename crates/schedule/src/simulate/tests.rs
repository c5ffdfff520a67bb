use super::*;
use crate::{Direction, LinkCost, Placement, ScheduleKind, generate};

fn schedule(kind: ScheduleKind, stages: usize, micro_batches: u16) -> Schedule {
    let placement = Placement::one_stage_each(stages).unwrap();
    generate(
        kind,
        &placement,
        micro_batches,
        &CostModel::uniform(stages, [1.0; 3]),
        &Limits::none(),
    )
    .unwrap()
}

fn link(latency_seconds: f64, bytes_per_second: f64) -> Option<LinkCost> {
    let way = Direction {
        latency_seconds,
        bytes_per_second,
    };
    Some(LinkCost {
        up: way,
        down: way,
        device_seconds_per_byte: 0.0,
    })
}

fn traffic(model: &mut CostModel, activation_bytes: u64, cotangent_bytes: u64) {
    for stage in &mut model.stages {
        for class in &mut stage.classes {
            (class.activation_bytes, class.cotangent_bytes) = (activation_bytes, cotangent_bytes);
        }
    }
}

/// One micro-batch, host to phone and back: every second accounted for by hand.
///
/// ```text
/// host   F0 |0..1                              B0 |9.5..10.5  W0 |10.5..11.5
/// down      a0 |1..3 (4 bytes at 2 a second, then 0.5 latency)
/// phone                F0 |3.5..4.5  B0 |4.5..5.5  W0 |5.5..6.5
/// up                                 c0 |5.5..9 (7 bytes, then 0.5)
/// ```
#[test]
fn a_round_trip() {
    let mut model = CostModel::uniform(2, [1.0; 3]);
    traffic(&mut model, 4, 7);
    model.links = vec![None, link(0.5, 2.0)];
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 1), &model).unwrap();
    let starts = |device: usize| {
        timeline.devices[device]
            .iter()
            .map(|span| span.start_seconds)
            .collect::<Vec<_>>()
    };
    assert_eq!(starts(0), [0.0, 9.5, 10.5]);
    assert_eq!(starts(1), [3.5, 4.5, 5.5]);
    let transfers: Vec<(Way, Carries, f64, f64)> = timeline
        .transfers
        .iter()
        .map(|t| (t.way, t.carries, t.start_seconds, t.end_seconds))
        .collect();
    assert_eq!(
        transfers,
        [
            (Way::Down, Carries::Activation, 1.0, 3.0),
            (Way::Up, Carries::Cotangent, 5.5, 9.0)
        ]
    );
    assert_eq!(timeline.compute_seconds, 11.5);
    assert_eq!(timeline.link_seconds(1, Way::Up), 3.5);
    // The commit reaches the phone 0.5 later, and its word the host another 0.5 later.
    assert_eq!(timeline.step_seconds, 12.5);
    assert_eq!(timeline.busy_seconds(1), 3.0);
    assert_eq!(timeline.idle_seconds(1), 9.5);
}

/// Between two devices with links a tensor takes two hops, whole at the host before it goes on.
#[test]
fn relayed_traffic_takes_two_hops() {
    let mut model = CostModel::uniform(2, [1.0; 3]);
    traffic(&mut model, 4, 4);
    model.links = vec![link(0.25, 4.0), link(0.5, 2.0)];
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 1), &model).unwrap();
    // 1 compute, 1 + 0.25 up, 2 + 0.5 down.
    assert_eq!(timeline.devices[1][0].start_seconds, 4.75);
    // 4.75 + 2 compute, 2 + 0.5 up, 1 + 0.25 down.
    assert_eq!(timeline.devices[0][1].start_seconds, 10.5);
}

/// Transfers of one direction take turns; those of two directions do not disturb each other.
#[test]
fn a_slow_link_sets_the_pace() {
    let mut model = CostModel::uniform(2, [1.0, 0.5, 0.5]);
    traffic(&mut model, 10, 10);
    model.links = vec![None, link(0.0, 1.0)];
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 4), &model).unwrap();
    let downs: Vec<f64> = timeline
        .transfers
        .iter()
        .filter(|t| t.way == Way::Down)
        .map(|t| t.start_seconds)
        .collect();
    assert_eq!(downs, [1.0, 11.0, 21.0, 31.0]);
    let starts: Vec<f64> = timeline.devices[1]
        .iter()
        .take(4)
        .map(|span| span.start_seconds)
        .collect();
    assert_eq!(starts, [11.0, 21.0, 31.0, 41.0]);
}

/// The host's relay work and a device's own copying slow what computes on the same core.
#[test]
fn traffic_takes_compute_time() {
    let mut model = CostModel::uniform(2, [1.0; 3]);
    traffic(&mut model, 10, 10);
    let mut slow = link(0.0, 10.0);
    if let Some(link) = &mut slow {
        link.device_seconds_per_byte = 0.01;
    }
    model.links = vec![None, slow];
    model.host.device = Some(0);
    model.host.seconds_per_byte = 0.02;
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 2), &model).unwrap();
    // The host pays for two activations and two cotangents of ten bytes each. The phone does not for the last cotangent:
    // nothing is left to run when it has gone.
    assert!((timeline.busy_seconds(0) - (6.0 + 4.0 * 10.0 * 0.02)).abs() < 1e-12);
    assert!((timeline.busy_seconds(1) - (6.0 + 3.0 * 10.0 * 0.01)).abs() < 1e-12);
}

/// Data inputs travel when the step begins; the optimizer runs when all have reported.
#[test]
fn inputs_and_optimizer() {
    let mut model = CostModel::uniform(2, [1.0; 3]);
    model.stages[1].classes[0].input_bytes = 6;
    model.stages[0].optimizer_seconds = 5.0;
    model.stages[1].optimizer_seconds = 2.0;
    model.host.commit_seconds = 0.25;
    model.links = vec![None, link(0.5, 2.0)];
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 1), &model).unwrap();
    assert_eq!(timeline.devices[1][0].start_seconds, 3.5);
    assert_eq!(timeline.compute_seconds, 7.5);
    assert_eq!(timeline.updates, [(7.75, 12.75), (8.25, 10.25)]);
    assert_eq!(timeline.step_seconds, 12.75);
}

/// The last micro-batches of an uneven batch are smaller and cost less.
#[test]
fn size_classes() {
    let mut model = CostModel::uniform(1, [2.0; 3]);
    let small = crate::MicroBatchCost {
        seconds: [1.0; 3],
        ..model.stages[0].classes[0]
    };
    model.stages[0].classes.push(small);
    model.class_of_micro_batch = vec![0, 0, 1];
    let timeline = simulate(&schedule(ScheduleKind::OneFOneB, 1, 3), &model).unwrap();
    assert_eq!(timeline.step_seconds, 15.0);
}

#[test]
fn inference_needs_no_commit() {
    let mut model = CostModel::uniform(3, [1.0; 3]);
    model.host.commit_seconds = 100.0;
    let forward = schedule(ScheduleKind::OneFOneB, 3, 4).forward_only();
    let timeline = simulate(&forward, &model).unwrap();
    assert_eq!(timeline.step_seconds, 6.0);
    assert!(timeline.updates.is_empty() && timeline.peak_in_flight.is_empty());
}

#[test]
fn impossible_costs_are_refused() {
    let good = schedule(ScheduleKind::GPipe, 2, 2);
    let refused = |edit: fn(&mut CostModel)| {
        let mut model = CostModel::uniform(2, [1.0; 3]);
        model.links = vec![None, link(0.5, 2.0)];
        assert!(simulate(&good, &model).is_ok());
        edit(&mut model);
        simulate(&good, &model).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|model| model.stages.truncate(1)),
        "the costs are for 1 stages, the schedule has 2"
    );
    assert_eq!(
        refused(|model| model.stages[1].classes.clear()),
        "stage 1 has no cost for micro-batches of size class 0"
    );
    assert_eq!(
        refused(|model| model.class_of_micro_batch = vec![0]),
        "size classes are given for 1 micro-batches of 2"
    );
    assert_eq!(
        refused(|model| model.stages[1].classes[0].seconds[2] = -1.0),
        "the cost of W on stage 1 is -1; costs are finite and not negative, bandwidths positive"
    );
    assert!(
        refused(|model| model.links[1] = link(0.0, 0.0))
            .starts_with("the bandwidth up of device 1 is 0")
    );
    assert!(
        refused(|model| model.links[1] = link(f64::NAN, 1.0))
            .starts_with("the latency up of device 1 is NaN")
    );
    assert!(
        refused(|model| model.host.commit_seconds = f64::INFINITY)
            .starts_with("the cost of a commit is inf")
    );
}

/// Costs near the end of the numbers overflow to infinity without a panic.
#[test]
fn huge_costs() {
    let model = CostModel::uniform(2, [f64::MAX; 3]);
    let timeline = simulate(&schedule(ScheduleKind::GPipe, 2, 3), &model).unwrap();
    assert_eq!(timeline.step_seconds, f64::INFINITY);
}
