//! Registered memory, as programs use it.

use crate::program::{Handle, Program};
use crate::{MIB, NOT_READY};

const INVALID_VALUE: u32 = 1;
const ILLEGAL_ADDRESS: u32 = 700;
const ALREADY_REGISTERED: u32 = 712;
const NOT_REGISTERED: u32 = 713;
const NOT_SUPPORTED: u32 = 801;

/// Private anonymous pages of the program.
pub(crate) struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Self {
        Self::mapped(len, libc::MAP_PRIVATE)
    }

    fn mapped(len: usize, sharing: i32) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = sharing | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), len }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    /// Lets the program itself only read them from now on.
    fn protect(&self) {
        // SAFETY: the mapping made in `mapped`, which nobody writes afterwards.
        assert_eq!(unsafe { libc::mprotect(self.start.cast(), self.len, libc::PROT_READ) }, 0);
    }

    fn word(&self, index: usize) -> u32 {
        assert!(index < self.len / 4);
        // SAFETY: inside of the mapping; the card may write it at any time.
        unsafe { self.start.cast::<u32>().add(index).read_volatile() }
    }

    fn set_word(&self, index: usize, value: u32) {
        assert!(index < self.len / 4);
        // SAFETY: as in `word`.
        unsafe { self.start.cast::<u32>().add(index).write_volatile(value) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nobody uses any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Holds the legacy stream up.
struct Gate {
    flag: u64,
    opener: Handle,
}

impl Gate {
    fn new(program: &Program) -> Self {
        let (mut flag, mut opener) = (0, 0);
        assert_eq!(program.cuMemAlloc_v2(&mut flag, 4), 0);
        assert_eq!(program.cuStreamCreate(&mut opener, 1), 0);
        Self { flag, opener }
    }

    fn close(&self, program: &Program) {
        assert_eq!(program.cuStreamWaitValue32_v2(0, self.flag, 1, 0), 0);
    }

    fn open(&self, program: &Program) {
        assert_eq!(program.cuStreamWriteValue32_v2(self.opener, self.flag, 1, 0), 0);
    }
}

pub(crate) fn is_reached() {
    let program = Program::start();
    let kernels = program.kernels();
    let (words, own) = (MIB, Pages::new(4 * MIB));
    [0, 1, words - 1].iter().for_each(|index| own.set_word(*index, 7));
    assert_eq!(program.cuMemHostRegister_v2(own.address(), 4 * MIB, 3), 0);
    assert_eq!([0, 1, 2, words - 1].map(|index| own.word(index)), [7, 7, 0, 7]);
    let (mut address, mut flags, mut kind) = (0, 0, 0);
    assert_eq!(program.cuMemHostGetDevicePointer_v2(&mut address, own.address(), 0), 0);
    assert_eq!(address, own.address());
    assert_eq!((program.cuMemHostGetFlags(&mut flags, own.address() + 5), flags), (0, 3));
    assert_eq!((program.cuPointerGetAttribute(&mut kind, 2, address), kind), (0, 1), "host memory");

    // What the program writes, a kernel reads, and the other way round.
    own.set_word(2, 10);
    assert_eq!(program.launch(kernels, "add", 0, &[address, words as u64, 1]), 0);
    assert_eq!(program.cuCtxSynchronize(), 0);
    assert_eq!([0, 2, 3, words - 1].map(|index| own.word(index)), [8, 11, 1, 8]);

    // A copy into it waits in its stream, not in the caller.
    let (gate, mut device) = (Gate::new(&program), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut device, 4 * MIB), 0);
    assert_eq!(program.cuMemsetD32Async(device, 42, words, 0), 0);
    gate.close(&program);
    assert_eq!(program.cuMemcpyDtoHAsync_v2(own.address() as *mut u8, device, 4 * MIB, 0), 0);
    assert_eq!((program.cuStreamQuery(0), own.word(0)), (NOT_READY, 8));
    gate.open(&program);
    assert_eq!(program.cuStreamSynchronize(0), 0);
    assert_eq!([0, words - 1].map(|index| own.word(index)), [42, 42]);

    // The bytes stay where they are, but nobody else reaches them any more.
    assert_eq!(program.cuMemHostUnregister(own.address()), 0);
    assert_eq!([0, words - 1].map(|index| own.word(index)), [42, 42]);
    assert_eq!(program.launch(kernels, "add", 0, &[address, 1, 1]), 0);
    assert_eq!(program.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    assert_eq!(own.word(0), 42);
}

pub(crate) fn keeps_its_rules() {
    let program = Program::start();
    let own = Pages::new(2 * MIB);
    let (address, half) = (own.address(), own.address() + MIB as u64);
    assert_eq!(program.cuMemHostRegister_v2(address, 0, 0), INVALID_VALUE);
    assert_eq!(program.cuMemHostRegister_v2(0, MIB, 0), INVALID_VALUE);
    assert_eq!(program.cuMemHostRegister_v2(address, MIB, 16), INVALID_VALUE);
    assert_eq!(program.cuMemHostRegister_v2(half, MIB, 0), 0);
    assert_eq!(program.cuMemHostRegister_v2(address, 2 * MIB, 0), ALREADY_REGISTERED, "its second half is");
    assert_eq!(program.cuMemHostRegister_v2(address, MIB, 0), 0);
    assert_eq!(program.cuMemFreeHost(address), INVALID_VALUE);
    assert_eq!(program.cuMemHostUnregister(address + 4096), NOT_REGISTERED);
    for part in [address, half] {
        assert_eq!(program.cuMemHostUnregister(part), 0);
        assert_eq!(program.cuMemHostUnregister(part), NOT_REGISTERED);
    }
    drop(own);
    assert_eq!(program.cuMemHostRegister_v2(address, MIB, 0), INVALID_VALUE, "nothing is there");
    // Registered memory that its program unmaps is gone, and the registration stays until it is ended.
    let gone = Pages::new(MIB);
    let address = gone.address();
    assert_eq!(program.cuMemHostRegister_v2(address, MIB, 0), 0);
    drop(gone);
    assert_eq!(program.cuMemHostUnregister(address), 0);
}

/// Time of a copy of 16 MiB to the card, on the card's clock: all of it is in the stream before it begins.
fn time(program: &Program, to: u64, from: u64) -> f32 {
    let (gate, mut before, mut after, mut milliseconds) = (Gate::new(program), 0, 0, 0.0);
    assert_eq!(program.cuEventCreate(&mut before, 0), 0);
    assert_eq!(program.cuEventCreate(&mut after, 0), 0);
    gate.close(program);
    assert_eq!(program.cuEventRecord(before, 0), 0);
    assert_eq!(program.cuMemcpyAsync(to, from, 16 * MIB, 0), 0);
    assert_eq!(program.cuEventRecord(after, 0), 0);
    gate.open(program);
    assert_eq!(program.cuEventSynchronize(after), 0);
    assert_eq!(program.cuEventElapsedTime_v2(&mut milliseconds, before, after), 0);
    milliseconds
}

/// 55 GB/s for registered memory and 7 GB/s for pageable memory on an H100, a tenth of each here.
pub(crate) fn is_fast() {
    let program = Program::start();
    let (own, mut device) = (Pages::new(16 * MIB), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut device, 16 * MIB), 0);
    let pageable = time(&program, device, own.address());
    assert_eq!(program.cuMemHostRegister_v2(own.address(), 16 * MIB, 0), 0);
    let registered = time(&program, device, own.address());
    assert!(pageable >= 23.9, "{pageable} ms");
    assert!((3.0..6.0).contains(&registered), "{registered} ms");
}

/// Memory that is not whole private pages cannot be exchanged for the card's. It is copied fast, and that is
/// all.
pub(crate) fn is_staged() {
    let program = Program::start();
    let (mut device, mut address, mut flags) = (0, 0, 0);
    let mut odd: Vec<u32> = (0..1000).collect();
    let start = odd.as_mut_ptr() as u64;
    assert_eq!(program.cuMemAlloc_v2(&mut device, 4000), 0);
    assert_eq!(program.cuMemHostRegister_v2(start, 4000, 1), 0);
    assert_eq!((program.cuMemHostGetFlags(&mut flags, start), flags), (0, 1));
    assert_eq!(program.cuMemHostGetDevicePointer_v2(&mut address, start, 0), NOT_SUPPORTED);
    assert_eq!(program.cuMemHostRegister_v2(start + 400, 400, 1), ALREADY_REGISTERED);
    assert_eq!(program.cuMemcpy(device, start, 4000), 0);
    assert_eq!(program.cuMemsetD32Async(device, 1, 1, 0), 0);
    assert_eq!(program.cuMemcpyDtoH_v2(odd.as_mut_ptr().cast(), device, 4000), 0);
    assert_eq!((odd[0], odd[999]), (1, 999));
    assert_eq!(program.cuMemHostUnregister(start), 0);
    assert_eq!(program.cuMemHostUnregister(start), NOT_REGISTERED);

    // Half a page, and pages that other processes may share, stay what they are.
    let (own, shared) = (Pages::new(8192), Pages::mapped(8192, libc::MAP_SHARED));
    for (start, len) in [(own.address() + 8, 4096), (own.address(), 4000), (shared.address(), 8192)] {
        assert_eq!(program.cuMemHostRegister_v2(start, len, 0), 0);
        assert_eq!(program.cuMemHostGetDevicePointer_v2(&mut address, start, 0), NOT_SUPPORTED);
        assert_eq!(program.cuMemHostUnregister(start), 0);
    }
}

/// Flag of a registration of memory that the card only reads.
const READ_ONLY: u32 = 8;
/// Attribute of a device: whether it knows that flag.
const READ_ONLY_SUPPORTED: u32 = 113;

fn is_supported(program: &Program) -> bool {
    let mut value = -1;
    assert_eq!(program.cuDeviceGetAttribute(&mut value, READ_ONLY_SUPPORTED, 0), 0);
    value == 1
}

/// Memory that the program itself can only read is registered by the flag alone, whether others can write it
/// or not.
pub(crate) fn is_read() {
    let program = Program::start();
    assert!(is_supported(&program));
    let (mut device, mut flags) = (0, 0);
    assert_eq!(program.cuMemAlloc_v2(&mut device, MIB), 0);
    for sharing in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        let own = Pages::mapped(MIB, sharing);
        (0..4).for_each(|index| own.set_word(index, 7));
        own.protect();
        assert_eq!(program.cuMemHostRegister_v2(own.address(), MIB, 1), INVALID_VALUE);
        assert_eq!(program.cuMemHostRegister_v2(own.address(), MIB, 1 | READ_ONLY), 0);
        assert_eq!((program.cuMemHostGetFlags(&mut flags, own.address()), flags), (0, 1 | READ_ONLY));
        assert_eq!(program.cuMemcpyAsync(device, own.address(), MIB, 0), 0);
        assert_eq!(program.cuCtxSynchronize(), 0);
        let mut words = [0_u32; 4];
        assert_eq!(program.cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), device, 16), 0);
        assert_eq!(words, [7; 4]);
        assert_eq!(program.cuMemcpyDtoH_v2(own.address() as *mut u8, device, 16), INVALID_VALUE);
        assert_eq!(program.cuMemHostUnregister(own.address()), 0);
    }
    // The flag binds the card, even where the program can write.
    let own = Pages::new(MIB);
    assert_eq!(program.cuMemHostRegister_v2(own.address(), MIB, READ_ONLY), 0);
    assert_eq!(program.cuMemcpyDtoHAsync_v2(own.address() as *mut u8, device, MIB, 0), INVALID_VALUE);
    assert_eq!((own.word(0), program.cuMemHostUnregister(own.address())), (0, 0));
    assert_eq!(program.cuMemcpyDtoH_v2(own.address() as *mut u8, device, MIB), 0);
    assert_eq!(own.word(0), 7);
}

pub(crate) fn is_not_read() {
    let program = Program::start();
    assert!(!is_supported(&program));
    let own = Pages::new(MIB);
    assert_eq!(program.cuMemHostRegister_v2(own.address(), MIB, READ_ONLY), NOT_SUPPORTED);
    assert_eq!(program.cuMemHostRegister_v2(own.address(), MIB, 0), 0);
    assert_eq!(program.cuMemHostUnregister(own.address()), 0);
}
