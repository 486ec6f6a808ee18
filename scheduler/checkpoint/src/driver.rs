//! The driver's library in the helper, and its functions for checkpoints.

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

use crate::protocol::{Refusal, State, Step};

/// File name of the library, which the loader finds by the environment of the daemon and never by a tenant's.
const LIBCUDA: &str = "libcuda.so.1";

/// First version of CUDA whose driver has the functions.
pub(crate) const FIRST_CUDA: i32 = 12_080;

/// Result of a call for which a card has too little memory.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// Result of a lock whose patience is over.
pub(crate) const NOT_READY: u32 = 600;

/// Arguments of every step, which are 64 bytes of zeros but for the patience of a lock in the first four.
type Arguments = [u32; 16];

type Init = unsafe extern "C" fn(c_uint) -> c_uint;
type Version = unsafe extern "C" fn(*mut c_int) -> c_uint;
type ErrorName = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
type GetState = unsafe extern "C" fn(c_int, *mut c_uint) -> c_uint;
type Act = unsafe extern "C" fn(c_int, *const Arguments) -> c_uint;

/// The initialised driver.
#[derive(Debug)]
pub(crate) struct Driver {
    library: Library,
    /// Version of CUDA that the driver supports.
    pub(crate) cuda: i32,
}

impl Driver {
    /// Loads the library and initialises the driver. Makes no context.
    pub(crate) fn load() -> Result<Self, String> {
        // SAFETY: the initialisers of NVIDIA's libraries have no preconditions. If they crash, they crash a process that
        // exists only to ask them.
        let library = unsafe { Library::new(LIBCUDA) }
            .map_err(|error| format!("{LIBCUDA} cannot be loaded: {error}"))?;
        let mut driver = Self { library, cuda: 0 };
        // SAFETY: the signatures are cuda.h's, and the version goes to a variable that lives through the call.
        unsafe {
            let version: Version = driver.function("cuDriverGetVersion")?;
            let code = version(&raw mut driver.cuda);
            driver
                .check("cuDriverGetVersion", code)
                .map_err(|refusal| refusal.to_string())?;
            if driver.cuda < FIRST_CUDA {
                let (major, minor) = (driver.cuda / 1000, driver.cuda % 1000 / 10);
                return Err(format!("the driver is for CUDA {major}.{minor}, and checkpoints need 12.8"));
            }
            let init: Init = driver.function("cuInit")?;
            let code = init(0);
            driver.check("cuInit", code).map_err(|refusal| refusal.to_string())?;
        }
        Ok(driver)
    }

    /// Takes a step about a process. Returns the state if the step asks for it.
    pub(crate) fn take(&self, pid: i32, step: Step) -> Result<Option<State>, Refusal> {
        let mut arguments: Arguments = [0; 16];
        let name = match step {
            Step::State => return self.state(pid).map(Some),
            Step::Lock(patience) => {
                // Zero would be no limit.
                arguments[0] = patience.max(1);
                "cuCheckpointProcessLock"
            }
            Step::Checkpoint => "cuCheckpointProcessCheckpoint",
            Step::Restore => "cuCheckpointProcessRestore",
            Step::Unlock => "cuCheckpointProcessUnlock",
        };
        // SAFETY: the signature is cuda.h's, and the arguments live through the call.
        unsafe { self.call(name, |act: Act| act(pid, &raw const arguments)) }?;
        Ok(None)
    }

    fn state(&self, pid: i32) -> Result<State, Refusal> {
        let (name, mut state) = ("cuCheckpointProcessGetState", 0);
        // SAFETY: the signature is cuda.h's, and the state goes to a variable that lives through the call.
        unsafe { self.call(name, |get: GetState| get(pid, &raw mut state)) }?;
        match state {
            0 => Ok(State::Running),
            1 => Ok(State::Locked),
            2 => Ok(State::Checkpointed),
            3 => Ok(State::Failed),
            other => Err(Refusal { call: name.to_owned(), code: 0, name: format!("state {other}") }),
        }
    }

    fn check(&self, call: &str, code: u32) -> Result<(), Refusal> {
        match code {
            0 => Ok(()),
            _ => Err(Refusal { call: call.to_owned(), code, name: self.name_of(code) }),
        }
    }

    fn name_of(&self, code: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the signature is cuda.h's. The text is a constant of the library, which is never closed before it is
        // copied.
        unsafe {
            let Ok(of) = self.function::<ErrorName>("cuGetErrorName") else {
                return "an error".to_owned();
            };
            match of(code, &raw mut name) {
                0 if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into_owned(),
                _ => "an error".to_owned(),
            }
        }
    }

    /// Calls a function of the library.
    ///
    /// # Safety
    /// `F` must be the signature that cuda.h gives the function.
    pub(crate) unsafe fn call<F: Copy>(
        &self,
        name: &str,
        call: impl FnOnce(F) -> c_uint,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller promises the signature.
        let function = unsafe { self.function(name) }.map_err(|_| missing(name))?;
        self.check(name, call(function))
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` must be the signature that cuda.h gives the function.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: the caller promises the signature.
        let found = unsafe { self.library.get::<F>(name) };
        found.map(|symbol| *symbol).map_err(|_| format!("{LIBCUDA} has no {name}"))
    }
}

fn missing(call: &str) -> Refusal {
    Refusal { call: call.to_owned(), code: 500, name: "CUDA_ERROR_NOT_FOUND".to_owned() }
}
