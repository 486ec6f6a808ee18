//! Modules and libraries: PTX text in, functions out.

use std::sync::Arc;

use simgpu_card::kernel::SIGNATURES;
use simgpu_card::ptx::Module;

use crate::api::prelude::*;
use crate::ffi::Image;
use crate::state::Function;

api! {
    fn cuModuleLoad("cuModuleLoad", 2000)(module: Out<Handle>, path: Text) {
        current::context()?;
        let text = std::fs::read_to_string(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        module.set(keep(&text)?)
    }

    fn cuModuleLoadData("cuModuleLoadData", 2000)(module: Out<Handle>, image: Image) {
        current::context()?;
        module.set(keep(&image.ptx()?)?)
    }

    fn cuModuleLoadDataEx("cuModuleLoadDataEx", 2010)(
        module: Out<Handle>, image: Image, _options: u32, _names: In<u32>, _values: In<*mut c_void>,
    ) {
        current::context()?;
        module.set(keep(&image.ptx()?)?)
    }

    fn cuModuleUnload("cuModuleUnload", 2000)(module: Handle) {
        forget(module)
    }

    fn cuModuleGetFunction("cuModuleGetFunction", 2000)(function: Out<Handle>, module: Handle, name: Text) {
        function.set(find(module, name.get()?)?)
    }

    fn cuModuleGetFunctionCount("cuModuleGetFunctionCount", 12040)(count: Out<u32>, module: Handle) {
        count.set(u32::try_from(parsed(module)?.entries.len()).unwrap_or(u32::MAX))
    }

    fn cuModuleGetLoadingMode("cuModuleGetLoadingMode", 11070)(mode: Out<u32>) {
        const EAGER: u32 = 1;
        mode.set(EAGER)
    }

    fn cuLibraryLoadData("cuLibraryLoadData", 12000)(
        library: Out<Handle>, image: Image, _options: In<u32>, _values: In<*mut c_void>, _count: u32,
        _library_options: In<u32>, _library_values: In<*mut c_void>, _library_count: u32,
    ) {
        library.set(keep(&image.ptx()?)?)
    }

    fn cuLibraryUnload("cuLibraryUnload", 12000)(library: Handle) {
        forget(library)
    }

    /// A library is its one module, and a kernel is its function: there is one kind of GPU.
    fn cuLibraryGetModule("cuLibraryGetModule", 12000)(module: Out<Handle>, library: Handle) {
        parsed(library)?;
        module.set(library)
    }

    fn cuLibraryGetKernel("cuLibraryGetKernel", 12000)(kernel: Out<Handle>, library: Handle, name: Text) {
        kernel.set(find(library, name.get()?)?)
    }

    fn cuLibraryGetKernelCount("cuLibraryGetKernelCount", 12040)(count: Out<u32>, library: Handle) {
        count.set(u32::try_from(parsed(library)?.entries.len()).unwrap_or(u32::MAX))
    }

    fn cuKernelGetFunction("cuKernelGetFunction", 12000)(function: Out<Handle>, kernel: Handle) {
        function_of(kernel)?;
        function.set(kernel)
    }

    fn cuFuncGetName("cuFuncGetName", 12030)(name: Out<*const c_char>, function: Handle) {
        let known = function_of(function)?.entry.name;
        let texts = [c"empty", c"fill", c"add", c"checksum", c"touch", c"spin"];
        let text = texts.into_iter().find(|text| text.to_bytes() == known.as_bytes());
        name.set(text.ok_or(Code::NOT_FOUND)?.as_ptr())
    }

    fn cuFuncGetModule("cuFuncGetModule", 11000)(module: Out<Handle>, function: Handle) {
        module.set(Tag::Module.handle(function_of(function)?.module))
    }

    fn cuFuncGetAttribute("cuFuncGetAttribute", 2020)(value: Out<i32>, attribute: u32, function: Handle) {
        function_of(function)?;
        value.set(match attribute {
            0 => 1024,     // threads of a block
            4 => 32,       // registers
            5 => 70,       // PTX version
            6 => 90,       // binary version
            8 => 48 << 10, // dynamic shared memory
            1..=3 | 7 | 9..=15 => 0,
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    fn cuFuncSetAttribute("cuFuncSetAttribute", 9000)(function: Handle, _attribute: u32, _value: i32) {
        function_of(function).map(|_| ())
    }

    fn cuFuncSetCacheConfig("cuFuncSetCacheConfig", 3000)(function: Handle, _config: u32) {
        function_of(function).map(|_| ())
    }

    fn cuFuncGetParamInfo("cuFuncGetParamInfo", 12040)(
        function: Handle, index: usize, offset: Out<usize>, size: Out<usize>,
    ) {
        let function = function_of(function)?;
        let parameter = function.entry.parameters.get(index).ok_or(Code::INVALID_VALUE)?;
        offset.set(parameter.offset)?;
        size.set_if_wanted(parameter.size);
        Ok(())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050)(
        blocks: Out<i32>, function: Handle, block_size: i32, _shared: usize,
    ) {
        occupancy(blocks, function, block_size)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000
    )(blocks: Out<i32>, function: Handle, block_size: i32, _shared: usize, _flags: u32) {
        occupancy(blocks, function, block_size)
    }
}

/// The function behind a handle.
pub(crate) fn function_of(handle: Handle) -> Answer<Function> {
    let id = Tag::Function.id(handle).ok_or(Code::INVALID_HANDLE)?;
    driver()?.state().functions.get(&id).cloned().ok_or(Code::INVALID_HANDLE)
}

/// A loaded function of this name: which of several does not matter, they do the same.
pub(crate) fn named(name: &str) -> Answer<Handle> {
    let state = driver()?.state();
    let mut functions = state.functions.iter();
    let found = functions.find(|(_, function)| function.entry.name == name);
    found.map(|(&id, _)| Tag::Function.handle(id)).ok_or(Code::NOT_FOUND)
}

fn keep(text: &str) -> Answer<Handle> {
    let module = Module::parse(text);
    if !text.contains(".version") {
        return Err(Code::INVALID_IMAGE);
    }
    let mut state = driver()?.state();
    let id = state.fresh();
    state.modules.insert(id, Arc::new(module));
    Ok(Tag::Module.handle(id))
}

fn forget(module: Handle) -> Answer {
    let id = Tag::Module.id(module).ok_or(Code::INVALID_HANDLE)?;
    let mut state = driver()?.state();
    state.modules.remove(&id).ok_or(Code::INVALID_HANDLE)?;
    state.functions.retain(|_, function| function.module != id);
    Ok(())
}

fn parsed(module: Handle) -> Answer<Arc<Module>> {
    let id = Tag::Module.id(module).ok_or(Code::INVALID_HANDLE)?;
    driver()?.state().modules.get(&id).cloned().ok_or(Code::INVALID_HANDLE)
}

/// A function of a module: it must be in its text and one that the card can run.
fn find(module: Handle, name: &str) -> Answer<Handle> {
    let entry = parsed(module)?.entry(name).cloned().ok_or(Code::NOT_FOUND)?;
    if !SIGNATURES.iter().any(|(known, _)| *known == name) {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut state = driver()?.state();
    let id = state.fresh();
    let module = Tag::Module.id(module).ok_or(Code::INVALID_HANDLE)?;
    state.functions.insert(id, Function { module, entry });
    Ok(Tag::Function.handle(id))
}

fn occupancy(blocks: Out<i32>, function: Handle, block_size: i32) -> Answer {
    function_of(function)?;
    if !(1..=1024).contains(&block_size) {
        return Err(Code::INVALID_VALUE);
    }
    blocks.set((2048 / block_size).min(32))
}
