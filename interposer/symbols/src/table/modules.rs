//! Functions that load code, and those that set its arguments.

super::symbols! {
    wrapped Module {
        cuModuleLoad 2000;
        cuModuleLoadData 2000;
        cuModuleLoadDataEx 2010;
        cuModuleLoadFatBinary 2000;
        cuLibraryLoadData 12000;
        cuLibraryLoadFromFile 12000;
    }
    passed "unloads code" {
        cuModuleUnload 2000;
        cuLibraryUnload 12000;
    }
    passed "finds something in loaded code" {
        cuModuleEnumerateFunctions 12040;
        cuModuleGetFunction 2000;
        cuModuleGetFunctionCount 12040;
        cuModuleGetGlobal 2000, 3020 _v2;
        cuModuleGetLoadingMode 11070;
        cuModuleGetSurfRef 3000;
        cuModuleGetTexRef 2000;
        cuLibraryEnumerateKernels 12040;
        cuLibraryGetGlobal 12000;
        cuLibraryGetKernel 12000;
        cuLibraryGetKernelCount 12040;
        cuLibraryGetManaged 12000;
        cuLibraryGetModule 12000;
        cuLibraryGetUnifiedFunction 12000;
        cuKernelGetAttribute 12000;
        cuKernelGetFunction 12000;
        cuKernelGetLibrary 12050;
        cuKernelGetName 12030;
        cuKernelGetParamCount 13020;
        cuKernelGetParamInfo 12040;
        cuKernelSetAttribute 12000;
        cuKernelSetCacheConfig 12000;
        cuFuncGetAttribute 2020;
        cuFuncGetModule 11000;
        cuFuncGetName 12030;
        cuFuncGetParamCount 13020;
        cuFuncGetParamInfo 12040;
        cuFuncIsLoaded 12040;
        cuFuncLoad 12040;
        cuFuncSetAttribute 9000;
        cuFuncSetBlockShape 2000;
        cuFuncSetCacheConfig 3000;
        cuFuncSetSharedMemConfig 4020;
        cuFuncSetSharedSize 2000;
    }
    passed "links code on the host" {
        cuLinkAddData 5050, 6050 _v2;
        cuLinkAddFile 5050, 6050 _v2;
        cuLinkComplete 5050;
        cuLinkCreate 5050, 6050 _v2;
        cuLinkDestroy 5050;
    }
    passed "computes how kernels fit a card" {
        cuOccupancyAvailableDynamicSMemPerBlock 10020;
        cuOccupancyMaxActiveBlocksPerMultiprocessor 6050;
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000;
        cuOccupancyMaxActiveClusters 11070;
        cuOccupancyMaxPotentialBlockSize 6050;
        cuOccupancyMaxPotentialBlockSizeWithFlags 7000;
        cuOccupancyMaxPotentialClusterSize 11070;
    }
    passed "sets arguments of the launches of CUDA 2" {
        cuParamSetSize 2000;
        cuParamSetTexRef 2000;
        cuParamSetf 2000;
        cuParamSeti 2000;
        cuParamSetv 2000;
    }
    wrapped Addresses {
        cuTexObjectCreate 5000;
        cuTexRefSetAddress 3020 _v2;
        cuTexRefSetAddress2D 3020 _v2, 4010 _v3;
    }
    passed "names 32-bit addresses, which remapped memory never has" {
        cuTexRefSetAddress 2000;
        cuTexRefSetAddress2D 2020;
    }
    passed "describes a texture or surface over an array, or stores an address that the driver does not look at" {
        cuSurfObjectCreate 5000;
        cuTexObjectDestroy 5000;
        cuTexObjectGetResourceDesc 5000;
        cuTexObjectGetResourceViewDesc 5000;
        cuTexObjectGetTextureDesc 5000;
        cuTexRefCreate 2000;
        cuTexRefDestroy 2000;
        cuTexRefGetAddress 2000, 3020 _v2;
        cuTexRefGetAddressMode 2000;
        cuTexRefGetArray 2000;
        cuTexRefGetBorderColor 8000;
        cuTexRefGetFilterMode 2000;
        cuTexRefGetFlags 2000;
        cuTexRefGetFormat 2000;
        cuTexRefGetMaxAnisotropy 5000;
        cuTexRefGetMipmapFilterMode 5000;
        cuTexRefGetMipmapLevelBias 5000;
        cuTexRefGetMipmapLevelClamp 5000;
        cuTexRefGetMipmappedArray 5000;
        cuTexRefSetAddressMode 2000;
        cuTexRefSetArray 2000;
        cuTexRefSetBorderColor 8000;
        cuTexRefSetFilterMode 2000;
        cuTexRefSetFlags 2000;
        cuTexRefSetFormat 2000;
        cuTexRefSetMaxAnisotropy 5000;
        cuTexRefSetMipmapFilterMode 5000;
        cuTexRefSetMipmapLevelBias 5000;
        cuTexRefSetMipmapLevelClamp 5000;
        cuTexRefSetMipmappedArray 5000;
        cuSurfObjectDestroy 5000;
        cuSurfObjectGetResourceDesc 5000;
        cuSurfRefGetArray 3000;
        cuSurfRefSetArray 3000;
        cuTensorMapEncodeIm2col 12000;
        cuTensorMapEncodeIm2colWide 12080;
        cuTensorMapEncodeTiled 12000;
        cuTensorMapReplaceAddress 12000;
        cuTensorMapSetAllocationClass 13050;
    }
}
