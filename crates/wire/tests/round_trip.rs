//! Any message that may be sent comes back as it was.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use outboard_graph::DType;
use outboard_schedule::{Action, Kind};
use outboard_wire::{
    ActionTime, Assign, ControlMessage, DataHeader, DataKind, Decoder, DeviceHello, FailureKind,
    Frame, HEAD_BYTES, HostMessage, Optimizer, PROTOCOL, SharedWeight, StageAssignment, StateKind,
    StepMode, Stream, TensorEncoding, WeightSpec, WorkerMessage, encode_data,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    ".{0,40}"
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![
        Just(DType::F32),
        Just(DType::F16),
        Just(DType::BF16),
        Just(DType::I64),
        Just(DType::Bool)
    ]
}

fn encoding() -> impl Strategy<Value = TensorEncoding> {
    prop_oneof![
        Just(TensorEncoding::F32),
        Just(TensorEncoding::F16),
        Just(TensorEncoding::BF16)
    ]
}

fn state() -> impl Strategy<Value = StateKind> {
    prop_oneof![Just(StateKind::Weights), Just(StateKind::Optimizer)]
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![
        Just(Stream::Samples),
        Just(Stream::Stage),
        Just(Stream::Bulk)
    ]
}

fn data_kind() -> impl Strategy<Value = DataKind> {
    prop_oneof![
        Just(DataKind::Input),
        Just(DataKind::Activation),
        Just(DataKind::Cotangent),
        Just(DataKind::Result),
        Just(DataKind::Weight),
        Just(DataKind::OptimizerState),
        Just(DataKind::SharedGradient),
        Just(DataKind::Probe)
    ]
}

fn failure() -> impl Strategy<Value = FailureKind> {
    prop_oneof![
        Just(FailureKind::Busy),
        Just(FailureKind::Protocol),
        Just(FailureKind::Program),
        Just(FailureKind::Memory),
        Just(FailureKind::Hash),
        Just(FailureKind::Compute),
        Just(FailureKind::Order)
    ]
}

fn finite() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("finite", |value| value.is_finite())
}

prop_compose! {
    fn action()(stage: u16, kind in prop_oneof![Just(Kind::Forward), Just(Kind::Backward), Just(Kind::Weight)], micro_batch: u16) -> Action {
        Action { stage, kind, micro_batch }
    }
}

prop_compose! {
    fn weight()(name in name(), state in state(), dtype in dtype(), dims in vec(any::<u64>(), 0..=16), sha256: [u8; 32]) -> WeightSpec {
        WeightSpec { name, state, dtype, dims, sha256 }
    }
}

prop_compose! {
    fn stage()(
        stage: u16,
        programs in prop::array::uniform5(option::of(".{0,300}")),
        weights in vec(weight(), 0..5),
        in_flight: u16,
    ) -> StageAssignment {
        let [forward, backward, weight, normaliser, evaluate] = programs;
        StageAssignment { stage, forward, backward, weight, normaliser, evaluate, weights, in_flight }
    }
}

fn optimizer() -> impl Strategy<Value = Optimizer> {
    let numbers = || (finite(), finite(), finite(), finite());
    prop_oneof![
        (numbers(), any::<bool>()).prop_map(
            |((momentum, dampening, weight_decay, _), nesterov)| Optimizer::Sgd {
                momentum,
                dampening,
                weight_decay,
                nesterov
            }
        ),
        (numbers(), any::<bool>(), any::<bool>()).prop_map(
            |((first, second, eps, weight_decay), amsgrad, decoupled)| Optimizer::Adam {
                betas: (first, second),
                eps,
                weight_decay,
                amsgrad,
                decoupled
            }
        ),
    ]
}

prop_compose! {
    fn shared()(name in name(), uses in vec(name(), 0..4), stages in vec(any::<u16>(), 0..4)) -> SharedWeight {
        SharedWeight { name, uses, stages }
    }
}

prop_compose! {
    fn assign()(
        (run, seed, first_step, largest_micro_batch, most_micro_batches) in any::<(u32, u64, u64, u32, u16)>(),
        encoding in encoding(),
        optimizer in option::of(optimizer()),
        stages in vec(stage(), 0..4),
        shared in vec(shared(), 0..3),
    ) -> Assign {
        Assign { run, seed, first_step, encoding, optimizer, stages, shared, largest_micro_batch, most_micro_batches }
    }
}

fn host_message() -> impl Strategy<Value = HostMessage> {
    prop_oneof![
        (name(), name()).prop_map(|(build, name)| HostMessage::Hello {
            protocol: PROTOCOL,
            build,
            name
        }),
        any::<u64>().prop_map(|nonce| HostMessage::Ping { nonce }),
        any::<(u16, u32)>().prop_map(|(nonce, bytes)| HostMessage::Probe { nonce, bytes }),
        (any::<u32>(), vec(".{0,200}", 0..8))
            .prop_map(|(id, programs)| HostMessage::Profile { id, programs }),
        assign().prop_map(|assign| HostMessage::Assign(Box::new(assign))),
        (any::<(u32, u16)>(), vec(action(), 0..50)).prop_map(|((run, micro_batches), actions)| {
            HostMessage::Schedule {
                run,
                micro_batches,
                actions,
            }
        }),
        (any::<(u32, u64, bool)>(), vec(any::<u32>(), 0..50)).prop_map(
            |((run, step, train), sizes)| HostMessage::Step {
                run,
                step,
                mode: if train {
                    StepMode::Train
                } else {
                    StepMode::Evaluate
                },
                sizes
            }
        ),
        (any::<(u32, u64)>(), finite(), -1e30_f32..1e30).prop_map(
            |((run, step), learning_rate, gradient_scale)| HostMessage::Commit {
                run,
                step,
                learning_rate,
                gradient_scale
            }
        ),
        (any::<u32>(), state()).prop_map(|(run, state)| HostMessage::Fetch { run, state }),
        any::<u32>().prop_map(|run| HostMessage::DropRun { run }),
        (stream(), any::<u64>()).prop_map(|(stream, bytes)| HostMessage::Credit { stream, bytes }),
        Just(HostMessage::Bye),
    ]
}

prop_compose! {
    fn device()(
        texts in prop::array::uniform5(name()),
        threads: u32,
        memory_bytes: u64,
    ) -> DeviceHello {
        let [build, name, device_id, engine, hardware] = texts;
        DeviceHello { protocol: PROTOCOL, build, name, device_id, engine, hardware, threads, memory_bytes }
    }
}

prop_compose! {
    fn time()(action in action(), start_micros: u64, micros: u64) -> ActionTime {
        ActionTime { action, start_micros, micros }
    }
}

fn worker_message() -> impl Strategy<Value = WorkerMessage> {
    let seconds = || finite().prop_map(f64::abs);
    prop_oneof![
        device().prop_map(WorkerMessage::Hello),
        any::<(u64, u64)>().prop_map(|(nonce, clock_micros)| WorkerMessage::Pong {
            nonce,
            clock_micros
        }),
        any::<u16>().prop_map(|nonce| WorkerMessage::ProbeReceived { nonce }),
        (any::<u32>(), vec(option::of(seconds()), 0..20))
            .prop_map(|(id, seconds)| WorkerMessage::Profiled { id, seconds }),
        any::<(u32, u64, [u8; 32])>().prop_map(|(run, planned_bytes, weights_sha256)| {
            WorkerMessage::Ready {
                run,
                planned_bytes,
                weights_sha256,
            }
        }),
        (
            any::<(u32, u64)>(),
            vec(any::<f32>(), 0..9),
            vec(any::<f32>(), 0..9),
            vec((name(), any::<f64>()), 0..9),
            option::of((any::<u16>(), name()))
        )
            .prop_map(
                |((run, step), loss_sums, loss_weights, squares, not_finite)| {
                    WorkerMessage::Gradients {
                        run,
                        step,
                        loss_sums,
                        loss_weights,
                        squares,
                        not_finite,
                    }
                }
            ),
        (
            any::<(u32, u64, u64, Option<u8>)>(),
            vec(time(), 0..20),
            seconds()
        )
            .prop_map(|((run, step, peak_bytes, heat), times, update_seconds)| {
                WorkerMessage::StepDone {
                    run,
                    step,
                    times,
                    update_seconds,
                    peak_bytes,
                    heat,
                }
            }),
        (any::<(u32, u32)>(), state()).prop_map(|((run, tensors), state)| {
            WorkerMessage::Fetched {
                run,
                state,
                tensors,
            }
        }),
        any::<u32>().prop_map(|run| WorkerMessage::Dropped { run }),
        (
            any::<(Option<u32>, Option<u64>, Option<u16>)>(),
            failure(),
            ".{0,200}"
        )
            .prop_map(
                |((run, step, stage), kind, message)| WorkerMessage::Failed {
                    run,
                    step,
                    stage,
                    kind,
                    message
                }
            ),
        (stream(), any::<u64>())
            .prop_map(|(stream, bytes)| WorkerMessage::Credit { stream, bytes }),
        name().prop_map(|reason| WorkerMessage::Bye { reason }),
    ]
}

prop_compose! {
    fn data()(
        (run, step, stage, micro_batch) in any::<(u32, u64, u16, u16)>(),
        kind in data_kind(),
        name in name(),
        dtype in dtype(),
        encoding in encoding(),
        dims in vec(0_u64..5, 0..5),
        fill: u8,
    ) -> (DataHeader, Bytes) {
        let header = DataHeader { run, step, kind, stage, micro_batch, name, dtype, dims, encoding };
        let length = usize::try_from(header.payload_bytes().unwrap()).unwrap();
        (header, vec![fill; length].into())
    }
}

fn back<M: ControlMessage>(message: &M) -> M {
    let frame = message.encode().unwrap();
    M::decode(
        u16::from_le_bytes([frame[4], frame[5]]),
        &frame[HEAD_BYTES..],
    )
    .unwrap()
}

proptest! {
    #[test]
    fn messages_of_the_host(message in host_message()) {
        prop_assert_eq!(back(&message), message);
    }

    #[test]
    fn messages_of_a_worker(message in worker_message()) {
        // As text: a loss that is not a number does not equal itself.
        prop_assert_eq!(format!("{:?}", back(&message)), format!("{message:?}"));
    }

    #[test]
    fn data_frames((header, payload) in data()) {
        let frame = encode_data(&header, payload.clone()).unwrap().concat();
        prop_assert_eq!(header.frame_bytes(), Some(frame.len() as u64));
        let mut decoder = Decoder::<HostMessage>::new();
        let hello = HostMessage::Hello { protocol: PROTOCOL, build: String::new(), name: String::new() };
        decoder.push(hello.encode().unwrap());
        decoder.push(frame.clone().into());
        decoder.poll().unwrap();
        let Some(Frame::Data(data)) = decoder.poll().unwrap() else {
            panic!("no data frame came");
        };
        prop_assert_eq!(data.header, header);
        prop_assert_eq!(data.payload, payload);
        prop_assert_eq!(data.frame, frame);
    }
}
