// What a program built with nvcc does through its own libcudart, static or shared, with either default stream. Prints one
// JSON line with `values`: exact results of integer work. Any error ends it with the call's name and code 1.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(cudaError_t result, const char *call) {
    if (result != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(result));
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

constexpr int COUNT = 1 << 20;

__global__ void add(uint32_t *data, uint32_t what, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) data[at] += what;
}

__global__ void sum(const uint32_t *data, unsigned long long *total, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) atomicAdd(total, (unsigned long long)data[at]);
}

__global__ void through_texture(cudaTextureObject_t texture, float *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + 0.5f, y + 0.5f);
}

__device__ uint32_t on_the_card[256];

static unsigned long long total_of(const uint32_t *data, cudaStream_t stream) {
    unsigned long long *total, said;
    CHECK(cudaMallocAsync(&total, sizeof *total, stream));
    CHECK(cudaMemsetAsync(total, 0, sizeof *total, stream));
    sum<<<COUNT / 256, 256, 0, stream>>>(data, total, COUNT);
    CHECK(cudaMemcpyAsync(&said, total, sizeof said, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(total, stream));
    CHECK(cudaStreamSynchronize(stream));
    return said;
}

static unsigned long long plain() {
    uint32_t *data;
    CHECK(cudaMalloc(&data, COUNT * sizeof *data));
    CHECK(cudaMemset(data, 1, COUNT * sizeof *data));
    add<<<COUNT / 256, 256>>>(data, 41, COUNT);
    CHECK(cudaGetLastError());
    unsigned long long said = total_of(data, nullptr);
    CHECK(cudaFree(data));
    return said;
}

static unsigned long long pitched() {
    uint8_t *data;
    size_t pitch;
    std::vector<uint8_t> host(1000 * 300), back(1000 * 300);
    for (size_t at = 0; at < host.size(); at++) host[at] = at * 7;
    CHECK(cudaMallocPitch(&data, &pitch, 1000, 300));
    CHECK(cudaMemcpy2D(data, pitch, host.data(), 1000, 1000, 300, cudaMemcpyHostToDevice));
    CHECK(cudaMemset2D(data, pitch, 9, 100, 300));
    CHECK(cudaMemcpy2D(back.data(), 1000, data, pitch, 1000, 300, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(data));
    unsigned long long said = pitch;
    for (uint8_t value : back) said = said * 31 + value;
    return said;
}

static unsigned long long managed() {
    uint32_t *data;
    CHECK(cudaMallocManaged(&data, COUNT * sizeof *data));
    for (int at = 0; at < COUNT; at++) data[at] = at;
    add<<<COUNT / 256, 256>>>(data, 5, COUNT);
    CHECK(cudaDeviceSynchronize());
    unsigned long long said = 0;
    for (int at = 0; at < COUNT; at++) said += data[at];
    CHECK(cudaFree(data));
    return said;
}

static unsigned long long graphs() {
    uint32_t *data;
    cudaStream_t stream, side;
    cudaEvent_t fork, join;
    CHECK(cudaMalloc(&data, COUNT * sizeof *data));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CHECK(cudaMemsetAsync(data, 0, COUNT * sizeof *data, stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<COUNT / 512, 256, 0, stream>>>(data, 1, COUNT / 2);
    // The second stream joins the capture by an event.
    CHECK(cudaEventRecord(fork, stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    add<<<COUNT / 512, 256, 0, side>>>(data + COUNT / 2, 2, COUNT / 2);
    uint32_t *scratch;
    CHECK(cudaMallocAsync(&scratch, 1 << 20, side));
    CHECK(cudaMemsetAsync(scratch, 0, 1 << 20, side));
    CHECK(cudaFreeAsync(scratch, side));
    CHECK(cudaEventRecord(join, side));
    CHECK(cudaStreamWaitEvent(stream, join, 0));
    add<<<COUNT / 256, 256, 0, stream>>>(data, 3, COUNT);
    cudaGraph_t graph;
    cudaGraphExec_t made;
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    for (int turn = 0; turn < 5; turn++) CHECK(cudaGraphLaunch(made, stream));
    unsigned long long said = total_of(data, stream);
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(data));
    return said;
}

static double textured() {
    const int width = 128, height = 64;
    std::vector<float> host(width * height), back(width * height);
    for (size_t at = 0; at < host.size(); at++) host[at] = at % 97;
    cudaArray_t array;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&array, &format, width, height));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, host.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    float *out;
    CHECK(cudaMalloc(&out, width * height * 4));
    through_texture<<<dim3(8, 4), dim3(16, 16)>>>(texture, out, width, height);
    CHECK(cudaMemcpy(back.data(), out, width * height * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFree(out));
    double said = 0;
    for (size_t at = 0; at < back.size(); at++) said += back[at] * (at % 13);
    return said;
}

static unsigned long long symbols() {
    uint32_t host[256], back[256];
    for (int at = 0; at < 256; at++) host[at] = at * at;
    CHECK(cudaMemcpyToSymbol(on_the_card, host, sizeof host));
    void *address;
    CHECK(cudaGetSymbolAddress(&address, on_the_card));
    add<<<1, 256>>>((uint32_t *)address, 1, 256);
    CHECK(cudaMemcpyFromSymbol(back, on_the_card, sizeof back));
    unsigned long long said = 0;
    for (uint32_t value : back) said += value;
    return said;
}

static void CUDART_CB note(void *told) { *(volatile int *)told += 1; }

static int callbacks() {
    int told = 0;
    for (int turn = 0; turn < 3; turn++) CHECK(cudaLaunchHostFunc(cudaStreamPerThread, note, &told));
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    return told;
}

int main() {
    CHECK(cudaSetDevice(0));
    cudaPointerAttributes kind;
    void *device;
    CHECK(cudaMalloc(&device, 4096));
    CHECK(cudaPointerGetAttributes(&kind, (char *)device + 100));
    int type = kind.type;
    bool same = kind.devicePointer == (char *)device + 100 && kind.hostPointer == nullptr;
    CHECK(cudaFree(device));
    unsigned long long a = plain(), b = pitched(), c = managed(), d = graphs(), f = symbols();
    double e = textured();
    int g = callbacks();
    CHECK(cudaDeviceSynchronize());
    printf("{\"values\": {\"plain\": %llu, \"pitched\": %llu, \"managed\": %llu, \"graphs\": %llu, \"symbols\": %llu, "
           "\"textured\": %.1f, \"callbacks\": %d, \"type\": %d, \"pointers\": %s}}\n",
           a, b, c, d, f, e, g, type, same ? "true" : "false");
    return 0;
}
