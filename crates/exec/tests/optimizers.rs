//! The optimizer rules against `torch.optim`: after every step, the bits of the parameter and of its state.
//!
//! `fixtures/make_optimizers.py` wrote the numbers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::HashMap;

use outboard_exec::{ExecError, StepSize, UpdateRule};

const FIXTURE: &str = include_str!("fixtures/optimizers.txt");

struct Case {
    name: String,
    learning_rate: f64,
    rule: UpdateRule,
    start: Vec<f32>,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Step {
    gradient: Vec<f32>,
    parameter: Vec<f32>,
    state: Vec<(String, Vec<f32>)>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in FIXTURE.lines() {
        let (word, rest) = line.split_once(' ').unwrap();
        if word == "case" {
            cases.push(head(rest));
            continue;
        }
        let values: Vec<f32> = rest
            .split(' ')
            .map(|bits| f32::from_bits(u32::from_str_radix(bits, 16).unwrap()))
            .collect();
        let case = cases.last_mut().unwrap();
        match word {
            "start" => case.start = values,
            "gradient" => case.steps.push(Step {
                gradient: values,
                ..Step::default()
            }),
            "parameter" => case.steps.last_mut().unwrap().parameter = values,
            state => case
                .steps
                .last_mut()
                .unwrap()
                .state
                .push((state.to_owned(), values)),
        }
    }
    cases
}

fn head(text: &str) -> Case {
    let mut words = text.split(' ');
    let name = words.next().unwrap().to_owned();
    let kind = words.next().unwrap();
    let settings: HashMap<&str, &str> = words.map(|word| word.split_once('=').unwrap()).collect();
    let number = |key: &str| settings[key].parse::<f64>().unwrap();
    let flag = |key: &str| settings[key] == "True";
    let betas = || {
        let (first, second) = settings["betas"]
            .trim_matches(['(', ')'])
            .split_once(',')
            .unwrap();
        (first.parse().unwrap(), second.parse().unwrap())
    };
    let rule = match kind {
        "SGD" => UpdateRule::Sgd {
            momentum: number("momentum"),
            dampening: number("dampening"),
            weight_decay: number("weight_decay"),
            nesterov: flag("nesterov"),
        },
        "Adam" => UpdateRule::Adam {
            betas: betas(),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
            amsgrad: flag("amsgrad"),
        },
        "AdamW" => UpdateRule::AdamW {
            betas: betas(),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
            amsgrad: flag("amsgrad"),
        },
        other => panic!("unknown rule {other}"),
    };
    Case {
        name,
        learning_rate: number("lr"),
        rule,
        start: Vec::new(),
        steps: Vec::new(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn apply(
    rule: &UpdateRule,
    size: StepSize,
    parameter: &mut [f32],
    gradient: &[f32],
    state: &mut [Vec<f32>],
) -> Result<(), ExecError> {
    let mut state: Vec<&mut [f32]> = state.iter_mut().map(Vec::as_mut_slice).collect();
    rule.apply(size, size.step == 0, parameter, gradient, &mut state)
}

fn size(step: u64, learning_rate: f64) -> StepSize {
    StepSize {
        step,
        learning_rate,
        gradient_scale: 1.0,
    }
}

#[test]
fn bits_are_those_of_pytorch() {
    let cases = cases();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let mut parameter = case.start.clone();
        // What stands in the state before the first step must not matter.
        let mut state = vec![vec![f32::NAN; parameter.len()]; case.rule.state_names().len()];
        for (step, expected) in case.steps.iter().enumerate() {
            let size = size(step as u64, case.learning_rate);
            apply(
                &case.rule,
                size,
                &mut parameter,
                &expected.gradient,
                &mut state,
            )
            .unwrap();
            let names: Vec<&str> = expected
                .state
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            assert_eq!(names, case.rule.state_names(), "{}", case.name);
            for ((name, expected), state) in expected.state.iter().zip(&state) {
                assert_eq!(
                    bits(state),
                    bits(expected),
                    "{} {name} after step {step}",
                    case.name
                );
            }
            assert_eq!(
                bits(&parameter),
                bits(&expected.parameter),
                "{} after step {step}",
                case.name
            );
        }
    }
}

/// Clipping scales the gradient before all else: a doubled gradient halved by the scale gives the same bits.
#[test]
fn the_gradient_is_scaled_first() {
    for case in cases() {
        let (mut plain, mut scaled) = (case.start.clone(), case.start.clone());
        let empty = vec![vec![0.0; plain.len()]; case.rule.state_names().len()];
        let (mut plain_state, mut scaled_state) = (empty.clone(), empty);
        for (step, expected) in case.steps.iter().enumerate() {
            let size = size(step as u64, case.learning_rate);
            let doubled: Vec<f32> = expected.gradient.iter().map(|g| g * 2.0).collect();
            apply(
                &case.rule,
                size,
                &mut plain,
                &expected.gradient,
                &mut plain_state,
            )
            .unwrap();
            let half = StepSize {
                gradient_scale: 0.5,
                ..size
            };
            apply(&case.rule, half, &mut scaled, &doubled, &mut scaled_state).unwrap();
        }
        assert_eq!(bits(&plain), bits(&scaled), "{}", case.name);
        assert_eq!(plain_state, scaled_state, "{}", case.name);
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let length = 50_000;
    let start: Vec<f32> = (0..length).map(|i| (i as f32).sin()).collect();
    let gradient: Vec<f32> = (0..length).map(|i| (i as f32).cos()).collect();
    for case in cases() {
        let runs: Vec<(Vec<f32>, Vec<Vec<f32>>)> = [1, 3]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let mut parameter = start.clone();
                let mut state = vec![vec![0.0; length]; case.rule.state_names().len()];
                pool.install(|| {
                    for step in 0..2 {
                        let size = size(step, case.learning_rate);
                        apply(&case.rule, size, &mut parameter, &gradient, &mut state).unwrap();
                    }
                });
                (parameter, state)
            })
            .into();
        assert_eq!(runs[0], runs[1], "{}", case.name);
        assert_ne!(runs[0].0, start, "{}", case.name);
    }
}

#[test]
fn a_state_of_another_optimizer_is_refused() {
    let rule = UpdateRule::Sgd {
        momentum: 0.9,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
    };
    let error = apply(
        &rule,
        size(1, 0.1),
        &mut [1.0],
        &[1.0],
        &mut [vec![0.0], vec![0.0]],
    );
    assert!(error.unwrap_err().to_string().contains("another optimizer"));
    let error = apply(
        &rule,
        size(1, 0.1),
        &mut [1.0],
        &[1.0, 2.0],
        &mut [vec![0.0]],
    );
    assert!(error.unwrap_err().to_string().contains("gradient of 2"));
}
