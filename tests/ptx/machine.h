/* What translated kernels and the machine share. */
#ifndef MACHINE_H
#define MACHINE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { READY, WAITING, AT_MMA, DONE };

struct thread {
    uint32_t tid[3];
    uint32_t index;       /* in its block */
    uint32_t line;        /* of PTX, where it waits */
    uint32_t vote;        /* what it brings to a barrier that reduces */
    uint32_t state;
    void *stack;          /* where it goes on */
    const uint32_t *given; /* what it brings to an mma: registers of A, B and C */
    uint32_t *result;     /* what it gets: D */
    uint64_t executed;    /* instructions, but for moves between registers */
    uint64_t mma, mufu;   /* those of them for tensor cores and for the unit of special functions */
};

struct world {
    uint32_t ntid[3], nctaid[3], ctaid[3];
    char *shared;         /* of the block that runs */
    uint32_t shared_bytes, dynamic_bytes;  /* all of it, and what the launch asked for */
    void **parameters;    /* a pointer to each */
    uint32_t ulps;        /* error that approximate instructions are given, at most */
    uint32_t votes;       /* threads whose vote at the last barrier was not 0 */
    uint32_t all;         /* whether that was all of them */
};

enum { GLOBAL, SHARED };

extern struct world world;
extern int reads(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line);
extern int writes(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line, const void *value);
extern void barrier(struct thread *t, uint32_t line, uint32_t vote);
extern void aligned(struct thread *t, int space, uint64_t address, uint32_t size, uint32_t line);
extern void mma(struct thread *t, uint32_t line, const uint32_t *given, uint32_t *result);
extern uint32_t multiply_warps(struct thread *threads, uint32_t count);
extern void trap(struct thread *t, uint32_t line, int kind);

enum { BY_ZERO = 20, TRAP };

#define CANONICAL_NAN 0x7FFFFFFFu

#define ADDRESS(space, a) ((space) == SHARED ? (uint64_t)(uintptr_t)world.shared + (uint64_t)(a) : (uint64_t)(a))

#define LOAD(T, space, a, line) ({ \
    uint64_t at_ = ADDRESS(space, a); T value_ = 0; \
    if (reads(t, space, at_, sizeof(T), line)) memcpy(&value_, (void *)(uintptr_t)at_, sizeof(T)); \
    value_; })

#define STORE(T, space, a, v, line) do { \
    uint64_t at_ = ADDRESS(space, a); T value_ = (T)(v); \
    if (writes(t, space, at_, sizeof(T), line, &value_)) memcpy((void *)(uintptr_t)at_, &value_, sizeof(T)); \
} while (0)

static inline float f32(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
static inline double f64(uint64_t b) { double x; memcpy(&x, &b, 8); return x; }
static inline uint32_t b32(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
static inline uint64_t b64(double x) { uint64_t b; memcpy(&b, &x, 8); return b; }

/* Flush a subnormal number to zero, for instructions with .ftz. */
static inline float ftz(float x) { return fabsf(x) < 1.17549435e-38f && x == x ? copysignf(0.0f, x) : x; }

/* Minimum and maximum return the other operand where one is nan, and know the sign of zero. */
static inline float min_f32(float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    return a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static inline float max_f32(float a, float b) {
    if (a != a) return b;
    if (b != b) return a;
    return a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}
static inline double min_f64(double a, double b) { return a != a ? b : b != b ? a : a < b ? a : b; }
static inline double max_f64(double a, double b) { return a != a ? b : b != b ? a : a > b ? a : b; }

static inline float min_nan_f32(float a, float b) { return a != a || b != b ? f32(CANONICAL_NAN) : min_f32(a, b); }
static inline float max_nan_f32(float a, float b) { return a != a || b != b ? f32(CANONICAL_NAN) : max_f32(a, b); }

/* The bits of a number rounded to bf16, to nearest and ties to even. */
static inline uint32_t to_bf16(float x) {
    uint32_t b = b32(x);
    return x != x ? CANONICAL_NAN >> 16 : (b + 0x7FFFu + (b >> 16 & 1)) >> 16;
}

/* The result of an approximate instruction: off by up to world.ulps, by the operands alone, as on a GPU. */
static inline float approximate(float exact, uint32_t a, uint32_t b) {
    if (!world.ulps || !isfinite(exact) || exact == 0.0f) return exact;
    uint32_t mix = (a * 2654435761u) ^ (b * 2246822519u) ^ 0x9E3779B9u;
    mix ^= mix >> 15; mix *= 739982445u; mix ^= mix >> 13;
    int32_t off = (int32_t)(mix % (2 * world.ulps + 1)) - (int32_t)world.ulps;
    float moved = f32(b32(exact) + (uint32_t)off);
    return isfinite(moved) && signbit(moved) == signbit(exact) ? moved : exact;
}
/* rcp.approx.ftz.f64: of the upper 32 bits of the operand, the upper 32 bits of the result (manual of PTX). */
static inline double rcp_upper(double a) {
    union { double x; uint64_t bits; } of = {a}, to;
    of.bits &= 0xffffffff00000000u;
    to.x = 1.0 / of.x;
    to.bits &= 0xffffffff00000000u;
    return to.x;
}

static inline float div_approx(float a, float b) {
    float size = fabsf(b);
    if (size > 8.507059173e37f && isfinite(b)) return isinf(a) ? NAN : copysignf(0.0f, a) * copysignf(1.0f, b);
    return approximate(a / b, b32(a), b32(b));
}

/* Integers: no undefined behaviour of C. */
#define DIVIDE(name, T, U, is_signed) \
static inline T div_##name(struct thread *t, T a, T b, uint32_t line) { \
    if (b == 0) { trap(t, line, BY_ZERO); return (T)-1; } \
    return is_signed && b == (T)-1 ? (T)(0 - (U)a) : a / b; } \
static inline T rem_##name(struct thread *t, T a, T b, uint32_t line) { \
    if (b == 0) { trap(t, line, BY_ZERO); return a; } \
    return is_signed && b == (T)-1 ? 0 : a % b; }
DIVIDE(s16, int16_t, uint16_t, 1)
DIVIDE(u16, uint16_t, uint16_t, 0)
DIVIDE(s32, int32_t, uint32_t, 1)
DIVIDE(u32, uint32_t, uint32_t, 0)
DIVIDE(s64, int64_t, uint64_t, 1)
DIVIDE(u64, uint64_t, uint64_t, 0)

static inline int64_t clamp_to(double x, double low, double high) {
    return x != x ? 0 : x <= low ? (int64_t)low : x >= high ? (int64_t)high : (int64_t)x;
}
static inline uint64_t to_u64(double x) {
    return x != x || x <= 0.0 ? 0 : x >= 18446744073709551615.0 ? UINT64_MAX : (uint64_t)x;
}
static inline int64_t to_s64(double x) {
    return !(x > -9223372036854775808.0) ? INT64_MIN : x >= 9223372036854775808.0 ? INT64_MAX : (int64_t)x;
}

#endif
