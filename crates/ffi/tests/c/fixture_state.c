#include "fixture_state.h"

#include "fixtures.h"

enum { RING = 4, WINDOW = 3, BLOCKS = 3, CHOSEN = 3, GROUP = 3, HISTORY = 3 };

typedef void Step(float *state, float *device, const Place *at, float *row);

static float squash(float x) {
    return x / (1.0f + (x < 0.0f ? -x : x));
}

static float dot(const float *a, const float *b, uint32_t n) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void copy(float *to, const float *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) to[i] = from[i];
}

static void add(float *row, const float *other, float by, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) row[i] += by * other[i];
}

/* Every row is kept and attended. */
static void kv(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    copy(state + (size_t)at->position * w, row, w);
    float query[64];
    copy(query, row, w);
    for (uint32_t t = 0; t <= at->position; t++) {
        const float *key = state + (size_t)t * w;
        add(row, key, squash(dot(query, key, w)) / (float)(at->position + 1), w);
    }
}

/* The last rows are kept, each in the place of one that is out of reach. */
static void sliding_ring(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    copy(state + (size_t)(at->position % RING) * w, row, w);
    const uint32_t first = at->position < RING ? 0 : at->position - RING + 1;
    for (uint32_t t = first; t <= at->position; t++)
        add(row, state + (size_t)(t % RING) * w, 0.25f / (float)(1 + at->position - t), w);
}

/* Half as wide a row is kept, and widened again. */
static void mla_latent(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width, narrow = w / 2;
    (void)device;
    float *mine = state + (size_t)at->position * narrow;
    for (uint32_t j = 0; j < narrow; j++) mine[j] = row[2 * j] - row[2 * j + 1];
    for (uint32_t t = 0; t <= at->position; t++)
        for (uint32_t j = 0; j < narrow; j++) {
            const float latent = state[(size_t)t * narrow + j] / (float)(at->position + 1);
            row[2 * j] += 0.5f * latent;
            row[2 * j + 1] -= 0.25f * latent;
        }
}

/* A key a row; the rows with the highest scores are chosen, the earliest first among equals. */
static void dsa_indexer(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    state[at->position] = row[0] + 0.5f * row[w - 1];
    const float query = row[w / 2] + 0.125f;
    uint32_t chosen[CHOSEN];
    for (uint32_t n = 0; n < CHOSEN && n <= at->position; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t t = 0; t <= at->position; t++) {
            int taken = 0;
            for (uint32_t m = 0; m < n; m++) taken |= chosen[m] == t;
            if (!taken && (best == UINT32_MAX || state[t] * query > state[best] * query)) best = t;
        }
        chosen[n] = best;
        row[n % w] += 0.25f * state[best] + 0.0625f * (float)(best % 5);
    }
}

/* The inputs before this one, newest first. */
static void convolution(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    float input[64];
    copy(input, row, w);
    for (uint32_t k = 0; k < WINDOW; k++)
        add(row, state + (size_t)k * w, 0.5f / (float)(k + 1), w);
    for (uint32_t k = WINDOW - 1; k > 0; k--)
        copy(state + (size_t)k * w, state + (size_t)(k - 1) * w, w);
    copy(state, input, w);
}

/* A matrix that each row decays and adds to. */
static void recurrent(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    float query[64];
    copy(query, row, w);
    for (uint32_t i = 0; i < w; i++) {
        float *line = state + (size_t)i * w;
        for (uint32_t j = 0; j < w; j++) line[j] = 0.75f * line[j] + 0.25f * query[i] * query[j];
        row[i] += 0.5f * dot(line, query, w);
    }
}

/* What blocks before this one came to, weighed by how much they look like the row. */
static void attention_residual(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width, kept = at->position < BLOCKS ? at->position : BLOCKS;
    (void)device;
    float query[64];
    copy(query, row, w);
    for (uint32_t b = 0; b < kept; b++) {
        const float *block = state + (size_t)b * w;
        add(row, block, 0.5f * squash(dot(query, block, w)), w);
    }
    copy(state + (size_t)(at->position % BLOCKS) * w, row, w);
}

/* Two streams, mixed by a matrix that follows them. */
static void mhc(float *state, float *device, const Place *at, float *row) {
    const uint32_t half = at->width / 2;
    (void)device;
    for (uint32_t i = 0; i < half; i++) {
        const float a = row[i], b = row[half + i];
        row[i] = a + state[0] * a + state[1] * b;
        row[half + i] = b + state[2] * a + state[3] * b;
    }
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t r = 0; r < 2; r++) {
            const float alike = dot(row + s * half, row + r * half, half);
            state[2 * s + r] = 0.5f * state[2 * s + r] + 0.5f * squash(alike);
        }
}

/* Rows wait until a group is full, which then becomes one row. */
static void compressor(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width, waiting = at->position % GROUP;
    (void)device;
    float *groups = state + (size_t)GROUP * w;
    copy(state + (size_t)waiting * w, row, w);
    if (waiting == GROUP - 1) {
        float *group = groups + (size_t)(at->position / GROUP) * w;
        for (uint32_t i = 0; i < w; i++)
            group[i] = (state[i] + state[w + i] + state[2 * (size_t)w + i]) / (float)GROUP;
    }
    for (uint32_t g = 0; g < (at->position + 1) / GROUP; g++)
        add(row, groups + (size_t)g * w, 0.25f / (float)(g + 1), w);
}

/* A sum that lives in the memory of a device. */
static void device_cache(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)state;
    for (uint32_t i = 0; i < w; i++) device[i] = 0.875f * device[i] + row[i];
    add(row, device, 0.25f, w);
}

/* A residual that follows the rows. */
static void hyper_residual(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    for (uint32_t i = 0; i < w; i++) {
        const float before = state[i];
        state[i] = 0.5f * before + 0.5f * row[i];
        row[i] += 0.375f * before;
    }
}

/* Every row is kept; the last two and every fourth are attended. */
static void sparse_attention(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    copy(state + (size_t)at->position * w, row, w);
    for (uint32_t t = 0; t <= at->position; t++)
        if (t % 4 == at->position % 4 || t + 1 >= at->position)
            add(row, state + (size_t)t * w, 0.125f, w);
}

/* The ids of the last tokens, of which each layer makes something of its own. */
static void embedding_history(float *state, float *device, const Place *at, float *row) {
    const uint32_t w = at->width;
    (void)device;
    for (uint32_t k = HISTORY - 1; k > 0; k--) state[k] = state[k - 1];
    state[0] = (float)(at->token + 1);
    uint32_t hash = 2166136261u + at->layer;
    for (uint32_t k = 0; k < HISTORY; k++) hash = (hash ^ (uint32_t)state[k]) * 16777619u;
    for (uint32_t i = 0; i < w; i++) {
        hash = hash * 1664525u + 1013904223u;
        row[i] += (float)(hash >> 24) / 1024.0f - 0.125f;
    }
}

/* Floats of each kind: some a row of the context, some once. */
static size_t floats(uint32_t kind, size_t w, size_t context) {
    switch (kind) {
        case FIXTURE_KV: return context * w;
        case FIXTURE_SLIDING_RING: return RING * w;
        case FIXTURE_MLA_LATENT: return context * (w / 2);
        case FIXTURE_DSA_INDEXER: return context;
        case FIXTURE_CONVOLUTION: return WINDOW * w;
        case FIXTURE_RECURRENT: return w * w;
        case FIXTURE_ATTENTION_RESIDUAL: return BLOCKS * w;
        case FIXTURE_MHC: return 4;
        case FIXTURE_COMPRESSOR: return GROUP * w + (context / GROUP + 1) * w;
        case FIXTURE_DEVICE_CACHE: return 0; /* it lives on the device */
        case FIXTURE_HYPER_RESIDUAL: return w;
        case FIXTURE_SPARSE_ATTENTION: return context * w;
        case FIXTURE_EMBEDDING_HISTORY: return HISTORY;
        default: return 0;
    }
}

static Step *const steps[] = {kv,
                              sliding_ring,
                              mla_latent,
                              dsa_indexer,
                              convolution,
                              recurrent,
                              attention_residual,
                              mhc,
                              compressor,
                              device_cache,
                              hyper_residual,
                              sparse_attention,
                              embedding_history};
enum { KINDS = sizeof steps / sizeof *steps };

size_t fixture_floats(uint32_t kinds, uint32_t width, uint32_t context) {
    size_t sum = 0;
    for (uint32_t kind = 0; kind < KINDS; kind++)
        if (kinds >> kind & 1) sum += floats(1u << kind, width, context);
    return sum;
}

void fixture_layer(uint32_t kinds, float *state, float *device, const Place *place, float *row) {
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (!(kinds >> kind & 1)) continue;
        row[(place->layer + kind) % place->width] += 0.03125f * (float)(place->layer + 1);
        steps[kind](state, device, place, row);
        for (uint32_t i = 0; i < place->width; i++) row[i] = squash(row[i]);
        state += floats(1u << kind, place->width, place->context);
    }
}

int fixture_sound(uint32_t kinds, const float *state, uint32_t width, uint32_t context,
                  uint32_t position) {
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        if (!(kinds >> kind & 1)) continue;
        const size_t count = floats(1u << kind, width, context);
        for (size_t i = 0; i < count; i++) {
            const int id = 1u << kind == FIXTURE_EMBEDDING_HISTORY;
            if (!(state[i] > -1e6f && state[i] < 1e6f)) return 0;
            /* An id for each token there was, and none for others. */
            if (id && (state[i] != (float)(int32_t)state[i] || state[i] < 0.0f ||
                       (state[i] > 0.0f) != (i < position)))
                return 0;
        }
        state += count;
    }
    return 1;
}
