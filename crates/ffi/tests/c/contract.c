/* The contract of Segment, over the seven fixtures: what a host may rely on, whatever the model. */

#include "check.h"
#include "fixture_state.h"
#include "fixtures.h"

enum { ROWS = 13, CONTEXT = 16, STREAM = 1 << 16 };

/* ---- what the tests are written in ----------------------------------------------------- */

typedef struct Stream {
    unsigned char bytes[STREAM];
    size_t length, taken;
} Stream;

static int write_stream(void *user, const void *data, size_t size) {
    Stream *stream = user;
    if (size > STREAM - stream->length) return 1;
    memcpy(stream->bytes + stream->length, data, size);
    stream->length += size;
    return 0;
}

static int read_stream(void *user, void *data, size_t size) {
    Stream *stream = user;
    if (size > stream->length - stream->taken) return 1;
    memcpy(data, stream->bytes + stream->taken, size);
    stream->taken += size;
    return 0;
}

static ColiSegmentEngine *open_range(const Fixture *fixture, uint32_t begin, uint32_t end) {
    ColiSegmentEngineOptions options = {0};
    ColiSegmentEngine *engine = NULL;
    options.struct_size = sizeof options;
    options.model_dir = "fixture";
    options.layer_begin = begin;
    options.layer_end = end;
    options.context_tokens = CONTEXT;
    OK(coli_segment_engine_open(fixture->id, &options, &engine, ERROR));
    return engine;
}

static ColiSegmentSession *new_session(ColiSegmentEngine *engine) {
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = NULL;
    options.struct_size = sizeof options;
    options.context_tokens = CONTEXT;
    OK(coli_segment_session_create(engine, &options, &session, ERROR));
    return session;
}

static size_t row_bytes(const Fixture *fixture) {
    return fixture->width * (fixture->dtype == COLI_SEGMENT_DTYPE_F32 ? 4u : 2u);
}

/* Rows a host would send, and the ids that belong to them. */
typedef struct Prompt {
    unsigned char rows[ROWS * 64];
    int32_t ids[ROWS];
} Prompt;

static Prompt prompt_of(const Fixture *fixture, int salt) {
    Prompt prompt;
    ColiEdgeEngineOptions options = {0};
    ColiEdgeEmbedRequest request = {0};
    ColiEdgeEngine *edge = NULL;
    options.struct_size = sizeof options;
    options.model_dir = "fixture";
    for (int i = 0; i < ROWS; i++) prompt.ids[i] = (i * 29 + salt * 7 + 3) % 259;
    OK(coli_edge_engine_open(fixture->id, &options, &edge, ERROR));
    request.struct_size = sizeof request;
    request.rows = ROWS;
    request.token_ids = prompt.ids;
    request.token_count = ROWS;
    request.output = prompt.rows;
    request.output_bytes = ROWS * row_bytes(fixture);
    OK(coli_edge_embed(edge, &request, ERROR));
    coli_edge_engine_close(edge);
    return prompt;
}

/* A run of `rows` rows at `position`: input and output are those of the whole prompt. */
static ColiSegmentRunRequest request_of(const Fixture *fixture, const Prompt *prompt,
                                        const void *input, void *output, uint32_t position,
                                        uint32_t rows) {
    ColiSegmentRunRequest request = {0};
    const size_t bytes = row_bytes(fixture);
    request.struct_size = sizeof request;
    request.rows = rows;
    request.position = position;
    if (fixture->flags & COLI_SEGMENT_CAP_TOKEN_IDS) {
        request.token_ids = prompt->ids + position;
        request.token_count = rows;
    }
    request.input = (const unsigned char *)input + position * bytes;
    request.input_bytes = rows * bytes;
    request.output = (unsigned char *)output + position * bytes;
    request.output_bytes = rows * bytes;
    return request;
}

static void run_rows(const Fixture *fixture, ColiSegmentSession *session, const Prompt *prompt,
                     const void *input, void *output, uint32_t position, uint32_t rows) {
    const ColiSegmentRunRequest request =
        request_of(fixture, prompt, input, output, position, rows);
    OK(coli_segment_run(session, &request, ERROR));
}

static Stream *snapshot_of(ColiSegmentSession *session) {
    Stream *stream = calloc(1, sizeof *stream);
    CHECK(stream);
    OK(coli_segment_snapshot(session, write_stream, stream, ERROR));
    return stream;
}

static int same_state(ColiSegmentSession *session, const Stream *before) {
    Stream *now = snapshot_of(session);
    const int same = now->length == before->length &&
                     memcmp(now->bytes, before->bytes, now->length) == 0;
    free(now);
    return same;
}

/* The prompt through the whole model, in one run. */
static void whole(const Fixture *fixture, const Prompt *prompt, void *output) {
    ColiSegmentEngine *engine = open_range(fixture, 0, fixture->layers);
    ColiSegmentSession *session = new_session(engine);
    run_rows(fixture, session, prompt, prompt->rows, output, 0, ROWS);
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
}

/* ---- the contract ---------------------------------------------------------------------- */

/* The prompt through the ranges that `cuts` makes of the model, in chunks of `chunk` rows. */
static void chained(const Fixture *fixture, const Prompt *prompt, const uint32_t *cuts,
                    int ranges, uint32_t chunk, unsigned char *output) {
    ColiSegmentEngine *engines[3];
    ColiSegmentSession *sessions[3];
    for (int r = 0; r < ranges; r++) {
        engines[r] = open_range(fixture, cuts[r], cuts[r + 1]);
        sessions[r] = new_session(engines[r]);
    }
    for (uint32_t at = 0; at < ROWS; at += chunk) {
        const uint32_t rows = ROWS - at < chunk ? ROWS - at : chunk;
        unsigned char rows_of[3][ROWS * 64];
        for (int r = 0; r < ranges; r++)
            run_rows(fixture, sessions[r], prompt, r ? rows_of[r - 1] : prompt->rows,
                     r == ranges - 1 ? output : rows_of[r], at, rows);
    }
    for (int r = 0; r < ranges; r++) {
        coli_segment_session_destroy(sessions[r]);
        OK(coli_segment_engine_close(engines[r], ERROR));
    }
}

static void ranges_are_half_open(const Fixture *fixture) {
    const Prompt prompt = prompt_of(fixture, 1);
    const size_t bytes = ROWS * row_bytes(fixture);
    unsigned char want[ROWS * 64], have[ROWS * 64];
    whole(fixture, &prompt, want);
    for (uint32_t chunk = 1; chunk <= ROWS; chunk += 4)
        for (uint32_t a = 0; a < fixture->layers; a++)
            for (uint32_t b = a + 1; b < fixture->layers; b++) {
                const uint32_t three[] = {0, a, b, fixture->layers};
                const uint32_t two[] = {0, b, fixture->layers};
                memset(have, 0, sizeof have);
                if (a)
                    chained(fixture, &prompt, three, 3, chunk, have);
                else
                    chained(fixture, &prompt, two, 2, chunk, have);
                CHECK(memcmp(want, have, bytes) == 0);
            }
}

static void activations_have_exact_sizes(const Fixture *fixture) {
    const Prompt prompt = prompt_of(fixture, 2);
    unsigned char output[ROWS * 64];
    ColiSegmentEngine *engine = open_range(fixture, 0, fixture->layers);
    ColiSegmentSession *session = new_session(engine);
    for (int by = -1; by <= 1; by += 2) {
        ColiSegmentRunRequest request =
            request_of(fixture, &prompt, prompt.rows, output, 0, 4);
        request.input_bytes = (size_t)((int)request.input_bytes + by);
        REFUSED(coli_segment_run(session, &request, ERROR));
        request = request_of(fixture, &prompt, prompt.rows, output, 0, 4);
        request.output_bytes = (size_t)((int)request.output_bytes + by);
        REFUSED(coli_segment_run(session, &request, ERROR));
    }
    run_rows(fixture, session, &prompt, prompt.rows, output, 0, 4);
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
}

static void engines_outlive_their_sessions(const Fixture *fixture) {
    ColiSegmentEngine *engine = open_range(fixture, 1, 2);
    ColiSegmentSession *a = new_session(engine), *b = new_session(engine);
    REFUSED(coli_segment_engine_close(engine, ERROR));
    coli_segment_session_destroy(a);
    REFUSED(coli_segment_engine_close(engine, ERROR));
    coli_segment_session_destroy(b);
    OK(coli_segment_engine_close(engine, ERROR));
}

/* Two conversations take turns, a third one comes after them: each is as if it were alone. */
static void sessions_are_isolated(const Fixture *fixture) {
    const Prompt prompts[2] = {prompt_of(fixture, 3), prompt_of(fixture, 4)};
    const size_t bytes = ROWS * row_bytes(fixture);
    unsigned char want[2][ROWS * 64], have[2][ROWS * 64];
    ColiSegmentEngine *engine = open_range(fixture, 0, fixture->layers);
    ColiSegmentSession *sessions[2];
    for (int s = 0; s < 2; s++) {
        whole(fixture, &prompts[s], want[s]);
        sessions[s] = new_session(engine);
    }
    CHECK(memcmp(want[0], want[1], bytes) != 0);
    for (uint32_t at = 0; at < ROWS; at++)
        for (int s = 0; s < 2; s++)
            run_rows(fixture, sessions[s], &prompts[s], prompts[s].rows, have[s], at, 1);
    for (int s = 0; s < 2; s++) {
        CHECK(memcmp(want[s], have[s], bytes) == 0);
        coli_segment_session_destroy(sessions[s]);
    }
    ColiSegmentSession *after = new_session(engine);
    run_rows(fixture, after, &prompts[0], prompts[0].rows, have[1], 0, ROWS);
    CHECK(memcmp(want[0], have[1], bytes) == 0);
    coli_segment_session_destroy(after);
    OK(coli_segment_engine_close(engine, ERROR));
}

/* A snapshot after `half` rows, restored into a session of another engine that has a past. */
static void conversations_continue(const Fixture *fixture) {
    enum { HALF = 6 };
    const Prompt prompt = prompt_of(fixture, 5), other = prompt_of(fixture, 6);
    const size_t bytes = ROWS * row_bytes(fixture);
    unsigned char want[ROWS * 64], have[ROWS * 64], waste[ROWS * 64];
    ColiSegmentEngine *here = open_range(fixture, 0, fixture->layers);
    ColiSegmentEngine *there = open_range(fixture, 0, fixture->layers);
    ColiSegmentSession *first = new_session(here), *second = new_session(there);
    whole(fixture, &prompt, want);
    run_rows(fixture, first, &prompt, prompt.rows, have, 0, HALF);
    run_rows(fixture, second, &other, other.rows, waste, 0, 9);
    Stream *stream = snapshot_of(first);
    coli_segment_session_destroy(first);
    OK(coli_segment_engine_close(here, ERROR));
    const size_t length = stream->length;
    stream->bytes[stream->length++] = 0xa5; /* what follows is the host's */
    OK(coli_segment_restore(second, read_stream, stream, ERROR));
    CHECK(stream->taken == length);
    stream->length = length;
    CHECK(same_state(second, stream));
    run_rows(fixture, second, &prompt, prompt.rows, have, HALF, ROWS - HALF);
    CHECK(memcmp(want, have, bytes) == 0);
    free(stream);
    coli_segment_session_destroy(second);
    OK(coli_segment_engine_close(there, ERROR));
}

/* Every byte wrong and every end too early: refused, and the session is as it was. */
static void damage_is_refused(const Fixture *fixture) {
    const Prompt prompt = prompt_of(fixture, 7), other = prompt_of(fixture, 8);
    unsigned char output[ROWS * 64], want[ROWS * 64];
    ColiSegmentEngine *engine = open_range(fixture, 1, 2);
    ColiSegmentSession *source = new_session(engine), *target = new_session(engine);
    run_rows(fixture, source, &prompt, prompt.rows, output, 0, 5);
    run_rows(fixture, target, &other, other.rows, output, 0, 8);
    run_rows(fixture, source, &prompt, prompt.rows, want, 5, 3);
    Stream *good = snapshot_of(source), *before = snapshot_of(target);
    Stream *bad = calloc(1, sizeof *bad);
    CHECK(bad);
    for (size_t at = 0; at < good->length; at++) {
        memcpy(bad, good, sizeof *bad);
        bad->bytes[at] ^= (unsigned char)(1u << at % 8);
        bad->taken = 0;
        REFUSED(coli_segment_restore(target, read_stream, bad, ERROR));
        CHECK(same_state(target, before));
        memcpy(bad, good, sizeof *bad);
        bad->length = at;
        REFUSED(coli_segment_restore(target, read_stream, bad, ERROR));
        CHECK(same_state(target, before));
    }
    CHECK(same_state(target, before));
    OK(coli_segment_restore(target, read_stream, good, ERROR));
    free(bad);
    free(good);
    free(before);
    coli_segment_session_destroy(source);
    coli_segment_session_destroy(target);
    OK(coli_segment_engine_close(engine, ERROR));
}

static void snapshots_belong_to_a_range(const Fixture *fixture) {
    const Prompt prompt = prompt_of(fixture, 9);
    unsigned char output[ROWS * 64];
    ColiSegmentEngine *engine = open_range(fixture, 0, 1), *next = open_range(fixture, 1, 2);
    ColiSegmentSession *session = new_session(engine), *target = new_session(next);
    run_rows(fixture, session, &prompt, prompt.rows, output, 0, 5);
    Stream *stream = snapshot_of(session), *before = snapshot_of(target);
    REFUSED(coli_segment_restore(target, read_stream, stream, ERROR));
    CHECK(same_state(target, before));
    free(stream);
    free(before);
    coli_segment_session_destroy(session);
    coli_segment_session_destroy(target);
    OK(coli_segment_engine_close(engine, ERROR));
    OK(coli_segment_engine_close(next, ERROR));
}

static int cancel_later(void *user) {
    int *polls = user;
    return (*polls)-- == 0;
}

/* Rows that do not follow, and runs that are cancelled at any poll, leave no trace. */
static void refused_runs_change_nothing(const Fixture *fixture) {
    const Prompt prompt = prompt_of(fixture, 10);
    unsigned char want[ROWS * 64], have[ROWS * 64];
    ColiSegmentEngine *engine = open_range(fixture, 0, fixture->layers);
    ColiSegmentSession *session = new_session(engine);
    whole(fixture, &prompt, want);
    run_rows(fixture, session, &prompt, prompt.rows, have, 0, 5);
    Stream *before = snapshot_of(session);
    const uint64_t wrong[] = {0, 4, 6, 7};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ColiSegmentRunRequest request =
            request_of(fixture, &prompt, prompt.rows, have, 5, 4);
        request.position = wrong[i];
        REFUSED(coli_segment_run(session, &request, ERROR));
        CHECK(same_state(session, before));
    }
    for (int poll = 0; poll < 5; poll++) {
        int polls = poll;
        ColiSegmentRunRequest request =
            request_of(fixture, &prompt, prompt.rows, have, 5, 4);
        request.should_cancel = cancel_later;
        request.cancel_user_data = &polls;
        REFUSED(coli_segment_run(session, &request, ERROR));
        CHECK(same_state(session, before));
    }
    run_rows(fixture, session, &prompt, prompt.rows, have, 5, ROWS - 5);
    CHECK(memcmp(want, have, ROWS * row_bytes(fixture)) == 0);
    free(before);
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
}

/* The ends agree with the range on what crosses between them, and with themselves. */
static void edges_fit(const Fixture *fixture) {
    ColiEdgeEngineOptions options = {0};
    ColiEdgeCapabilities edge_is = {0};
    ColiSegmentCapabilities range_is = {0};
    ColiEdgeEngine *edge = NULL;
    ColiSegmentEngine *engine = open_range(fixture, 0, fixture->layers);
    options.struct_size = sizeof options;
    options.model_dir = "fixture";
    edge_is.struct_size = sizeof edge_is;
    range_is.struct_size = sizeof range_is;
    OK(coli_edge_engine_open(fixture->id, &options, &edge, ERROR));
    OK(coli_edge_engine_capabilities(edge, &edge_is, ERROR));
    OK(coli_segment_engine_capabilities(engine, &range_is, ERROR));
    CHECK(strncmp(edge_is.state_schema, "fixture/", 8) == 0);
    CHECK(strcmp(edge_is.state_schema, range_is.state_schema) == 0);
    CHECK(strcmp(edge_is.numeric_class, range_is.numeric_class) == 0);
    CHECK(edge_is.state_dtype == range_is.state_dtype);
    CHECK(edge_is.state_width == range_is.state_width);

    const char text[] = "Gr\xc3\xbc\xc3\x9f" "e<|end|> \xf0\x9f\x98\x80";
    const size_t bytes = sizeof text - 1;
    int32_t ids[64];
    char back[64];
    size_t count = 0, again = 0, length = 0;
    OK(coli_edge_tokenize(edge, text, bytes, NULL, 0, &count, ERROR));
    OK(coli_edge_tokenize(edge, text, bytes, ids, count, &again, ERROR));
    CHECK(count == again && count < bytes);
    REFUSED(coli_edge_tokenize(edge, text, bytes, ids, count - 1, &again, ERROR));
    OK(coli_edge_detokenize(edge, ids, count, NULL, 0, &length, ERROR));
    CHECK(length == bytes);
    REFUSED(coli_edge_detokenize(edge, ids, count, back, length, &length, ERROR));
    OK(coli_edge_detokenize(edge, ids, count, back, bytes + 1, &length, ERROR));
    CHECK(length == bytes && memcmp(back, text, bytes + 1) == 0);
    coli_edge_engine_close(edge);
    OK(coli_segment_engine_close(engine, ERROR));
}

/* The fixtures are worth testing with: what a row comes to depends on the rows before it. */
static void every_kind_remembers(void) {
    enum { WIDTH = 6, LATER = 4 };
    for (uint32_t kind = 1; kind < FIXTURE_ALL_KINDS; kind <<= 1) {
        float rows[2][LATER][WIDTH];
        for (int past = 0; past < 2; past++) {
            float device[WIDTH] = {0}, *state = calloc(4096, sizeof *state);
            CHECK(state && fixture_floats(kind, WIDTH, CONTEXT) <= 4096);
            for (uint32_t p = 0; p < LATER; p++) {
                const Place place = {WIDTH, CONTEXT, 1, p, p ? 7 : past};
                for (int i = 0; i < WIDTH; i++)
                    rows[past][p][i] =
                        p ? 0.125f * (float)i : 0.25f * (float)((past + 1) * (i % 3 + 1));
                fixture_layer(kind, state, device, &place, rows[past][p]);
            }
            free(state);
        }
        CHECK(memcmp(rows[0][1], rows[1][1], (LATER - 1) * sizeof rows[0][1]) != 0);
    }
}

int main(void) {
    uint32_t kinds = 0;
    every_kind_remembers();
    for (int f = 0; f < FIXTURES; f++) {
        CHECK(!coli_segment_adapter_lookup(fixtures[f].id));
        CHECK(fixture_register_segment(&fixtures[f]) == 0);
        CHECK(fixture_register_edge(&fixtures[f]) == 0);
        kinds |= fixtures[f].kinds;
    }
    CHECK(kinds == FIXTURE_ALL_KINDS);
    CHECK(coli_segment_adapter_count() == FIXTURES && coli_edge_adapter_count() == FIXTURES);
    for (int f = 0; f < FIXTURES; f++) {
        const Fixture *fixture = &fixtures[f];
        ranges_are_half_open(fixture);
        activations_have_exact_sizes(fixture);
        engines_outlive_their_sessions(fixture);
        sessions_are_isolated(fixture);
        conversations_continue(fixture);
        damage_is_refused(fixture);
        snapshots_belong_to_a_range(fixture);
        refused_runs_change_nothing(fixture);
        edges_fit(fixture);
        CHECK(fixtures_live == 0);
        printf("%s: the contract holds\n", fixture->id);
    }
    return 0;
}
