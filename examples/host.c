/* A chat with the demo model over the C interface: Edge -> two Segments -> Edge, as two machines
 * would share it. Reads a message a line; docs/embedding.md says how to build it.
 *
 *     host MODEL_DIR < messages */

#include "edge_adapters.h"
#include "edge_runtime.h"
#include "segment_adapters.h"
#include "segment_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 2, CONTEXT = 1024, ANSWER = 100, LINE = 8192, PROMPT = LINE + 64 };

static char error[256];
static ColiEdgeEngine *edge;
static ColiEdgeCapabilities ends;
static ColiSegmentEngine *engines[RANGES];
static ColiSegmentSession *sessions[RANGES];
static uint64_t position;
static uint32_t most = UINT32_MAX; /* rows that every part takes at once */

static void need(int failed, const char *what) {
    if (!failed) return;
    fprintf(stderr, "%s: %s\n", what, error);
    exit(1);
}

static void open_edge(const char *dir) {
    ColiEdgeEngineOptions options = {0};
    options.struct_size = sizeof options;
    options.model_dir = dir;
    need(coli_edge_engine_open("olmoe", &options, &edge, error, sizeof error), "edge");
    ends.struct_size = sizeof ends;
    need(coli_edge_engine_capabilities(edge, &ends, error, sizeof error), "edge");
}

/* Opens part `n` of the layers; it must compute exactly what the ends and the other parts do. */
static void open_range(const char *dir, int n) {
    ColiSegmentEngineOptions options = {0};
    ColiSegmentSessionOptions session = {0};
    ColiSegmentCapabilities range = {0};
    options.struct_size = sizeof options;
    options.model_dir = dir;
    options.layer_begin = ends.num_layers * (uint32_t)n / RANGES;
    options.layer_end = ends.num_layers * (uint32_t)(n + 1) / RANGES;
    options.context_tokens = CONTEXT;
    if (ends.max_context_tokens && ends.max_context_tokens < CONTEXT)
        options.context_tokens = ends.max_context_tokens;
    need(coli_segment_engine_open("olmoe", &options, &engines[n], error, sizeof error), "range");
    range.struct_size = sizeof range;
    need(coli_segment_engine_capabilities(engines[n], &range, error, sizeof error), "range");
    need(strcmp(range.state_schema, ends.state_schema) ||
             strcmp(range.numeric_class, ends.numeric_class) ||
             range.state_dtype != ends.state_dtype || range.state_width != ends.state_width,
         "the range does not fit the edge");
    if (range.max_batch_rows && range.max_batch_rows < most) most = range.max_batch_rows;
    session.struct_size = sizeof session, session.context_tokens = options.context_tokens;
    need(coli_segment_session_create(engines[n], &session, &sessions[n], error, sizeof error),
         "session");
}

/* Takes ids through the chain, `most` at once, and returns the one that most likely follows. */
static int32_t step(const int32_t *ids, uint32_t rows) {
    const size_t width = ends.state_width * (ends.state_dtype == COLI_EDGE_DTYPE_F32 ? 4u : 2u);
    char *rows_in = malloc(rows * width), *rows_out = malloc(rows * width);
    ColiEdgeEmbedRequest embed = {0};
    ColiEdgeSelectRequest choose = {0};
    int32_t next = -1;
    need(!rows_in || !rows_out, "memory");
    embed.struct_size = sizeof embed;
    embed.token_count = embed.rows = rows;
    embed.token_ids = ids;
    embed.output = rows_in;
    embed.output_bytes = rows * width;
    need(coli_edge_embed(edge, &embed, error, sizeof error), "embed");
    for (int n = 0; n < RANGES; n++) {
        ColiSegmentRunRequest run = {0};
        run.struct_size = sizeof run;
        run.rows = rows;
        run.position = position;
        run.input = rows_in, run.output = rows_out;
        run.input_bytes = run.output_bytes = rows * width;
        need(coli_segment_run(sessions[n], &run, error, sizeof error), "run");
        memcpy(rows_in, rows_out, rows * width);
    }
    position += rows;
    choose.struct_size = sizeof choose;
    choose.rows = 1;
    choose.input = rows_out + (rows - 1) * width;
    choose.input_bytes = width;
    choose.token_ids = &next;
    choose.token_capacity = 1;
    need(coli_edge_select(edge, &choose, error, sizeof error), "select");
    free(rows_in), free(rows_out);
    return next;
}

static int32_t follow(const int32_t *ids, size_t count) {
    int32_t next = -1;
    for (size_t rows; count > 0; ids += rows, count -= rows) {
        rows = count < most ? count : most;
        next = step(ids, (uint32_t)rows);
    }
    return next;
}

static void answer(const char *message) {
    char prompt[PROMPT], text[16 * ANSWER];
    int32_t ids[PROMPT], said[ANSWER];
    size_t count, bytes, n = 0;
    const int length = snprintf(prompt, sizeof prompt,
        "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", message);
    need(coli_edge_tokenize(edge, prompt, (size_t)length, ids, PROMPT, &count, error,
                            sizeof error), "tokenize");
    int32_t next = follow(ids, count);
    while (next != ends.eos_token_id && n < ANSWER) {
        said[n++] = next;
        next = follow(&said[n - 1], 1);
    }
    need(coli_edge_tokenize(edge, "<|im_end|>\n", 11, ids, PROMPT, &count, error, sizeof error),
         "tokenize");
    follow(ids, count);
    text[0] = 0;
    if (n) need(coli_edge_detokenize(edge, said, n, text, sizeof text, &bytes, error,
                                     sizeof error), "detokenize");
    puts(text);
}

int main(int argc, char **argv) {
    char line[LINE];
    if (argc != 2) return fprintf(stderr, "usage: host MODEL_DIR < messages\n"), 2;
    need(coli_olmoe_edge_adapter_register() || coli_olmoe_segment_adapter_register(), "register");
    open_edge(argv[1]);
    if (ends.max_batch_rows) most = ends.max_batch_rows;
    for (int n = 0; n < RANGES; n++) open_range(argv[1], n);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        answer(line);
    }
    for (int n = 0; n < RANGES; n++) {
        coli_segment_session_destroy(sessions[n]);
        need(coli_segment_engine_close(engines[n], error, sizeof error), "close");
    }
    coli_edge_engine_close(edge);
    return 0;
}
