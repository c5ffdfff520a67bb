//! Tensors that have arrived and wait for the action that takes them. Bounded by the receive windows.

use std::collections::{HashMap, HashSet};

use outboard_wire::{DataFrame, DataHeader, DataKind};

use crate::event::Arrived;

/// What a tensor is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) step: u64,
    pub(crate) stage: u16,
    pub(crate) kind: DataKind,
    pub(crate) micro_batch: u16,
    pub(crate) name: String,
}

impl Address {
    pub(crate) fn of(header: &DataHeader) -> Self {
        Address {
            step: header.step,
            stage: header.stage,
            kind: header.kind,
            micro_batch: header.micro_batch,
            name: header.name.clone(),
        }
    }
}

/// A frame's tensor and what it holds of the receive window.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) arrived: Arrived,
    pub(crate) frame_bytes: u64,
}

/// Arrived tensors by address. An address takes one tensor a step, also after that has been taken out.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: HashMap<Address, Letter>,
    seen: HashSet<Address>,
}

impl Mailbox {
    /// Keeps a tensor; `false` when one for the same address came before.
    pub(crate) fn put(&mut self, frame: DataFrame) -> bool {
        let address = Address::of(&frame.header);
        if !self.seen.insert(address.clone()) {
            return false;
        }
        let frame_bytes = frame.frame.len() as u64;
        let arrived = Arrived {
            header: frame.header,
            payload: frame.payload,
        };
        self.letters.insert(
            address,
            Letter {
                arrived,
                frame_bytes,
            },
        );
        true
    }

    pub(crate) fn has(&self, address: &Address) -> bool {
        self.letters.contains_key(address)
    }

    pub(crate) fn get(&self, address: &Address) -> Option<&Arrived> {
        self.letters.get(address).map(|letter| &letter.arrived)
    }

    pub(crate) fn take(&mut self, address: &Address) -> Option<Letter> {
        self.letters.remove(address)
    }

    /// Forgets a step; gives what is left of it.
    pub(crate) fn close(&mut self, step: u64) -> Vec<Letter> {
        self.seen.retain(|address| address.step != step);
        self.letters
            .extract_if(|address, _| address.step == step)
            .map(|(_, letter)| letter)
            .collect()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) -> Vec<Letter> {
        self.seen.clear();
        self.letters.drain().map(|(_, letter)| letter).collect()
    }
}
