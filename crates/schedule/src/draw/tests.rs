//! The pictures that the papers draw, as the expected values.

use super::*;
use crate::{CostModel, Direction, Limits, LinkCost, Placement, ScheduleKind, generate, simulate};

/// Three columns a second (four with several stages a device), without names and footer.
fn picture(
    kind: ScheduleKind,
    devices: usize,
    per_device: usize,
    micro_batches: u16,
    seconds: [f64; 3],
) -> String {
    let placement = Placement::interleaved(devices, per_device).unwrap();
    let model = CostModel::uniform(placement.stages(), seconds);
    let schedule = generate(kind, &placement, micro_batches, &model, &Limits::none()).unwrap();
    let timeline = simulate(&schedule, &model).unwrap();
    let canvas = Canvas {
        columns: (if per_device > 1 { 4 } else { 3 }) * timeline.step_seconds as usize,
        seconds: timeline.step_seconds,
    };
    let row = |spans: &Vec<Span>| {
        canvas
            .device_row(spans, None)
            .iter()
            .map(|cell| cell.character)
            .collect::<String>()
    };
    timeline
        .devices
        .iter()
        .map(row)
        .collect::<Vec<_>>()
        .join("\n")
}

const EQUAL: [f64; 3] = [1.0; 3];

#[test]
fn gpipe() {
    assert_eq!(
        picture(ScheduleKind::GPipe, 3, 1, 3, EQUAL),
        "\
F0─F1─F2─············B0═W0┄B1═W1┄B2═W2┄
···F0─F1─F2─······B0═W0┄B1═W1┄B2═W2┄···
······F0─F1─F2─B0═W0┄B1═W1┄B2═W2┄······"
    );
}

#[test]
fn one_forward_one_backward() {
    // Backward as one, as the papers draw it.
    assert_eq!(
        picture(ScheduleKind::OneFOneB, 3, 1, 4, [1.0, 2.0, 0.0]),
        "\
F0─F1─F2─············B0════F3─B1════···B2════···B3════
···F0─F1─······B0════F2─B1════F3─B2════···B3════······
······F0─B0════F1─B1════F2─B2════F3─B3════············"
    );
}

#[test]
fn hybrid_moves_the_bubble() {
    assert_eq!(
        picture(ScheduleKind::Hybrid, 2, 1, 3, EQUAL),
        "\
F0─F1─F2─B0═W0┄···B1═W1┄···B2═W2┄
···F0─B0═W0┄F1─B1═W1┄F2─B2═W2┄···"
    );
    assert_eq!(
        picture(ScheduleKind::GPipe, 2, 1, 3, EQUAL),
        "\
F0─F1─F2─······B0═W0┄B1═W1┄B2═W2┄
···F0─F1─F2─B0═W0┄B1═W1┄B2═W2┄···"
    );
}

#[test]
fn zero_bubble() {
    assert_eq!(
        picture(ScheduleKind::ZbH1, 4, 1, 5, EQUAL),
        "\
F0─F1─F2─F3─·········B0═W0┄F4─B1═W1┄B2═W2┄B3═W3┄B4═W4┄
···F0─F1─F2─······B0═F3─B1═W0┄F4─B2═W1┄B3═W2┄B4═W3┄W4┄
······F0─F1─···B0═F2─B1═F3─B2═W0┄F4─B3═W1┄B4═W2┄W3┄W4┄
·········F0─B0═F1─B1═F2─B2═F3─B3═W0┄F4─B4═W1┄W2┄W3┄W4┄"
    );
}

#[test]
fn interleaved() {
    assert_eq!(
        picture(ScheduleKind::Interleaved, 2, 2, 2, EQUAL),
        "\
0F0─0F1─2F0─2F1─····2B0═2W0┄····2B1═2W1┄0B0═0W0┄0B1═0W1┄
····1F0─1F1─3F0─3B0═3W0┄3F1─3B1═3W1┄1B0═1W0┄1B1═1W1┄····"
    );
}

fn linked() -> Timeline {
    let mut model = CostModel::uniform(2, [3.0, 2.0, 2.0]);
    for stage in &mut model.stages {
        stage.optimizer_seconds = 2.0;
        stage.classes[0].activation_bytes = 2;
        stage.classes[0].cotangent_bytes = 1;
    }
    let way = Direction {
        latency_seconds: 1.0,
        bytes_per_second: 1.0,
    };
    model.links = vec![
        None,
        Some(LinkCost {
            up: way,
            down: way,
            device_seconds_per_byte: 0.0,
        }),
    ];
    let placement = Placement::one_stage_each(2).unwrap();
    let schedule = generate(
        ScheduleKind::OneFOneB,
        &placement,
        2,
        &model,
        &Limits::none(),
    )
    .unwrap();
    simulate(&schedule, &model).unwrap()
}

#[test]
fn a_whole_drawing() {
    let options = DrawOptions {
        width: 64,
        names: vec!["host".into(), "phone".into()],
        ..DrawOptions::default()
    };
    assert_eq!(
        draw(&linked(), &options),
        "\
host  │F0───F1────·············B0═W0┄┄·····B1══W1┄┄U~~····│  57%
phone │···········F0───B0══W0┄┄F1───B1══W1┄··········U~~··│  57%
  ↓   │·····a0--··a1--····································│
  ↑   │····················c0···········c1················│
      0                                            28.00 s
F─ forward  B═ input gradients  W┄ weight gradients  U~ optimizer  · idle
"
    );
}

/// Colours add escapes and change nothing else; no width makes a line longer than it.
#[test]
fn colours_and_widths() {
    let timeline = linked();
    let plain = DrawOptions {
        width: 0,
        ..DrawOptions::default()
    };
    for width in [0, 40, 41, 77, 400, usize::MAX] {
        let plain = draw(
            &timeline,
            &DrawOptions {
                width,
                ..plain.clone()
            },
        );
        let longest = plain.lines().take(5).map(|line| line.chars().count()).max();
        assert!(
            longest <= Some(width.clamp(40, 400)),
            "{width}: {longest:?}"
        );
        let coloured = draw(
            &timeline,
            &DrawOptions {
                width,
                colour: true,
                ..DrawOptions::default()
            },
        );
        let mut stripped = String::new();
        for part in coloured.split('\x1b') {
            stripped.push_str(if stripped.is_empty() && !coloured.starts_with('\x1b') {
                part
            } else {
                part.split_once('m').map_or(part, |(_, rest)| rest)
            });
        }
        assert_eq!(stripped, plain);
    }
}

/// Numbers beyond all measure still draw.
#[test]
fn absurd_times() {
    let mut timeline = linked();
    for seconds in [0.0, f64::INFINITY, f64::NAN, -1.0, 1e-300] {
        timeline.step_seconds = seconds;
        assert!(draw(&timeline, &DrawOptions::default()).lines().count() > 3);
    }
}
