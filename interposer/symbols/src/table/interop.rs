//! Interoperation with other interfaces: their memory and frames.

super::symbols! {
    wrapped Ipc {
        cuImportExternalMemory 10000;
        cuImportExternalSemaphore 10000;
    }
    wrapped Graphics {
        cuGraphicsEGLRegisterImage 7000;
        cuGraphicsGLRegisterBuffer 3000;
        cuGraphicsGLRegisterImage 3000;
        cuGraphicsVDPAURegisterOutputSurface 3010;
        cuGraphicsVDPAURegisterVideoSurface 3010;
        cuGLRegisterBufferObject 2000;
        cuEGLStreamConsumerConnect 7000;
        cuEGLStreamConsumerConnectWithFlags 8000;
        cuEGLStreamProducerConnect 7000;
        cuEventCreateFromEGLSync 9000;
    }
    passed "maps memory that another interface allocated" {
        cuDestroyExternalMemory 10000;
        cuExternalMemoryGetMappedBuffer 10000;
        cuExternalMemoryGetMappedMipmappedArray 10000;
        cuDestroyExternalSemaphore 10000;
    }
    passed "maps buffers that a graphics interface allocated" {
        cuGraphicsResourceGetMappedEglFrame 7000;
        cuGraphicsResourceGetMappedMipmappedArray 5000;
        cuGraphicsResourceGetMappedPointer 3000, 3020 _v2;
        cuGraphicsResourceSetMapFlags 3000, 6050 _v2;
        cuGraphicsSubResourceGetMappedArray 3000;
        cuGraphicsUnregisterResource 3000;
        cuGLGetDevices 4010, 6050 _v2;
        cuGLInit 2000;
        cuGLMapBufferObject 2000, 3020 _v2, 7000 _v2_ptds;
        cuGLMapBufferObjectAsync 2030, 3020 _v2, 7000 _v2_ptsz;
        cuGLSetBufferObjectMapFlags 2030;
        cuGLUnmapBufferObject 2000;
        cuGLUnmapBufferObjectAsync 2030;
        cuGLUnregisterBufferObject 2000;
        cuVDPAUGetDevice 3010;
    }
    passed "streams frames of EGL" {
        cuEGLStreamConsumerAcquireFrame 7000;
        cuEGLStreamConsumerDisconnect 7000;
        cuEGLStreamConsumerReleaseFrame 7000;
        cuEGLStreamProducerDisconnect 7000;
        cuEGLStreamProducerPresentFrame 7000;
        cuEGLStreamProducerReturnFrame 7000;
    }
}
