//! What the pool needs to know of the machine and undo of the host's process.

use super::MAX_THREADS;

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

/// Undoes what a new thread inherits from the host's: signals are for the host's threads, and the floating-point mode
/// must be the default one for equal results.
pub fn isolate_thread() {
    #[cfg(unix)]
    // SAFETY: a full signal set, and the calling thread's own mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: 0x1F80 is the mode Rust assumes: round to nearest, denormals kept, exceptions masked.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &0x1F80u32, options(nostack, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: an FPCR of zero is the mode Rust assumes.
    unsafe {
        std::arch::asm!("msr fpcr, {0:x}", in(reg) 0u64, options(nostack, nomem));
    }
}
