/* See real.h. */

#include "real.h"

#include <stdlib.h>
#include <string.h>

void *demand(size_t size) {
    void *memory = malloc(size ? size : 1);
    CHECK(memory != NULL);
    return memory;
}

static void read_ids(Model *model, const char *path) {
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fscanf(file, "%u %u", &model->prompt, &model->total) == 2);
    model->ids = demand(model->total * sizeof *model->ids);
    for (uint32_t i = 0; i < model->total; i++) CHECK(fscanf(file, "%d", &model->ids[i]) == 1);
    fclose(file);
}

static void open_edge(Model *model) {
    ColiEdgeEngineOptions options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_dir = model->dir;
    options.backend_mask = COLI_EDGE_CAP_CUDA;
    REFUSED(coli_edge_engine_open(model->family, &options, &model->edge, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_UNSUPPORTED);
    options.backend_mask = COLI_EDGE_CAP_CPU;
    OK(coli_edge_engine_open(model->family, &options, &model->edge, ERROR));
    model->ends.struct_size = sizeof model->ends;
    OK(coli_edge_engine_capabilities(model->edge, &model->ends, ERROR));
    model->width = model->ends.state_width;
    CHECK(model->ends.state_dtype == COLI_EDGE_DTYPE_F32);
    CHECK(model->ends.resident_bytes > 0);
}

void model_open(Model *model, const char *family, const char *dir, const char *ids_file) {
    ColiEdgeEmbedRequest embed;
    ColiSegmentCapabilities range;
    size_t size;
    Part whole;
    model->family = family;
    model->dir = dir;
    read_ids(model, ids_file);
    open_edge(model);
    size = model->total * model->width * sizeof(float);
    model->embedded = demand(size);
    model->expected = demand(size);
    memset(&embed, 0, sizeof embed);
    embed.struct_size = sizeof embed;
    embed.rows = model->total;
    embed.token_ids = model->ids;
    embed.token_count = model->total;
    embed.output = model->embedded;
    embed.output_bytes = size;
    OK(coli_edge_embed(model->edge, &embed, ERROR));
    whole = part_open(model, 0, model->ends.num_layers);
    memset(&range, 0, sizeof range);
    range.struct_size = sizeof range;
    OK(coli_segment_engine_capabilities(whole.engine, &range, ERROR));
    model->needs_ids = (range.flags & COLI_SEGMENT_CAP_TOKEN_IDS) != 0;
    feed(model, whole.session, 0, model->total, model->embedded, model->expected);
    part_close(whole);
}

void model_close(Model *model) {
    coli_edge_engine_close(model->edge);
    free(model->ids);
    free(model->embedded);
    free(model->expected);
}

ColiSegmentEngineOptions range_options(const Model *model, uint32_t begin, uint32_t end) {
    ColiSegmentEngineOptions options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_dir = model->dir;
    options.layer_begin = begin;
    options.layer_end = end;
    options.context_tokens = model->total;
    return options;
}

ColiSegmentEngine *range_open(const Model *model, uint32_t begin, uint32_t end) {
    const ColiSegmentEngineOptions options = range_options(model, begin, end);
    ColiSegmentEngine *engine = NULL;
    OK(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    return engine;
}

ColiSegmentSession *session_of(ColiSegmentEngine *engine, uint32_t context) {
    ColiSegmentSessionOptions options;
    ColiSegmentSession *session = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.context_tokens = context;
    OK(coli_segment_session_create(engine, &options, &session, ERROR));
    return session;
}

Part part_open(const Model *model, uint32_t begin, uint32_t end) {
    Part part;
    part.engine = range_open(model, begin, end);
    part.session = session_of(part.engine, model->total);
    return part;
}

void part_close(Part part) {
    REFUSED(coli_segment_engine_close(part.engine, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_BUSY);
    coli_segment_session_destroy(part.session);
    OK(coli_segment_engine_close(part.engine, ERROR));
}

ColiSegmentRunRequest request_of(const Model *model, uint32_t position, uint32_t rows,
                                 const float *in, float *out) {
    ColiSegmentRunRequest request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.rows = rows;
    request.position = position;
    /* Where they are not needed they may be there all the same. */
    if (model->needs_ids || position % 2) {
        request.token_ids = model->ids + position;
        request.token_count = rows;
    }
    request.input = in;
    request.output = out;
    request.input_bytes = request.output_bytes = rows * model->width * sizeof *in;
    return request;
}

void feed(const Model *model, ColiSegmentSession *session, uint32_t position, uint32_t rows,
          const float *in, float *out) {
    const ColiSegmentRunRequest request = request_of(model, position, rows, in, out);
    OK(coli_segment_run(session, &request, ERROR));
}

int as_expected(const Model *model, uint32_t position, uint32_t rows, const float *out) {
    const size_t bytes = rows * model->width * sizeof *out;
    return memcmp(model->expected + position * model->width, out, bytes) == 0;
}

int loses(void *user) {
    Patience *patience = user;
    return patience->most >= 0 && patience->calls++ >= patience->most;
}

int grow(void *user, const void *data, size_t size) {
    Bytes *bytes = user;
    if (bytes->calls++ == bytes->aborts) return 1;
    if (bytes->length + size > bytes->capacity) {
        bytes->capacity = 2 * (bytes->length + size);
        bytes->data = realloc(bytes->data, bytes->capacity);
        CHECK(bytes->data != NULL);
    }
    memcpy(bytes->data + bytes->length, data, size);
    bytes->length += size;
    return 0;
}

int take(void *user, void *data, size_t size) {
    Bytes *bytes = user;
    if (bytes->calls++ == bytes->aborts || size > bytes->length - bytes->taken) return 1;
    memcpy(data, bytes->data + bytes->taken, size);
    bytes->taken += size;
    return 0;
}

Bytes snapshot_of(ColiSegmentSession *session) {
    Bytes bytes = {0};
    bytes.aborts = -1;
    OK(coli_segment_snapshot(session, grow, &bytes, ERROR));
    CHECK(bytes.length > 0);
    return bytes;
}

int restore_from(ColiSegmentSession *session, const Bytes *stream, size_t length) {
    Bytes source = *stream;
    int result;
    source.length = length;
    source.taken = 0;
    source.calls = 0;
    source.aborts = -1;
    result = coli_segment_restore(session, take, &source, ERROR);
    /* It reads the stream to its end and not beyond. */
    CHECK(result != 0 || source.taken == length);
    return result;
}

int unchanged(ColiSegmentSession *session, const Bytes *before) {
    Bytes now = snapshot_of(session);
    const int same = now.length == before->length && !memcmp(now.data, before->data, now.length);
    free(now.data);
    return same;
}
