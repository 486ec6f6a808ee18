// What arrays and mipmaps take from the card, as the driver's free memory tells: natively what they take, in a session
// what they are charged. Prints one JSON line with `values`: bytes of each, by shape.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int result, const char *call) {
    if (result) {
        fprintf(stderr, "%s: %d\n", call, result);
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static size_t left(void) {
    size_t free, total;
    MUST(cuMemGetInfo(&free, &total));
    return free;
}

static int shapes = 0;

static void measure(size_t width, size_t height, size_t depth, CUarray_format format, int channels, int flags, int levels, int count) {
    static CUarray made[512];
    CUDA_ARRAY3D_DESCRIPTOR shape = {width, height, depth, format, channels, flags};
    size_t before = left();
    for (int i = 0; i < count; i++) {
        if (levels)
            MUST(cuMipmappedArrayCreate((CUmipmappedArray *)&made[i], &shape, levels));
        else
            MUST(cuArray3DCreate(&made[i], &shape));
    }
    size_t taken = before - left();
    printf("%s\"%zux%zux%zu format %d channels %d flags %d levels %d\": %zu", shapes++ ? ", " : "", width, height, depth, format,
           channels, flags, levels, taken / count);
    for (int i = 0; i < count; i++) {
        if (levels)
            MUST(cuMipmappedArrayDestroy((CUmipmappedArray)made[i]));
        else
            MUST(cuArrayDestroy(made[i]));
    }
}

int main(void) {
    CUcontext context;
    CUdeviceptr something;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&something, 4096));
    printf("{\"values\": {");
    measure(64, 64, 0, CU_AD_FORMAT_FLOAT, 4, 0, 0, 400);
    measure(200, 200, 0, CU_AD_FORMAT_FLOAT, 1, 0, 0, 500);
    measure(4097, 3, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 0, 500);
    measure(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0, 0, 16);
    measure(1000, 1001, 0, CU_AD_FORMAT_FLOAT, 1, 0, 0, 64);
    measure(2048, 2048, 0, CU_AD_FORMAT_HALF, 4, 0, 0, 16);
    measure(65536, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0, 0, 32);
    measure(1, 25000, 0, CU_AD_FORMAT_FLOAT, 1, 0, 0, 16);
    measure(1000, 1001, 5, CU_AD_FORMAT_FLOAT, 1, 0, 0, 16);
    measure(100, 100, 100, CU_AD_FORMAT_FLOAT, 4, 0, 0, 16);
    measure(100, 100, 7, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_LAYERED, 0, 64);
    measure(100, 100, 6, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_CUBEMAP, 0, 64);
    measure(1024, 1024, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0, 0, 64);
    measure(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE, 0, 16);
    measure(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0, 11, 16);
    measure(1000, 1001, 0, CU_AD_FORMAT_FLOAT, 1, 0, 10, 16);
    measure(64, 64, 64, CU_AD_FORMAT_FLOAT, 4, 0, 7, 32);
    measure(128, 128, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED, 8, 32);
    printf("}}\n");
    return 0;
}
