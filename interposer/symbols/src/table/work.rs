//! Work for the card: launches, copies, fills, stream operations.

super::symbols! {
    wrapped Launch {
        cuLaunchKernel 4000, 7000 _ptsz;
        cuLaunchKernelEx 11060, 11060 _ptsz;
        cuLaunchCooperativeKernel 9000, 9000 _ptsz;
        cuLaunch 2000;
        cuLaunchGrid 2000;
        cuLaunchGridAsync 2000;
        cuLaunchCooperativeKernelMultiDevice 9000;
        cuLaunchHostFunc 10000, 13010 _v2, 10000 _ptsz, 13010 _v2_ptsz;
        cuStreamAddCallback 5000, 7000 _ptsz;
    }
    wrapped Graph {
        cuGraphLaunch 10000, 10000 _ptsz;
        cuGraphUpload 11010, 11010 _ptsz;
        cuGraphInstantiate 10000, 11000 _v2;
        cuGraphInstantiateWithFlags 11040;
        cuGraphInstantiateWithParams 12000, 12000 _ptsz;
        cuGraphExecDestroy 10000;
    }
    wrapped Copy {
        cuMemcpyAsync 4000, 7000 _ptsz;
        cuMemcpy2DAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpy3DAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpy3DBatchAsync 12080, 13000 _v2, 12080 _ptsz, 13000 _v2_ptsz;
        cuMemcpy3DPeerAsync 4000, 7000 _ptsz;
        cuMemcpyAtoHAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpyBatchAsync 12080, 13000 _v2, 12080 _ptsz, 13000 _v2_ptsz;
        cuMemcpyDtoDAsync 3000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpyDtoHAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpyHtoAAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpyHtoDAsync 2000, 3020 _v2, 7000 _v2_ptsz;
        cuMemcpyPeerAsync 4000, 7000 _ptsz;
        cuMemcpy 4000, 7000 _ptds;
        cuMemcpy2D 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpy2DUnaligned 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpy3D 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpy3DPeer 4000, 7000 _ptds;
        cuMemcpyAtoA 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyAtoD 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyAtoH 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyDtoA 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyDtoD 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyDtoH 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyHtoA 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyHtoD 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemcpyPeer 4000, 7000 _ptds;
        cuMemcpy3DWithAttributesAsync 13020, 13020 _ptsz;
        cuMemcpyWithAttributesAsync 13020, 13020 _ptsz;
        cuFabricCpyBatchAsync 13050, 13050 _ptsz;
        cuMemBatchDecompressAsync 12060, 12060 _ptsz;
    }
    wrapped Set {
        cuMemsetD16 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD16Async 3020, 7000 _ptsz;
        cuMemsetD2D16 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD2D16Async 3020, 7000 _ptsz;
        cuMemsetD2D32 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD2D32Async 3020, 7000 _ptsz;
        cuMemsetD2D8 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD2D8Async 3020, 7000 _ptsz;
        cuMemsetD32 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD32Async 3020, 7000 _ptsz;
        cuMemsetD8 2000, 3020 _v2, 7000 _v2_ptds;
        cuMemsetD8Async 3020, 7000 _ptsz;
    }
    wrapped Prefetch {
        cuMemPrefetchAsync 8000, 12020 _v2, 8000 _ptsz, 12020 _v2_ptsz;
        cuMemPrefetchBatchAsync 13000, 13000 _ptsz;
        cuMemDiscardBatchAsync 13000, 13000 _ptsz;
        cuMemDiscardAndPrefetchBatchAsync 13000, 13000 _ptsz;
    }
    wrapped StreamOperation {
        cuStreamWaitValue32 8000, 11070 _v2, 8000 _ptsz, 11070 _v2_ptsz;
        cuStreamWaitValue64 9000, 11070 _v2, 9000 _ptsz, 11070 _v2_ptsz;
        cuStreamWriteValue32 8000, 11070 _v2, 8000 _ptsz, 11070 _v2_ptsz;
        cuStreamWriteValue64 9000, 11070 _v2, 9000 _ptsz, 11070 _v2_ptsz;
        cuStreamBatchMemOp 8000, 11070 _v2, 8000 _ptsz, 11070 _v2_ptsz;
        cuSignalExternalSemaphoresAsync 10000, 10000 _ptsz;
        cuWaitExternalSemaphoresAsync 10000, 10000 _ptsz;
        cuStreamAttachMemAsync 6000, 7000 _ptsz;
        cuGraphicsMapResources 3000, 7000 _ptsz;
        cuGraphicsUnmapResources 3000, 7000 _ptsz;
    }
    wrapped Capture {
        cuStreamBeginCapture 10000, 10010 _v2, 10000 _ptsz, 10010 _v2_ptsz;
        cuStreamBeginCaptureToGraph 12030, 12030 _ptsz;
        cuStreamEndCapture 10000, 10000 _ptsz;
        cuStreamDestroy 2000, 4000 _v2;
        cuStreamBeginRecaptureToGraph 13030, 13030 _ptsz;
        cuStreamBeginCaptureToCig 13010, 13010 _ptsz;
        cuStreamEndCaptureToCig 13010, 13010 _ptsz;
    }
}
