//! The driver, its devices, and the lookup of its functions.

super::symbols! {
    passed "asks about a device or the driver" {
        cuInit 2000;
        cuDriverGetVersion 2020;
        cuDeviceCanAccessPeer 4000;
        cuDeviceComputeCapability 2000;
        cuDeviceGet 2000;
        cuDeviceGetAttribute 2000;
        cuDeviceGetByPCIBusId 4010;
        cuDeviceGetCliqueCount 13040;
        cuDeviceGetCliqueInfo 13040;
        cuDeviceGetCount 2000;
        cuDeviceGetExecAffinitySupport 11040;
        cuDeviceGetFabricClusterUuid 13040;
        cuDeviceGetHostAtomicCapabilities 13000;
        cuDeviceGetLuid 10000;
        cuDeviceGetName 2000;
        cuDeviceGetNvSciSyncAttributes 10020;
        cuDeviceGetP2PAtomicCapabilities 13000;
        cuDeviceGetP2PAttribute 8000;
        cuDeviceGetPCIBusId 4010;
        cuDeviceGetProperties 2000;
        cuDeviceGetTexture1DLinearMaxWidth 11010;
        cuDeviceGetUuid 9020, 11040 _v2;
    }
    passed "describes an error" {
        cuGetErrorName 6000;
        cuGetErrorString 6000;
    }
    passed "registers callbacks for reports of the card" {
        cuDeviceRegisterAsyncNotification 12040;
        cuDeviceUnregisterAsyncNotification 12040;
    }
    passed "makes writes of other devices visible" {
        cuFlushGPUDirectRDMAWrites 11030;
    }
    passed "writes or configures logs, dumps and profiles" {
        cuLogsCurrent 12090;
        cuLogsDumpToFile 12090;
        cuLogsDumpToMemory 12090;
        cuLogsRegisterCallback 12090;
        cuLogsUnregisterCallback 12090;
        cuCoredumpDeregisterCompleteCallback 13020;
        cuCoredumpDeregisterStartCallback 13020;
        cuCoredumpGetAttribute 12010;
        cuCoredumpGetAttributeGlobal 12010;
        cuCoredumpRegisterCompleteCallback 13020;
        cuCoredumpRegisterStartCallback 13020;
        cuCoredumpSetAttribute 12010;
        cuCoredumpSetAttributeGlobal 12010;
        cuProfilerInitialize 4000;
        cuProfilerStart 4000;
        cuProfilerStop 4000;
    }
    answered Lookup {
        cuGetProcAddress 11030, 12000 _v2;
    }
    unsupported "returns tables of functions without names, which cannot be hooked" {
        cuGetExportTable 3000;
    }
    unsupported "saves and restores the memory of a process in the driver, which refuses managed memory" {
        cuCheckpointOperationComplete 13040;
        cuCheckpointProcessCheckpoint 12080;
        cuCheckpointProcessGetRestoreThreadId 12080;
        cuCheckpointProcessGetState 12080;
        cuCheckpointProcessLock 12080;
        cuCheckpointProcessRestore 12080;
        cuCheckpointProcessUnlock 12080;
    }
}
