//! Helpers that have not ended yet. The next operation on their process waits for them.
//!
//! A helper that was killed may stay in a call of the driver for a while, or for ever. Whatever that call still does,
//! it must not come after a step of the next helper.

use std::process::Child;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::target::Target;

/// Helpers that have not ended, with their processes.
static ENDING: Mutex<Vec<(Target, Child)>> = Mutex::new(Vec::new());
/// Notified when a helper has ended.
static HAS_ENDED: Condvar = Condvar::new();

/// Pause between two looks at a helper for whose end no thread waits.
const LOOK: Duration = Duration::from_millis(20);

/// Takes over a helper that was killed or told to end, or the process of a trial.
pub(crate) fn end(target: Target, child: Child) {
    let pid = Pid::from_child(&child);
    lock().push((target, child));
    // Without a thread the next operation looks after it.
    let _ = thread::Builder::new().name("helper-end".to_owned()).spawn(move || {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        remove_ended(&mut lock());
        HAS_ENDED.notify_all();
    });
}

/// Waits until no helper of a process is left. Kills those that are left after `patience`, and returns `false`.
pub(crate) fn wait_for(target: Target, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let mut ending = lock();
    loop {
        remove_ended(&mut ending);
        let mut of_process = ending.iter_mut().filter(|(of, _)| *of == target).peekable();
        if of_process.peek().is_none() {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            of_process.for_each(|(_, child)| drop(child.kill()));
            return false;
        }
        let waited = HAS_ENDED.wait_timeout(ending, left.min(LOOK));
        (ending, _) = waited.unwrap_or_else(PoisonError::into_inner);
    }
}

fn remove_ended(ending: &mut Vec<(Target, Child)>) {
    ending.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
}

fn lock() -> MutexGuard<'static, Vec<(Target, Child)>> {
    ENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_next_operation_on_a_process_waits_for_its_last_helper() {
        let [busy, other] = [1, 2].map(|pid| Target { pid, start: 0 });
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        end(busy, child);
        assert!(wait_for(other, Duration::ZERO), "nothing is left of it");
        assert!(!wait_for(busy, Duration::ZERO));
        assert!(wait_for(busy, Duration::from_secs(60)), "it was killed");
        assert!(gpushare_sys::process::is_dead(pid));
    }
}
