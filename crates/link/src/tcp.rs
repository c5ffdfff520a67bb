//! TCP links.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::{Link, LinkAddress, LinkError, ListenOptions};

/// A peer that lost power says nothing: probes from 5 s of silence, the link is given up 3 unanswered seconds later. The
/// conversation's own pings notice sooner while a run is on.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
#[cfg(not(windows))]
const KEEP_ALIVE_PROBES: u32 = 3;

pub(crate) async fn dial(
    address: &LinkAddress,
    host: &str,
    port: u16,
    timeout: Duration,
) -> Result<Link, LinkError> {
    let timed_out = || LinkError::TimedOut {
        address: address.clone(),
        timeout,
    };
    let start = Instant::now();
    let deadline = start.checked_add(timeout).unwrap_or(start + FAR);
    let candidates: Vec<SocketAddr> = timeout_at(deadline, lookup_host((host, port)))
        .await
        .map_err(|_| timed_out())?
        .map_err(|source| LinkError::Unknown {
            address: address.clone(),
            source,
        })?
        .collect();

    let mut first_error = None;
    for (tried, candidate) in candidates.iter().enumerate() {
        // Every candidate gets its share of the time that is left: one that is silent must not starve the others.
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(candidates.len() - tried).unwrap_or(u32::MAX);
        let until = Instant::now().checked_add(share).unwrap_or(deadline);
        match timeout_at(until, TcpStream::connect(candidate)).await {
            Ok(Ok(stream)) => return link(stream, address, address.clone()),
            Ok(Err(error)) => {
                first_error.get_or_insert(LinkError::from_connect(address, error));
            }
            Err(_) => {
                first_error.get_or_insert(timed_out());
            }
        }
    }
    Err(first_error.unwrap_or_else(|| LinkError::Unknown {
        address: address.clone(),
        source: io::Error::new(io::ErrorKind::NotFound, "the name has no addresses"),
    }))
}

/// Stands in for a time-out that is beyond the clock.
const FAR: Duration = Duration::from_secs(86_400 * 365);

fn link(stream: TcpStream, address: &LinkAddress, peer: LinkAddress) -> Result<Link, LinkError> {
    let failed = |source| LinkError::Io {
        doing: "setting up",
        address: address.clone(),
        source,
    };
    // Frames are written whole; waiting for more would only delay the small ones that others wait for.
    stream.set_nodelay(true).map_err(failed)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_IDLE)
        .with_interval(KEEP_ALIVE_INTERVAL);
    #[cfg(not(windows))]
    let keep_alive = keep_alive.with_retries(KEEP_ALIVE_PROBES);
    SockRef::from(&stream)
        .set_tcp_keepalive(&keep_alive)
        .map_err(failed)?;
    let local = stream.local_addr().map_err(failed)?;
    let remote = stream.peer_addr().map_err(failed)?;
    let (reader, writer) = stream.into_split();
    Ok(Link {
        reader: Box::new(reader),
        writer: Box::new(writer),
        description: format!("tcp {local} -> {remote}"),
        peer,
    })
}

fn address_of(socket: SocketAddr) -> LinkAddress {
    LinkAddress::Tcp {
        host: socket.ip().to_string(),
        port: socket.port(),
    }
}

#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) async fn bind(
        address: &LinkAddress,
        host: &str,
        port: u16,
        options: ListenOptions,
    ) -> Result<Self, LinkError> {
        let candidates: Vec<SocketAddr> = lookup_host((host, port))
            .await
            .map_err(|source| LinkError::Unknown {
                address: address.clone(),
                source,
            })?
            .collect();
        let mut first_error = None;
        for candidate in candidates {
            if !candidate.ip().to_canonical().is_loopback() && !options.allow_non_loopback {
                return Err(LinkError::NotLoopback {
                    address: address.clone(),
                });
            }
            match TcpListener::bind(candidate).await {
                Ok(listener) => return Ok(Self(listener)),
                Err(error) => {
                    first_error.get_or_insert(LinkError::from_bind(address, error));
                }
            }
        }
        Err(first_error.unwrap_or_else(|| LinkError::NotLocal {
            address: address.clone(),
        }))
    }

    pub(crate) fn address(&self, asked: &LinkAddress) -> Result<LinkAddress, LinkError> {
        let socket = self.0.local_addr().map_err(|source| LinkError::Io {
            doing: "listening on",
            address: asked.clone(),
            source,
        })?;
        Ok(address_of(socket))
    }

    pub(crate) async fn accept(&mut self, address: &LinkAddress) -> Result<Link, LinkError> {
        loop {
            match self.0.accept().await {
                Ok((stream, peer)) => {
                    // A peer that is gone already is its own affair, not the listener's.
                    if let Ok(link) = link(stream, address, address_of(peer)) {
                        return Ok(link);
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted
                            | io::ErrorKind::ConnectionReset
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(source) => {
                    return Err(LinkError::Io {
                        doing: "accepting on",
                        address: address.clone(),
                        source,
                    });
                }
            }
        }
    }
}
