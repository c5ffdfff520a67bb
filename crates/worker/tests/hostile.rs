//! Hosts that are wrong, old, silent, gone, or out to do harm: an error that names the mistake, and a worker as good as
//! before.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod support;

use std::time::Duration;

use outboard_exec::{CpuExecutor, Executor, Reference};
use outboard_graph::{DType, Tensor};
use outboard_schedule::Action;
use outboard_wire::{
    Assign, DataHeader, DataKind, FailureKind, HostMessage, PROTOCOL, StateKind, StepMode, Stream,
    TensorEncoding, WorkerMessage,
};
use outboard_worker::{Event, Job};
use support::faulty::Faulty;
use support::model::batch;
use support::{Device, RUN, core_options, frame, header, hello, small_assign};

const SIZES: [usize; 3] = [4, 3, 3];

/// A worker that is ready to train the whole model.
fn ready<E: Executor>(mut device: Device<E>) -> Device<E> {
    let (plan, assign, uploads) = small_assign();
    device.greet();
    assign_all(&mut device, assign, uploads);
    device.say(HostMessage::Schedule {
        run: RUN,
        micro_batches: 3,
        actions: plan.actions(0, 3),
    });
    device
}

fn assign_all<E: Executor>(
    device: &mut Device<E>,
    assign: Assign,
    uploads: Vec<(DataHeader, bytes::Bytes)>,
) {
    device.said.clear();
    device.say(HostMessage::Assign(Box::new(assign)));
    for (header, payload) in uploads {
        device.post(header, payload);
    }
    while device.deliver() {}
    is_ready(device);
}

fn is_ready<E: Executor>(device: &Device<E>) {
    device.heard(|message| matches!(message, WorkerMessage::Ready { .. }).then_some(()));
}

fn open<E: Executor>(device: &mut Device<E>, step: u64) {
    device.say(step_message(step, StepMode::Train, &[4, 3, 3]));
}

fn step_message(step: u64, mode: StepMode, sizes: &[u32]) -> HostMessage {
    HostMessage::Step {
        run: RUN,
        step,
        mode,
        sizes: sizes.to_vec(),
    }
}

fn feed<E: Executor>(device: &mut Device<E>, step: u64) {
    for name in ["target", "input"] {
        for (micro_batch, data) in (0_u16..).zip(batch(step, &SIZES)) {
            let tensor = &data[name];
            device.post(
                header(step, DataKind::Input, 0, micro_batch, name, tensor),
                tensor.data().clone(),
            );
        }
    }
    while device.deliver() {}
}

/// After a failure the run is gone, what is still on its way for it is ignored, and the next run works.
fn recovers<E: Executor>(device: &mut Device<E>) {
    assert!(!device.runtime.is_loaded());
    let failures = device.said.len();
    open(device, 77);
    for queue in &mut device.waiting {
        queue.clear();
    }
    feed(device, 77);
    assert_eq!(device.said.len(), failures, "{:#?}", device.said);
    device.say(HostMessage::DropRun { run: RUN });
    device.heard(|message| matches!(message, WorkerMessage::Dropped { run: RUN }).then_some(()));
    let (_, mut assign, mut uploads) = small_assign();
    assign.run = RUN + 1;
    for (header, _) in &mut uploads {
        header.run = RUN + 1;
    }
    assign_all(device, assign, uploads);
    device.event(Event::LinkClosed);
    assert!(device.worker.is_over());
    assert!(!device.runtime.is_loaded());
}

#[test]
fn before_hello_nothing_else_is_heard() {
    let mut device = Device::new();
    device.say(HostMessage::Ping { nonce: 1 });
    let (kind, message) = device.failure();
    assert_eq!(kind, FailureKind::Protocol);
    assert_eq!(message, "the host said something before hello");
    assert!(device.closed);

    let mut device = Device::new();
    device.say(HostMessage::Hello {
        protocol: PROTOCOL + 1,
        build: String::new(),
        name: String::new(),
    });
    let (kind, message) = device.failure();
    assert_eq!(kind, FailureKind::Protocol);
    assert!(message.contains("run the same version"), "{message}");
    assert!(device.closed);
}

#[test]
fn silent_hosts_are_left() {
    let mut device = Device::new();
    device.event(Event::Timer);
    device.now = Duration::from_secs(9);
    device.event(Event::Timer);
    assert!(!device.closed);
    device.now = Duration::from_secs(11);
    device.event(Event::Timer);
    assert!(device.closed);

    let mut device = Device::new();
    device.event(Event::Timer);
    device.greet();
    device.now = Duration::from_secs(25);
    device.event(Event::Timer);
    device.say(HostMessage::Ping { nonce: 1 });
    device.now = Duration::from_secs(50);
    device.event(Event::Timer);
    assert!(!device.closed);
    device.now = Duration::from_secs(60);
    device.event(Event::Timer);
    assert!(device.closed);
    device.heard(|message| matches!(message, WorkerMessage::Bye { .. }).then_some(()));
}

#[test]
fn pings_are_answered_while_the_engine_works() {
    let mut device = Device::new();
    device.greet();
    device.hold_jobs = true;
    device.say(HostMessage::Profile {
        id: 3,
        programs: Vec::new(),
    });
    assert!(device.held_job.is_some());
    device.say(HostMessage::Ping { nonce: 42 });
    device.heard(|message| matches!(message, WorkerMessage::Pong { nonce: 42, .. }).then_some(()));
    device.do_held_job();
    device.heard(|message| matches!(message, WorkerMessage::Profiled { id: 3, .. }).then_some(()));
}

#[test]
fn what_is_wrong_with_an_assignment_is_said() {
    type Spoil = fn(&mut Assign);
    let cases: [(Spoil, FailureKind, &str); 13] = [
        (
            |assign| assign.stages[0].forward = Some("graph \"x\" { %0: f32".into()),
            FailureKind::Program,
            "stage 0: F: ",
        ),
        (
            |assign| assign.stages[0].weight = None,
            FailureKind::Program,
            "F, B and W must be given together",
        ),
        (
            |assign| assign.stages[0].normaliser = None,
            FailureKind::Program,
            "no normaliser",
        ),
        (
            |assign| assign.stages[0].backward = assign.stages[0].forward.clone(),
            FailureKind::Program,
            "stage 0: B: it takes",
        ),
        (
            |assign| {
                assign.stages[0].weights.pop();
            },
            FailureKind::Program,
            "is taken but not announced",
        ),
        (
            |assign| assign.stages[0].weights[0].dims = vec![1 << 40, 1 << 40],
            FailureKind::Program,
            "stage 0: its weights: ",
        ),
        (
            |assign| assign.stages[0].weights[0].dtype = DType::I64,
            FailureKind::Program,
            "but the programs take",
        ),
        (
            |assign| assign.stages[0].weights[0].name = "extra".into(),
            FailureKind::Program,
            "announced",
        ),
        (
            |assign| assign.stages.push(assign.stages[0].clone()),
            FailureKind::Order,
            "stage 0 is assigned twice",
        ),
        (
            |assign| {
                let mut again = assign.stages[0].clone();
                again.stage = 1;
                assign.stages.push(again);
                let text = "graph \"e\" {\n  %0: f32[B,7] = activation \"%9\"\n  return result \"r\" %0\n}\n";
                assign.stages[1].forward = None;
                assign.stages[1].backward = None;
                assign.stages[1].weight = None;
                assign.stages[1].normaliser = None;
                assign.stages[1].weights = Vec::new();
                assign.stages[1].evaluate = Some(text.into());
            },
            FailureKind::Program,
            "is not an activation of the stage before",
        ),
        (
            |assign| assign.largest_micro_batch = 0,
            FailureKind::Order,
            "empty micro-batches",
        ),
        (
            |assign| assign.largest_micro_batch = 1 << 26,
            FailureKind::Memory,
            "the budget is 1.00 GiB",
        ),
        (
            |assign| assign.largest_micro_batch = u32::MAX,
            FailureKind::Program,
            "a batch of 4294967295",
        ),
    ];
    for (spoil, kind, text) in cases {
        let (_, mut assign, _) = small_assign();
        spoil(&mut assign);
        let mut device = Device::new();
        device.greet();
        device.say(HostMessage::Assign(Box::new(assign)));
        let (found, message) = device.failure();
        assert!(message.contains(text), "{message:?} lacks {text:?}");
        assert_eq!(found, kind, "{message}");
        recovers(&mut device);
    }
}

#[test]
fn a_stage_over_the_budget_is_refused_with_both_numbers() {
    let mut options = core_options();
    options.hello.memory_bytes = 20_000;
    let mut device = Device::with(options, CpuExecutor::with_threads(1), 1 << 20);
    device.greet();
    let (_, assign, _) = small_assign();
    device.say(HostMessage::Assign(Box::new(assign)));
    let (kind, message) = device.failure();
    assert_eq!(kind, FailureKind::Memory);
    assert!(message.starts_with("needs "), "{message}");
    assert!(
        message.contains("the budget is 19.53 KiB (`--memory`)"),
        "{message}"
    );
}

#[test]
fn a_weight_with_other_bytes_is_refused() {
    let mut device = Device::new();
    device.greet();
    let (_, mut assign, uploads) = small_assign();
    assign.stages[0].weights[0].sha256[5] ^= 1;
    device.say(HostMessage::Assign(Box::new(assign)));
    for (header, payload) in uploads {
        device.post(header, payload);
    }
    while device.deliver() {}
    let (kind, message) = device.failure();
    assert_eq!(kind, FailureKind::Hash);
    assert!(message.contains("bn.bias"), "{message}");
    recovers(&mut device);
}

#[test]
fn messages_out_of_order_are_named() {
    type Say = fn() -> HostMessage;
    let cases: [(Say, &str); 9] = [
        (
            || step_message(3, StepMode::Train, &[]),
            "a step of 0 micro-batches",
        ),
        (
            || step_message(3, StepMode::Train, &[4, 3]),
            "no list of actions for 2",
        ),
        (
            || step_message(3, StepMode::Train, &[5, 3, 3]),
            "a micro-batch of 5 samples",
        ),
        (
            || step_message(3, StepMode::Evaluate, &[0]),
            "a micro-batch of 0 samples",
        ),
        (
            || step_message(3, StepMode::Evaluate, &[1; 4096]),
            "a step of 4096 micro-batches",
        ),
        (
            || HostMessage::Commit {
                run: RUN,
                step: 0,
                learning_rate: 0.1,
                gradient_scale: 1.0,
            },
            "a commit of step 0, which is not at work",
        ),
        (
            || HostMessage::Schedule {
                run: RUN,
                micro_batches: 3,
                actions: vec![Action::forward(7, 0); 10_000],
            },
            "7F0 is of a stage that this worker does not hold",
        ),
        (
            || HostMessage::Schedule {
                run: RUN,
                micro_batches: 0,
                actions: Vec::new(),
            },
            "a list for 0 micro-batches",
        ),
        (
            || HostMessage::Assign(Box::new(small_assign().1)),
            "was assigned during run 5",
        ),
    ];
    for (say, text) in cases {
        let mut device = ready(Device::new());
        device.say(say());
        let (kind, message) = device.failure();
        assert_eq!(kind, FailureKind::Order, "{message}");
        assert!(message.contains(text), "{message:?} lacks {text:?}");
        recovers(&mut device);
    }
}

#[test]
fn more_than_one_step_ahead_is_too_much() {
    let mut device = ready(Device::new());
    for step in 0..3 {
        open(&mut device, step);
    }
    let (_, message) = device.failure();
    assert_eq!(message, "2 steps of training are open already");
    recovers(&mut device);
}

#[test]
fn a_commit_before_the_gradients_names_the_action_awaited() {
    let mut device = ready(Device::new());
    open(&mut device, 0);
    device.say(HostMessage::Commit {
        run: RUN,
        step: 0,
        learning_rate: 0.1,
        gradient_scale: 1.0,
    });
    let (_, message) = device.failure();
    assert_eq!(message, "a commit of step 0, but it waits for 0F0");
}

#[test]
fn tensors_that_nothing_takes_are_named() {
    let good = || {
        let tensor = batch(0, &SIZES)[0]["input"].clone();
        (
            header(0, DataKind::Input, 0, 0, "input", &tensor),
            tensor.data().clone(),
        )
    };
    type Spoil = fn(&mut DataHeader);
    let cases: [(Spoil, &str); 9] = [
        (|head| head.step = 9, "step 9 is not open"),
        (|head| head.stage = 4, "this worker does not hold the stage"),
        (
            |head| head.micro_batch = 3,
            "the step has fewer micro-batches",
        ),
        (|head| head.name = "inputs".into(), "takes no such tensor"),
        (
            |head| head.kind = DataKind::Activation,
            "takes no such tensor",
        ),
        (
            |head| head.kind = DataKind::SharedGradient,
            "no such use of a shared weight",
        ),
        (
            |head| head.kind = DataKind::Result,
            "is nothing for a worker",
        ),
        (
            |head| head.kind = DataKind::Weight,
            "is not in the assignment, or came twice",
        ),
        (
            |head| head.dims = vec![6, 4],
            "it is F32 [6, 4] instead of F32 [4, 6]",
        ),
    ];
    for (spoil, text) in cases {
        let mut device = ready(Device::new());
        open(&mut device, 0);
        let (mut header, payload) = good();
        spoil(&mut header);
        // Whatever the stream, there is credit: only the tensor is wrong.
        if header.kind == DataKind::Activation {
            let frame = frame(header, payload);
            device.event(Event::Data(frame));
            let (kind, message) = device.failure();
            assert_eq!(
                kind,
                FailureKind::Protocol,
                "stage tensors have no window here"
            );
            assert!(message.contains("without credit"), "{message}");
            continue;
        }
        device.post(header, payload);
        while device.deliver() {}
        let (kind, message) = device.failure();
        assert_eq!(kind, FailureKind::Order, "{message}");
        assert!(message.contains(text), "{message:?} lacks {text:?}");
        recovers(&mut device);
    }

    let mut device = ready(Device::new());
    open(&mut device, 0);
    for _ in 0..2 {
        let (header, payload) = good();
        device.post(header, payload);
    }
    while device.deliver() {}
    let (_, message) = device.failure();
    assert_eq!(
        message,
        "Input \"input\" for stage 0, micro-batch 0 came twice"
    );
}

#[test]
fn data_without_credit_ends_the_conversation() {
    let mut device = Device::new();
    device.say(hello());
    let zeros = Tensor::zeros(DType::Bool, [3 << 20]).unwrap();
    for nonce in 0..2 {
        let mut head = header(0, DataKind::Probe, 0, nonce, "", &zeros);
        head.run = 0;
        device.event(Event::Data(frame(head, zeros.data().clone())));
    }
    // Probes are consumed at once, so their credit comes back.
    assert!(!device.closed);
    let mut head = header(0, DataKind::Activation, 0, 0, "x", &zeros);
    head.run = 0;
    device.event(Event::Data(frame(head, zeros.data().clone())));
    assert!(device.closed);
    assert_eq!(device.failure().0, FailureKind::Protocol);
}

#[test]
fn absurd_credit_ends_the_conversation() {
    let mut device = Device::new();
    device.say(hello());
    device.say(HostMessage::Credit {
        stream: Stream::Bulk,
        bytes: u64::MAX,
    });
    assert!(device.closed);
}

#[test]
fn a_host_that_leaves_during_a_step_frees_everything() {
    let mut device = ready(Device::new());
    open(&mut device, 0);
    device.hold_jobs = true;
    feed(&mut device, 0);
    assert!(matches!(device.held_job, Some((_, Job::Normalise { .. }))));
    device.event(Event::LinkClosed);
    assert!(device.cancelled);
    assert!(!device.worker.is_over(), "the compute side still works");
    device.do_held_job();
    assert!(matches!(device.held_job, Some((_, Job::DropRun))));
    assert!(device.runtime.is_loaded());
    device.do_held_job();
    assert!(device.worker.is_over());
    assert!(!device.runtime.is_loaded());
}

#[test]
fn a_run_may_be_dropped_during_a_step() {
    let mut device = ready(Device::new());
    open(&mut device, 0);
    device.hold_jobs = true;
    feed(&mut device, 0);
    device.say(HostMessage::DropRun { run: RUN });
    let dropped = |message: &WorkerMessage| matches!(message, WorkerMessage::Dropped { run: RUN });
    assert!(
        !device.said.iter().any(dropped),
        "before its memory is free"
    );
    device.hold_jobs = false;
    device.do_held_job();
    assert!(device.said.iter().any(dropped));
    recovers(&mut device);
}

#[test]
fn a_panic_of_the_engine_names_the_action() {
    // Three normalisers and 0F0 run first; compiling runs nothing, and 0B0 only hands a cotangent on.
    let engine = Faulty {
        panics_at: 5,
        ..Faulty::default()
    };
    let mut device = ready(Device::with(core_options(), engine, 1 << 20));
    open(&mut device, 0);
    feed(&mut device, 0);
    let failed = device.heard(|message| match message {
        WorkerMessage::Failed { .. } => Some(message.clone()),
        _ => None,
    });
    assert_eq!(
        failed,
        WorkerMessage::Failed {
            run: Some(RUN),
            step: Some(0),
            stage: Some(0),
            kind: FailureKind::Compute,
            message: "0W0 of step 0: the engine panicked: the device caught fire".into(),
        }
    );
    recovers(&mut device);
}

#[test]
fn a_class_beyond_all_classes_is_an_error_of_the_step() {
    let mut device = ready(Device::new());
    open(&mut device, 0);
    let target = Tensor::from_i64([4], &[0, 1, 4, 0]).unwrap();
    device.post(
        header(0, DataKind::Input, 0, 0, "target", &target),
        target.data().clone(),
    );
    while device.deliver() {}
    let (kind, message) = device.failure();
    assert_eq!(kind, FailureKind::Compute);
    assert!(message.contains("micro-batch 0 in step 0"), "{message}");
    recovers(&mut device);
}

#[test]
fn probes_are_answered_within_credit() {
    let mut device = Device::new();
    device.greet();
    device.say(HostMessage::Probe {
        nonce: 8,
        bytes: 100_000,
    });
    let (header, payload) = device.take_sent().unwrap();
    assert_eq!((header.kind, header.micro_batch), (DataKind::Probe, 8));
    assert_eq!(payload.len(), 100_000);
    for nonce in 0..1000 {
        device.say(HostMessage::Probe {
            nonce,
            bytes: u32::MAX,
        });
    }
    assert!(device.sent.len() <= 2, "the rest waits or is dropped");
}

#[test]
fn programs_are_timed_and_bad_ones_are_not() {
    let mut device = Device::with(core_options(), Reference, 1 << 20);
    device.greet();
    let good = "graph \"relu\" {\n  %0: f32[4,4] = data \"x\"\n  %1: f32[4,4] = relu(%0)\n  return result \"y\" %1\n}\n";
    let symbolic = good.replace("[4,4]", "[B,4]");
    let huge = good.replace("[4,4]", "[65536,65536]");
    let lookup = "graph \"e\" {\n  %0: f32[5,2] = parameter \"w\"\n  %1: i64[7] = data \"i\"\n  %2: f32[7,2] = embedding(%0, %1, padding_idx=none)\n  return result \"y\" %2\n}\n";
    let programs = [good, "nonsense", &symbolic, &huge, lookup];
    device.say(HostMessage::Profile {
        id: 1,
        programs: programs.map(str::to_owned).to_vec(),
    });
    let seconds = device.heard(|message| match message {
        WorkerMessage::Profiled { seconds, .. } => Some(seconds.clone()),
        _ => None,
    });
    let timed: Vec<bool> = seconds.iter().map(Option::is_some).collect();
    assert_eq!(timed, [true, false, false, false, true]);
}

#[test]
fn no_order_of_messages_makes_it_panic_or_keep_memory() {
    let (plan, assign, uploads) = small_assign();
    for seed in 0..60_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut device = Device::new();
        device.greet();
        for _ in 0..80 {
            let step = random(3) as u64;
            match random(12) {
                0 | 1 => device.say(HostMessage::Assign(Box::new(assign.clone()))),
                2..4 => uploads
                    .iter()
                    .for_each(|(header, payload)| device.post(header.clone(), payload.clone())),
                4 => device.say(HostMessage::Schedule {
                    run: RUN,
                    micro_batches: 3,
                    actions: plan.actions(0, 3),
                }),
                5 => device.say(step_message(step, StepMode::Train, &[4, 3, 3])),
                6 => device.say(step_message(step, StepMode::Evaluate, &[1, 2])),
                7 => feed(&mut device, step),
                8 => device.say(HostMessage::Commit {
                    run: RUN + random(2) as u32,
                    step,
                    learning_rate: f64::MAX,
                    gradient_scale: f32::NAN,
                }),
                9 => device.say(HostMessage::Fetch {
                    run: RUN,
                    state: StateKind::Optimizer,
                }),
                10 => device.say(HostMessage::DropRun { run: RUN }),
                _ => device.hold_jobs = random(2) == 0,
            }
            device.deliver();
            while device.take_sent().is_some() {}
            if device.held_job.is_some() && random(2) == 0 {
                device.do_held_job();
            }
            device.said.truncate(200);
        }
        device.event(Event::LinkClosed);
        while device.held_job.is_some() {
            device.do_held_job();
        }
        assert!(device.worker.is_over(), "seed {seed}");
        assert!(!device.runtime.is_loaded(), "seed {seed}");
    }
}

#[test]
fn encodings_other_than_the_runs_are_refused() {
    let mut device = ready(Device::new());
    open(&mut device, 0);
    let tensor = batch(0, &SIZES)[0]["input"].clone();
    let mut head = header(0, DataKind::Input, 0, 0, "input", &tensor);
    head.encoding = TensorEncoding::BF16;
    let payload = outboard_wire::encode_tensor(&tensor, TensorEncoding::BF16);
    device.post(head, payload);
    while device.deliver() {}
    let (_, message) = device.failure();
    assert!(
        message.contains("encoded as BF16 instead of F32"),
        "{message}"
    );
}
