/*
 * A witness to what a process really does on the card, and whose doing it was.
 *
 * libcuda loads it in cuInit (CUDA_INJECTION64_PATH). CUPTI then tells it of two things, which it matches by
 * CUPTI's correlation number:
 *
 *   driver call entered ── number, name, thread, stack ──> calls[number]
 *                                                             │
 *   kernel, copy or memset that ran ── number ────────────────┴──> explained, ours, or unexplained
 *
 * - explained: the call is one of those that gpushare gates (the names come from the file WITNESS_GATED).
 * - ours: a thread of gpushare's own made the call: it moves memory while the gate is closed.
 * - unexplained: everything else, counted by the name of the call.
 *
 * A name alone would also explain a program that found the driver's function past gpushare. So each gated call's
 * stack is read: the first module above the driver must be libgpushare.so, else the call went around it.
 *
 * A call of the runtime may be what an activity is correlated with. Then any of the driver calls inside it
 * explains the activity; `by_runtime` counts how many were matched so.
 *
 * At exit it writes one line of JSON to WITNESS_OUT.PID. Needs glibc 2.35 for _dl_find_object.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cupti.h>

/* What is known of the driver call, or of the runtime call around it, that has one correlation number. */
struct call {
    uint16_t gated; /* callback id of a gated call, or 0 */
    uint16_t other; /* of one that is not gated, or 0 */
    uint8_t ours;   /* made by a thread of gpushare's own */
    uint8_t outer;  /* the number is the runtime's */
};

/* Calls by correlation number, in blocks that are made when first needed. Numbers rise from 1. */
enum { BLOCK = 1 << 16, BLOCKS = 1 << 16 };
static struct call *blocks[BLOCKS];

/* Something to count, under a name. */
struct count {
    char kind[64];
    char call[64];
    char example[96];
    uint64_t times;
};
enum { COUNTS = 512 };
struct counts {
    struct count list[COUNTS];
    size_t length;
};

enum { MOST_CALLBACKS = 4096, STACK = 48 };
static bool is_gated[MOST_CALLBACKS];
static size_t gated_names, gated_unknown;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counts calls, unexplained, around;
static uint64_t kernels, copies, memsets, explained, ours, by_runtime, dropped;
static uint64_t stacks_through, stacks_around, stacks_unreadable;
static char failure[160];
static __thread uint32_t runtime_call;

static void fail(const char *what, CUptiResult result) {
    const char *text = "?";
    cuptiGetResultString(result, &text);
    pthread_mutex_lock(&lock);
    if (!failure[0]) snprintf(failure, sizeof failure, "%s: %s", what, text);
    pthread_mutex_unlock(&lock);
}

#define TRY(call)                                          \
    do {                                                   \
        CUptiResult result_ = (call);                      \
        if (result_ != CUPTI_SUCCESS) fail(#call, result_); \
    } while (0)

static const char *name_of(uint32_t callback) {
    const char *name = NULL;
    if (callback == 0 || cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, callback, &name) != CUPTI_SUCCESS || !name)
        return "no driver call";
    return name;
}

/* Adds one under a name. The caller holds the lock. */
static void add(struct counts *counts, const char *kind, const char *call, const char *example) {
    struct count *entry = NULL;
    for (size_t i = 0; i < counts->length && !entry; i++)
        if (!strcmp(counts->list[i].kind, kind) && !strcmp(counts->list[i].call, call)) entry = &counts->list[i];
    if (!entry) {
        /* The last entry takes whatever comes when the list is full. */
        entry = &counts->list[counts->length < COUNTS ? counts->length++ : COUNTS - 1];
        snprintf(entry->kind, sizeof entry->kind, "%s", kind);
        snprintf(entry->call, sizeof entry->call, "%s", call);
        snprintf(entry->example, sizeof entry->example, "%s", example ? example : "");
    }
    entry->times++;
}

/* The entry of a correlation number; made if wanted. The caller holds the lock. */
static struct call *entry_of(uint32_t number, bool make) {
    struct call **block = &blocks[number / BLOCK];
    if (!*block && make) *block = calloc(BLOCK, sizeof **block);
    return *block ? &(*block)[number % BLOCK] : NULL;
}

/* The first module on the stack above the driver and this tool; NULL if the stack cannot be read so far. */
static const char *caller_module(void) {
    void *frames[STACK];
    int depth = backtrace(frames, STACK);
    for (int i = 0; i < depth; i++) {
        struct dl_find_object found;
        /* A return address may be the first byte after its function. */
        if (_dl_find_object((char *)frames[i] - 1, &found) != 0) return NULL;
        const char *path = found.dlfo_link_map->l_name;
        if (strstr(path, "libwitness") || strstr(path, "libcupti") || strstr(path, "libcuda.so")) continue;
        return path[0] ? path : "the program itself";
    }
    return NULL;
}

static bool is_thread_of_gpushare(void) {
    static __thread signed char known = -1;
    if (known < 0) {
        char name[17] = "";
        prctl(PR_GET_NAME, name);
        known = !strncmp(name, "gpushare-", 9);
    }
    return known;
}

static void note(uint32_t number, uint32_t callback, bool own, bool outer) {
    struct call *call = entry_of(number, true);
    if (!call) return;
    if (is_gated[callback])
        call->gated = (uint16_t)callback;
    else
        call->other = (uint16_t)callback;
    call->ours |= own;
    call->outer = outer;
}

static void entered(uint32_t number, uint32_t callback) {
    if (callback >= MOST_CALLBACKS) return;
    bool own = is_thread_of_gpushare();
    const char *module = is_gated[callback] && !own ? caller_module() : NULL;
    pthread_mutex_lock(&lock);
    note(number, callback, own, false);
    if (runtime_call && runtime_call != number) note(runtime_call, callback, own, true);
    if (is_gated[callback]) {
        add(&calls, own ? "ours" : "program", name_of(callback), NULL);
        if (!own && !module) stacks_unreadable++;
        if (module && strstr(module, "libgpushare")) stacks_through++;
        if (module && !strstr(module, "libgpushare")) {
            stacks_around++;
            const char *file = strrchr(module, '/');
            add(&around, file ? file + 1 : module, name_of(callback), NULL);
        }
    }
    pthread_mutex_unlock(&lock);
}

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId callback, const void *told) {
    (void)user;
    const CUpti_CallbackData *data = told;
    bool enter = data->callbackSite == CUPTI_API_ENTER;
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
        if (enter && !runtime_call) runtime_call = data->correlationId;
        if (!enter && runtime_call == data->correlationId) runtime_call = 0;
    } else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && enter) {
        entered(data->correlationId, callback);
    }
}

/* Decides about one activity. The caller holds the lock. */
static void judge(const char *kind, uint32_t number, const char *example) {
    const struct call *call = entry_of(number, false);
    if (call && (call->gated || call->ours) && call->outer) by_runtime++;
    if (call && call->ours)
        ours++;
    else if (call && call->gated)
        explained++;
    else
        add(&unexplained, kind, name_of(call ? call->other : 0), example);
}

static void see(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel10 *kernel = (const void *)record;
        kernels++;
        judge("kernel", kernel->correlationId, kernel->name);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *copy = (const void *)record;
        char example[64];
        snprintf(example, sizeof example, "%llu bytes, kind %u", (unsigned long long)copy->bytes, copy->copyKind);
        copies++;
        judge("memcpy", copy->correlationId, example);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const CUpti_ActivityMemcpyPtoP4 *copy = (const void *)record;
        copies++;
        judge("memcpy between cards", copy->correlationId, NULL);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *set = (const void *)record;
        char example[64];
        snprintf(example, sizeof example, "%llu bytes", (unsigned long long)set->bytes);
        memsets++;
        judge("memset", set->correlationId, example);
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *most_records) {
    *size = 1 << 20;
    *buffer = aligned_alloc(8, *size);
    *most_records = 0;
}

static void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
    (void)size;
    CUpti_Activity *record = NULL;
    pthread_mutex_lock(&lock);
    while (used && cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) see(record);
    size_t lost = 0;
    cuptiActivityGetNumDroppedRecords(context, stream, &lost);
    dropped += lost;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void print_text(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        if ((unsigned char)*text >= ' ') fputc(*text, out);
    }
    fputc('"', out);
}

static void print_counts(FILE *out, const char *name, const struct counts *counts) {
    fprintf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < counts->length; i++) {
        const struct count *entry = &counts->list[i];
        fprintf(out, "%s{\"kind\":", i ? "," : "");
        print_text(out, entry->kind);
        fputs(",\"call\":", out);
        print_text(out, entry->call);
        fputs(",\"example\":", out);
        print_text(out, entry->example);
        fprintf(out, ",\"times\":%llu}", (unsigned long long)entry->times);
    }
    fputc(']', out);
}

static void report(void) {
    TRY(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
    const char *base = getenv("WITNESS_OUT");
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", base ? base : "witness.json", (int)getpid());
    FILE *out = fopen(path, "w");
    if (!out) return;
    pthread_mutex_lock(&lock);
#define NUMBER(name, value) fprintf(out, "\"" name "\":%llu,", (unsigned long long)(value))
    fputc('{', out);
    NUMBER("pid", getpid());
    NUMBER("kernels", kernels);
    NUMBER("memcpys", copies);
    NUMBER("memsets", memsets);
    NUMBER("explained", explained);
    NUMBER("ours", ours);
    NUMBER("by_runtime", by_runtime);
    NUMBER("dropped", dropped);
    NUMBER("gated_names", gated_names);
    NUMBER("gated_names_unknown_to_cupti", gated_unknown);
    fprintf(out, "\"stacks\":{");
    NUMBER("through", stacks_through);
    NUMBER("around", stacks_around);
    fprintf(out, "\"unreadable\":%llu}", (unsigned long long)stacks_unreadable);
    fputs(",\"failure\":", out);
    print_text(out, failure);
    print_counts(out, "unexplained", &unexplained);
    print_counts(out, "around", &around);
    print_counts(out, "gated_calls", &calls);
    fputs("}\n", out);
    pthread_mutex_unlock(&lock);
    fclose(out);
}

/* Marks the callback ids whose names the file lists, one a line. */
static void read_gated(void) {
    const char *path = getenv("WITNESS_GATED");
    FILE *in = path ? fopen(path, "r") : NULL;
    if (!in) {
        snprintf(failure, sizeof failure, "cannot open WITNESS_GATED, the list of gated calls");
        return;
    }
    char line[128];
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (!line[0]) continue;
        bool known = false;
        for (uint32_t id = 1; id < CUPTI_DRIVER_TRACE_CBID_SIZE && id < MOST_CALLBACKS; id++)
            if (!strcmp(name_of(id), line)) known = is_gated[id] = true;
        gated_names++;
        gated_unknown += !known;
    }
    fclose(in);
}

/* Called by libcuda in cuInit. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    static CUpti_SubscriberHandle subscriber;
    void *frame;
    backtrace(&frame, 1); /* loads the unwinder now, not inside a driver call */
    read_gated();
    TRY(cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)on_call, NULL));
    TRY(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API));
    TRY(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API));
    TRY(cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET));
    atexit(report);
    return 1;
}
