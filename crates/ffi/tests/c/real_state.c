/* What sessions remember: apart from each other, over snapshots, and after everything that is
 * refused. */

#include "real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a snapshot that are surely of its header, and that the header surely ends before. */
enum { HEADER = 128, BEYOND = 420 };

/* Two conversations that take turns are what each is alone. */
void suite_sessions(const Model *model) {
    Part part = part_open(model, 0, model->ends.num_layers);
    ColiSegmentSession *other = session_of(part.engine, model->total);
    float *out = demand(CHUNK * model->width * sizeof *out);
    for (uint32_t at = 0; at < model->total; at += CHUNK) {
        const uint32_t rows = model->total - at < CHUNK ? model->total - at : CHUNK;
        const float *in = model->embedded + at * model->width;
        feed(model, part.session, at, rows, in, out);
        CHECK(as_expected(model, at, rows, out));
        feed(model, other, at, 1, in, out);
        CHECK(as_expected(model, at, 1, out));
        if (rows > 1) {
            feed(model, other, at + 1, rows - 1, in + model->width, out);
            CHECK(as_expected(model, at + 1, rows - 1, out));
        }
    }
    coli_segment_session_destroy(other);
    other = session_of(part.engine, model->total);
    feed(model, other, 0, CHUNK, model->embedded, out);
    CHECK(as_expected(model, 0, CHUNK, out));
    coli_segment_session_destroy(other);
    part_close(part);
    free(out);
}

/* What is restored in another engine, also in a larger context, goes on bit for bit. */
static void continuation(const Model *model, uint32_t at, float *out) {
    const uint32_t layers = model->ends.num_layers, rest = model->total - at;
    ColiSegmentEngine *engine = range_open(model, 0, layers);
    ColiSegmentSession *source = session_of(engine, at ? at : 1);
    Part part = part_open(model, 0, layers);
    Bytes stream;
    if (at) feed(model, source, 0, at, model->embedded, out);
    stream = snapshot_of(source);
    coli_segment_session_destroy(source);
    OK(coli_segment_engine_close(engine, ERROR));
    feed(model, part.session, 0, 5, model->embedded + 9 * model->width, out);
    CHECK(restore_from(part.session, &stream, stream.length) == 0);
    CHECK(unchanged(part.session, &stream) || at != model->total);
    feed(model, part.session, at, rest, model->embedded + at * model->width, out);
    CHECK(as_expected(model, at, rest, out));
    free(stream.data);
    part_close(part);
}

/* Bytes of a chunk of a snapshot and of the digest behind it. */
enum { CHUNK_BYTES = 1 << 20, DIGEST_BYTES = 16, LAST_BYTES = 40 };

/* Steps through a stream: every byte of its header, of the borders of its chunks and of its end, the
 * rest at a stride that REAL_STRIDE may set. It is odd, to meet every place of a number. */
static size_t next_place(size_t at, const Bytes *stream) {
    const char *set = getenv("REAL_STRIDE");
    const unsigned char *size = stream->data + 12;
    const size_t header = size[0] | (size_t)size[1] << 8, end = stream->length - LAST_BYTES;
    const size_t stride = set ? strtoul(set, NULL, 10) : stream->length / 1000 | 1;
    const size_t within = at < header ? 0 : (at - header) % (CHUNK_BYTES + DIGEST_BYTES);
    size_t next = at + stride;
    if (at < header || at >= end || within < 2 || within + 2 >= CHUNK_BYTES) return at + 1;
    if (within + stride + 2 > CHUNK_BYTES) next = at + CHUNK_BYTES - 2 - within;
    return next > end ? end : next;
}

static void damage(Part part, const Bytes *stream, const Bytes *before) {
    for (size_t at = 0; at < stream->length; at = next_place(at, stream)) {
        stream->data[at] ^= 0x10;
        CHECK(restore_from(part.session, stream, stream->length) == -1);
        CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT);
        stream->data[at] ^= 0x10;
        CHECK(restore_from(part.session, stream, at) == -1);
        CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT);
        if (at < BEYOND && at % 16 == 0) CHECK(unchanged(part.session, before));
    }
    CHECK(unchanged(part.session, before));
}

/* A callback that stops at each of its calls. */
static void stops(Part part, const Bytes *stream, const Bytes *before) {
    long call = 0;
    for (;; call++) {
        Bytes sink = {0};
        sink.aborts = call;
        if (coli_segment_snapshot(part.session, grow, &sink, ERROR) == 0) {
            free(sink.data);
            break;
        }
        CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT && sink.calls == call + 1);
        free(sink.data);
    }
    CHECK(call > 1);
    for (call = 0;; call++) {
        Bytes source = *stream;
        source.taken = 0;
        source.calls = 0;
        source.aborts = call;
        if (coli_segment_restore(part.session, take, &source, ERROR) == 0) break;
        CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT && source.calls == call + 1);
        CHECK(unchanged(part.session, before));
    }
    CHECK(call > 1);
}

void suite_snapshots(const Model *model) {
    const uint32_t layers = model->ends.num_layers;
    float *out = demand(model->total * model->width * sizeof *out);
    const uint32_t places[] = {0, 1, model->prompt, model->total - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        continuation(model, places[i], out);
    Part part = part_open(model, 0, layers - 1);
    ColiSegmentSession *source = session_of(part.engine, model->total);
    feed(model, source, 0, 9, model->embedded, out);
    feed(model, part.session, 0, 5, model->embedded + 20 * model->width, out);
    Bytes stream = snapshot_of(source), before = snapshot_of(part.session);
    damage(part, &stream, &before);
    stops(part, &stream, &before);
    /* A session too short for what it holds, and a range that it is not of. */
    ColiSegmentSession *small = session_of(part.engine, 8);
    CHECK(restore_from(small, &stream, stream.length) == -1);
    CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT);
    coli_segment_session_destroy(small);
    const uint32_t others[3][2] = {{0, layers}, {1, layers}, {0, 1}};
    for (int i = 0; i < 3; i++) {
        Part other = part_open(model, others[i][0], others[i][1]);
        Bytes empty = snapshot_of(other.session);
        CHECK(restore_from(other.session, &stream, stream.length) == -1);
        CHECK(lamella_last_error_code() == LAMELLA_SNAPSHOT);
        CHECK(unchanged(other.session, &empty));
        free(empty.data);
        part_close(other);
    }
    coli_segment_session_destroy(source);
    part_close(part);
    free(stream.data);
    free(before.data);
    free(out);
}

/* A request that is refused with `code` and changes nothing. */
static void refused(Part part, const ColiSegmentRunRequest *request, LamellaCode code) {
    Bytes before = snapshot_of(part.session);
    REFUSED(coli_segment_run(part.session, request, ERROR));
    CHECK(lamella_last_error_code() == code);
    CHECK(unchanged(part.session, &before));
    free(before.data);
}

static void refused_opens(const Model *model) {
    const char *other = strcmp(model->family, "glm") ? "glm" : "olmoe";
    ColiSegmentEngineOptions options = range_options(model, 0, model->ends.num_layers);
    ColiSegmentEngine *engine = NULL;
    ColiEdgeEngineOptions ends = {0};
    ColiEdgeEngine *edge = NULL;
    ends.struct_size = sizeof ends;
    ends.model_dir = model->dir;
    REFUSED(coli_segment_engine_open(other, &options, &engine, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_MODEL && strstr(error, other));
    REFUSED(coli_edge_engine_open(other, &ends, &edge, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_MODEL);
    options.layer_end++;
    REFUSED(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);
    options.layer_end--;
    options.context_tokens = model->ends.max_context_tokens + 1;
    REFUSED(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    options.context_tokens = model->total;
    options.model_dir = "no/such/place";
    REFUSED(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_MODEL);
    options.model_dir = model->dir;
    options.resource_plan = "{\"threads\": 1, \"wheels\": 4}";
    options.resource_plan_size = strlen(options.resource_plan);
    REFUSED(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    CHECK(strstr(error, "wheels"));
    options.resource_plan = "{\"threads\": 1}";
    options.resource_plan_size = strlen(options.resource_plan);
    OK(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    OK(coli_segment_engine_close(engine, ERROR));
}

void suite_rules(const Model *model) {
    Part part = part_open(model, 0, model->ends.num_layers);
    const size_t row = model->width * sizeof(float);
    float *out = demand((CHUNK + 1) * row);
    unsigned char *odd = demand((CHUNK + 1) * row);
    int32_t bad = (int32_t)model->ends.vocab_size + 100000;
    ColiSegmentRunRequest request;
    refused_opens(model);
    feed(model, part.session, 0, 3, model->embedded, out);
    for (uint32_t at = 0; at < 9; at++) {
        request = request_of(model, at, 2, model->embedded, out);
        if (at != 3) refused(part, &request, LAMELLA_POSITION);
    }
    request = request_of(model, 3, 1, model->embedded + 3 * model->width, out);
    request.token_ids = &bad;
    request.token_count = 1;
    if (model->needs_ids) {
        refused(part, &request, LAMELLA_ARGUMENT);
        bad = -1;
        refused(part, &request, LAMELLA_ARGUMENT);
    } else { /* Nothing looks at them. */
        Part other = part_open(model, 0, model->ends.num_layers);
        feed(model, other.session, 0, 3, model->embedded, out);
        OK(coli_segment_run(other.session, &request, ERROR));
        CHECK(as_expected(model, 3, 1, out));
        part_close(other);
    }
    request = request_of(model, 3, 1, model->embedded + 3 * model->width, out);
    request.output = (char *)out + 1;
    refused(part, &request, LAMELLA_ARGUMENT);
    memcpy(out, model->embedded + 3 * model->width, row);
    out[0] = (float)NAN;
    request = request_of(model, 3, 1, out, out);
    refused(part, &request, LAMELLA_NON_FINITE);
    /* Input at any address, and where the output is. */
    memcpy(odd + 1, model->embedded + 3 * model->width, row);
    request = request_of(model, 3, 1, (const float *)model->embedded, out);
    request.input = odd + 1;
    OK(coli_segment_run(part.session, &request, ERROR));
    CHECK(as_expected(model, 3, 1, out));
    memcpy(out, model->embedded + 4 * model->width, 2 * row);
    feed(model, part.session, 4, 2, out, out);
    CHECK(as_expected(model, 4, 2, out));
    memcpy(out + model->width, model->embedded + 6 * model->width, 2 * row);
    feed(model, part.session, 6, 2, out + model->width, out);
    CHECK(as_expected(model, 6, 2, out));
    part_close(part);
    free(out);
    free(odd);
}

/* Stops at every call of the callback, until the run has nothing left to ask. What the session
 * holds beyond its last row may differ afterwards; what it computes may not. */
void suite_cancel(const Model *model) {
    Part part = part_open(model, 0, model->ends.num_layers);
    float *out = demand(model->total * model->width * sizeof *out);
    Bytes before, after;
    long most = 0;
    feed(model, part.session, 0, 2, model->embedded, out);
    before = snapshot_of(part.session);
    for (;; most++) {
        Patience patience = {0, most};
        ColiSegmentRunRequest request =
            request_of(model, 2, CHUNK, model->embedded + 2 * model->width, out);
        request.should_cancel = loses;
        request.cancel_user_data = &patience;
        if (coli_segment_run(part.session, &request, ERROR) == 0) break;
        CHECK(lamella_last_error_code() == LAMELLA_CANCELLED);
        CHECK(patience.calls == most + 1);
        after = snapshot_of(part.session);
        CHECK(after.length == before.length);
        CHECK(memcmp(after.data, before.data, HEADER) == 0);
        free(after.data);
    }
    /* It is asked before the run and before every layer. */
    CHECK(most > (long)model->ends.num_layers);
    CHECK(as_expected(model, 2, CHUNK, out));
    free(before.data);
    part_close(part);
    free(out);
}
