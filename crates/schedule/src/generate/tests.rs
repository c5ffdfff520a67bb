use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::{Timeline, simulate};

const FIXED: [ScheduleKind; 4] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::Hybrid,
    ScheduleKind::ZbH1,
];

fn make(kind: ScheduleKind, devices: usize, per_device: usize, micro_batches: u16) -> Schedule {
    let placement = Placement::interleaved(devices, per_device).unwrap();
    let model = CostModel::uniform(placement.stages(), [1.0; 3]);
    generate(kind, &placement, micro_batches, &model, &Limits::none()).unwrap()
}

fn run(schedule: &Schedule, seconds: [f64; 3]) -> Timeline {
    simulate(schedule, &CostModel::uniform(schedule.stages(), seconds)).unwrap()
}

/// What each generator makes for two stages and three micro-batches, whole.
#[test]
fn lists_of_two_stages() {
    let lists = |kind| {
        make(kind, 2, 1, 3)
            .to_string()
            .lines()
            .skip(3)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        lists(ScheduleKind::GPipe),
        "0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2\n\
         1: 1F0 1F1 1F2 1B0 1W0 1B1 1W1 1B2 1W2"
    );
    assert_eq!(
        lists(ScheduleKind::OneFOneB),
        "0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2\n\
         1: 1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2"
    );
    assert_eq!(
        lists(ScheduleKind::Hybrid),
        "0: 0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2\n\
         1: 1F0 1B0 1W0 1F1 1B1 1W1 1F2 1B2 1W2"
    );
    assert_eq!(
        lists(ScheduleKind::ZbH1),
        "0: 0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2\n\
         1: 1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2"
    );
}

#[test]
fn every_size_is_valid() {
    for stages in 1..=6 {
        for micro_batches in [1, 2, 3, 4, 5, 7, 12] {
            for kind in FIXED {
                let schedule = make(kind, stages, 1, micro_batches);
                assert_eq!(schedule.name, kind.name());
                assert_eq!(schedule.to_string().parse(), Ok(schedule));
            }
            for per_device in 1..=3 {
                make(ScheduleKind::Interleaved, stages, per_device, micro_batches);
                make(ScheduleKind::Auto, stages, per_device, micro_batches);
            }
        }
    }
}

/// Backward as one: the gradient of the input leaves at its end. The formulas of the literature mean this; where it leaves
/// after `B`, all steps are shorter.
const UNSPLIT: [f64; 3] = [1.0, 2.0, 0.0];

/// The bubble of GPipe and 1F1B is `(p - 1) / (m + p - 1)` of the step on every device.
#[test]
fn bubble_of_gpipe_and_1f1b() {
    for (stages, micro_batches) in [(1, 4), (2, 4), (3, 8), (4, 4), (4, 16), (8, 8)] {
        for kind in [ScheduleKind::GPipe, ScheduleKind::OneFOneB] {
            let timeline = run(&make(kind, stages, 1, micro_batches), UNSPLIT);
            let (p, m) = (stages as f64, f64::from(micro_batches));
            assert_eq!(
                timeline.step_seconds,
                3.0 * (m + p - 1.0),
                "{kind} {stages} {micro_batches}"
            );
            for device in 0..stages {
                assert_eq!(timeline.bubble(device), (p - 1.0) / (m + p - 1.0));
            }
        }
    }
}

/// The bubble of ZB-H1 is a third of 1F1B's seconds, for as many micro-batches as stages or more.
#[test]
fn bubble_of_zb_h1() {
    for (stages, micro_batches) in [(2, 2), (2, 4), (3, 8), (4, 4), (4, 16), (8, 8), (8, 20)] {
        let one = run(
            &make(ScheduleKind::OneFOneB, stages, 1, micro_batches),
            UNSPLIT,
        );
        let zero = run(
            &make(ScheduleKind::ZbH1, stages, 1, micro_batches),
            [1.0; 3],
        );
        for device in 0..stages {
            assert_eq!(zero.idle_seconds(device), stages as f64 - 1.0);
            assert_eq!(
                zero.idle_seconds(device) * 3.0,
                one.idle_seconds(device),
                "{stages} {micro_batches}"
            );
        }
        let most = |timeline: &Timeline| timeline.peak_in_flight.iter().copied().max();
        assert_eq!(most(&zero), most(&one));
    }
}

/// With `v` stages a device, each a `v`-th of the work, the bubble's seconds are a `v`-th of 1F1B's.
#[test]
fn bubble_of_interleaved() {
    for (devices, per_device, micro_batches) in [
        (2, 2, 2),
        (2, 2, 4),
        (4, 2, 8),
        (4, 4, 4),
        (3, 2, 9),
        (2, 4, 8),
    ] {
        let v = per_device as f64;
        let whole = run(
            &make(ScheduleKind::OneFOneB, devices, 1, micro_batches),
            [v, 2.0 * v, 0.0],
        );
        let parts = run(
            &make(
                ScheduleKind::Interleaved,
                devices,
                per_device,
                micro_batches,
            ),
            UNSPLIT,
        );
        for device in 0..devices {
            assert_eq!(
                parts.idle_seconds(device) * v,
                whole.idle_seconds(device),
                "{devices} devices x {per_device}, {micro_batches} micro-batches"
            );
        }
    }
}

/// At two stages the hybrid's step is as long as GPipe's, and its last stage holds one micro-batch.
#[test]
fn hybrid_equals_gpipe_at_two_stages() {
    for micro_batches in 1..=12 {
        for seconds in [[1.0, 1.0, 1.0], [1.0, 2.0, 0.0], [3.0, 4.0, 2.0]] {
            let hybrid = run(&make(ScheduleKind::Hybrid, 2, 1, micro_batches), seconds);
            let gpipe = run(&make(ScheduleKind::GPipe, 2, 1, micro_batches), seconds);
            assert_eq!(hybrid.step_seconds, gpipe.step_seconds);
            assert_eq!(hybrid.peak_in_flight, [micro_batches, 1]);
            assert_eq!(gpipe.peak_in_flight, [micro_batches, micro_batches]);
        }
    }
}

#[test]
fn memory_of_1f1b_falls_stage_by_stage() {
    let timeline = run(&make(ScheduleKind::OneFOneB, 4, 1, 8), [1.0; 3]);
    assert_eq!(timeline.peak_in_flight, [4, 3, 2, 1]);
    assert_eq!(timeline.peak_saved_bytes, [4, 3, 2, 1]);
}

#[test]
fn kinds_print_and_parse() {
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!(
        "zbv".parse::<ScheduleKind>().unwrap_err().to_string(),
        "\"zbv\" is no schedule; take gpipe, 1f1b, hybrid, zb-h1, interleaved or auto"
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let model = CostModel::uniform(4, [1.0; 3]);
    let four = Placement::interleaved(2, 2).unwrap();
    let error = generate(ScheduleKind::OneFOneB, &four, 4, &model, &Limits::none())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "1f1b needs one stage on each device; 4 stages are placed on 2 devices. Take another cut, or `auto`"
    );
    let blocks = Placement::new(vec![0, 0, 1, 1]).unwrap();
    assert!(
        generate(
            ScheduleKind::Interleaved,
            &blocks,
            4,
            &model,
            &Limits::none()
        )
        .is_err()
    );
    assert!(generate(ScheduleKind::Auto, &blocks, 4, &model, &Limits::none()).is_ok());
    assert_eq!(
        Placement::new(vec![0, 2]),
        Err(GenerateError::EmptyDevice { device: 1 })
    );
    assert_eq!(
        Placement::new(vec![0, usize::MAX]),
        Err(GenerateError::EmptyDevice { device: 1 })
    );
    for (devices, per_device) in [(0, 1), (1, 0), (1 << 40, 1 << 40), (MAX_STAGES, 2)] {
        assert!(matches!(
            Placement::interleaved(devices, per_device),
            Err(GenerateError::Stages { .. })
        ));
    }
    for micro_batches in [0, u16::MAX] {
        let error = generate(
            ScheduleKind::Auto,
            &four,
            micro_batches,
            &model,
            &Limits::none(),
        )
        .unwrap_err();
        assert!(
            matches!(error, GenerateError::MicroBatches { .. }),
            "{error}"
        );
    }
}

/// `auto` keeps within limits that refuse every fixed schedule, in micro-batches and in bytes.
#[test]
fn auto_within_limits() {
    let placement = Placement::one_stage_each(4).unwrap();
    let model = CostModel::uniform(4, [1.0; 3]);
    let make = |limits: &Limits| generate(ScheduleKind::Auto, &placement, 8, &model, limits);
    for most in 1..=3 {
        let tight = Limits {
            in_flight: vec![most; 4],
            saved_bytes: Vec::new(),
        };
        let schedule = make(&tight).unwrap();
        assert_eq!(schedule.name, "auto");
        assert!(
            validate(&schedule, &tight)
                .unwrap()
                .iter()
                .all(|peak| *peak <= most)
        );
        let bytes = Limits {
            in_flight: Vec::new(),
            saved_bytes: vec![most.into(); 4],
        };
        let schedule = make(&bytes).unwrap();
        assert!(
            simulate(&schedule, &model)
                .unwrap()
                .peak_saved_bytes
                .iter()
                .all(|peak| *peak <= most.into())
        );
    }
    let nothing = Limits {
        in_flight: Vec::new(),
        saved_bytes: vec![9, 9, 0, 9],
    };
    let error = make(&nothing).unwrap_err().to_string();
    assert_eq!(
        error,
        "1f1b saves up to 2 bytes for micro-batches in flight on device 2, its limit is 0"
    );
}

/// On uneven costs and slow links, list scheduling beats the fixed schedules; it never loses to one.
#[test]
fn auto_is_never_slower() {
    use crate::{Direction, LinkCost};
    let mut better = 0;
    for case in 0..40u32 {
        // A small, fixed sequence of uneven costs.
        let cost = |salt: u32| f64::from((case * 7 + salt * 13 + case * salt) % 9 + 1);
        let mut model = CostModel::uniform(3, [1.0; 3]);
        for (stage, costs) in (0u32..).zip(&mut model.stages) {
            costs.classes[0].seconds = [cost(stage), cost(stage + 3), cost(stage + 6)];
            costs.classes[0].activation_bytes = u64::from(case % 4);
            costs.classes[0].cotangent_bytes = u64::from(case % 4);
        }
        let way = Direction {
            latency_seconds: 0.5,
            bytes_per_second: 1.0,
        };
        let link = LinkCost {
            up: way,
            down: way,
            device_seconds_per_byte: 0.0,
        };
        model.links = vec![None, Some(link), Some(link)];
        let placement = Placement::one_stage_each(3).unwrap();
        let seconds = |kind| {
            let schedule = generate(kind, &placement, 6, &model, &Limits::none()).unwrap();
            simulate(&schedule, &model).unwrap().step_seconds
        };
        let fixed = FIXED.into_iter().map(seconds).fold(f64::INFINITY, f64::min);
        let auto = seconds(ScheduleKind::Auto);
        assert!(auto <= fixed, "case {case}: {auto} {fixed}");
        better += u32::from(auto < fixed);
    }
    assert!(
        better >= 10,
        "list scheduling was better in {better} of 40 cases"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the sizes and costs, what is generated is valid, prints and parses, and no shorter than the work of its
    /// busiest device; `auto` is not beaten by any other kind.
    #[test]
    fn generated_schedules_hold(
        devices in 1usize..9,
        per_device in 1usize..5,
        micro_batches in 1u16..25,
        seconds in prop::array::uniform3(0.0f64..4.0),
        uneven in prop::collection::vec(0.1f64..3.0, 32),
    ) {
        let placement = Placement::interleaved(devices, per_device).unwrap();
        let mut model = CostModel::uniform(placement.stages(), seconds);
        for (stage, factor) in model.stages.iter_mut().zip(&uneven) {
            stage.classes[0].seconds = seconds.map(|time| time * factor);
        }
        let mut shortest = f64::INFINITY;
        for kind in ScheduleKind::ALL {
            let schedule = match generate(kind, &placement, micro_batches, &model, &Limits::none()) {
                Ok(schedule) => schedule,
                Err(GenerateError::Placement { .. }) if per_device > 1 => continue,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            let peaks = validate(&schedule, &Limits::none()).unwrap();
            prop_assert!(peaks.iter().all(|peak| (1..=micro_batches).contains(peak)));
            let timeline = simulate(&schedule, &model).unwrap();
            for device in 0..devices {
                prop_assert!(timeline.busy_seconds(device) <= timeline.step_seconds * (1.0 + 1e-9));
            }
            if kind == ScheduleKind::Auto {
                prop_assert!(timeline.step_seconds <= shortest * (1.0 + 1e-8), "{} {shortest}", timeline.step_seconds);
            }
            shortest = shortest.min(timeline.step_seconds);
            schedule.forward_only().validate_forward_only().unwrap();
            prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }

    /// No text and no edit of a good one makes reading, checking or simulating panic.
    #[test]
    fn no_text_panics(at in 0usize..400, with in "[0-9FBW :\n]{0,6}", noise in "\\PC{0,40}") {
        let text = make(ScheduleKind::ZbH1, 3, 1, 4).to_string();
        let at = at.min(text.len());
        for text in [format!("{}{with}{}", &text[..at], &text[at..]), format!("{}{with}", &text[..at]), noise] {
            if let Ok(schedule) = text.parse::<Schedule>()
                && validate(&schedule, &Limits::none()).is_ok()
            {
                prop_assert!(simulate(&schedule, &CostModel::uniform(schedule.stages(), [1.0; 3])).is_ok());
            }
        }
    }
}
