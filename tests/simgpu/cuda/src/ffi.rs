//! Arguments as C passes them.
//!
//! A function of this library takes `Out<T>` where C writes `T*` for a result, `In<T>` where C writes
//! `const T*`, and so on. They have the layout of the pointer, so the signatures are the ABI's, and the
//! bodies behind them need no unsafe code of their own. One promise carries all of it: *the C caller passes
//! what the CUDA documentation asks for*; a null pointer is noticed, a wrong one cannot be.

use std::ffi::{CStr, c_char, c_void};

use gpushare_sys::unwind::stop_panics;

use crate::codes::{Answer, Code};
use crate::{faults, hold};

/// Runs the body of an exported function, unless it is to go wrong: no panic leaves it.
pub(crate) fn guard(call: &str, body: impl FnOnce() -> Answer) -> u32 {
    let _inside = hold::enter(call);
    if let Some(code) = faults::answer(call) {
        return code;
    }
    let answered = stop_panics(body);
    faults::linger();
    match answered {
        Some(Ok(())) => 0,
        Some(Err(Code(code))) => code,
        None => Code::UNKNOWN.0,
    }
}

/// A place for a result.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes the result.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes the result unless the pointer is null.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null; the C caller promises a writable T. It may be unaligned in a packed struct.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the first of `values`, as many as there is place for.
    pub(crate) fn set_many(self, values: &[T], place: usize) {
        if !self.0.is_null() {
            for (index, value) in values.iter().take(place).enumerate() {
                // SAFETY: not null; the C caller promises `place` elements, and `index` is below that.
                unsafe { self.0.add(index).write_unaligned(*value) }
            }
        }
    }

    /// Casts the address to another type, for functions whose result type depends on an argument.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes a text with its end, cut to `place` bytes.
    pub(crate) fn set_text(self, text: &str, place: i32) -> Answer {
        let place = usize::try_from(place)
            .ok()
            .filter(|place| *place > 0)
            .ok_or(Code::INVALID_VALUE)?;
        let bytes = text
            .bytes()
            .take(place - 1)
            .chain([0])
            .map(u8::cast_signed)
            .collect::<Vec<c_char>>();
        if self.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        self.set_many(&bytes, place);
        Ok(())
    }
}

/// A structure to read, or values in a row.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Answer<T> {
        self.at(0)
    }

    /// Casts the address to another type, for functions whose argument's type depends on another argument.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// The value at an index of a row that the caller promises to be that long.
    pub(crate) fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the C caller promises a readable T at this index.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// A place that is read and then written.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InOut<T>(*mut T);

impl<T> From<InOut<T>> for In<T> {
    fn from(place: InOut<T>) -> Self {
        Self(place.0)
    }
}

impl<T> From<InOut<T>> for Out<T> {
    fn from(place: InOut<T>) -> Self {
        Self(place.0)
    }
}

impl<T> InOut<T> {
    /// Place so many bytes after the beginning: a member of a union.
    pub(crate) fn inside<U>(self, bytes: usize) -> InOut<U> {
        InOut(self.0.cast::<u8>().wrapping_add(bytes).cast())
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<&'static str> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the C caller promises a terminated string that lives during the call, which is as long
        // as any body keeps it.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_VALUE)
    }
}

/// A module image: PTX text, or one of the binary forms.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Image(*const c_void);

impl Image {
    /// The PTX text; binary forms are for other GPUs than this one.
    pub(crate) fn ptx(self) -> Answer<String> {
        const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
        const FAT_BINARY: [u32; 2] = [0xba55_ed50, 0x4662_43b1];
        let start = In(self.0.cast::<[u8; 4]>()).get()?;
        let magic = u32::from_le_bytes(start);
        if magic == ELF || FAT_BINARY.contains(&magic) {
            return Err(Code::NO_BINARY_FOR_GPU);
        }
        let text = Text(self.0.cast()).get().map_err(|_| Code::INVALID_IMAGE)?;
        // A real driver's compiler refuses other characters, also in comments.
        if !text.is_ascii() {
            return Err(Code::INVALID_PTX);
        }
        Ok(text.to_owned())
    }
}

/// Host memory of the caller, to read from or write to.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Host(pub(crate) u64);

impl Host {
    /// Copies `len` bytes from here.
    pub(crate) fn read(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        // SAFETY: the C caller promises `len` readable bytes; the vector has as many.
        unsafe { std::ptr::copy(self.0 as *const u8, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Copies `bytes` to here.
    pub(crate) fn write(self, bytes: &[u8]) {
        // SAFETY: the C caller promises that many writable bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.0 as *mut u8, bytes.len()) };
    }
}

/// `void** kernelParams`: one pointer for each parameter.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams(*const *const c_void);

/// `void** extra`: tags and values, of which a parameter buffer is the one in use.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Extra(*const *const c_void);

impl KernelParams {
    /// For an answer that tells none.
    pub(crate) fn none() -> Self {
        Self(std::ptr::null())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The parameter at an index, `size` bytes of it.
    pub(crate) fn read(self, index: usize, size: usize) -> Answer<u64> {
        let parameter = In(self.0).at(index)?;
        if parameter.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        Ok(number(&Host(parameter as u64).read(size.min(8))))
    }
}

impl Extra {
    /// For an answer that tells none.
    pub(crate) fn none() -> Self {
        Self(std::ptr::null())
    }

    /// The address of the parameter buffer.
    pub(crate) fn buffer(self) -> Answer<Host> {
        const END: usize = 0;
        const BUFFER_POINTER: usize = 1;
        let mut index = 0;
        loop {
            let tag = In(self.0).at(index)? as usize;
            match tag {
                END => return Err(Code::INVALID_VALUE),
                BUFFER_POINTER => return Ok(Host(In(self.0).at(index + 1)? as u64)),
                _ => index += 2,
            }
        }
    }
}

impl Host {
    /// The little-endian number at an offset from here.
    pub(crate) fn number(self, offset: usize, size: usize) -> u64 {
        number(&Self(self.0 + offset as u64).read(size.min(8)))
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}
