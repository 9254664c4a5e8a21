/* A stand-in for the CUDA driver: one GPU of compute capability 9.0, whose memory is that of the host.
 *
 * It knows what Numba asks of a driver. Modules arrive as PTX, which a function of Python translates (`hosted.py`);
 * kernels run in `machine.c`, at once. While a capture is on, launches are kept instead of run, with their arguments,
 * and calls that a capture forbids fail and are counted; a replay runs what was kept.
 */
#define _GNU_SOURCE
#include "machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 101, INVALID_IMAGE = 200, NO_CONTEXT = 201, NOT_FOUND = 500,
       CAPTURE_FORBIDS = 900 };
enum { MOST_SHARED = 48 * 1024, MOST_SHARED_ASKED = 232448, MOST_KERNELS = 16 };

extern int launch(void (*)(struct thread *), void **, const uint32_t *, const uint32_t *, uint32_t, uint32_t, int,
                  uint64_t, uint32_t);
extern int unchecked;

struct kernel {
    char *name;
    void (*function)(struct thread *);
    uint32_t shared, count, *sizes, most_shared;
    struct library *library;
};
struct library { uint32_t count; struct kernel kernels[MOST_KERNELS]; };
struct node { struct kernel *kernel; uint32_t grid[3], block[3], shared; void *stream; char *values; };

static __thread void *current;
static int capturing;
static struct node *nodes;
static int (*on_load)(const char *, void *);
uint64_t driver_nodes, driver_launches, driver_forbidden;
char driver_forbidden_call[64];

/* What a capture in torch's mode (global) does not allow. */
#define FORBIDDEN do { if (capturing) { \
    driver_forbidden++; strncpy(driver_forbidden_call, __func__, 63); return CAPTURE_FORBIDS; } } while (0)

/* For Python ------------------------------------------------------------------------------------------------------ */

/* Let `load(ptx, library)` translate PTX: it calls `driver_add` for each kernel and returns 0. */
void driver_on_load(int (*load)(const char *, void *)) { on_load = load; }

void driver_add(struct library *l, const char *name, void (*function)(struct thread *), uint32_t shared, uint32_t count,
                const uint32_t *sizes) {
    struct kernel *k = &l->kernels[l->count++];
    *k = (struct kernel){strdup(name), function, shared, count, memcpy(malloc(4 * count + 4), sizes, 4 * count), MOST_SHARED, l};
}

void driver_capture(int on) { capturing = on; }

uint64_t driver_stream_of(uint64_t node) { return (uint64_t)(uintptr_t)nodes[node].stream; }

/* The device and its context -------------------------------------------------------------------------------------- */

#define CONTEXT ((void *)0x1000)

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuDeviceGetCount(int *n) { *n = 1; return OK; }
int cuDeviceGet(int *d, int n) { *d = n; return n ? NO_DEVICE : OK; }
int cuDeviceGetName(char *name, int size, int d) { snprintf(name, size, "PTX on the CPU"); return OK; }
int cuDeviceGetUuid(char *uuid, int d) { memset(uuid, 7, 16); return OK; }
int cuDeviceTotalMem(size_t *size, int d) { *size = (size_t)8 << 30; return OK; }
int cuDeviceTotalMem_v2(size_t *size, int d) { return cuDeviceTotalMem(size, d); }
int cuDeviceGetAttribute(int *value, int attribute, int d) {
    static const int known[][2] = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
        {8, MOST_SHARED}, {9, 65536}, {10, 32}, {12, 65536}, {16, 132}, {31, 1}, {39, 2048}, {40, 2}, {41, 1}, {75, 9},
        {76, 0}, {81, 233472}, {82, 65536}, {95, 1}, {97, 232448}, {106, 32}, {111, 1024}};
    *value = 0;
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) if (known[n][0] == attribute) *value = known[n][1];
    return OK;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = CONTEXT; return OK; }
int cuDevicePrimaryCtxRelease(int d) { return OK; }
int cuDevicePrimaryCtxReset(int d) { return OK; }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active) { *f = 0; *active = 1; return OK; }
int cuCtxGetCurrent(void **c) { *c = current; return OK; }
int cuCtxSetCurrent(void *c) { current = c; return OK; }
int cuCtxPushCurrent(void *c) { current = c; return OK; }
int cuCtxPopCurrent(void **c) { if (c) *c = current; current = 0; return OK; }
int cuCtxGetDevice(int *d) { *d = 0; return current ? OK : NO_CONTEXT; }
int cuCtxGetApiVersion(void *c, unsigned *v) { *v = 3020; return OK; }
int cuCtxGetId(void *c, unsigned long long *id) { *id = 1; return OK; }
int cuCtxGetFlags(unsigned *f) { *f = 0; return OK; }
int cuCtxSynchronize(void) { FORBIDDEN; return OK; }
int cuGetErrorName(int code, const char **name) {
    *name = !code ? "CUDA_SUCCESS" : code == CAPTURE_FORBIDS ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" : "CUDA_ERROR";
    return OK;
}
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

/* Memory and streams ---------------------------------------------------------------------------------------------- */

#define AT(p) ((void *)(uintptr_t)(p))
int cuMemGetInfo(size_t *left, size_t *total) { *left = (size_t)6 << 30; *total = (size_t)8 << 30; return OK; }
int cuMemAlloc(uint64_t *p, size_t size) {
    FORBIDDEN;
    *p = (uint64_t)(uintptr_t)calloc(1, size ? size : 1);
    return *p ? OK : OUT_OF_MEMORY;
}
int cuMemFree(uint64_t p) { FORBIDDEN; free(AT(p)); return OK; }
int cuMemcpyHtoD(uint64_t to, const void *from, size_t size) { FORBIDDEN; memcpy(AT(to), from, size); return OK; }
int cuMemcpyDtoH(void *to, uint64_t from, size_t size) { FORBIDDEN; memcpy(to, AT(from), size); return OK; }
int cuMemsetD8(uint64_t to, unsigned char value, size_t size) { FORBIDDEN; memset(AT(to), value, size); return OK; }
int cuPointerGetAttribute(void *value, int attribute, uint64_t p) {
    if (attribute == 3) *(uint64_t *)value = p;
    else if (attribute == 2) *(unsigned *)value = 2;
    else *(void **)value = CONTEXT;
    return OK;
}
int cuStreamGetCtx(void *s, void **c) { *c = CONTEXT; return OK; }
int cuStreamGetFlags(void *s, unsigned *f) { *f = 0; return OK; }
int cuStreamGetPriority(void *s, int *p) { *p = 0; return OK; }
int cuStreamCreate(void **s, unsigned f) { FORBIDDEN; *s = malloc(1); return OK; }
int cuStreamCreateWithPriority(void **s, unsigned f, int p) { return cuStreamCreate(s, f); }
int cuStreamDestroy(void *s) { return OK; }
int cuStreamSynchronize(void *s) { FORBIDDEN; return OK; }
int cuStreamIsCapturing(void *s, int *status) { *status = capturing; return OK; }
int cuEventCreate(void **e, unsigned f) { *e = malloc(1); return OK; }
int cuEventDestroy(void *e) { free(e); return OK; }
int cuEventRecord(void *e, void *s) { return OK; }
int cuEventSynchronize(void *e) { FORBIDDEN; return OK; }

/* Modules --------------------------------------------------------------------------------------------------------- */

int cuLibraryLoadData(void **made, const char *image, int *jit, void **jit_values, unsigned n_jit, int *options,
                      void **values, unsigned n) {
    FORBIDDEN;
    struct library *l = calloc(1, sizeof *l);
    if (!image || strncmp(image, "//", 2) || on_load(image, l)) return INVALID_IMAGE;
    *made = l;
    return OK;
}
int cuLibraryUnload(void *l) { FORBIDDEN; return OK; }
int cuLibraryGetKernel(void **found, void *library, const char *name) {
    struct library *l = library;
    *found = 0;
    for (uint32_t n = 0; n < l->count; n++) if (!strcmp(l->kernels[n].name, name)) *found = &l->kernels[n];
    return *found ? OK : NOT_FOUND;
}
int cuLibraryGetModule(void **m, void *l) { *m = l; return OK; }
int cuKernelGetFunction(void **f, void *k) { *f = k; return OK; }
int cuKernelGetLibrary(void **l, void *k) { *l = ((struct kernel *)k)->library; return OK; }
int cuKernelGetParamInfo(void *kernel, size_t n, size_t *offset, size_t *size) {
    struct kernel *k = kernel;
    if (n >= k->count) return INVALID;
    *offset = 8 * n;
    if (size) *size = k->sizes[n];
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, void *kernel) {
    *value = attribute == 0 ? 1024 : attribute == 1 ? (int)((struct kernel *)kernel)->shared : 0;
    return OK;
}
int cuKernelGetAttribute(int *value, int attribute, void *k, int d) { return cuFuncGetAttribute(value, attribute, k); }
int cuFuncSetAttribute(void *k, int a, int v) { return OK; }
int cuKernelSetAttribute(int attribute, int value, void *kernel, int d) {
    if (attribute != 8 || value < 0 || value > MOST_SHARED_ASKED) return INVALID;
    ((struct kernel *)kernel)->most_shared = value;
    return OK;
}

/* Launches -------------------------------------------------------------------------------------------------------- */

static int run(struct kernel *k, const uint32_t *grid, const uint32_t *block, uint32_t shared, void **values) {
    driver_launches++;
    unchecked = 1;
    return launch(k->function, values, grid, block, k->shared, shared, 2, 1, 0) ? INVALID : OK;
}

static int submit(struct kernel *k, const uint32_t *grid, const uint32_t *block, uint32_t shared, void *stream,
                  void **values) {
    uint32_t threads = block[0] * block[1] * block[2];
    if (!current) return NO_CONTEXT;
    if (!grid[0] || !threads || threads > 1024 || k->shared + shared > k->most_shared) return INVALID;
    if (!capturing) return run(k, grid, block, shared, values);
    nodes = realloc(nodes, (driver_nodes + 1) * sizeof *nodes);
    struct node *n = &nodes[driver_nodes++];
    *n = (struct node){.kernel = k, .shared = shared, .stream = stream, .values = malloc(8 * k->count)};
    memcpy(n->grid, grid, sizeof n->grid);
    memcpy(n->block, block, sizeof n->block);
    for (uint32_t m = 0; m < k->count; m++) memcpy(n->values + 8 * m, values[m], k->sizes[m]);
    return OK;
}

int driver_replay(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n < last; n++) {
        struct node *node = &nodes[n];
        void *values[1024];
        for (uint32_t m = 0; m < node->kernel->count; m++) values[m] = node->values + 8 * m;
        if (run(node->kernel, node->grid, node->block, node->shared, values)) return INVALID;
    }
    return OK;
}

struct config { uint32_t grid[3], block[3], shared; void *stream, *attributes; uint32_t count; };

int cuLaunchKernelEx(const struct config *c, void *k, void **values, void **extra) {
    return submit(k, c->grid, c->block, c->shared, c->stream, values);
}
int cuLaunchKernel(void *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **values, void **extra) {
    return submit(k, (uint32_t[]){gx, gy, gz}, (uint32_t[]){bx, by, bz}, shared, stream, values);
}

/* The door -------------------------------------------------------------------------------------------------------- */

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    static void *self;
    Dl_info info;
    if (!self && dladdr((void *)cuInit, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL);
    *found = dlsym(self, symbol);
    if (status) *status = !*found;
    return *found ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, found, version, flags, 0);
}
