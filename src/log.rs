//! Messages for the host's log: nothing is formatted or said unless the host asked for it.
//!
//! A message is given to the host's function at once, in the host's thread whose call brought it about. Threads of the
//! pool say nothing, and neither does a thread that is inside that function already.

use crate::error::Result;
use crate::{bail, err};
use std::cell::Cell;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock};

/// How much a message matters, as the C ABI numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// For who looks for the cause of something.
    Debug = 1,
    /// What happens in the usual course.
    Info = 2,
    /// Probably not what the host wants.
    Warn = 3,
    /// A defect of this library.
    Error = 4,
}

/// The host's function.
pub type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

/// Above every level.
const OFF: u8 = u8::MAX;

/// The lowest level that is wanted: spares what nobody hears the lock.
static LOWEST: AtomicU8 = AtomicU8::new(OFF);
/// Read while the function runs, so that it is replaced only between its calls.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

thread_local! {
    /// Whether this thread is inside the host's function, or one of the pool's.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Gives the messages from `lowest` on to `sink` (`None`: to nobody). Waits for calls of the one before that are
/// running; none begins later.
pub fn set(sink: Option<Sink>, lowest: Level) -> Result<()> {
    if SILENT.get() {
        bail!(State, "called by the log function itself, which is in use until it returns");
    }
    let level = if sink.is_some() { lowest as u8 } else { OFF };
    let before = {
        let mut current = SINK.write().unwrap_or_else(PoisonError::into_inner);
        LOWEST.store(level, Ordering::Relaxed); // only a hint: who reads an old one finds the new sink under the lock
        std::mem::replace(&mut *current, sink)
    };
    drop(before);
    Ok(())
}

/// Whether somebody listens at `level`.
pub fn wanted(level: Level) -> bool {
    level as u8 >= LOWEST.load(Ordering::Relaxed) && !SILENT.get()
}

/// Keeps the calling thread silent from now on.
pub fn silence_thread() {
    SILENT.set(true);
}

/// Says something, if it is [`wanted`]; see the macro `log!`.
pub fn say(level: Level, message: Arguments<'_>) {
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
    // Under the lock, as the level belongs to the sink.
    let Some(sink) = sink.as_ref().filter(|_| wanted(level)) else { return };
    let _silence = Silence::begin();
    sink(level, &one_line(&message.to_string()));
}

/// Names out of files may hold anything; a message is one line without control characters.
fn one_line(message: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    if message.contains(char::is_control) { message.chars().map(shown).collect() } else { message.to_owned() }
}

/// The thread is silent while this lives.
struct Silence;

impl Silence {
    fn begin() -> Silence {
        SILENT.set(true);
        Silence
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        SILENT.set(false);
    }
}

/// The level with the number `number`.
pub fn level(number: i32) -> Result<Level> {
    let levels = [Level::Debug, Level::Info, Level::Warn, Level::Error];
    let found = levels.into_iter().find(|level| *level as i32 == number);
    found.ok_or_else(|| err!(InvalidArgument, "expected 1 to 4, found {number}"))
}

/// `log!(Info, "loaded in {s} s")` says it to the host, if it listens. Not for the threads of a pool.
#[macro_export]
#[doc(hidden)]
macro_rules! log {
    ($level:ident, $($arg:tt)*) => {
        if $crate::log::wanted($crate::log::Level::$level) {
            $crate::log::say($crate::log::Level::$level, format_args!($($arg)*));
        }
    };
}

/// Held by a test that sets the log, as there is one in a process.
#[cfg(test)]
pub static TESTING: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn messages_reach_the_sink_that_is_set() {
        let _alone = TESTING.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mine = format!("of thread {:?}", std::thread::current().id()); // other tests may say something meanwhile
        let (to, mark) = (heard.clone(), mine.clone());
        let sink = move |level, text: &str| {
            if text.contains(&mark) {
                crate::log!(Error, "nobody hears what the sink itself brings about, {mark}");
                assert_eq!(set(None, Level::Info).unwrap_err().status, crate::error::Status::State);
                to.lock().unwrap().push((level, text.to_string()));
            }
        };
        crate::log!(Error, "before, {mine}");
        set(Some(Box::new(sink)), Level::Info).unwrap();
        crate::log!(Debug, "too low, {mine}");
        crate::log!(Info, "one\ntwo\0, {mine}");
        crate::log!(Warn, "é, {mine}");
        let text = mine.clone();
        std::thread::spawn(move || {
            silence_thread();
            crate::log!(Error, "of the pool, {text}");
        })
        .join()
        .unwrap();
        set(None, Level::Info).unwrap();
        crate::log!(Error, "after, {mine}");
        let expected = [(Level::Info, format!("one\\ntwo\\u{{0}}, {mine}")), (Level::Warn, format!("é, {mine}"))];
        assert_eq!(*heard.lock().unwrap(), expected);
        assert!([0, 5, -1].iter().all(|&n| level(n).is_err()) && level(4) == Ok(Level::Error));
    }
}
