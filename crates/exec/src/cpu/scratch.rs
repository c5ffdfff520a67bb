//! The memory that operators work in: planned when a program is compiled, kept from run to run.

use std::sync::{Arc, Mutex, PoisonError};

use outboard_kernels::{Isa, Method, Scratch};

use super::recycle::{Recycled, Store};

/// How an engine computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) threads: usize,
    pub(super) method: Method,
    pub(super) isa: Isa,
}

/// Scratch memory that no run is using. Its owners are the compiled programs: it goes with the last of them.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    /// Memory of at least some `f32` elements; the largest there is, or new.
    pub(super) fn take(&self, elements: usize) -> Scratch {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = free.pop().unwrap_or_default();
        drop(free);
        scratch.reserve(elements);
        scratch
    }

    /// Takes memory back.
    pub(super) fn give(&self, scratch: Scratch) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(scratch);
    }
}

/// What the programs of an engine share.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) scratch: Pool,
    pub(super) tensors: Arc<Store>,
}

/// Where an operator works.
pub(super) struct Workplace<'a> {
    pub(super) settings: &'a Settings,
    pub(super) scratch: &'a mut Scratch,
    pub(super) tensors: &'a Arc<Store>,
}

impl Workplace<'_> {
    /// Memory for a result of some bytes, its content of no meaning.
    pub(super) fn result(&self, bytes: usize) -> Recycled {
        self.tensors.take(bytes)
    }

    /// So many `f32`: exactly, for kernels share them out among threads.
    pub(super) fn f32s(&mut self, elements: usize) -> &mut [f32] {
        &mut self.scratch.f32s()[..elements]
    }

    /// As many `f64` as fit where so many `f32` were planned.
    pub(super) fn f64s(&mut self, elements: usize) -> &mut [f64] {
        &mut self.scratch.f64s()[..elements / 2]
    }
}
