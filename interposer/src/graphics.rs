//! Exported functions by which a process gets memory, frames and events of graphics interfaces.

use std::ffi::{c_int, c_uint};

use gpushare_client::hooks::graphics::take;

use crate::hook::{Pointer, hooks};

hooks! {
    [take:] cuGraphicsGLRegisterBuffer(resource: Pointer, buffer: c_uint, flags: c_uint);
    [take:] cuGraphicsGLRegisterImage(resource: Pointer, image: c_uint, target: c_uint, flags: c_uint);
    [take:] cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface(
        resource: Pointer, surface: c_uint, flags: c_uint
    );
    [take:] cuGraphicsEGLRegisterImage(resource: Pointer, image: Pointer, flags: c_uint);
    [take:] cuGLRegisterBufferObject(buffer: c_uint);
    [take:] cuEGLStreamConsumerConnect(connection: Pointer, stream: Pointer);
    [take:] cuEGLStreamConsumerConnectWithFlags(connection: Pointer, stream: Pointer, flags: c_uint);
    [take:] cuEGLStreamProducerConnect(connection: Pointer, stream: Pointer, width: c_int, height: c_int);
    [take:] cuEventCreateFromEGLSync(event: Pointer, sync: Pointer, flags: c_uint);
}
