// Asks NVML and CUDA about memory and processes, step by step:
//
//   nvml        every GPU and MIG instance: memory by both structures, processes by all of them, samples, utilization
//   init        cuInit
//   total       what cuDeviceTotalMem says, and whose memory it is
//   context     a context on device 0
//   info        what cuMemGetInfo says
//   alloc=MIB   memory
//   pid         who it is
//   threads     how many threads the process has
//   fork        from here on in a child, for whose end this process waits
//   wait        a line on stdin
//
// With LINKED it is linked with libnvidia-ml, otherwise it opens it.
#include "driver.h"
#include <dirent.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void *device;
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process_v1 { unsigned pid; unsigned long long used; };
struct process_v2 { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
struct detail { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; unsigned long long protected; };
struct details { unsigned version, mode, count; struct detail *entries; };
struct sample { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; };
struct info { unsigned long long timestamp; unsigned pid, sm, memory, encoder, decoder, jpeg, flow; };
struct infos { unsigned version, count; unsigned long long last_seen; struct info *entries; };
struct utilization { unsigned gpu, memory; };

#ifdef LINKED
#define NVML(name, ...) (name)
#define DECLARE(name, ...) extern int name(__VA_ARGS__);
#else
static void *nvml_symbol(const char *name) {
    static void *library;
    if (!library)
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "libnvidia-ml.so.1 has no %s\n", name);
        exit(2);
    }
    return found;
}
#define NVML(name, ...) ((int (*)(__VA_ARGS__))nvml_symbol(#name))
#define DECLARE(name, ...)
#endif

DECLARE(nvmlInit_v2, void)
DECLARE(nvmlShutdown, void)
DECLARE(nvmlDeviceGetCount_v2, unsigned *)
DECLARE(nvmlDeviceGetHandleByIndex_v2, unsigned, device *)
DECLARE(nvmlDeviceGetMaxMigDeviceCount, device, unsigned *)
DECLARE(nvmlDeviceGetMigDeviceHandleByIndex, device, unsigned, device *)
DECLARE(nvmlDeviceGetUUID, device, char *, unsigned)
DECLARE(nvmlDeviceGetMemoryInfo, device, struct memory *)
DECLARE(nvmlDeviceGetMemoryInfo_v2, device, struct memory_v2 *)
DECLARE(nvmlDeviceGetComputeRunningProcesses, device, unsigned *, struct process_v1 *)
DECLARE(nvmlDeviceGetComputeRunningProcesses_v2, device, unsigned *, struct process_v2 *)
DECLARE(nvmlDeviceGetComputeRunningProcesses_v3, device, unsigned *, struct process_v2 *)
DECLARE(nvmlDeviceGetGraphicsRunningProcesses_v3, device, unsigned *, struct process_v2 *)
DECLARE(nvmlDeviceGetRunningProcessDetailList, device, struct details *)
DECLARE(nvmlDeviceGetAccountingPids, device, unsigned *, unsigned *)
DECLARE(nvmlDeviceGetProcessUtilization, device, struct sample *, unsigned *, unsigned long long)
DECLARE(nvmlDeviceGetProcessesUtilizationInfo, device, struct infos *)
DECLARE(nvmlDeviceGetUtilizationRates, device, struct utilization *)

#define ROOM 8
#define GUARD 0xa5

// A structure that is followed by bytes which nobody may touch.
#define GUARDED(type, name) \
    struct { struct type it[ROOM]; unsigned char after[64]; } name; \
    memset(&name, GUARD, sizeof name)

static void untouched(const char *what, const void *from, const void *end) {
    for (const unsigned char *byte = from; byte < (const unsigned char *)end; byte++)
        if (*byte != GUARD) {
            fprintf(stderr, "%s wrote behind what it was given\n", what);
            exit(1);
        }
}

// One line: what, the code if it is not 0, and pairs of pid and bytes.
#define LIST(what, code, count, entries) do { \
    printf(" %s", what); \
    if (code) printf(" code=%d", code); \
    for (unsigned i = 0; !(code) && i < (count); i++) printf(" %u=%llu", (entries)[i].pid, (unsigned long long)(entries)[i].used); \
    printf("\n"); \
    untouched(what, &(entries)[(code) ? 0 : (count)], (entries) + ROOM); \
} while (0)

static void tell(device card) {
    char uuid[96];
    must("nvmlDeviceGetUUID", NVML(nvmlDeviceGetUUID, device, char *, unsigned)(card, uuid, sizeof uuid));
    printf("%s\n", uuid);

    GUARDED(memory, first);
    must("nvmlDeviceGetMemoryInfo", NVML(nvmlDeviceGetMemoryInfo, device, struct memory *)(card, first.it));
    untouched("nvmlDeviceGetMemoryInfo", &first.it[1], &first + 1);
    printf(" memory total=%llu used=%llu free=%llu\n", first.it->total, first.it->used, first.it->free);
    GUARDED(memory_v2, second);
    second.it->version = 1;
    int refused = NVML(nvmlDeviceGetMemoryInfo_v2, device, struct memory_v2 *)(card, second.it);
    second.it->version = sizeof(struct memory_v2) | 2 << 24;
    must("nvmlDeviceGetMemoryInfo_v2", NVML(nvmlDeviceGetMemoryInfo_v2, device, struct memory_v2 *)(card, second.it));
    untouched("nvmlDeviceGetMemoryInfo_v2", &second.it[1], &second + 1);
    printf(" memory_v2 total=%llu used=%llu free=%llu sum=%d version=%d wrong=%d\n", second.it->total, second.it->used,
           second.it->free, second.it->total == second.it->reserved + second.it->used + second.it->free,
           second.it->version == (sizeof(struct memory_v2) | 2 << 24), refused);

    unsigned count = 0;
    int needs = NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, unsigned *, struct process_v2 *)(card, &count, NULL);
    printf(" processes=%u code=%d\n", count, needs);
    GUARDED(process_v1, one);
    count = ROOM;
    int code = NVML(nvmlDeviceGetComputeRunningProcesses, device, unsigned *, struct process_v1 *)(card, &count, one.it);
    LIST("v1", code, count, one.it);
    GUARDED(process_v2, two);
    count = ROOM;
    code = NVML(nvmlDeviceGetComputeRunningProcesses_v2, device, unsigned *, struct process_v2 *)(card, &count, two.it);
    LIST("v2", code, count, two.it);
    GUARDED(process_v2, three);
    count = ROOM;
    code = NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, unsigned *, struct process_v2 *)(card, &count, three.it);
    LIST("v3", code, count, three.it);
    if (!code && count)
        printf(" instance %d %d\n", (int)three.it->gpu_instance, (int)three.it->compute_instance);
    GUARDED(process_v2, drawing);
    count = ROOM;
    code = NVML(nvmlDeviceGetGraphicsRunningProcesses_v3, device, unsigned *, struct process_v2 *)(card, &count, drawing.it);
    LIST("graphics", code, count, drawing.it);
    GUARDED(detail, fourth);
    struct details details = {sizeof details | 1 << 24, 0, ROOM, fourth.it};
    code = NVML(nvmlDeviceGetRunningProcessDetailList, device, struct details *)(card, &details);
    LIST("details", code, details.count, fourth.it);

    unsigned pids[ROOM];
    count = ROOM;
    code = NVML(nvmlDeviceGetAccountingPids, device, unsigned *, unsigned *)(card, &count, pids);
    printf(" accounting");
    for (unsigned i = 0; !code && i < count; i++)
        printf(" %u", pids[i]);

    struct sample samples[ROOM];
    count = ROOM;
    code = NVML(nvmlDeviceGetProcessUtilization, device, struct sample *, unsigned *, unsigned long long)(card, samples, &count, 0);
    printf("\n samples code=%d", code);
    for (unsigned i = 0; !code && i < count; i++)
        printf(" %u%s", samples[i].pid, samples[i].sm ? " busy" : " idle");
    struct info entries[ROOM];
    struct infos infos = {sizeof infos | 1 << 24, ROOM, 0, entries};
    code = NVML(nvmlDeviceGetProcessesUtilizationInfo, device, struct infos *)(card, &infos);
    printf("\n infos code=%d", code);
    for (unsigned i = 0; !code && i < infos.count; i++)
        printf(" %u%s", entries[i].pid, entries[i].sm ? " busy" : " idle");
    struct utilization rates;
    code = NVML(nvmlDeviceGetUtilizationRates, device, struct utilization *)(card, &rates);
    printf("\n utilization code=%d%s\n", code, code ? "" : rates.gpu ? " busy" : " idle");
}

static void nvml(void) {
    must("nvmlInit_v2", NVML(nvmlInit_v2, void)());
    unsigned count;
    must("nvmlDeviceGetCount_v2", NVML(nvmlDeviceGetCount_v2, unsigned *)(&count));
    for (unsigned i = 0; i < count; i++) {
        device card;
        must("nvmlDeviceGetHandleByIndex_v2", NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, device *)(i, &card));
        tell(card);
        unsigned most = 0;
        must("nvmlDeviceGetMaxMigDeviceCount", NVML(nvmlDeviceGetMaxMigDeviceCount, device, unsigned *)(card, &most));
        for (unsigned j = 0; j < most; j++) {
            device instance;
            if (!NVML(nvmlDeviceGetMigDeviceHandleByIndex, device, unsigned, device *)(card, j, &instance))
                tell(instance);
        }
    }
    must("nvmlShutdown", NVML(nvmlShutdown, void)());
}

static void total(void) {
    int count, device = 0;
    must("cuDeviceGetCount", DRIVER(cuDeviceGetCount, int *)(&count));
    for (device = 0; device < count; device++) {
        size_t bytes;
        unsigned char uuid[16];
        must("cuDeviceTotalMem_v2", DRIVER(cuDeviceTotalMem_v2, size_t *, int)(&bytes, device));
        must("cuDeviceGetUuid_v2", DRIVER(cuDeviceGetUuid_v2, unsigned char *, int)(uuid, device));
        printf("device %d %02x%02x.%02x.%02x total=%zu\n", device, uuid[0], uuid[1], uuid[14], uuid[15], bytes);
    }
}

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *task; (task = readdir(tasks));)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static int step(const char *name) {
    if (!strcmp(name, "nvml")) {
        nvml();
    } else if (!strcmp(name, "init")) {
        int code = DRIVER(cuInit, unsigned)(0);
        printf("init %d\n", code);
        return code;
    } else if (!strcmp(name, "total")) {
        total();
    } else if (!strcmp(name, "context")) {
        start(0);
    } else if (!strcmp(name, "info")) {
        size_t free, total;
        must("cuMemGetInfo_v2", DRIVER(cuMemGetInfo_v2, size_t *, size_t *)(&free, &total));
        printf("info total=%zu free=%zu\n", total, free);
    } else if (!strncmp(name, "alloc=", 6)) {
        filled((size_t)atoi(name + 6) << 20, 1);
    } else if (!strcmp(name, "pid")) {
        printf("pid %d\n", getpid());
    } else if (!strcmp(name, "threads")) {
        printf("threads %d\n", threads());
    } else if (!strcmp(name, "fork")) {
        pid_t child = fork();
        int status;
        if (child) {
            waitpid(child, &status, 0);
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
        }
    } else if (!strcmp(name, "wait")) {
        char line[16];
        printf("waits\n");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            exit(0);
    } else {
        fprintf(stderr, "there is no step %s\n", name);
        exit(2);
    }
    fflush(stdout);
    return 0;
}

int main(int count, char **names) {
    for (int i = 1; i < count; i++)
        if (step(names[i]))
            return 0;
    return 0;
}
