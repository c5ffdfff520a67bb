//! Links within a process: the host's own worker, and tests.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::io::duplex;
use tokio::sync::mpsc;

use crate::{Link, LinkAddress, LinkError};

/// Bytes that one direction holds before a writer waits, where nothing else is asked for.
pub const CAPACITY: usize = 1 << 20;

/// Connections that may wait to be accepted.
const BACKLOG: usize = 16;

/// Both ends of a link that holds at most `capacity` bytes (at least one) a direction.
pub fn pair(name: &str, capacity: usize) -> (Link, Link) {
    // One pipe a direction, each used one way: the ends then close independently, as those of a socket do.
    let (ahead_writer, ahead_reader) = duplex(capacity.max(1));
    let (back_writer, back_reader) = duplex(capacity.max(1));
    let peer = LinkAddress::Memory {
        name: name.to_owned(),
    };
    let dialled = Link {
        reader: Box::new(back_reader),
        writer: Box::new(ahead_writer),
        description: format!("memory {name}, dialled"),
        peer: peer.clone(),
    };
    let accepted = Link {
        reader: Box::new(ahead_reader),
        writer: Box::new(back_writer),
        description: format!("memory {name}, accepted"),
        peer,
    };
    (dialled, accepted)
}

/// Who listens in this process, by name. `mem:NAME` addresses have no other place to meet.
static LISTENERS: LazyLock<Mutex<HashMap<String, mpsc::Sender<Link>>>> =
    LazyLock::new(Mutex::default);

fn listeners() -> MutexGuard<'static, HashMap<String, mpsc::Sender<Link>>> {
    // The map is whole between any two statements, so a panic elsewhere has not harmed it.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) async fn dial(address: &LinkAddress, name: &str) -> Result<Link, LinkError> {
    let refused = || LinkError::Refused {
        address: address.clone(),
    };
    let listener = listeners().get(name).cloned().ok_or_else(refused)?;
    let (dialled, accepted) = pair(name, CAPACITY);
    listener.send(accepted).await.map_err(|_| refused())?;
    Ok(dialled)
}

#[derive(Debug)]
pub(crate) struct Listener {
    name: String,
    waiting: mpsc::Receiver<Link>,
}

impl Listener {
    pub(crate) fn bind(address: &LinkAddress, name: &str) -> Result<Self, LinkError> {
        let mut listeners = listeners();
        if listeners.contains_key(name) {
            return Err(LinkError::InUse {
                address: address.clone(),
            });
        }
        let (sender, waiting) = mpsc::channel(BACKLOG);
        listeners.insert(name.to_owned(), sender);
        Ok(Self {
            name: name.to_owned(),
            waiting,
        })
    }

    pub(crate) async fn accept(&mut self, address: &LinkAddress) -> Result<Link, LinkError> {
        // The registry holds a sender for as long as this listener lives, so the channel does not end.
        self.waiting
            .recv()
            .await
            .ok_or_else(|| LinkError::NotLocal {
                address: address.clone(),
            })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        listeners().remove(&self.name);
    }
}
