//! Memory and frames of graphics interfaces. What they name is taken for theirs, unless it is null; its memory is
//! nowhere here.

use crate::api::prelude::*;

fn answer(resource: Out<u64>, of_interface: u64) -> Answer {
    if of_interface == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let fresh = driver()?.state().fresh();
    resource.set(u64::from(fresh))
}

api! {
    fn cuGraphicsVDPAURegisterOutputSurface("cuGraphicsVDPAURegisterOutputSurface", 3010)
        = cuGraphicsVDPAURegisterVideoSurface("cuGraphicsVDPAURegisterVideoSurface", 3010)
        = cuGraphicsGLRegisterBuffer("cuGraphicsGLRegisterBuffer", 3000)(
        resource: Out<u64>, of_interface: u32, _flags: u32,
    ) {
        answer(resource, of_interface.into())
    }

    fn cuGraphicsGLRegisterImage("cuGraphicsGLRegisterImage", 3000)(
        resource: Out<u64>, image: u32, _target: u32, _flags: u32,
    ) {
        answer(resource, image.into())
    }

    fn cuGraphicsEGLRegisterImage("cuGraphicsEGLRegisterImage", 7000)
        = cuEGLStreamConsumerConnectWithFlags("cuEGLStreamConsumerConnectWithFlags", 8000)
        = cuEventCreateFromEGLSync("cuEventCreateFromEGLSync", 9000)(
        resource: Out<u64>, of_interface: u64, _flags: u32,
    ) {
        answer(resource, of_interface)
    }

    fn cuEGLStreamConsumerConnect("cuEGLStreamConsumerConnect", 7000)(connection: Out<u64>, stream: u64) {
        answer(connection, stream)
    }

    fn cuEGLStreamProducerConnect("cuEGLStreamProducerConnect", 7000)(
        connection: Out<u64>, stream: u64, _width: i32, _height: i32,
    ) {
        answer(connection, stream)
    }

    fn cuGLRegisterBufferObject("cuGLRegisterBufferObject", 2000)(buffer: u32) {
        if buffer == 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }
}
