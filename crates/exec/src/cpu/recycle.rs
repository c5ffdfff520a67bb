//! Memory of tensors that is used again: aligned to cache lines, and neither asked from the system nor cleared each time.
//!
//! It holds no more than was promised: what is free and what is in use never exceed the most that was in use at once, or
//! that a run was expected to take.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use burn_backend::Bytes;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};
use outboard_kernels::Scratch;

/// Memory that no tensor uses, by size. Its owners are the compiled programs: it goes with the last of them.
#[derive(Debug, Default)]
pub(super) struct Store(Mutex<Stock>);

#[derive(Debug, Default)]
struct Stock {
    free: BTreeMap<usize, Vec<Scratch>>,
    free_bytes: usize,
    used_bytes: usize,
    /// The most that may be held.
    most_bytes: usize,
}

impl Store {
    /// Memory for some bytes, its content of no meaning.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Recycled {
        let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = Scratch::size_of(bytes);
        stock.used_bytes += size;
        stock.most_bytes = stock.most_bytes.max(stock.used_bytes);
        let found = stock.free.get_mut(&size).and_then(Vec::pop);
        let mut memory = found.unwrap_or_default();
        stock.free_bytes -= memory.bytes();
        stock.shrink();
        drop(stock);
        memory.reserve(bytes.div_ceil(size_of::<f32>()));
        Recycled {
            memory,
            bytes,
            store: Arc::downgrade(self),
        }
    }

    /// A run begins that takes over tensors of `input_bytes` and takes up to `peak_bytes` in all.
    pub(super) fn expect(&self, input_bytes: usize, peak_bytes: usize) {
        let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = stock.used_bytes.saturating_sub(input_bytes);
        stock.most_bytes = stock.most_bytes.max(others.saturating_add(peak_bytes));
    }

    fn give(&self, memory: Scratch) {
        let mut stock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = memory.bytes();
        stock.used_bytes -= size;
        stock.free_bytes += size;
        stock.free.entry(size).or_default().push(memory);
        stock.shrink();
    }
}

impl Stock {
    /// Lets free memory go, the largest first, while more is held than may be.
    fn shrink(&mut self) {
        while self.free_bytes + self.used_bytes > self.most_bytes {
            let Some(mut largest) = self.free.last_entry() else {
                return;
            };
            let gone = largest.get_mut().pop();
            if largest.get().is_empty() {
                largest.remove();
            }
            self.free_bytes -= gone.map_or(0, |memory| memory.bytes());
        }
    }
}

/// Memory of one tensor; returns to its store when that is still there.
#[derive(Debug)]
pub(super) struct Recycled {
    memory: Scratch,
    bytes: usize,
    store: Weak<Store>,
}

impl Recycled {
    /// As `f32`, all of it.
    pub(super) fn f32s(&mut self) -> &mut [f32] {
        &mut self.memory.f32s()[..self.bytes / size_of::<f32>()]
    }

    /// As `i64`, all of it.
    pub(super) fn i64s(&mut self) -> &mut [i64] {
        &mut self.memory.i64s()[..self.bytes / size_of::<i64>()]
    }

    /// For Burn.
    #[expect(
        unsafe_code,
        reason = "Burn takes memory that is not its own this way only"
    )]
    pub(super) fn into_bytes(self) -> Bytes {
        let bytes = self.bytes;
        // SAFETY: scratch memory is initialised, and there are at least so many bytes of it.
        unsafe { Bytes::from_controller(Box::new(self), bytes) }
    }
}

impl AllocationController for Recycled {
    /// What copies need. This memory has more than Burn's own may have.
    fn alloc_align(&self) -> usize {
        align_of::<i64>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    #[expect(unsafe_code, reason = "so it is declared")]
    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        // SAFETY: the caller writes nothing uninitialised.
        Ok(unsafe { self.memory.uninit_bytes() })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.memory.as_uninit_bytes())
    }

    fn capacity(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for Recycled {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.give(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(store: &Store) -> (usize, usize) {
        let stock = store.0.lock().unwrap();
        (stock.used_bytes, stock.free_bytes)
    }

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let store = Arc::<Store>::default();
        let mut first = store.take(100);
        assert_eq!(first.f32s().len(), 25);
        let address = first.f32s().as_ptr();
        drop(first);
        assert_eq!(held(&store), (0, 128));
        assert_eq!(store.take(120).f32s().as_ptr(), address);
    }

    #[test]
    fn no_more_is_held_than_was_used_or_expected() {
        let store = Arc::<Store>::default();
        drop((store.take(64), store.take(64)));
        assert_eq!(held(&store), (0, 128));
        let larger = store.take(128);
        assert_eq!(held(&store), (128, 0));
        let smaller = store.take(64);
        assert_eq!(held(&store), (192, 0));
        drop((larger, smaller));
        assert_eq!(held(&store), (0, 192));
        let first = store.take(320);
        assert_eq!(held(&store), (320, 0));
        // Beside 320 bytes that are no input of it, a run takes up to 128.
        store.expect(0, 128);
        drop(store.take(64));
        drop(store.take(128));
        assert_eq!(held(&store), (320, 128));
        drop(first);
        assert_eq!(held(&store), (0, 448));
    }

    #[test]
    fn memory_may_outlive_its_store() {
        let store = Arc::<Store>::default();
        let mut memory = store.take(64);
        drop(store);
        memory.f32s().fill(1.0);
    }
}
