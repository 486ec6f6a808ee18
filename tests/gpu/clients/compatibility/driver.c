// What the driver's own functions answer, where a library that stands in front of it could answer something else:
// identity of memory, memory by handle, arrays, contexts and parts of a card, the forms of CUDA 2. Prints one JSON line with
// `values`: results of calls, and what they wrote where that is the same in every run. Argument `native`: with what only
// memory that stays can do.
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The header's own name means another form in each release.
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

static int first = 1;
static void say(const char *name, long long value) {
    printf("%s\"%s\": %lld", first ? "" : ", ", name, value);
    first = 0;
}
static void must(int result, const char *call) {
    if (result) {
        fprintf(stderr, "%s: %d\n", call, result);
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define SAY(name, call) say(name, call)

static void attributes(const char *what, CUdeviceptr address, int native) {
    // Addresses, ids and handles differ from run to run; only whether they are answered is said.
    static const int by_value[] = {2, 8, 9, 13, 14, 16};
    char name[64];
    for (int which = 1; which <= 20; which++) {
        // Whether it can be handed to others is what the backends differ in.
        if ((which == 5 || which == 10 || which == 15) && !native) continue;
        unsigned long long value[2] = {0, 0};
        snprintf(name, sizeof name, "%s attribute %d", what, which);
        int result = cuPointerGetAttribute(value, which, address + 4096);
        say(name, result);
        for (unsigned i = 0; !result && i < sizeof by_value / sizeof *by_value; i++) {
            snprintf(name, sizeof name, "%s value %d", what, which);
            if (by_value[i] == which) say(name, (long long)(which == 8 ? value[0] & 0xff : value[0]));
        }
    }
    unsigned long long start = 0, size = 0;
    cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 4096);
    cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 4096);
    snprintf(name, sizeof name, "%s range", what);
    say(name, start == address ? (long long)size : -1);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    snprintf(name, sizeof name, "%s address range", what);
    int result = cuMemGetAddressRange(&base, &bytes, address + 4096);
    say(name, result ? -result : base == address ? (long long)bytes : -1);
    CUmemGenericAllocationHandle handle;
    snprintf(name, sizeof name, "%s has a handle", what);
    result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
    say(name, result);
    if (!result) MUST(cuMemRelease(handle));
    int place = 0;
    snprintf(name, sizeof name, "%s prefers a place", what);
    say(name, cuMemRangeGetAttribute(&place, sizeof place, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 4096));
    if (native) {
        CUipcMemHandle ipc;
        snprintf(name, sizeof name, "%s is handed out", what);
        say(name, cuIpcGetMemHandle(&ipc, address));
        unsigned yes = 1;
        snprintf(name, sizeof name, "%s synchronises", what);
        say(name, cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    }
}

static long long round_trip(CUdeviceptr address) {
    uint32_t out[1024], back[1024];
    long long sum = 0;
    for (int i = 0; i < 1024; i++) out[i] = i * 2654435761u;
    MUST(cuMemcpyHtoD(address, out, sizeof out));
    MUST(cuMemcpyDtoH(back, address, sizeof back));
    for (int i = 0; i < 1024; i++) sum += back[i];
    return sum;
}

static void by_handle(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handles[2], same;
    CUdeviceptr address;
    const size_t piece = 4 << 20;
    MUST(cuMemAddressReserve(&address, 2 * piece, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        MUST(cuMemCreate(&handles[i], piece, &properties, 0));
        MUST(cuMemMap(address + i * piece, piece, 0, handles[i], 0));
    }
    MUST(cuMemSetAccess(address, 2 * piece, &access, 1));
    SAY("handles hold", round_trip(address + piece - 2048));
    MUST(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(address + piece + 5)));
    SAY("a retained handle is the one it was", same == handles[1]);
    for (int i = 0; i < 2; i++) MUST(cuMemRelease(handles[i]));
    SAY("released and mapped, they hold", round_trip(address + piece));
    MUST(cuMemUnmap(address, 2 * piece));
    CUdeviceptr again;
    MUST(cuMemAddressFree(address, 2 * piece));
    MUST(cuMemAddressReserve(&again, piece, 0, 0, 0));
    SAY("a retained handle maps again", cuMemMap(again, piece, 0, same, 0));
    MUST(cuMemSetAccess(again, piece, &access, 1));
    SAY("and has what was in it", round_trip(again));
    MUST(cuMemUnmap(again, piece));
    MUST(cuMemRelease(same));
    MUST(cuMemAddressFree(again, piece));
}

static void arrays(void) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 100, .Height = 60, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUarray array, level;
    CUmipmappedArray mipmap;
    uint32_t out[60][100], back[60][100];
    for (int i = 0; i < 6000; i++) ((uint32_t *)out)[i] = i;
    for (int part = 0; part < 2; part++) {
        if (part) {
            MUST(cuMipmappedArrayCreate(&mipmap, &shape, 3));
            MUST(cuMipmappedArrayGetLevel(&level, mipmap, 0));
        } else {
            MUST(cuArray3DCreate(&array, &shape));
            level = array;
        }
        CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = out, .srcPitch = 400, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                              .dstArray = level, .WidthInBytes = 400, .Height = 60};
        MUST(cuMemcpy2D(&copy));
        CUDA_MEMCPY2D fetch = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = level, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back,
                               .dstPitch = 400, .WidthInBytes = 400, .Height = 60};
        MUST(cuMemcpy2D(&fetch));
        SAY(part ? "a mipmap holds" : "an array holds", !memcmp(out, back, sizeof out));
    }
    SAY("an array ends", cuArrayDestroy(array));
    SAY("a mipmap ends", cuMipmappedArrayDestroy(mipmap));
}

static void contexts(CUcontext primary) {
    CUcontext made, of_part;
    CUdeviceptr address;
    MUST(cuCtxCreate_v2(&made, 0, 0));
    MUST(cuMemAlloc(&address, 1 << 20));
    SAY("another context holds", round_trip(address));
    MUST(cuCtxSetCurrent(primary));
    SAY("it ends", cuCtxDestroy(made));
    SAY("and its memory with it", cuMemFree(address));

    CUdevResource all, some;
    CUdevResourceDesc description;
    CUgreenCtx part;
    unsigned groups = 1;
    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&some, &groups, &all, NULL, 0, 16));
    MUST(cuDevResourceGenerateDesc(&description, &some, 1));
    MUST(cuGreenCtxCreate(&part, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&of_part, part));
    MUST(cuCtxSetCurrent(of_part));
    MUST(cuMemAlloc(&address, 1 << 20));
    SAY("a part holds", round_trip(address));
    MUST(cuCtxSetCurrent(primary));
    SAY("the card sees it", round_trip(address));
    SAY("a part ends", cuGreenCtxDestroy(part));
    uint32_t word;
    SAY("and its memory lives on", cuMemcpyDtoH(&word, address, sizeof word));
    SAY("until it is freed", cuMemFree(address));
}

static void old_forms(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*alloc)(unsigned *, unsigned) = (int (*)(unsigned *, unsigned))dlsym(driver, "cuMemAlloc");
    int (*get_free)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuMemFree");
    int (*total)(unsigned *, int) = (int (*)(unsigned *, int))dlsym(driver, "cuDeviceTotalMem");
    SAY("CUDA 2 is there", alloc && get_free && total);
    if (!alloc || !get_free || !total) return;
    unsigned address = 0, bytes = 0;
    int result = alloc(&address, 1 << 20);
    SAY("CUDA 2 allocates", result);
    if (!result) SAY("CUDA 2 frees", get_free(address));
    SAY("CUDA 2 has a total", total(&bytes, 0));
    SAY("CUDA 2 total", bytes);
}

int main(int count, char **arguments) {
    int native = count > 1 && !strcmp(arguments[1], "native");
    CUcontext context;
    CUdeviceptr plain, own;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&plain, 5000000));
    MUST(cuMemAllocManaged(&own, 5000000, CU_MEM_ATTACH_GLOBAL));
    printf("{\"values\": {");
    attributes("plain", plain, native);
    attributes("managed", own, 0);
    by_handle();
    arrays();
    contexts(context);
    old_forms();
    printf("}}\n");
    return 0;
}
