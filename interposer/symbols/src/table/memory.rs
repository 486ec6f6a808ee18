//! Memory: allocation, release, mapping and description.

super::symbols! {
    wrapped Allocation {
        cuMemAlloc 2000, 3020 _v2;
        cuMemAllocPitch 2000, 3020 _v2;
        cuMemAllocManaged 6000;
        cuMemFree 2000, 3020 _v2;
    }
    wrapped Pool {
        cuMemAllocAsync 11020, 11020 _ptsz;
        cuMemAllocFromPoolAsync 11020, 11020 _ptsz;
        cuMemFreeAsync 11020, 11020 _ptsz;
        cuMemPoolTrimTo 11020;
        cuMemPoolDestroy 11020;
        cuMemPoolCreate 11020;
        cuMemPoolSetAttribute 11020;
        cuDeviceGetDefaultMemPool 11020;
        cuDeviceGetMemPool 11020;
        cuMemGetDefaultMemPool 13000;
        cuMemGetMemPool 13000;
    }
    wrapped Mapping {
        cuMemCreate 10020;
        cuMemRelease 10020;
        cuMemMap 10020;
        cuMemUnmap 10020;
        cuMemMapArrayAsync 11010, 11010 _ptsz;
        cuMemSetAccess 10020;
        cuMemAddressFree 10020;
        cuMulticastBindAddr 12010, 13010 _v2;
        cuMulticastBindMem 12010, 13010 _v2;
        cuLogicalEndpointBindAddr 13030;
        cuLogicalEndpointBindMem 13030;
    }
    wrapped Peer {
        cuMemPoolSetAccess 11020;
        cuMulticastCreate 12010;
    }
    wrapped Array {
        cuArrayCreate 2000, 3020 _v2;
        cuArray3DCreate 2000, 3020 _v2;
        cuArrayDestroy 2000;
        cuMipmappedArrayCreate 5000;
        cuMipmappedArrayDestroy 5000;
    }
    wrapped Ipc {
        cuIpcGetMemHandle 4010;
        cuIpcOpenMemHandle 4010, 11000 _v2;
        cuIpcCloseMemHandle 4010;
        cuMemGetHandleForAddressRange 11070;
        cuPointerSetAttribute 6000;
        cuMemExportToShareableHandle 10020;
        cuMemImportFromShareableHandle 10020;
        cuMemPoolExportToShareableHandle 11020;
        cuMemPoolImportFromShareableHandle 11020;
    }
    wrapped GraphMemory {
        cuGraphAddMemAllocNode 11040;
        cuGraphAddNode 12020, 12030 _v2, 13040 _v3;
        cuDeviceGraphMemTrim 11040;
    }
    answered Totals {
        cuMemGetInfo 2000, 3020 _v2;
        cuDeviceTotalMem 2000, 3020 _v2;
    }
    answered Identity {
        cuPointerGetAttribute 4000;
        cuPointerGetAttributes 7000;
        cuMemGetAddressRange 3020 _v2;
        cuMemRetainAllocationHandle 11000;
        cuMemGetAllocationPropertiesFromHandle 10020;
        cuMemRangeGetAttribute 8000;
        cuMemRangeGetAttributes 8000;
    }
    wrapped Addresses {
        cuMemGetAccess 10020;
    }
    passed "asks about 32-bit addresses, which managed memory never has" {
        cuMemGetAddressRange 2000;
    }
    passed "reserves addresses, which take no memory of a card" {
        cuMemAddressReserve 10020;
    }
    passed "asks about sizes and layouts before anything is allocated" {
        cuMemGetAllocationGranularity 10020;
        cuMulticastGetGranularity 12010;
        cuArrayGetMemoryRequirements 11060;
        cuArrayGetSparseProperties 11010;
        cuMipmappedArrayGetMemoryRequirements 11060;
        cuMipmappedArrayGetSparseProperties 11010;
    }
    passed "asks about an array or names a part of one" {
        cuArrayGetDescriptor 2000, 3020 _v2;
        cuArray3DGetDescriptor 2000, 3020 _v2;
        cuArrayGetPlane 11020;
        cuMipmappedArrayGetLevel 5000;
    }
    passed "chooses, shares or describes a pool; its memory is charged at allocation" {
        cuMemPoolExportPointer 11020;
        cuMemPoolGetAccess 11020;
        cuMemPoolGetAttribute 11020;
        cuMemPoolImportPointer 11020;
        cuDeviceSetMemPool 11020;
        cuMemSetMemPool 13000;
    }
    passed "advises the driver about managed memory and moves none" {
        cuMemAdvise 8000, 12020 _v2;
    }
    passed "asks where memory can be" {
        cuMemGetLocationInfo 13040;
    }
    passed "handles host memory, which is not charged to a card" {
        cuMemAllocHost 2000, 3020 _v2;
        cuMemFreeHost 2000;
        cuMemHostAlloc 2020;
        cuMemHostGetDevicePointer 2020, 3020 _v2;
        cuMemHostGetFlags 2030;
        cuMemHostRegister 4000, 6050 _v2;
        cuMemHostUnregister 4000;
    }
    passed "asks about or sets the reserve of graphs, which is charged when it grows" {
        cuDeviceGetGraphMemAttribute 11040;
        cuDeviceSetGraphMemAttribute 11040;
    }
    passed "adds a device to a multicast object, or takes memory away from it" {
        cuMulticastAddDevice 12010;
        cuMulticastUnbind 12010;
    }
    passed "creates a logical endpoint of a fabric, or takes memory away from it" {
        cuLogicalEndpointAddDevice 13030;
        cuLogicalEndpointCreate 13030;
        cuLogicalEndpointDestroy 13030;
        cuLogicalEndpointExport 13030;
        cuLogicalEndpointGetLimits 13030;
        cuLogicalEndpointIdRelease 13030;
        cuLogicalEndpointIdReserve 13030;
        cuLogicalEndpointImport 13030;
        cuLogicalEndpointQuery 13030;
        cuLogicalEndpointUnbind 13030;
    }
}
