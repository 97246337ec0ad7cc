//! What the pool needs to know of the machine and undo of the host's process.

use super::MAX_THREADS;
use std::marker::PhantomData;

/// Keeps what is undone on a thread from being sent to another one.
type ThisThread = PhantomData<*const ()>;

/// Physical cores that this process may use: affinity and the cgroup's quota count, hardware threads of one core count
/// once.
pub fn cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    physical_cores().map_or(usable, |cores| usable.min(cores)).clamp(1, MAX_THREADS)
}

/// Distinct cores among the CPUs of this thread's affinity mask.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set, and the call writes at most the size it is given.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) == 0).then_some(set)
    }?;
    let mut cores = std::collections::BTreeSet::new();
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: cpu < CPU_SETSIZE.
        if unsafe { libc::CPU_ISSET(cpu, &set) } {
            let siblings = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            cores.insert(std::fs::read_to_string(siblings).ok()?);
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(not(target_os = "linux"))]
fn physical_cores() -> Option<usize> {
    None
}

/// All signals blocked on this thread until this is dropped. Signals are for the host's threads: those that are started
/// meanwhile inherit the mask, and so never have one delivered.
#[derive(Debug)]
pub struct BlockedSignals {
    #[cfg(unix)]
    host: libc::sigset_t,
    _this_thread: ThisThread,
}

impl BlockedSignals {
    /// Blocks them.
    pub fn set() -> BlockedSignals {
        #[cfg(unix)]
        // SAFETY: an all-zero sigset_t is a valid value, the calls write one each, and the mask is the calling thread's own.
        unsafe {
            let (mut all, mut host): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut host);
            BlockedSignals { host, _this_thread: PhantomData }
        }
        #[cfg(not(unix))]
        BlockedSignals { _this_thread: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: the mask that `set` found, back on the same thread: this is not `Send`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.host, std::ptr::null_mut());
        }
    }
}

/// The default floating-point mode on this thread until this is dropped; then the host's again, its sticky flags too.
#[derive(Debug)]
pub struct DefaultFloats {
    host: mode::Mode,
    _this_thread: ThisThread,
}

impl DefaultFloats {
    /// Sets the default mode.
    pub fn set() -> DefaultFloats {
        let host = mode::read();
        mode::write(mode::DEFAULT);
        DefaultFloats { host, _this_thread: PhantomData }
    }
}

impl Drop for DefaultFloats {
    fn drop(&mut self) {
        mode::write(self.host);
    }
}

/// The register with this thread's floating-point mode: rounding, subnormals, traps.
#[cfg(target_arch = "x86_64")]
mod mode {
    use std::arch::asm;

    pub type Mode = u32;
    /// MXCSR as Rust assumes it: round to nearest, subnormals kept, exceptions masked.
    pub const DEFAULT: Mode = 0x1F80;

    pub fn read() -> Mode {
        let mut mode = 0;
        // SAFETY: stores the 32 bits of MXCSR in `mode` and changes nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
        mode
    }

    pub fn write(mode: Mode) {
        // SAFETY: `mode` is `DEFAULT`, which is what compiled code assumes, or what `read` gave: valid, since a reserved bit
        // would trap, and written back when the library's code on this thread is done.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags)) };
    }
}

/// As above.
#[cfg(target_arch = "aarch64")]
mod mode {
    use std::arch::asm;

    pub type Mode = u64;
    /// FPCR as Rust assumes it: round to nearest, subnormals kept, no traps.
    pub const DEFAULT: Mode = 0;

    pub fn read() -> Mode {
        let mode;
        // SAFETY: reads FPCR and changes nothing.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, preserves_flags)) };
        mode
    }

    pub fn write(mode: Mode) {
        // SAFETY: `mode` is `DEFAULT`, which is what compiled code assumes, or what `read` gave, written back when the library's
        // code on this thread is done.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) };
    }
}

/// Nothing is known of it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mode {
    pub type Mode = ();
    pub const DEFAULT: Mode = ();

    pub fn read() -> Mode {}

    pub fn write((): Mode) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_mode_comes_back() {
        let before = mode::read();
        let host = 0x1F80 | 0x8040 | 0x6000 | 0x20; // flush to zero, denormals are zero, toward zero, inexact seen
        mode::write(host);
        let inside = {
            let _floats = DefaultFloats::set();
            mode::read()
        };
        let after = mode::read();
        mode::write(before);
        assert_eq!((inside, after), (mode::DEFAULT, host));
    }
}
