//! One suite for all kinds of links: whatever a session may count on must hold on each.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::future::Future;
use std::io;
use std::time::Duration;

use outboard_link::{Link, LinkAddress, LinkError, ListenOptions, Listener, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Long enough for any machine, short enough that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(30);

fn address(text: &str) -> LinkAddress {
    text.parse().unwrap()
}

async fn listen(text: &str) -> Listener {
    Listener::bind(&address(text), ListenOptions::default())
        .await
        .unwrap()
}

/// The dialled and the accepted end of a link.
async fn connect(listener: &mut Listener) -> (Link, Link) {
    let to = listener.address().clone();
    let (dialled, accepted) = tokio::join!(dial(&to, PATIENCE), listener.accept());
    (dialled.unwrap(), accepted.unwrap())
}

/// Byte `i` of the test stream: no power of two divides its period.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|i| (i % 251) as u8).collect()
}

async fn patiently<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("the link hangs")
}

async fn bytes_arrive_in_order(mut listener: Listener) {
    let (mut a, mut b) = connect(&mut listener).await;
    // Both directions at once, a prime number of bytes, in many small and a few large writes.
    const TOTAL: usize = 12_000_017;
    async fn send(link: &mut Link, piece: usize) {
        let mut sent = 0;
        while sent < TOTAL {
            let length = piece.min(TOTAL - sent);
            link.writer.write_all(&pattern(sent, length)).await.unwrap();
            sent += length;
        }
        link.writer.shutdown().await.unwrap();
    }
    async fn receive(reader: &mut outboard_link::LinkReader) {
        let mut received = 0;
        let mut buffer = vec![0; 100_003];
        loop {
            let length = reader.read(&mut buffer).await.unwrap();
            if length == 0 {
                break;
            }
            assert_eq!(
                buffer[..length],
                pattern(received, length),
                "at byte {received}"
            );
            received += length;
        }
        assert_eq!(received, TOTAL);
    }
    let (mut a_reader, mut b_reader) = {
        let empty = || -> outboard_link::LinkReader { Box::new(tokio::io::empty()) };
        (
            std::mem::replace(&mut a.reader, empty()),
            std::mem::replace(&mut b.reader, empty()),
        )
    };
    tokio::join!(
        send(&mut a, 1_000_003),
        send(&mut b, 4099),
        receive(&mut a_reader),
        receive(&mut b_reader)
    );
}

async fn many_small_writes_are_not_held_back(mut listener: Listener) {
    let (mut a, mut b) = connect(&mut listener).await;
    let mut byte = [0];
    for i in 0..1000_u32 {
        a.writer.write_all(&[i as u8]).await.unwrap();
        b.reader.read_exact(&mut byte).await.unwrap();
        b.writer.write_all(&byte).await.unwrap();
        a.reader.read_exact(&mut byte).await.unwrap();
        assert_eq!(byte, [i as u8]);
    }
}

async fn one_direction_may_end_before_the_other(mut listener: Listener) {
    let (mut a, mut b) = connect(&mut listener).await;
    a.writer.write_all(b"last words").await.unwrap();
    a.writer.shutdown().await.unwrap();
    let mut heard = Vec::new();
    b.reader.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"last words");
    b.writer.write_all(b"an answer").await.unwrap();
    drop(b.writer);
    heard.clear();
    a.reader.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"an answer");
}

async fn a_peer_that_vanishes_is_noticed(mut listener: Listener) {
    let (a, mut b) = connect(&mut listener).await;
    let waiting = tokio::spawn(async move {
        let mut byte = [0];
        let read = b.reader.read(&mut byte).await;
        (read, b)
    });
    tokio::task::yield_now().await;
    drop(a);
    let (read, mut b) = waiting.await.unwrap();
    // The end of the stream or an error; never a byte.
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    // Writing fails too, once the system knows.
    let error = loop {
        if let Err(error) = b.writer.write_all(&[0; 1000]).await {
            break error;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert!(
        matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        ),
        "{error:?}"
    );
}

async fn a_writer_waits_for_a_reader(mut listener: Listener) {
    let (mut a, mut b) = connect(&mut listener).await;
    const CHUNK: usize = 1 << 16;
    const BOUND: usize = 64 << 20;
    let mut written = 0;
    // Nobody reads: sooner or later a write does not end.
    while timeout(Duration::from_millis(200), a.writer.write_all(&[7; CHUNK]))
        .await
        .is_ok()
    {
        written += CHUNK;
        assert!(written < BOUND, "{written} bytes and still no end");
    }
    // Reading sets it going again.
    let read = tokio::spawn(async move {
        let mut buffer = vec![0; CHUNK];
        let mut total = 0;
        while total < written {
            total += b.reader.read(&mut buffer).await.unwrap();
        }
        b
    });
    a.writer.write_all(&[7; CHUNK]).await.unwrap();
    read.await.unwrap();
}

async fn a_dropped_read_loses_nothing(mut listener: Listener) {
    let (mut a, mut b) = connect(&mut listener).await;
    let mut buffer = [0; 8];
    // A read that is given up before anything came must not take bytes that come later.
    for i in 0..20_u8 {
        let given_up = timeout(Duration::from_millis(1), b.reader.read(&mut buffer)).await;
        assert!(given_up.is_err());
        a.writer.write_all(&[i]).await.unwrap();
        let length = b.reader.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..length], [i]);
    }
}

async fn a_dropped_accept_loses_nothing(mut listener: Listener) {
    assert!(
        timeout(Duration::from_millis(5), listener.accept())
            .await
            .is_err()
    );
    let (mut a, mut b) = connect(&mut listener).await;
    a.writer.write_all(b"x").await.unwrap();
    assert_eq!(b.reader.read_u8().await.unwrap(), b'x');
    assert!(b.description.contains(match b.peer {
        LinkAddress::Tcp { .. } => "127.0.0.1",
        LinkAddress::Memory { .. } => "memory",
    }));
}

async fn a_listener_takes_one_guest_after_the_other(mut listener: Listener) {
    for i in 0..50_u8 {
        let (mut a, mut b) = connect(&mut listener).await;
        a.writer.write_all(&[i]).await.unwrap();
        assert_eq!(b.reader.read_u8().await.unwrap(), i);
    }
}

async fn an_address_is_free_again_after_its_listener(listener: Listener) {
    let to = listener.address().clone();
    let second = Listener::bind(&to, ListenOptions::default()).await;
    assert!(matches!(second, Err(LinkError::InUse { .. })), "{second:?}");
    drop(listener);
    let refused = dial(&to, PATIENCE).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, LinkError::Refused { .. }), "{error}");
    assert!(error.to_string().contains(&to.to_string()));
    assert!(error.to_string().contains("is `outboard worker` running"));
    Listener::bind(&to, ListenOptions::default()).await.unwrap();
}

macro_rules! suite {
    ($($check:ident),+ $(,)?) => {
        mod tcp {
            $(#[tokio::test]
            async fn $check() {
                super::patiently(super::$check(super::listen("tcp://127.0.0.1:0").await)).await;
            })+
        }
        mod memory {
            $(#[tokio::test]
            async fn $check() {
                let name = concat!("mem:", stringify!($check));
                super::patiently(super::$check(super::listen(name).await)).await;
            })+
        }
    };
}

suite!(
    bytes_arrive_in_order,
    many_small_writes_are_not_held_back,
    one_direction_may_end_before_the_other,
    a_peer_that_vanishes_is_noticed,
    a_writer_waits_for_a_reader,
    a_dropped_read_loses_nothing,
    a_dropped_accept_loses_nothing,
    a_listener_takes_one_guest_after_the_other,
    an_address_is_free_again_after_its_listener,
);

#[tokio::test]
async fn listening_beyond_loopback_must_be_asked_for() {
    for text in ["tcp://0.0.0.0:0", "tcp://[::]:0"] {
        let error = Listener::bind(&address(text), ListenOptions::default())
            .await
            .unwrap_err();
        assert!(matches!(error, LinkError::NotLoopback { .. }), "{error}");
        assert!(error.to_string().contains("--insecure-listen"));
    }
    let options = ListenOptions {
        allow_non_loopback: true,
    };
    let open = Listener::bind(&address("tcp://0.0.0.0:0"), options)
        .await
        .unwrap();
    assert!(!open.address().to_string().ends_with(":0"));
}

#[tokio::test]
async fn wrong_places_say_what_to_try() {
    // TEST-NET-1 (RFC 5737) is no address of any machine.
    let options = ListenOptions {
        allow_non_loopback: true,
    };
    let error = Listener::bind(&address("tcp://192.0.2.1:0"), options)
        .await
        .unwrap_err();
    assert!(matches!(error, LinkError::NotLocal { .. }), "{error}");
    // RFC 6761: `.invalid` never resolves.
    let error = dial(&address("tcp://phone.invalid:7000"), Duration::from_secs(5))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            LinkError::Unknown { .. } | LinkError::TimedOut { .. }
        ),
        "{error}"
    );
}

/// `localhost` is often `::1` first, where this listener is not: the dialler must go on to the next address.
#[tokio::test]
async fn every_address_of_a_name_is_tried() {
    let mut listener = listen("tcp://127.0.0.1:0").await;
    let LinkAddress::Tcp { port, .. } = *listener.address() else {
        panic!("a TCP listener has a TCP address");
    };
    let to = address(&format!("tcp://localhost:{port}"));
    let (dialled, accepted) = tokio::join!(dial(&to, PATIENCE), listener.accept());
    assert_eq!(dialled.unwrap().peer, to);
    accepted.unwrap();
}

#[tokio::test]
async fn dialling_ends_in_time() {
    // A listener whose queue is full does not answer; nor does one that never accepts a memory link.
    let listener = listen("mem:busy").await;
    let mut waiting = Vec::new();
    let error = loop {
        match dial(listener.address(), Duration::from_millis(50)).await {
            Ok(link) => waiting.push(link),
            Err(error) => break error,
        }
        assert!(waiting.len() < 1000);
    };
    assert!(matches!(error, LinkError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("within 0.05 s"), "{error}");
}
