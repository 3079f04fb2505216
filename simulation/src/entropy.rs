//! Seeded randomness: hash maps, `tokio::select!` and jitter draw theirs from the system once for each thread. In a
//! thread of the simulation the system gives what follows from the seed.

#![expect(unsafe_code, reason = "it takes the place of a function of libc")]

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Seeds all randomness of this thread. It must be a new thread: what has been drawn stays.
pub fn seed(seed: u64) {
    STATE.set(Some(seed));
    fastrand::seed(seed);
}

/// `getrandom` of libc, which std and the crates for randomness call.
///
/// # Safety
/// `buffer` must have room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    let Some(mut state) = STATE.get() else {
        // SAFETY: the caller's buffer is passed on as it is.
        let written = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return written as libc::ssize_t;
    };
    // SAFETY: the caller gives a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for byte in bytes {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *byte = (mixed ^ (mixed >> 27)) as u8;
    }
    STATE.set(Some(state));
    length as libc::ssize_t
}
