//! The `cudarc` crate as it is published: it opens libcuda itself and looks every function up in it.
//!
//! Uploads words, adds to them by a kernel on a stream of its own, and prints what comes back and how large
//! the card is.

use std::ffi::CString;

use cudarc::driver::{CudaContext, DevicePtr, result};

const WORDS: usize = 1 << 18;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let buffer = stream.clone_htod(&vec![40_u32; WORDS])?;

    let text = CString::new(include_str!("../workload/src/kernels.ptx"))?;
    // SAFETY: a PTX text that ends in a zero byte.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module is alive to the end of the program.
    let add = unsafe { result::module::get_function(module, CString::new("add")?) }?;
    let (mut address, _in_use) = buffer.device_ptr(&stream);
    let (mut count, mut value) = (WORDS as u64, 2_u32);
    let mut arguments = [(&raw mut address).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    // SAFETY: the kernel takes an address, a count and a value, and the buffer has that many words.
    unsafe { result::launch_kernel(add, (64, 1, 1), (128, 1, 1), 0, stream.cu_stream(), &mut arguments) }?;

    let words = stream.clone_dtoh(&buffer)?;
    stream.synchronize()?;
    let right = words.iter().filter(|&&word| word == 42).count();
    println!("{right} of {} words are 42", words.len());
    println!("{} bytes on {}", context.mem_get_info()?.1, context.name()?);
    Ok(())
}
