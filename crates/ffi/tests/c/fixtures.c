#include "fixtures.h"

#include "fixture_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT_FLAGS                                                                       \
    (COLI_SEGMENT_CAP_SNAPSHOT | COLI_SEGMENT_CAP_RANGE_NATIVE |                            \
     COLI_SEGMENT_CAP_MULTI_SESSION | COLI_SEGMENT_CAP_CPU)

const Fixture fixtures[FIXTURES] = {
    {"glm", FIXTURE_MLA_LATENT | FIXTURE_DSA_INDEXER, 5, 8, COLI_SEGMENT_DTYPE_F32,
     SEGMENT_FLAGS},
    {"inkling", FIXTURE_KV | FIXTURE_SLIDING_RING | FIXTURE_CONVOLUTION, 4, 6,
     COLI_SEGMENT_DTYPE_BF16, SEGMENT_FLAGS},
    {"kimi",
     FIXTURE_MLA_LATENT | FIXTURE_RECURRENT | FIXTURE_CONVOLUTION | FIXTURE_ATTENTION_RESIDUAL,
     5, 4, COLI_SEGMENT_DTYPE_F32, SEGMENT_FLAGS},
    {"olmoe", FIXTURE_KV | FIXTURE_DEVICE_CACHE, 3, 4, COLI_SEGMENT_DTYPE_F32, SEGMENT_FLAGS},
    {"qwen36", FIXTURE_KV | FIXTURE_RECURRENT | FIXTURE_CONVOLUTION, 4, 6,
     COLI_SEGMENT_DTYPE_BF16, SEGMENT_FLAGS},
    {"qwen38",
     FIXTURE_RECURRENT | FIXTURE_HYPER_RESIDUAL | FIXTURE_SPARSE_ATTENTION |
         FIXTURE_EMBEDDING_HISTORY,
     4, 6, COLI_SEGMENT_DTYPE_F32, SEGMENT_FLAGS | COLI_SEGMENT_CAP_TOKEN_IDS},
    {"deepseek_v4",
     FIXTURE_SLIDING_RING | FIXTURE_DSA_INDEXER | FIXTURE_MHC | FIXTURE_COMPRESSOR |
         FIXTURE_EMBEDDING_HISTORY,
     6, 8, COLI_SEGMENT_DTYPE_F32, SEGMENT_FLAGS | COLI_SEGMENT_CAP_TOKEN_IDS},
};

long fixtures_live;

enum { MAX_CONTEXT = 1024, VOCABULARY = 259, EOS = 1, FIRST_BYTE = 3, PIECE = 61 };

typedef struct Engine {
    const Fixture *fixture;
    uint32_t begin, end;
} Engine;

typedef struct Session {
    const Engine *engine;
    uint32_t context, position;
    size_t floats;
    float *state;
    /* The part of the state that is newer on the device, a row a layer. */
    float *device;
} Session;

static int refuse(char *text, size_t size, const char *reason, ...) {
    va_list list;
    va_start(list, reason);
    if (text && size) vsnprintf(text, size, reason, list);
    va_end(list);
    return -1;
}

/* ---- numbers --------------------------------------------------------------------------- */

static size_t number_bytes(const Fixture *fixture) {
    return fixture->dtype == COLI_SEGMENT_DTYPE_F32 ? 4 : 2;
}

static void load_row(const Fixture *fixture, const void *from, float *row) {
    for (uint32_t i = 0; i < fixture->width; i++) {
        uint32_t bits = 0;
        if (fixture->dtype == COLI_SEGMENT_DTYPE_F32) {
            memcpy(&bits, (const char *)from + 4 * (size_t)i, 4);
        } else {
            uint16_t half;
            memcpy(&half, (const char *)from + 2 * (size_t)i, 2);
            bits = (uint32_t)half << 16;
        }
        memcpy(&row[i], &bits, 4);
    }
}

/* Rounds the row to what crosses the boundary, so that a range may end after any layer. */
static void store_row(const Fixture *fixture, float *row, void *to) {
    for (uint32_t i = 0; i < fixture->width; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], 4);
        if (fixture->dtype == COLI_SEGMENT_DTYPE_F32) {
            memcpy((char *)to + 4 * (size_t)i, &bits, 4);
            continue;
        }
        const uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy((char *)to + 2 * (size_t)i, &half, 2);
        bits = (uint32_t)half << 16;
        memcpy(&row[i], &bits, 4);
    }
}

/* ---- segments -------------------------------------------------------------------------- */

static int open_segment(const Fixture *fixture, void **engine, ColiSegmentCapabilities *said,
                        const ColiSegmentEngineOptions *options, char *text, size_t size) {
    if (options->layer_end > fixture->layers) return refuse(text, size, "no such layers");
    Engine *made = malloc(sizeof *made);
    if (!made) return refuse(text, size, "no memory");
    made->fixture = fixture;
    made->begin = options->layer_begin;
    made->end = options->layer_end;
    memset(said, 0, sizeof *said);
    said->struct_size = sizeof *said;
    said->abi_version = COLI_SEGMENT_ABI_VERSION;
    said->flags = fixture->flags;
    snprintf(said->engine_id, sizeof said->engine_id, "%s", fixture->id);
    snprintf(said->state_schema, sizeof said->state_schema, "fixture/%s", fixture->id);
    snprintf(said->numeric_class, sizeof said->numeric_class, "fixture/plain-c-1");
    said->state_dtype = fixture->dtype;
    said->state_width = fixture->width;
    said->max_context_tokens = MAX_CONTEXT;
    said->num_layers = fixture->layers;
    *engine = made;
    fixtures_live++;
    return 0;
}

static void destroy_engine(void *engine) {
    free(engine);
    fixtures_live--;
}

static int create_session(void *engine, void **session,
                          const ColiSegmentSessionOptions *options, char *text, size_t size) {
    const Engine *of = engine;
    const Fixture *fixture = of->fixture;
    const uint32_t layers = of->end - of->begin;
    Session *made = calloc(1, sizeof *made);
    if (!made) return refuse(text, size, "no memory");
    made->engine = of;
    made->context = options->context_tokens;
    made->floats = layers * fixture_floats(fixture->kinds, fixture->width, made->context);
    made->state = calloc(made->floats, sizeof(float));
    made->device = calloc((size_t)layers * fixture->width, sizeof(float));
    if (!made->state || !made->device) {
        free(made->state);
        free(made->device);
        free(made);
        return refuse(text, size, "no memory");
    }
    *session = made;
    fixtures_live++;
    return 0;
}

static void destroy_session(void *session) {
    Session *of = session;
    free(of->state);
    free(of->device);
    free(of);
    fixtures_live--;
}

static size_t device_floats(const Session *session) {
    const Engine *engine = session->engine;
    return (size_t)(engine->end - engine->begin) * engine->fixture->width;
}

/* Takes all rows through the layers on `state` and `device`; 0, or -1 if it was cancelled. */
static int compute(const Session *session, const ColiSegmentRunRequest *request, float *state,
                   float *device) {
    const Engine *engine = session->engine;
    const Fixture *fixture = engine->fixture;
    const size_t bytes = number_bytes(fixture) * fixture->width;
    const size_t floats = fixture_floats(fixture->kinds, fixture->width, session->context);
    for (uint32_t r = 0; r < request->rows; r++) {
        if (request->should_cancel && request->should_cancel(request->cancel_user_data)) return -1;
        float row[64];
        void *out = (char *)request->output + r * bytes;
        load_row(fixture, (const char *)request->input + r * bytes, row);
        for (uint32_t layer = engine->begin; layer < engine->end; layer++) {
            const uint32_t mine = layer - engine->begin;
            const Place place = {fixture->width, session->context, layer, session->position + r,
                                 request->token_ids ? request->token_ids[r] : 0};
            fixture_layer(fixture->kinds, state + mine * floats,
                          device + (size_t)mine * fixture->width, &place, row);
            store_row(fixture, row, out);
        }
    }
    return 0;
}

static int run_session(void *session, const ColiSegmentRunRequest *request, char *text,
                       size_t size) {
    Session *of = session;
    if (request->position != of->position)
        return refuse(text, size, "position %llu, the session has %u",
                      (unsigned long long)request->position, (unsigned)of->position);
    const size_t device = device_floats(of);
    float *state = malloc((of->floats + device) * sizeof(float));
    if (!state) return refuse(text, size, "no memory");
    memcpy(state, of->state, of->floats * sizeof(float));
    memcpy(state + of->floats, of->device, device * sizeof(float));
    const int cancelled = compute(of, request, state, state + of->floats);
    if (!cancelled) {
        memcpy(of->state, state, of->floats * sizeof(float));
        memcpy(of->device, state + of->floats, device * sizeof(float));
        of->position += request->rows;
    }
    free(state);
    return cancelled ? refuse(text, size, "cancelled after some rows") : 0;
}

/* ---- snapshots ------------------------------------------------------------------------- */

/* A header, the floats, and the device's floats, all little-endian; a digest over each part. */
enum { HEADER = 64 + 6 * 4 + 2 * 8, DIGESTS = 64 + 6 * 4 };

static uint64_t digest(const unsigned char *bytes, size_t count) {
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

static void put(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

static void write_header(const Session *session, const unsigned char *payload, size_t bytes,
                         unsigned char *header) {
    const Engine *engine = session->engine;
    const uint32_t numbers[6] = {1, engine->begin, engine->end, session->context,
                                 session->position, (uint32_t)bytes};
    memset(header, 0, HEADER);
    snprintf((char *)header, 64, "fixture snapshot of %s", engine->fixture->id);
    for (int i = 0; i < 6; i++) put(header + 64 + 4 * i, numbers[i], 4);
    put(header + DIGESTS, digest(payload, bytes), 8);
    put(header + DIGESTS + 8, digest(header, DIGESTS + 8), 8);
}

static void put_floats(unsigned char *to, const float *floats, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &floats[i], 4);
        put(to + 4 * i, bits, 4);
    }
}

static void take_floats(float *floats, const unsigned char *from, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        for (int b = 0; b < 4; b++) bits |= (uint32_t)from[4 * i + (size_t)b] << 8 * b;
        memcpy(&floats[i], &bits, 4);
    }
}

static size_t payload_bytes(const Session *session) {
    return 4 * (session->floats + device_floats(session));
}

static int snapshot_session(void *session, ColiSegmentWriteFn write, void *user, char *text,
                            size_t size) {
    const Session *of = session;
    const size_t bytes = HEADER + payload_bytes(of);
    unsigned char *stream = malloc(bytes);
    if (!stream) return refuse(text, size, "no memory");
    put_floats(stream + HEADER, of->state, of->floats);
    put_floats(stream + HEADER + 4 * of->floats, of->device, device_floats(of));
    write_header(of, stream + HEADER, bytes - HEADER, stream);
    int aborted = 0;
    for (size_t at = 0; at < bytes && !aborted; at += PIECE)
        aborted = write(user, stream + at, bytes - at < PIECE ? bytes - at : PIECE);
    free(stream);
    return aborted ? refuse(text, size, "the writer aborted") : 0;
}

/* Checks header and payload, then takes both. */
static int adopt(Session *session, const unsigned char *header, const unsigned char *payload,
                 float *floats) {
    const Fixture *fixture = session->engine->fixture;
    const size_t bytes = payload_bytes(session), layer =
        fixture_floats(fixture->kinds, fixture->width, session->context);
    Session as = *session;
    unsigned char want[HEADER];
    as.position = 0;
    for (int b = 0; b < 4; b++) as.position |= (uint32_t)header[64 + 16 + b] << 8 * b;
    write_header(&as, payload, bytes, want);
    if (memcmp(want, header, HEADER) || as.position > session->context) return -1;
    take_floats(floats, payload, bytes / 4);
    for (size_t at = 0; at < session->floats; at += layer)
        if (!fixture_sound(fixture->kinds, floats + at, fixture->width, session->context,
                           as.position))
            return -1;
    memcpy(session->state, floats, session->floats * sizeof(float));
    memcpy(session->device, floats + session->floats, device_floats(session) * sizeof(float));
    session->position = as.position;
    return 0;
}

static int read_pieces(ColiSegmentReadFn read, void *user, unsigned char *to, size_t bytes) {
    int aborted = 0;
    for (size_t at = 0; at < bytes && !aborted; at += PIECE)
        aborted = read(user, to + at, bytes - at < PIECE ? bytes - at : PIECE);
    return aborted;
}

static int restore_session(void *session, ColiSegmentReadFn read, void *user, char *text,
                           size_t size) {
    Session *of = session;
    const size_t bytes = payload_bytes(of);
    unsigned char *stream = malloc(HEADER + bytes);
    float *floats = malloc(bytes);
    const char *fault = NULL;
    if (!stream || !floats)
        fault = "no memory";
    else if (read_pieces(read, user, stream, HEADER))
        fault = "the reader aborted in the header";
    else if (read_pieces(read, user, stream + HEADER, bytes))
        fault = "the reader aborted in the state";
    else if (adopt(of, stream, stream + HEADER, floats))
        fault = "the snapshot is damaged, or of another range";
    free(stream);
    free(floats);
    return fault ? refuse(text, size, "%s", fault) : 0;
}

/* ---- edges ----------------------------------------------------------------------------- */

static int open_edge(const Fixture *fixture, void **engine, ColiEdgeCapabilities *said) {
    memset(said, 0, sizeof *said);
    said->struct_size = sizeof *said;
    said->abi_version = COLI_EDGE_ABI_VERSION;
    said->flags = COLI_EDGE_CAP_TOKENIZE | COLI_EDGE_CAP_DETOKENIZE | COLI_EDGE_CAP_GREEDY |
                  COLI_EDGE_CAP_LOGITS | COLI_EDGE_CAP_CPU;
    snprintf(said->engine_id, sizeof said->engine_id, "%s", fixture->id);
    snprintf(said->state_schema, sizeof said->state_schema, "fixture/%s", fixture->id);
    snprintf(said->numeric_class, sizeof said->numeric_class, "fixture/plain-c-1");
    snprintf(said->tokenizer_class, sizeof said->tokenizer_class, "fixture/bytes");
    said->state_dtype = fixture->dtype;
    said->state_width = fixture->width;
    said->vocab_size = VOCABULARY;
    said->max_context_tokens = MAX_CONTEXT;
    said->num_layers = fixture->layers;
    said->bos_token_id = 0;
    said->eos_token_id = EOS;
    *engine = (void *)(uintptr_t)fixture;
    fixtures_live++;
    return 0;
}

static void destroy_edge(void *engine) {
    (void)engine;
    fixtures_live--;
}

static const char end_text[] = "<|end|>";

static int tokenize(void *engine, const char *from, size_t bytes, int32_t *ids, size_t capacity,
                    size_t *count, char *text, size_t size) {
    (void)engine;
    size_t n = 0;
    for (size_t at = 0; at < bytes; n++) {
        const size_t end = sizeof end_text - 1;
        const int ends = bytes - at >= end && memcmp(from + at, end_text, end) == 0;
        if (n < capacity) ids[n] = ends ? EOS : FIRST_BYTE + (int32_t)(unsigned char)from[at];
        at += ends ? end : 1;
    }
    *count = n;
    if (capacity && n > capacity) return refuse(text, size, "%zu ids do not fit", n);
    return 0;
}

static int detokenize(void *engine, const int32_t *ids, size_t count, char *to, size_t capacity,
                      size_t *bytes, char *text, size_t size) {
    (void)engine;
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const char byte = (char)(ids[i] - FIRST_BYTE);
        const char *piece = ids[i] == EOS ? end_text : &byte;
        const size_t length = ids[i] == EOS ? sizeof end_text - 1 : ids[i] >= FIRST_BYTE;
        if (n + length < capacity) memcpy(to + n, piece, length);
        n += length;
    }
    *bytes = n;
    if (capacity && n >= capacity) return refuse(text, size, "%zu bytes do not fit", n);
    if (capacity) to[n] = 0;
    return 0;
}

/* Row `id` of the table that is both embedding and head. */
static void table_row(const Fixture *fixture, int32_t id, float *row) {
    uint32_t hash = 2654435761u * (uint32_t)(id + 1);
    for (uint32_t i = 0; i < fixture->width; i++) {
        hash = hash * 1664525u + 1013904223u;
        row[i] = (float)(hash >> 24) / 128.0f - 1.0f;
    }
}

static int embed(void *engine, const ColiEdgeEmbedRequest *request, char *text, size_t size) {
    const Fixture *fixture = engine;
    (void)text;
    (void)size;
    for (uint32_t r = 0; r < request->rows; r++) {
        float row[64];
        table_row(fixture, request->token_ids[r], row);
        store_row(fixture, row,
                  (char *)request->output + r * fixture->width * number_bytes(fixture));
    }
    return 0;
}

static void head(const Fixture *fixture, const void *input, uint32_t r, float *logits) {
    float row[64];
    load_row(fixture, (const char *)input + r * fixture->width * number_bytes(fixture), row);
    for (int32_t id = 0; id < VOCABULARY; id++) {
        float other[64];
        table_row(fixture, id, other);
        logits[id] = 0.0f;
        for (uint32_t i = 0; i < fixture->width; i++) logits[id] += row[i] * other[i];
    }
}

static int logits(void *engine, const ColiEdgeLogitsRequest *request, char *text, size_t size) {
    (void)text;
    (void)size;
    for (uint32_t r = 0; r < request->rows; r++)
        head(engine, request->input, r, request->logits + (size_t)r * VOCABULARY);
    return 0;
}

static int select_ids(void *engine, const ColiEdgeSelectRequest *request, char *text,
                      size_t size) {
    (void)text;
    (void)size;
    for (uint32_t r = 0; r < request->rows; r++) {
        float all[VOCABULARY];
        int32_t best = 0;
        head(engine, request->input, r, all);
        for (int32_t id = 1; id < VOCABULARY; id++)
            if (all[id] > all[best]) best = id;
        request->token_ids[r] = best;
        if (request->scores) request->scores[r] = all[best];
    }
    return 0;
}

/* ---- registration ---------------------------------------------------------------------- */

/* An open function knows its family by its name, so there is one for each. */
#define OPENERS(n)                                                                          \
    static int open_segment_##n(void **engine, ColiSegmentCapabilities *said,               \
                                const ColiSegmentEngineOptions *options, char *text,        \
                                size_t size) {                                              \
        return open_segment(&fixtures[n], engine, said, options, text, size);               \
    }                                                                                       \
    static int open_edge_##n(void **engine, ColiEdgeCapabilities *said,                     \
                             const ColiEdgeEngineOptions *options, char *text,              \
                             size_t size) {                                                 \
        (void)options;                                                                      \
        (void)text;                                                                         \
        (void)size;                                                                         \
        return open_edge(&fixtures[n], engine, said);                                       \
    }
OPENERS(0)
OPENERS(1)
OPENERS(2)
OPENERS(3)
OPENERS(4)
OPENERS(5)
OPENERS(6)

#define SEGMENT(n)                                                                          \
    {sizeof(ColiSegmentAdapter), COLI_SEGMENT_ABI_VERSION, NULL, open_segment_##n,          \
     destroy_engine, create_session, destroy_session, run_session, snapshot_session,        \
     restore_session, {NULL}}
#define EDGE(n)                                                                             \
    {sizeof(ColiEdgeAdapter), COLI_EDGE_ABI_VERSION, NULL, open_edge_##n, destroy_edge,     \
     tokenize, detokenize, embed, select_ids, logits, {NULL}}

static ColiSegmentAdapter segments[FIXTURES] = {SEGMENT(0), SEGMENT(1), SEGMENT(2), SEGMENT(3),
                                                SEGMENT(4), SEGMENT(5), SEGMENT(6)};
static ColiEdgeAdapter edges[FIXTURES] = {EDGE(0), EDGE(1), EDGE(2), EDGE(3),
                                          EDGE(4), EDGE(5), EDGE(6)};

int fixture_register_segment(const Fixture *fixture) {
    ColiSegmentAdapter *adapter = &segments[fixture - fixtures];
    adapter->engine_id = fixture->id;
    return coli_segment_adapter_register(adapter);
}

int fixture_register_edge(const Fixture *fixture) {
    ColiEdgeAdapter *adapter = &edges[fixture - fixtures];
    adapter->engine_id = fixture->id;
    return coli_edge_adapter_register(adapter);
}
