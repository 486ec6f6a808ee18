//! Lock of the table, under which hooks call the driver.
//!
//! A profiler's callback inside such a call may call the driver again in the same thread. That call must not
//! lock the table again, so it goes to the driver as it is.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use super::Handles;
use crate::process::lock;

thread_local! {
    /// Whether the thread holds the lock.
    static IS_HOLDER: Cell<bool> = const { Cell::new(false) };
}

/// Locked table of handles.
#[derive(Debug)]
pub(crate) struct Locked<'a>(MutexGuard<'a, Handles>);

impl<'a> Locked<'a> {
    pub(crate) fn new(table: &'a Mutex<Handles>) -> Self {
        let locked = lock(table);
        IS_HOLDER.set(true);
        Self(locked)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        IS_HOLDER.set(false);
    }
}

impl Deref for Locked<'_> {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Handles {
        &mut self.0
    }
}

/// Returns whether the calling thread has locked the table.
pub(crate) fn is_holder() -> bool {
    IS_HOLDER.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_locks_the_table_is_its_holder() {
        let table = Mutex::default();
        let locked = Locked::new(&table);
        assert!(is_holder());
        std::thread::scope(|scope| assert!(!scope.spawn(is_holder).join().unwrap()));
        drop(locked);
        assert!(!is_holder());
        let unwound = std::panic::catch_unwind(|| {
            let _locked = Locked::new(&table);
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(unwound.is_err() && !is_holder());
    }
}
