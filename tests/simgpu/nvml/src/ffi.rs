//! Arguments and codes as C passes them. The C caller promises what the NVML documentation asks for.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An `nvmlReturn_t` that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

pub(crate) type Answer<T = ()> = Result<T, Code>;

impl Code {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const GPU_IS_LOST: Self = Self(15);
    pub(crate) const VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);

    /// The sentence of `nvmlErrorString`.
    pub(crate) fn text(code: u32) -> &'static CStr {
        match code {
            0 => c"Success",
            1 => c"Uninitialized",
            2 => c"Invalid Argument",
            3 => c"Not Supported",
            6 => c"Not Found",
            7 => c"Insufficient Size",
            9 => c"Driver Not Loaded",
            10 => c"Timeout",
            13 => c"Function Not Found",
            15 => c"GPU is lost",
            25 => c"Argument version mismatch",
            _ => c"Unknown Error",
        }
    }
}

/// Runs the body of an exported function: no panic leaves it.
pub(crate) fn guard(body: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// A place for a result, or a structure to be read and filled.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    pub(crate) fn set(self, value: T) -> Answer {
        self.set_at(0, value)
    }

    /// Writes to one of many places that the caller promises to be there.
    pub(crate) fn set_at(self, index: usize, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null; the C caller promises a writable T at this index.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null; the C caller promises a readable T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<c_char> {
    /// Writes a text with its end, if there is room for it.
    pub(crate) fn set_text(self, text: &str, room: u32) -> Answer {
        if text.len() >= room as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let bytes = text.bytes().chain([0]).enumerate();
        bytes
            .into_iter()
            .try_for_each(|(index, byte)| self.set_at(index, byte.cast_signed()))
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null; the C caller promises a terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_ARGUMENT)
    }
}
