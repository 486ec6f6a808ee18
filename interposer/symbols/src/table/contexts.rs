//! Contexts, streams and events.

super::symbols! {
    wrapped Context {
        cuDevicePrimaryCtxRetain 7000;
        cuDevicePrimaryCtxRelease 7000, 11000 _v2;
        cuDevicePrimaryCtxReset 7000, 11000 _v2;
        cuCtxDestroy 2000, 4000 _v2;
        cuCtxCreate 2000, 3020 _v2, 11040 _v3, 12050 _v4;
        cuCtxAttach 2000;
        cuCtxDetach 2000;
        cuGreenCtxCreate 12040;
        cuGreenCtxDestroy 12040;
        cuGLCtxCreate 2000, 3020 _v2;
        cuVDPAUCtxCreate 3010, 3020 _v2;
    }
    passed "makes a context current or asks which one is" {
        cuCtxFromGreenCtx 12040;
        cuCtxPushCurrent 2000, 4000 _v2;
        cuCtxPopCurrent 2000, 4000 _v2;
        cuCtxSetCurrent 4000;
        cuCtxGetCurrent 4000;
    }
    passed "asks about a context" {
        cuCtxGetApiVersion 3020;
        cuCtxGetCacheConfig 3020;
        cuCtxGetDevResource 12040;
        cuCtxGetDevice 2000, 13000 _v2;
        cuCtxGetExecAffinity 11040;
        cuCtxGetFlags 7000;
        cuCtxGetId 12000;
        cuCtxGetLimit 3010;
        cuCtxGetSharedMemConfig 4020;
        cuCtxGetStreamPriorityRange 5050;
        cuDevicePrimaryCtxGetState 7000;
        cuStreamGetCtx 9020, 12050 _v2, 9020 _ptsz, 12050 _v2_ptsz;
        cuStreamGetDevice 12080, 12080 _ptsz;
        cuGreenCtxGetId 12090;
        cuStreamGetGreenCtx 12040;
    }
    passed "sets limits and preferences of a context" {
        cuCtxSetCacheConfig 3020;
        cuCtxSetFlags 12010;
        cuCtxSetLimit 3010;
        cuCtxSetSharedMemConfig 4020;
        cuDevicePrimaryCtxSetFlags 7000, 11000 _v2;
        cuCtxResetPersistingL2Cache 11000;
    }
    passed "waits for work that has passed the gate, or asks whether it is done" {
        cuCtxSynchronize 2000, 13000 _v2;
        cuStreamSynchronize 2000, 7000 _ptsz;
        cuStreamQuery 2000, 7000 _ptsz;
        cuEventSynchronize 2000;
        cuEventQuery 2000;
    }
    passed "orders work and adds none" {
        cuEventRecord 2000, 7000 _ptsz;
        cuEventRecordWithFlags 11010, 11010 _ptsz;
        cuStreamWaitEvent 3020, 7000 _ptsz;
        cuCtxRecordEvent 12050;
        cuCtxWaitEvent 12050;
        cuGreenCtxRecordEvent 12040;
        cuGreenCtxWaitEvent 12040;
    }
    passed "creates, destroys or measures events" {
        cuEventCreate 2000;
        cuEventDestroy 2000, 4000 _v2;
        cuEventElapsedTime 2000, 12080 _v2;
    }
    wrapped Ipc {
        cuIpcGetEventHandle 4010;
        cuIpcOpenEventHandle 4010;
    }
    wrapped Stream {
        cuStreamCreate 2000;
        cuStreamCreateWithPriority 5050;
        cuGreenCtxStreamCreate 12050;
    }
    wrapped Addresses {
        cuStreamSetAttribute 11000, 11000 _ptsz;
    }
    passed "asks about a stream or copies its attributes" {
        cuStreamGetFlags 5050, 7000 _ptsz;
        cuStreamGetId 12000, 12000 _ptsz;
        cuStreamGetPriority 5050, 7000 _ptsz;
        cuStreamGetAttribute 11000, 11000 _ptsz;
        cuStreamCopyAttributes 11000, 11000 _ptsz;
    }
    passed "divides the multiprocessors of a card; work on the parts passes the gate" {
        cuDevSmResourceSplit 13010;
        cuDevSmResourceSplitByCount 12040;
        cuDevResourceGenerateDesc 12040;
        cuDeviceGetDevResource 12040;
        cuGreenCtxGetDevResource 12040;
        cuStreamGetDevResource 13010, 13010 _ptsz;
    }
    wrapped Peer {
        cuCtxEnablePeerAccess 4000;
    }
    passed "ends a context's reach to memory that is charged on another card" {
        cuCtxDisablePeerAccess 4000;
    }
    passed "asks about a running capture or changes its dependencies; nothing is executed" {
        cuStreamIsCapturing 10000, 10000 _ptsz;
        cuStreamGetCaptureInfo 10010, 11030 _v2, 12030 _v3, 10010 _ptsz, 11030 _v2_ptsz, 12030 _v3_ptsz;
        cuStreamUpdateCaptureDependencies 11030, 12030 _v2, 11030 _ptsz, 12030 _v2_ptsz;
        cuThreadExchangeStreamCaptureMode 10010;
    }
}
