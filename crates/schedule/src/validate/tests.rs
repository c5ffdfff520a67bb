use super::*;

/// A sound schedule of two stages and two micro-batches, edited.
fn edited(edits: &[(&str, &str)]) -> Schedule {
    let mut text = "schedule test
micro-batches 2
stages on devices 0 1
0: 0F0 0F1 0B0 0W0 0B1 0W1
1: 1F0 1B0 1W0 1F1 1B1 1W1
"
    .to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text.parse().unwrap()
}

fn refusal(edits: &[(&str, &str)]) -> String {
    validate(&edited(edits), &Limits::none())
        .unwrap_err()
        .to_string()
}

#[test]
fn a_sound_schedule() {
    assert_eq!(validate(&edited(&[]), &Limits::none()), Ok(vec![2, 1]));
    let inference = edited(&[]).forward_only();
    assert_eq!(inference.validate_forward_only(), Ok(()));
    assert!(matches!(
        validate(&inference, &Limits::none()),
        Err(ScheduleError::Missing { .. })
    ));
    assert!(matches!(
        edited(&[]).validate_forward_only(),
        Err(ScheduleError::Gradient { .. })
    ));
}

#[test]
fn each_fault_is_named_with_its_place() {
    for (edits, says) in [
        (&[("0F1 ", "")][..], "device 0 runs 0B1 before 0F1"),
        (&[(" 0W1", "")], "device 0 never runs 0W1"),
        (&[("0F0 0F1", "0F1 0F0")], "device 0 runs 0F1 before 0F0"),
        (
            &[("0B0 0W0 0B1", "0B1 0W0 0B0")],
            "device 0 runs 0B1 before 0B0",
        ),
        (
            &[("0B0 0W0 0B1 0W1", "0B0 0B1 0W1 0W0")],
            "device 0 runs 0W1 before 0W0",
        ),
        (&[("0B0 0W0", "0W0 0B0")], "device 0 runs 0W0 before 0B0"),
        (&[("1F0 1B0", "1B0 1F0")], "device 1 runs 1B0 before 1F0"),
        (&[("0B0", "0B0 0B0")], "device 0 runs 0B0 twice"),
        (
            &[("0B0", "1B0")],
            "device 0 runs 1B0, but device 1 holds stage 1",
        ),
        (
            &[("0B0", "2B0")],
            "device 0 runs 2B0, but there are 2 stages and 2 micro-batches",
        ),
        (
            &[("0B0", "0B2")],
            "device 0 runs 0B2, but there are 2 stages and 2 micro-batches",
        ),
        (
            &[("devices 0 1", "devices 0 2")],
            "schedule test: a stage is on device 2, but there are lists for 2 devices",
        ),
        (
            &[("micro-batches 2", "micro-batches 0")],
            "schedule test: 0 micro-batches; it takes 1 to 16384",
        ),
        (
            &[("micro-batches 2", "micro-batches 3")],
            "device 0 never runs 0F2",
        ),
    ] {
        let error = refusal(edits);
        assert_eq!(error.lines().next(), Some(says));
    }
}

#[test]
fn the_grid_marks_the_failing_cell() {
    assert_eq!(
        refusal(&[("0B0 0W0 0B1", "0B1 0W0 0B0")]),
        "device 0 runs 0B1 before 0B0
  step   device 0 device 1
   0       0F0      1F0
   1       0F1      1B0
   2      >0B1<     1W0
   3       0W0      1F1
   4       0B0      1B1
   5       0W1      1W1"
    );
}

/// Device 0 wants micro-batch 0 back before it sends micro-batch 1; device 1 wants both before it gives any back.
#[test]
fn a_deadlock_is_drawn() {
    assert_eq!(
        refusal(&[
            ("0F0 0F1 0B0 0W0 0B1 0W1", "0F0 0B0 0W0 0F1 0B1 0W1"),
            ("1F0 1B0 1W0 1F1 1B1 1W1", "1F0 1F1 1B0 1W0 1B1 1W1"),
        ]),
        "deadlock: device 0 waits with 0B0 for 1B0, device 1 waits with 1F1 for 0F1
  step   device 0 device 1
   0       0F0       .
   1        .       1F0
 waits    >0B0<    >1F1<"
    );
}

#[test]
fn limits_count_what_is_in_flight() {
    let limit = |in_flight: &[u16]| Limits {
        in_flight: in_flight.to_vec(),
        saved_bytes: Vec::new(),
    };
    assert_eq!(validate(&edited(&[]), &limit(&[2, 1])), Ok(vec![2, 1]));
    let error = validate(&edited(&[]), &limit(&[1, 1]))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error.lines().next(),
        Some("at 0F1, stage 0 holds 2 micro-batches in flight, its limit is 1")
    );
}

#[test]
fn hostile_sizes_are_refused_quickly() {
    let base = edited(&[]);
    for schedule in [
        Schedule {
            device_of_stage: Vec::new(),
            ..base.clone()
        },
        Schedule {
            device_of_stage: vec![0; MAX_STAGES + 1],
            ..base.clone()
        },
        Schedule {
            device_of_stage: vec![usize::MAX, 0],
            ..base.clone()
        },
        Schedule {
            device_of_stage: vec![0; MAX_STAGES],
            micro_batches: 16_000,
            ..base.clone()
        },
        Schedule {
            micro_batches: u16::MAX,
            ..base.clone()
        },
        Schedule {
            actions: vec![Vec::new(); MAX_STAGES + 1],
            ..base.clone()
        },
        Schedule {
            actions: Vec::new(),
            ..base.clone()
        },
    ] {
        assert!(matches!(
            validate(&schedule, &Limits::none()),
            Err(ScheduleError::Size { .. })
        ));
    }
    // A thousand devices that all wait: the report stays short.
    let stages = 1000;
    let actions = (0..1000).map(|stage| {
        vec![
            Action::forward(stage, 0),
            Action::backward(stage, 0),
            Action::weight(stage, 0),
        ]
    });
    let mut actions: Vec<Vec<Action>> = actions.collect();
    actions[0].clear();
    actions[0].extend([
        Action::forward(0, 0),
        Action::backward(0, 0),
        Action::weight(0, 0),
    ]);
    let line = Schedule {
        name: "line".into(),
        micro_batches: 1,
        device_of_stage: (0..stages).collect(),
        actions,
    };
    assert!(validate(&line, &Limits::none()).is_ok());
    let mut stuck = line.clone();
    stuck.device_of_stage[999] = 0;
    let moved = std::mem::take(&mut stuck.actions[999]);
    // Device 0 runs the last stage first, which needs its own first stage.
    stuck.actions[0].splice(0..0, moved);
    let error = validate(&stuck, &Limits::none()).unwrap_err();
    assert!(matches!(error, ScheduleError::Deadlock { .. }));
    assert!(
        error.to_string().len() < 2000,
        "{}",
        error.to_string().len()
    );
}
