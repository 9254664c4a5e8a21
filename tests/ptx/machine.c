/* The machine: runs translated kernels, threads of a block as fibers, and watches every access to memory.
 *
 * An epoch is the time between two barriers of one block. Epochs are numbered through all blocks and launches, so that
 * a number tells whether an access was in this launch, in this block, and since the last barrier. Two accesses of which
 * one writes are a race where nothing orders them: by two threads of a block in one epoch, or by two blocks in one
 * launch.
 */
#define _GNU_SOURCE
#include "machine.h"

#include <stdlib.h>
#include <sys/mman.h>

#define STACK_BYTES (4u << 20)            /* unoptimised kernels have large frames; only what is touched exists */
#define MOST_THREADS 1024
#define MOST_FAULTS 4096
#define MANY 0xFFFFu
#define POISON 0xA5u                      /* every byte of memory that nobody has written; see `project.py` */

struct shadow {
    uint32_t wrote, write_line;           /* epoch and place of the last write */
    uint32_t read, read_line;             /* of the last read */
    uint32_t read_before;                 /* epoch of the last read by an earlier block */
    uint16_t writer, reader;              /* threads; MANY readers */
};

struct region {
    uint64_t base, size;
    uint32_t granule;                     /* bytes that share a shadow */
    uint32_t written;
    struct shadow *shadow;
};

enum kind { OUT_OF_BOUNDS = 1, MISALIGNED, UNINITIALISED, RACE_WRITE_READ, RACE_READ_WRITE, RACE_WRITE_WRITE,
            RACE_SAME_VALUE, RACE_BLOCKS, EXITED_AT_BARRIER, DIFFERENT_BARRIERS, SPLIT_WARP, NEVER_WRITTEN,
            INCOMPLETE_WARP };

struct fault {
    uint32_t kind, space, region, line, other_line, thread, other, block, size, count;
    uint64_t offset;
};

struct world world;
struct fault faults[MOST_FAULTS];
uint32_t fault_count;
uint64_t accesses, barriers;
/* Instructions of a launch, of a warp as many as its busiest thread has: of all warps, of the longest, and for two units. */
uint64_t issued, longest, issued_mma, issued_mufu;
int unchecked;                            /* global memory is whatever the host has */

static struct region *regions;
static uint32_t region_count;
static struct region shared_region;
static struct thread *threads;
static char *stacks;
static uint32_t thread_count, block_index;
static uint32_t epoch, launch_began, block_began;
static void (*kernel)(struct thread *);
static void *scheduler;
static struct thread *running;

/* Faults ---------------------------------------------------------------------------------------------------------- */

static void report(int kind, int space, uint32_t region, uint32_t line, uint32_t other_line, uint32_t thread,
                   uint32_t other, uint32_t size, uint64_t offset) {
    for (uint32_t n = 0; n < fault_count; n++) {
        struct fault *f = &faults[n];
        if (f->kind == (uint32_t)kind && f->line == line && f->region == region && f->space == (uint32_t)space
            && (f->other_line == other_line || n > MOST_FAULTS / 2)) {
            f->count++;
            return;
        }
    }
    if (fault_count < MOST_FAULTS)
        faults[fault_count++] =
            (struct fault){kind, space, region, line, other_line, thread, other, block_index, size, 1, offset};
}

void trap(struct thread *t, uint32_t line, int kind) { report(kind, 0, 0, line, 0, t->index, 0, 0, 0); }

/* Memory ---------------------------------------------------------------------------------------------------------- */

void set_regions(struct region *given, uint32_t count) { regions = given; region_count = count; }

static struct region *find(uint64_t address, uint32_t size) {
    static struct region *last;
    if (last >= regions && last < regions + region_count && address - last->base < last->size
        && address + size <= last->base + last->size)
        return last;
    uint32_t low = 0, high = region_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (regions[middle].base <= address) low = middle + 1; else high = middle;
    }
    if (!low) return 0;
    struct region *r = &regions[low - 1];
    if (address - r->base >= r->size || address + size > r->base + r->size) return 0;
    return last = r;
}

/* Return the region of an access, or null after reporting that there is none. */
static struct region *place(struct thread *t, int *space, uint64_t address, uint32_t size, uint32_t line) {
    uint64_t shared = (uint64_t)(uintptr_t)world.shared;
    static struct shadow one;
    static struct region anything;
    accesses++;
    if (address % size) {
        report(MISALIGNED, *space, 0, line, 0, t->index, 0, size, address);
        return 0;
    }
    if (*space == SHARED || address - shared < (1u << 24)) {
        *space = SHARED;
        if (address - shared + size <= world.shared_bytes) return &shared_region;
        report(OUT_OF_BOUNDS, SHARED, 0, line, 0, t->index, 0, size, address - shared);
        return 0;
    }
    if (unchecked) {
        one = (struct shadow){0};
        anything = (struct region){address, size, size, 0, &one};
        return &anything;
    }
    struct region *r = find(address, size);
    if (!r) {
        /* Tell how far it is from the nearest array below. */
        uint32_t nearest = 0;
        for (uint32_t n = 0; n < region_count; n++) if (regions[n].base <= address) nearest = n;
        uint64_t offset = region_count ? address - regions[nearest].base : address;
        report(OUT_OF_BOUNDS, GLOBAL, nearest, line, 0, t->index, 0, size, offset);
    }
    return r;
}

/* Say if the address of a vector is not a multiple of all its bytes. */
void aligned(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line) {
    if (address % size) report(MISALIGNED, space, 0, line, 0, t->index, 0, size, address);
}

static int poisoned(uint64_t address, uint32_t size) {
    const unsigned char *at = (const unsigned char *)(uintptr_t)address;
    for (uint32_t n = 0; n < size; n++) if (at[n] != POISON) return 0;
    return 1;
}

int reads(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line) {
    struct region *r = place(t, &space, address, size, line);
    if (!r) return 0;
    uint64_t offset = address - r->base;
    uint32_t number = space == SHARED ? 0 : (uint32_t)(r - regions);
    struct shadow *s = r->shadow + offset / r->granule;
    for (uint64_t at = offset / r->granule; at * r->granule < offset + size; at++, s++) {
        if (s->wrote == epoch) {
            if (s->writer != t->index)
                report(RACE_WRITE_READ, space, number, line, s->write_line, t->index, s->writer, size, offset);
        } else if (space == SHARED) {
            if (s->wrote < block_began) report(UNINITIALISED, space, 0, line, 0, t->index, 0, size, offset);
        } else if (s->wrote >= launch_began && s->wrote < block_began)
            report(RACE_BLOCKS, space, number, line, s->write_line, t->index, s->writer, size, offset);
        if (s->read != epoch) {
            if (s->read >= launch_began && s->read < block_began) s->read_before = s->read;
            s->read = epoch, s->reader = (uint16_t)t->index, s->read_line = line;
        } else if (s->reader != t->index)
            s->reader = MANY;
    }
    if (space == GLOBAL && poisoned(address, size))
        report(NEVER_WRITTEN, space, number, line, 0, t->index, 0, size, offset);
    return 1;
}

int writes(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line, const void *value) {
    struct region *r = place(t, &space, address, size, line);
    if (!r) return 0;
    uint64_t offset = address - r->base;
    uint32_t number = space == SHARED ? 0 : (uint32_t)(r - regions);
    struct shadow *s = r->shadow + offset / r->granule;
    r->written = 1;
    for (uint64_t at = offset / r->granule; at * r->granule < offset + size; at++, s++) {
        if (s->wrote == epoch && s->writer != t->index) {
            int same = !memcmp((void *)(uintptr_t)address, value, size);
            int kind = same ? RACE_SAME_VALUE : RACE_WRITE_WRITE;
            report(kind, space, number, line, s->write_line, t->index, s->writer, size, offset);
        }
        if (s->read == epoch && s->reader != t->index)
            report(RACE_READ_WRITE, space, number, line, s->read_line, t->index, s->reader, size, offset);
        if (space == GLOBAL) {
            if (s->wrote >= launch_began && s->wrote < block_began) {
                int same = !memcmp((void *)(uintptr_t)address, value, size);
                int kind = same ? RACE_SAME_VALUE : RACE_BLOCKS;
                report(kind, space, number, line, s->write_line, t->index, s->writer, size, offset);
            } else if ((s->read >= launch_began && s->read < block_began) || s->read_before >= launch_began)
                report(RACE_BLOCKS, space, number, line, s->read_line, t->index, s->reader, size, offset);
        }
        s->wrote = epoch, s->writer = (uint16_t)t->index, s->write_line = line;
    }
    return 1;
}

/* Fibers ---------------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Keep this stack in *from and go on with another one. */
void switch_stack(void **from, void *to);
__asm__(".text\n.globl switch_stack\n.type switch_stack,@function\nswitch_stack:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void begin(void) {
    kernel(running);
    running->state = DONE;
    switch_stack(&running->stack, scheduler);
}

static void make_fiber(struct thread *t) {
    uintptr_t top = (uintptr_t)stacks + (uintptr_t)(t->index + 1) * STACK_BYTES;
    void **at = (void **)(top & ~(uintptr_t)15);
    *--at = 0;                /* the stack is 8 beyond a multiple of 16 where a function begins */
    *--at = (void *)begin;
    at -= 6;
    memset(at, 0, 6 * sizeof *at);
    t->stack = at;
}

static void go_on(struct thread *t) {
    running = t;
    switch_stack(&scheduler, t->stack);
}
static void pause_fiber(struct thread *t) { switch_stack(&t->stack, scheduler); }
#else
#include <ucontext.h>
static ucontext_t contexts[MOST_THREADS], main_context;

static void begin(void) {
    kernel(running);
    running->state = DONE;
    swapcontext(&contexts[running->index], &main_context);
}

static void make_fiber(struct thread *t) {
    ucontext_t *c = &contexts[t->index];
    getcontext(c);
    c->uc_stack.ss_sp = stacks + (size_t)t->index * STACK_BYTES;
    c->uc_stack.ss_size = STACK_BYTES;
    makecontext(c, begin, 0);
}

static void go_on(struct thread *t) {
    running = t;
    swapcontext(&main_context, &contexts[t->index]);
}
static void pause_fiber(struct thread *t) { swapcontext(&contexts[t->index], &main_context); }
#endif

void barrier(struct thread *t, uint32_t line, uint32_t vote) {
    t->line = line;
    t->vote = vote;
    t->state = WAITING;
    pause_fiber(t);
}

void mma(struct thread *t, uint32_t line, const uint32_t *given, uint32_t *result) {
    t->line = line;
    t->given = given;
    t->result = result;
    t->state = AT_MMA;
    pause_fiber(t);
}

/* Launches -------------------------------------------------------------------------------------------------------- */

static uint64_t chance;

static uint32_t below(uint32_t n) {
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((chance >> 33) % n);
}

/* Order 0: forward, 1: backward, 2: random, anew after every barrier. */
static void arrange(uint32_t *order, uint32_t count, int how) {
    for (uint32_t n = 0; n < count; n++) order[n] = how == 1 ? count - 1 - n : n;
    for (uint32_t n = count; how == 2 && n > 1; n--) {
        uint32_t other = below(n), kept = order[n - 1];
        order[n - 1] = order[other];
        order[other] = kept;
    }
}

/* Say which threads wait at an mma for others of their warp that are elsewhere; return how many. */
static uint32_t check_mma(void) {
    uint32_t waiting = 0;
    for (uint32_t n = 0; n < thread_count; n++) {
        if (threads[n].state != AT_MMA) continue;
        uint32_t other = 0;
        for (uint32_t m = n & ~31u; m < thread_count && m <= (n | 31u); m++)
            if (threads[m].state != DONE && threads[m].line != threads[n].line) other = threads[m].line;
        report(INCOMPLETE_WARP, 0, 0, threads[n].line, other, n, 0, 0, 0);
        waiting++;
    }
    return waiting;
}

/* After every thread has come to a barrier or to its end: say what is wrong; return how many wait. */
static uint32_t check_barrier(void) {
    uint32_t waiting = 0, line = 0, votes = 0;
    for (uint32_t n = 0; n < thread_count; n++)
        if (threads[n].state == WAITING) { waiting++; line = threads[n].line; votes += threads[n].vote != 0; }
    if (!waiting) return 0;
    world.votes = votes;
    world.all = votes == waiting;
    barriers++;
    for (uint32_t n = 0; n < thread_count; n++) {
        struct thread *t = &threads[n];
        if (t->state == DONE) {
            report(EXITED_AT_BARRIER, 0, 0, line, 0, n, 0, waiting, 0);
        } else if (t->line != line) {
            report(DIFFERENT_BARRIERS, 0, 0, line, t->line, n, 0, waiting, 0);
            for (uint32_t m = n & ~31u; m < thread_count && m <= (n | 31u); m++)
                if (threads[m].state == WAITING && threads[m].line != t->line)
                    report(SPLIT_WARP, 0, 0, line, t->line, n, m, waiting, 0);
        }
    }
    return waiting;
}

static void run_block(int how) {
    static uint32_t order[MOST_THREADS];
    block_began = ++epoch;
    memset(world.shared, 0xFF, world.shared_bytes);
    for (uint32_t n = 0; n < thread_count; n++) {
        struct thread *t = &threads[n];
        uint32_t x = world.ntid[0], y = world.ntid[1];
        *t = (struct thread){.tid = {n % x, n / x % y, n / x / y}, .index = n, .state = READY};
        make_fiber(t);
    }
    do {
        arrange(order, thread_count, how);
        for (uint32_t n = 0; n < thread_count; n++)
            if (threads[n].state == WAITING) threads[n].state = READY;
        do {
            for (uint32_t n = 0; n < thread_count; n++)
                if (threads[order[n]].state == READY) go_on(&threads[order[n]]);
        } while (multiply_warps(threads, thread_count));
        if (check_mma()) break;  /* what follows an mma without its warp is undefined: the block ends */
        epoch++;
    } while (check_barrier());
    for (uint32_t n = 0; n < thread_count; n += 32) {
        uint64_t executed = 0, mma = 0, mufu = 0;
        for (struct thread *t = &threads[n]; t < threads + thread_count && t < threads + n + 32; t++) {
            if (t->executed > executed) executed = t->executed;
            if (t->mma > mma) mma = t->mma;
            if (t->mufu > mufu) mufu = t->mufu;
        }
        issued += executed, issued_mma += mma, issued_mufu += mufu;
        if (executed > longest) longest = executed;
    }
}

/* Run a grid; return 0, or -1 where the launch is impossible. */
int launch(void (*function)(struct thread *), void **parameters, const uint32_t *grid, const uint32_t *block,
           uint32_t fixed_bytes, uint32_t dynamic_bytes, int order, uint64_t seed, uint32_t ulps) {
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    thread_count = block[0] * block[1] * block[2];
    if (!blocks || !thread_count || thread_count > MOST_THREADS) return -1;
    if (!threads) {
        threads = calloc(MOST_THREADS, sizeof *threads);
        int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        stacks = mmap(0, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, kind, -1, 0);
        world.shared = mmap(0, 1u << 24, PROT_READ | PROT_WRITE, kind, -1, 0);
        void *shadow = calloc(1u << 16, sizeof(struct shadow));
        shared_region = (struct region){(uint64_t)(uintptr_t)world.shared, 1u << 18, 4, 0, shadow};
    }
    if (fixed_bytes + dynamic_bytes > 1u << 18) return -1;
    kernel = function;
    memcpy(world.ntid, block, sizeof world.ntid);
    memcpy(world.nctaid, grid, sizeof world.nctaid);
    world.parameters = parameters;
    world.shared_bytes = fixed_bytes + dynamic_bytes;
    world.dynamic_bytes = dynamic_bytes;
    world.ulps = ulps;
    launch_began = epoch + 1;
    issued = longest = issued_mma = issued_mufu = 0;
    chance = seed;
    uint32_t *blocks_in_order = malloc(blocks * sizeof *blocks_in_order);
    arrange(blocks_in_order, (uint32_t)blocks, order);
    for (uint64_t n = 0; n < blocks; n++) {
        uint32_t b = block_index = blocks_in_order[n];
        world.ctaid[0] = b % grid[0], world.ctaid[1] = b / grid[0] % grid[1], world.ctaid[2] = b / grid[0] / grid[1];
        run_block(order);
    }
    free(blocks_in_order);
    return 0;
}
