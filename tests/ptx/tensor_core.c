/* A tensor core: D = A B + C of a warp, with bf16 in A and B. `tensor_core.py` has the sources, and defines the places. */
#include "machine.h"

enum { ROWS = 16, COLUMNS = 8, DEPTH = 16 };
static const uint8_t places_a[32][8] = PLACES_A, places_b[32][4] = PLACES_B, places_c[32][4] = PLACES_C;

/* The exponent in hardware: -126 also of zero and of subnormal numbers. */
static int exponent(uint32_t bits) {
    int field = bits >> 23 & 255;
    return (field ? field : 1) - 127;
}

/* Cut toward zero; infinite from 2^128 on. */
static float cut(double x) {
    float y = (float)x;
    return fabs((double)y) > fabs(x) && fabs(x) < 0x1p128 ? nextafterf(y, 0.0f) : y;
}

/* The sum of C and 16 products: terms are cut FRACTION_BITS behind the largest exponent, and their sum to float32. */
static uint32_t sum(const uint32_t *row, const uint32_t *column, uint32_t c) {
    double terms[DEPTH + 1], total = 0.0;
    int most = exponent(c);
    for (int k = 0; k < DEPTH; k++) {
        int both = exponent(row[k]) + exponent(column[k * COLUMNS]);
        terms[k] = (double)f32(row[k]) * (double)f32(column[k * COLUMNS]);
        if (both > most) most = both;
    }
    terms[DEPTH] = f32(c);
    for (int k = 0; k <= DEPTH; k++) total += terms[k];
    if (total != total) return CANONICAL_NAN;
    if (isinf(total)) return b32((float)total);
    double scale = ldexp(1.0, FRACTION_BITS - most);
    int64_t units = 0;
    for (int k = 0; k <= DEPTH; k++) units += (int64_t)(terms[k] * scale);
    return b32(cut(ldexp((double)units, most - FRACTION_BITS)));
}

/* Compute what 32 threads have brought to an mma: 4 registers of A, 2 of B, 4 of C. */
static void multiply(struct thread *warp) {
    uint32_t a[ROWS * DEPTH], b[DEPTH * COLUMNS];
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t *words = warp[lane].given;
        for (int n = 0; n < 8; n++) a[places_a[lane][n]] = words[n / 2] >> 16 * (n % 2) << 16;
        for (int n = 0; n < 4; n++) b[places_b[lane][n]] = words[4 + n / 2] >> 16 * (n % 2) << 16;
    }
    for (int lane = 0; lane < 32; lane++) for (int n = 0; n < 4; n++) {
        int at = places_c[lane][n];
        warp[lane].result[n] = sum(a + at / COLUMNS * DEPTH, b + at % COLUMNS, warp[lane].given[6 + n]);
    }
}

/* Compute the mma of each warp whose 32 threads have come to one, and let them go on; return how many warps did. */
uint32_t multiply_warps(struct thread *threads, uint32_t count) {
    uint32_t done = 0;
    for (struct thread *warp = threads; warp + 32 <= threads + count; warp += 32) {
        uint32_t together = 0;
        while (together < 32 && warp[together].state == AT_MMA && warp[together].line == warp->line) together++;
        if (together < 32) continue;
        multiply(warp);
        for (uint32_t n = 0; n < 32; n++) warp[n].state = READY;
        done++;
    }
    return done;
}
