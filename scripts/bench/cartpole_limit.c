/* A yardstick for A2C on CartPole on one processor: two layers of H tanh units, a head of two logits and a value.

       gcc -O2 -march=native -ffast-math -pthread scripts/bench/cartpole_limit.c -o cartpole_limit -lm
       ./cartpole_limit [threads] [environments] [seconds]

   -DH=32 makes another network. It prints million environment steps per second of rollouts alone, and with updates.

   A thread takes tiles of 64 environments. It rolls a tile out for 16 steps, keeps its activations in the second-level
   cache, computes generalized advantages and adds the gradient of the tile; then one thread does a step of Adam. Slopes
   take the place of activations, a gradient is summed in registers over all steps, and all of a step lies together: were
   the steps of a layer a power of two apart, few lines of the first-level cache would have to hold them. It leaves out what a general program has to do: advantages, observations and rewards are not normalized, gradients are not
   clipped, and only one environment and one shape of network exist. Needs GCC or Clang (vector extensions) and AVX-512
   for its full speed. */
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef H
#define H 64
#endif
enum { WIDTH = 16, PER_ROW = 4, LANES = WIDTH * PER_ROW, STEPS = 16, INPUTS = 4, OUTPUTS = 4, LIMIT = 500 };
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));
typedef Vector Row[PER_ROW]; /* one number of each environment of a tile */

typedef struct {
    float first[H][INPUTS], first_bias[H], second[H][H], second_bias[H], head[OUTPUTS][H], head_bias[OUTPUTS];
} Weights;
enum { PARAMETERS = sizeof(Weights) / sizeof(float) };

typedef struct {
    Row state[INPUTS];
    Integers age[PER_ROW], seed[PER_ROW];
} Tile;

/* Of a tile: what the policy sees, computes and does in a step; `learn` writes slopes in the place of `one`, `two` and `out` */
typedef struct {
    Row observation[INPUTS], one[H], two[H], out[OUTPUTS], action, alive;
} Step;
enum { APART = sizeof(Step) / sizeof(Row) };

typedef struct {
    Step steps[STEPS + 1];
    Weights gradient, transposed;
} Scratch;

static Weights weights, moment, square;
static Tile *tiles;
static Scratch *scratches;
static int n_threads = 1, n_tiles, learns, updates;

INLINE Vector all(float x) { return x - (Vector){0}; }
INLINE Vector choose(Integers mask, Vector yes, Vector no) {
    return (Vector)((mask & (Integers)yes) | (~mask & (Integers)no));
}
/* What all units do that a processor has in one instruction or in few; HOLD keeps GCC from loading a number at each use */
#ifdef __AVX512F__
#define HOLD(x) __asm__("" : "+v"(x))
INLINE Vector clip(Vector x, float bound) {
    return (Vector)_mm512_max_ps(_mm512_min_ps((__m512)x, _mm512_set1_ps(bound)), _mm512_set1_ps(-bound));
}
INLINE Vector quotient(Vector x, Vector y) {
    Vector near = (Vector)_mm512_rcp14_ps((__m512)y); /* and a step of Newton's method */
    return x * (near * (2.0f - y * near));
}
#else
#define HOLD(x)
INLINE Vector clip(Vector x, float bound) {
    x = choose(x > bound, all(bound), x);
    return choose(x < -bound, all(-bound), x);
}
INLINE Vector quotient(Vector x, Vector y) { return x / y; }
#endif
/* e^x from a polynomial of the fraction and the exponent bits of the integer part */
INLINE Vector exponential(Vector x) {
    Vector scaled = clip(x, 80.0f) * 1.44269504f;
    Vector whole = (scaled + 12582912.0f) - 12582912.0f, part = (scaled - whole) * 0.69314718f;
    Vector sum = 1.0f + part * (1.0f + part * (0.5f + part * (0.16666667f + part * (0.041666667f + part * 0.0083333333f))));
    return (Vector)((Integers)sum + (__builtin_convertvector(whole, Integers) << 23));
}
/* tanh x, the seventh convergent of its continued fraction: off by less than 1e-4 */
INLINE Vector tangent(Vector x) {
    x = clip(x, 4.9f);
    Vector y = x * x;
    return quotient(x * (135135.0f + y * (17325.0f + y * (378.0f + y))), 135135.0f + y * (62370.0f + y * (3150.0f + 28.0f * y)));
}
INLINE Vector uniform(Integers *seed) {
    Integers s = *seed;
    s ^= s << 13;
    s ^= (s >> 17) & 0x7fff;
    s ^= s << 5;
    *seed = s;
    return __builtin_convertvector((s >> 8) & 0xffffff, Vector) * 5.9604645e-8f;
}

/* What becomes of a sum of a product, given the number in its place */
INLINE Vector unchanged(Vector sum, Vector before) { return sum; }
INLINE Vector activated(Vector sum, Vector before) { return tangent(sum); }
INLINE Vector derived(Vector sum, Vector before) { return sum * (1.0f - before * before); }

/* y = W x + b for a tile, finished; four outputs at a time, so sixteen sums stay in registers */
INLINE void multiply(const float *w, const float *bias, const Row *x, Row *y, int inputs, int outputs, Vector finish(Vector, Vector)) {
    for (int j = 0; j < outputs; j += 4) {
        Vector sum[4][PER_ROW];
        for (int k = 0; k < 4; k++)
            for (int v = 0; v < PER_ROW; v++) sum[k][v] = all(bias ? bias[j + k] : 0.0f);
        for (int i = 0; i < inputs; i++) {
            Row given;
            UNROLL for (int v = 0; v < PER_ROW; v++) {
                given[v] = x[i][v];
                HOLD(given[v]);
            }
            UNROLL for (int k = 0; k < 4; k++)
                UNROLL for (int v = 0; v < PER_ROW; v++) sum[k][v] += w[(j + k) * inputs + i] * given[v];
        }
        for (int k = 0; k < 4; k++)
            for (int v = 0; v < PER_ROW; v++) y[j + k][v] = finish(sum[k][v], y[j + k][v]);
    }
}
/* Lane i of the result is the sum over the lanes of x[i] */
INLINE Vector sums_of(Vector x[WIDTH]) {
    Integers even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    UNROLL for (int n = WIDTH / 2; n; n /= 2)
        UNROLL for (int i = 0; i < n; i++)
            x[i] = __builtin_shuffle(x[2 * i], x[2 * i + 1], even) + __builtin_shuffle(x[2 * i], x[2 * i + 1], even + 1);
    return x[0];
}
/* dW += d x^T, summed over the environments of a tile and all steps; rows of d and x of two steps are APART */
INLINE void outer(float *w, float *bias, const Row *d, const Row *x, int inputs, int outputs) {
    for (int j = 0; j < outputs; j += 4)
        for (int i = 0; i < inputs; i += 4) {
            Vector sum[WIDTH] = {0};
            for (int t = 0; t < STEPS; t++)
                for (int v = 0; v < PER_ROW; v++) {
                    Row given;
                    UNROLL for (int l = 0; l < 4; l++) {
                        given[l] = x[t * APART + i + l][v];
                        HOLD(given[l]);
                    }
                    UNROLL for (int k = 0; k < 4; k++) {
                        Vector slope = d[t * APART + j + k][v];
                        HOLD(slope);
                        UNROLL for (int l = 0; l < 4; l++) sum[4 * k + l] += slope * given[l];
                    }
                }
            Vector total = sums_of(sum);
            for (int k = 0; k < 4; k++)
                for (int l = 0; l < 4; l++) w[(j + k) * inputs + i + l] += total[4 * k + l];
        }
    for (int j = 0; j < outputs; j += 4) {
        Vector sum[WIDTH] = {0};
        for (int t = 0; t < STEPS; t++)
            for (int v = 0; v < PER_ROW; v++)
                for (int k = 0; k < 4; k++) sum[k] += d[t * APART + j + k][v];
        Vector total = sums_of(sum);
        for (int k = 0; k < 4; k++) bias[j + k] += total[k];
    }
}
static void policy(Step *s) {
    multiply(&weights.first[0][0], weights.first_bias, s->observation, s->one, INPUTS, H, activated);
    multiply(&weights.second[0][0], weights.second_bias, s->one, s->two, H, H, activated);
    multiply(&weights.head[0][0], weights.head_bias, s->two, s->out, H, OUTPUTS, unchanged);
}

/* One step of CartPole-v1; an ended episode begins anew. A time limit counts as an end, which costs nothing in speed. */
static void step(Tile *tile, Row action, Row alive) {
    for (int v = 0; v < PER_ROW; v++) {
        Vector x = tile->state[0][v], speed = tile->state[1][v], angle = tile->state[2][v], turn = tile->state[3][v];
        Vector a2 = angle * angle, sine = angle * (1.0f - a2 * (0.16666667f - a2 * 0.0083333333f));
        Vector cosine = 1.0f - a2 * (0.5f - a2 * (0.041666667f - a2 * 0.0013888889f));
        Vector pull = (20.0f * action[v] - 10.0f + 0.05f * turn * turn * sine) / 1.1f;
        Vector turning = (9.8f * sine - cosine * pull) / (0.5f * (1.3333333f - 0.1f * cosine * cosine / 1.1f));
        Vector next[INPUTS] = {x + 0.02f * speed, speed + 0.02f * (pull - 0.05f * turning * cosine / 1.1f),
                               angle + 0.02f * turn, turn + 0.02f * turning};
        Integers age = tile->age[v] + 1;
        Integers ended = (next[0] > 2.4f) | (next[0] < -2.4f) | (next[2] > 0.20943951f) | (next[2] < -0.20943951f) | (age >= LIMIT);
        for (int i = 0; i < INPUTS; i++)
            tile->state[i][v] = choose(ended, 0.1f * uniform(&tile->seed[v]) - 0.05f, next[i]);
        tile->age[v] = age & ~ended;
        alive[v] = choose(ended, all(0.0f), all(1.0f));
    }
}

static void roll_out(Tile *tile, Step *steps) {
    for (Step *s = steps; s < steps + STEPS; s++) {
        memcpy(s->observation, tile->state, sizeof tile->state);
        policy(s);
        for (int v = 0; v < PER_ROW; v++) {
            Vector right = 1.0f / (1.0f + exponential(s->out[0][v] - s->out[1][v]));
            s->action[v] = choose(uniform(&tile->seed[v]) < right, all(1.0f), all(0.0f));
        }
        step(tile, s->action, s->alive);
    }
    memcpy(steps[STEPS].observation, tile->state, sizeof tile->state);
}

/* Gradients of 0.5 (return - value)^2 - advantage log p - 0.01 entropy, with a reward of 1 for every step */
static void learn(Step *steps, Weights *g, const Weights *back) {
    policy(&steps[STEPS]);
    for (int v = 0; v < PER_ROW; v++) {
        Vector advantage = {0}, later = steps[STEPS].out[2][v];
        for (Step *s = steps + STEPS - 1; s >= steps; s--) {
            Vector value = s->out[2][v], goes_on = s->alive[v];
            advantage = 1.0f + 0.99f * goes_on * later - value + 0.9405f * goes_on * advantage;
            later = value;
            Vector margin = s->out[1][v] - s->out[0][v], right = 1.0f / (1.0f + exponential(-margin));
            Vector change = advantage * (right - s->action[v]) + 0.01f * margin * right * (1.0f - right);
            s->out[0][v] = -change;
            s->out[1][v] = change;
            s->out[2][v] = -advantage;
            s->out[3][v] = all(0.0f);
        }
    }
    outer(&g->head[0][0], g->head_bias, steps->out, steps->two, H, OUTPUTS);
    for (Step *s = steps; s < steps + STEPS; s++) multiply(&back->head[0][0], 0, s->out, s->two, OUTPUTS, H, derived);
    outer(&g->second[0][0], g->second_bias, steps->two, steps->one, H, H);
    for (Step *s = steps; s < steps + STEPS; s++) multiply(&back->second[0][0], 0, s->two, s->one, H, H, derived);
    outer(&g->first[0][0], g->first_bias, steps->one, steps->observation, INPUTS, H);
}

static void transpose(Scratch *s) {
    float *head = &s->transposed.head[0][0]; /* H rows of OUTPUTS */
    for (int j = 0; j < H; j++) {
        for (int k = 0; k < OUTPUTS; k++) head[j * OUTPUTS + k] = weights.head[k][j];
        for (int i = 0; i < H; i++) s->transposed.second[j][i] = weights.second[i][j];
    }
}
static void *work(void *given) {
    int thread = (int)(intptr_t)given, begin = n_tiles * thread / n_threads, end = n_tiles * (thread + 1) / n_threads;
    Scratch *s = &scratches[thread];
    memset(&s->gradient, 0, sizeof s->gradient);
    transpose(s);
    for (int i = begin; i < end; i++) {
        roll_out(&tiles[i], s->steps);
        if (learns) learn(s->steps, &s->gradient, &s->transposed);
    }
    return 0;
}
static void adam(void) {
    float *w = (float *)&weights, *m = (float *)&moment, *q = (float *)&square;
    updates++;
    float rate = 1e-3f * sqrtf(1.0f - powf(0.999f, updates)) / (1.0f - powf(0.9f, updates));
    for (int i = 0; i < PARAMETERS; i++) {
        float g = 0.0f;
        for (int k = 0; k < n_threads; k++) g += ((float *)&scratches[k].gradient)[i];
        g /= (float)n_tiles * LANES * STEPS;
        m[i] += 0.1f * (g - m[i]);
        q[i] += 0.001f * (g * g - q[i]);
        w[i] -= rate * m[i] / (sqrtf(q[i]) + 1e-8f);
    }
}
static void iterate(void) {
    pthread_t threads[n_threads];
    for (int k = 1; k < n_threads; k++) pthread_create(&threads[k], 0, work, (void *)(intptr_t)k);
    work(0);
    for (int k = 1; k < n_threads; k++) pthread_join(threads[k], 0);
    if (learns) adam();
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static double rate(double seconds) {
    long done = 0;
    iterate();
    double began = now(), spent;
    do {
        iterate();
        done += (long)n_tiles * LANES * STEPS;
    } while ((spent = now() - began) < seconds);
    return done / spent / 1e6;
}
/* Steps of an episode, from the share of the last steps that ended one: shows that the program learns */
static double episode(void) {
    double ended = 0.0, steps = 0.0;
    for (int k = 0; k < n_threads; k++)
        for (int t = 0; t < STEPS; t++)
            for (int v = 0; v < PER_ROW; v++)
                for (int lane = 0; lane < WIDTH; lane++, steps++) ended += 1.0 - scratches[k].steps[t].alive[v][lane];
    return steps / fmax(ended, 1.0);
}

int main(int count, char **words) {
    n_threads = count > 1 ? atoi(words[1]) : 2;
    int environments = count > 2 ? atoi(words[2]) : 10000;
    double seconds = count > 3 ? atof(words[3]) : 2.0;
    n_tiles = (environments + LANES - 1) / LANES;
    if (n_threads < 1 || n_tiles < n_threads) return fprintf(stderr, "needs 64 environments for each thread\n"), 2;
    tiles = aligned_alloc(64, n_tiles * sizeof *tiles);
    scratches = aligned_alloc(64, n_threads * sizeof *scratches);
    memset(tiles, 0, n_tiles * sizeof *tiles);
    memset(scratches, 0, n_threads * sizeof *scratches);
    srand(1);
    for (int i = 0; i < n_tiles; i++)
        for (int v = 0; v < PER_ROW; v++)
            for (int lane = 0; lane < WIDTH; lane++) tiles[i].seed[v][lane] = rand() | 1;
    float *parts[] = {&weights.first[0][0], &weights.second[0][0], &weights.head[0][0]};
    int sizes[] = {H * INPUTS, H * H, OUTPUTS * H}, inputs[] = {INPUTS, H, H};
    for (int part = 0; part < 3; part++)
        for (int i = 0; i < sizes[part]; i++) parts[part][i] = (2.0f * rand() / RAND_MAX - 1.0f) / sqrtf(inputs[part]);
    double rollout = rate(seconds), first = episode();
    learns = 1;
    double training = rate(seconds);
    printf("%d-%d units, %d threads, %d environments: rollout %.2f, training %.2f million steps/s\n", H, H, n_threads,
           n_tiles * LANES, rollout, training);
    printf("steps per ended episode: %.0f before, %.0f after %d updates\n", first, episode(), updates);
}
