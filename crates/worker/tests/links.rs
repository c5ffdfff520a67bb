//! Real links, threads and time: the driver.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy only knows that of functions marked as tests"
)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use outboard_exec::CpuExecutor;
use outboard_link::{Link, LinkAddress, ListenOptions, Listener, dial, memory};
use outboard_wire::{
    ControlMessage, DataHeader, DataKind, FailureKind, Frame, HostDecoder, HostMessage, StepMode,
    Stream, WorkerMessage, encode_data,
};
use outboard_worker::{WorkerOptions, run_link, serve};
use support::faulty::Faulty;
use support::model::batch;
use support::{RUN, header, hello, small_assign};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A host that says and hears what a test wants.
struct Host {
    link: Link,
    decoder: HostDecoder,
}

impl Host {
    fn new(link: Link) -> Self {
        Host {
            link,
            decoder: HostDecoder::new(),
        }
    }

    async fn say(&mut self, message: HostMessage) {
        let frame = message.encode().unwrap();
        self.link.writer.write_all(&frame).await.unwrap();
    }

    async fn send(&mut self, header: &DataHeader, payload: Bytes) {
        for piece in encode_data(header, payload).unwrap() {
            self.link.writer.write_all(&piece).await.unwrap();
        }
    }

    /// The next frame; `None` at the end of the link.
    async fn hear(&mut self) -> Option<Frame<WorkerMessage>> {
        let next = async {
            loop {
                if let Some(frame) = self.decoder.poll().unwrap() {
                    return Some(frame);
                }
                let read = self.link.reader.read_buf(self.decoder.space()).await;
                if !matches!(read, Ok(1..)) {
                    return None;
                }
            }
        };
        timeout(Duration::from_secs(60), next)
            .await
            .expect("the worker answers")
    }

    /// Waits for a message.
    async fn until<T>(&mut self, pick: impl Fn(&WorkerMessage) -> Option<T>) -> T {
        loop {
            match self.hear().await.expect("the link is open") {
                Frame::Control(message @ WorkerMessage::Failed { .. }) => match pick(&message) {
                    Some(found) => return found,
                    None => panic!("{message:?}"),
                },
                Frame::Control(message) => {
                    if let Some(found) = pick(&message) {
                        return found;
                    }
                }
                Frame::Data(_) => {}
            }
        }
    }

    /// Grants windows, and brings the small model to `Ready`.
    async fn start(&mut self) {
        for stream in [Stream::Samples, Stream::Stage, Stream::Bulk] {
            let bytes = 1 << 20;
            self.say(HostMessage::Credit { stream, bytes }).await;
        }
        let (plan, assign, uploads) = small_assign();
        self.say(HostMessage::Assign(Box::new(assign))).await;
        for (header, payload) in uploads {
            self.send(&header, payload).await;
        }
        self.until(|message| matches!(message, WorkerMessage::Ready { .. }).then_some(()))
            .await;
        self.say(HostMessage::Schedule {
            run: RUN,
            micro_batches: 3,
            actions: plan.actions(0, 3),
        })
        .await;
    }

    async fn open(&mut self, step: u64) {
        let sizes = [4, 3, 3];
        self.say(HostMessage::Step {
            run: RUN,
            step,
            mode: StepMode::Train,
            sizes: sizes.to_vec(),
        })
        .await;
        let batch = batch(step, &sizes.map(|size| size as usize));
        for name in ["target", "input"] {
            for (micro_batch, data) in (0_u16..).zip(&batch) {
                let head = header(step, DataKind::Input, 0, micro_batch, name, &data[name]);
                self.send(&head, data[name].data().clone()).await;
            }
        }
    }

    async fn train(&mut self, step: u64) -> Vec<f32> {
        self.open(step).await;
        let losses = self
            .until(|message| match message {
                WorkerMessage::Gradients { loss_sums, .. } => Some(loss_sums.clone()),
                _ => None,
            })
            .await;
        self.say(HostMessage::Commit {
            run: RUN,
            step,
            learning_rate: 0.1,
            gradient_scale: 1.0,
        })
        .await;
        self.until(|message| matches!(message, WorkerMessage::StepDone { .. }).then_some(()))
            .await;
        losses
    }
}

/// What the same step gives without links and threads.
fn expected_losses() -> Vec<f32> {
    let plan = support::model::Plan::new(&[], &[0]);
    support::Host::start(plan)
        .train(0, &batch(0, &[4, 3, 3]))
        .loss_sums
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A host whose hello was answered.
async fn greeted(address: &LinkAddress) -> Host {
    let mut host = Host::new(dial(address, Duration::from_secs(10)).await.unwrap());
    host.say(hello()).await;
    host.until(|message| matches!(message, WorkerMessage::Hello(_)).then_some(()))
        .await;
    host
}

/// Why the worker hangs up on someone who says this.
async fn refusal(address: &LinkAddress, bytes: &[u8]) -> FailureKind {
    let mut peer = Host::new(dial(address, Duration::from_secs(10)).await.unwrap());
    peer.link.writer.write_all(bytes).await.unwrap();
    let kind = peer
        .until(|message| match message {
            WorkerMessage::Failed { kind, .. } => Some(*kind),
            _ => None,
        })
        .await;
    assert!(peer.hear().await.is_none(), "it hung up");
    kind
}

async fn listen(address: &str) -> Listener {
    let address: LinkAddress = address.parse().unwrap();
    Listener::bind(&address, ListenOptions::default())
        .await
        .unwrap()
}

#[test]
fn the_hosts_own_worker_trains_over_memory_and_ends_with_the_link() {
    let (dialled, accepted) = memory::pair("own", 1 << 16);
    let options = WorkerOptions {
        threads: 2,
        ..WorkerOptions::default()
    };
    let worker = run_link(accepted, CpuExecutor::with_threads(2), options).unwrap();
    runtime().block_on(async {
        let mut host = Host::new(dialled);
        host.say(hello()).await;
        host.start().await;
        assert_eq!(host.train(0).await, expected_losses());
        host.say(HostMessage::Bye).await;
        while host.hear().await.is_some() {}
    });
    worker.join().unwrap().unwrap();
}

#[test]
fn pings_are_answered_while_the_engine_computes() {
    let (dialled, accepted) = memory::pair("ping", 1 << 16);
    let engine = Faulty {
        takes: Duration::from_millis(300),
        ..Faulty::default()
    };
    let worker = run_link(accepted, engine, WorkerOptions::default()).unwrap();
    runtime().block_on(async {
        let mut host = Host::new(dialled);
        host.say(hello()).await;
        host.start().await;
        host.open(0).await;
        host.say(HostMessage::Ping { nonce: 6 }).await;
        // The step takes a dozen runs of 300 ms; had the ping waited for it, `Gradients` would be heard first.
        let first = host
            .until(|message| match message {
                WorkerMessage::Pong { nonce, .. } => Some(Some(*nonce)),
                WorkerMessage::Gradients { .. } => Some(None),
                _ => None,
            })
            .await;
        assert_eq!(first, Some(6));
    });
    // The host is gone in the middle of the step: the worker ends after the action at work.
    worker.join().unwrap().unwrap();
}

#[test]
fn a_worker_serves_one_host_after_another_and_tells_others_that_it_is_busy() {
    runtime().block_on(async {
        let listener = listen("tcp://127.0.0.1:0").await;
        let address = listener.address().clone();
        let local = async {
            let connect = || dial(&address, Duration::from_secs(10));
            let mut first = greeted(&address).await;
            first.start().await;

            let mut second = Host::new(connect().await.unwrap());
            second.say(hello()).await;
            let kind = second
                .until(|message| match message {
                    WorkerMessage::Failed { kind, .. } => Some(*kind),
                    _ => None,
                })
                .await;
            assert_eq!(kind, FailureKind::Busy);
            assert!(second.hear().await.is_none(), "it hung up");

            // The first is not disturbed, and leaves without a word in the middle of a step.
            assert_eq!(first.train(0).await, expected_losses());
            first.open(1).await;
            drop(first);

            // The next is served from the start, and so is one after a good goodbye. Once a host that was started again right
            // after its predecessor had been killed was told "busy", since memory was still being freed.
            let mut third = greeted(&address).await;
            third.start().await;
            assert_eq!(third.train(0).await, expected_losses());
            third.say(HostMessage::Bye).await;
            while third.hear().await.is_some() {}
            drop(third);
            greeted(&address).await.start().await;
        };
        tokio::select! {
            ended = serve(listener, CpuExecutor::with_threads(1), WorkerOptions::default()) => panic!("{ended:?}"),
            () = local => {}
        }
    });
}

#[test]
fn garbage_is_answered_and_the_next_host_served() {
    runtime().block_on(async {
        let listener = listen("mem:garbage").await;
        let address = listener.address().clone();
        let local = async {
            let garbage: [&[u8]; 4] = [
                b"GET / HTTP/1.1\r\n\r\n",
                &[0xff; 64],
                &[0; 64],
                // A hello announced as longer than any.
                &[0xff, 0xff, 0xff, 0x7f, 1, 0],
            ];
            for bytes in garbage {
                let kind = refusal(&address, bytes).await;
                assert_eq!(kind, FailureKind::Protocol);
            }
            greeted(&address).await.start().await;
        };
        tokio::select! {
            ended = serve(listener, CpuExecutor::with_threads(1), WorkerOptions::default()) => panic!("{ended:?}"),
            () = local => {}
        }
    });
}

#[test]
fn a_peer_that_says_nothing_does_not_keep_the_worker_busy() {
    runtime().block_on(async {
        let listener = listen("mem:silent").await;
        let address = listener.address().clone();
        let options = WorkerOptions {
            hello_timeout: Duration::from_millis(50),
            ..WorkerOptions::default()
        };
        let local = async {
            let mut silent = Host::new(dial(&address, Duration::from_secs(10)).await.unwrap());
            silent
                .until(|message| matches!(message, WorkerMessage::Bye { .. }).then_some(()))
                .await;
            assert!(silent.hear().await.is_none(), "it hung up");
        };
        tokio::select! {
            ended = serve(listener, CpuExecutor::with_threads(1), options) => panic!("{ended:?}"),
            () = local => {}
        }
    });
}
