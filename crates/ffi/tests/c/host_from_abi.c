/* A host written from the published facts of the two interfaces alone (names, layouts, rules and
 * the order of calls), without a look at the library: two turns of a conversation through
 * Edge -> two Segments -> Edge. After the first turn one machine is lost: its range is opened
 * again, its snapshot restored, and what came after is replayed. A second chain that lost nothing
 * must have said the same.
 *
 *     host_from_abi FAMILY MODEL_DIR [TOKENS [TEXT TEXT]] */

#include "edge_adapters.h"
#include "edge_runtime.h"
#include "segment_adapters.h"
#include "segment_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 2, CONTEXT = 128 };

static char error[512];

static void demand(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "%s: %s\n", what, error[0] ? error : "wrong");
    exit(1);
}

/* ---- register --------------------------------------------------------------------------- */

typedef struct Family {
    const char *id;
    int (*segment)(void);
    int (*edge)(void);
} Family;

static const Family families[] = {
    {"glm", coli_glm_segment_adapter_register, coli_glm_edge_adapter_register},
    {"inkling", coli_inkling_segment_adapter_register, coli_inkling_edge_adapter_register},
    {"kimi", coli_kimi_segment_adapter_register, coli_kimi_edge_adapter_register},
    {"olmoe", coli_olmoe_segment_adapter_register, coli_olmoe_edge_adapter_register},
    {"qwen36", coli_qwen36_segment_adapter_register, coli_qwen36_edge_adapter_register},
    {"qwen38", coli_qwen38_segment_adapter_register, coli_qwen38_edge_adapter_register},
    {"deepseek_v4", coli_deepseek_v4_segment_adapter_register,
     coli_deepseek_v4_edge_adapter_register},
};

static void register_all(void) {
    const size_t count = sizeof families / sizeof families[0];
    for (size_t i = 0; i < count; i++) {
        demand(families[i].segment() == 0, "register a segment");
        demand(families[i].edge() == 0, "register an edge");
        demand(families[i].segment() != 0, "a duplicate is refused");
        demand(coli_segment_adapter_lookup(families[i].id) != NULL, "look a segment up");
        demand(coli_edge_adapter_lookup(families[i].id) != NULL, "look an edge up");
    }
    demand(coli_segment_adapter_count() == (int)count, "count segments");
    demand(coli_edge_adapter_count() == (int)count, "count edges");
}

/* ---- one chain of machines -------------------------------------------------------------- */

typedef struct Bytes {
    unsigned char *data;
    size_t length, capacity, taken;
} Bytes;

typedef struct Chain {
    const char *family, *model_dir;
    ColiEdgeEngine *edge;
    ColiEdgeCapabilities ends;
    uint32_t cuts[RANGES + 1];
    int needs_ids[RANGES];
    ColiSegmentEngine *engines[RANGES];
    ColiSegmentSession *sessions[RANGES];
    uint64_t position;
    size_t row_bytes;
    /* What was sent into each range, for a replay, and the state of each at the last turn's end. */
    Bytes sent[RANGES], snapshots[RANGES];
    int32_t ids[CONTEXT];
} Chain;

static int grow(void *user, const void *data, size_t size) {
    Bytes *bytes = user;
    if (bytes->length + size > bytes->capacity) {
        const size_t capacity = 2 * (bytes->length + size);
        unsigned char *moved = realloc(bytes->data, capacity);
        if (!moved) return 1;
        bytes->data = moved;
        bytes->capacity = capacity;
    }
    memcpy(bytes->data + bytes->length, data, size);
    bytes->length += size;
    return 0;
}

static int take(void *user, void *data, size_t size) {
    Bytes *bytes = user;
    if (size > bytes->length - bytes->taken) return 1;
    memcpy(data, bytes->data + bytes->taken, size);
    bytes->taken += size;
    return 0;
}

static int go_on(void *user) {
    (void)user;
    return 0;
}

/* Opens range `r` of the chain and a session in it, and compares it with the ends. */
static void open_range(Chain *chain, int r) {
    ColiSegmentEngineOptions options;
    ColiSegmentSessionOptions session;
    ColiSegmentCapabilities range;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_dir = chain->model_dir;
    options.layer_begin = chain->cuts[r];
    options.layer_end = chain->cuts[r + 1];
    options.context_tokens = CONTEXT;
    options.backend_mask = COLI_SEGMENT_CAP_CPU;
    demand(coli_segment_engine_open(chain->family, &options, &chain->engines[r], error,
                                    sizeof error) == 0, "open a segment");
    memset(&range, 0, sizeof range);
    range.struct_size = sizeof range;
    demand(coli_segment_engine_capabilities(chain->engines[r], &range, error, sizeof error) == 0,
           "ask a segment");
    demand(strcmp(range.state_schema, chain->ends.state_schema) == 0 &&
               strcmp(range.numeric_class, chain->ends.numeric_class) == 0 &&
               range.state_dtype == chain->ends.state_dtype &&
               range.state_width == chain->ends.state_width,
           "the chain matches");
    demand((range.flags & COLI_SEGMENT_CAP_SNAPSHOT) != 0, "snapshots");
    chain->needs_ids[r] = (range.flags & COLI_SEGMENT_CAP_TOKEN_IDS) != 0;
    memset(&session, 0, sizeof session);
    session.struct_size = sizeof session;
    session.context_tokens = CONTEXT;
    demand(coli_segment_session_create(chain->engines[r], &session, &chain->sessions[r], error,
                                       sizeof error) == 0, "create a session");
}

static void open_chain(Chain *chain, const char *family, const char *model_dir) {
    ColiEdgeEngineOptions options;
    memset(chain, 0, sizeof *chain);
    chain->family = family;
    chain->model_dir = model_dir;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.model_dir = model_dir;
    demand(coli_edge_engine_open(family, &options, &chain->edge, error, sizeof error) == 0,
           "open an edge");
    chain->ends.struct_size = sizeof chain->ends;
    demand(coli_edge_engine_capabilities(chain->edge, &chain->ends, error, sizeof error) == 0,
           "ask an edge");
    demand((chain->ends.flags & COLI_EDGE_CAP_TOKENIZE) &&
               (chain->ends.flags & COLI_EDGE_CAP_GREEDY), "the edge has text");
    demand(chain->ends.num_layers >= RANGES, "enough layers");
    chain->row_bytes = chain->ends.state_width *
                       (chain->ends.state_dtype == COLI_EDGE_DTYPE_F32 ? (size_t)4 : (size_t)2);
    for (int r = 0; r <= RANGES; r++)
        chain->cuts[r] = chain->ends.num_layers * (uint32_t)r / RANGES;
    for (int r = 0; r < RANGES; r++) open_range(chain, r);
}

static void close_range(Chain *chain, int r) {
    demand(coli_segment_engine_close(chain->engines[r], error, sizeof error) != 0,
           "an engine with sessions stays open");
    coli_segment_session_destroy(chain->sessions[r]);
    demand(coli_segment_engine_close(chain->engines[r], error, sizeof error) == 0,
           "close a segment");
}

static void close_chain(Chain *chain) {
    for (int r = 0; r < RANGES; r++) {
        close_range(chain, r);
        free(chain->sent[r].data);
        free(chain->snapshots[r].data);
    }
    coli_edge_engine_close(chain->edge);
}

/* Sends rows into range `r` at `position`. */
static void run_range(Chain *chain, int r, uint64_t position, const void *input, void *output,
                      uint32_t rows) {
    ColiSegmentRunRequest request;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.rows = rows;
    request.position = position;
    if (chain->needs_ids[r]) {
        request.token_ids = chain->ids + position;
        request.token_count = rows;
    }
    request.input = input;
    request.input_bytes = rows * chain->row_bytes;
    request.output = output;
    request.output_bytes = rows * chain->row_bytes;
    request.should_cancel = go_on;
    demand(coli_segment_run(chain->sessions[r], &request, error, sizeof error) == 0, "run");
}

/* Ids through the whole chain; the id that follows them. */
static int32_t follow(Chain *chain, const int32_t *ids, uint32_t rows) {
    const size_t bytes = rows * chain->row_bytes;
    unsigned char *input = malloc(bytes), *output = malloc(bytes);
    float *logits = malloc(chain->ends.vocab_size * sizeof *logits);
    ColiEdgeEmbedRequest embed;
    ColiEdgeSelectRequest choose;
    ColiEdgeLogitsRequest score;
    int32_t chosen = -1;
    float best = 0;
    demand(input && output && logits, "memory");
    demand(chain->position + rows <= CONTEXT, "the context is long enough");
    memcpy(chain->ids + chain->position, ids, rows * sizeof *ids);
    memset(&embed, 0, sizeof embed);
    embed.struct_size = sizeof embed;
    embed.rows = rows;
    embed.token_ids = ids;
    embed.token_count = rows;
    embed.output = input;
    embed.output_bytes = bytes;
    demand(coli_edge_embed(chain->edge, &embed, error, sizeof error) == 0, "embed");
    for (int r = 0; r < RANGES; r++) {
        demand(grow(&chain->sent[r], input, bytes) == 0, "memory");
        run_range(chain, r, chain->position, input, output, rows);
        memcpy(input, output, bytes);
    }
    chain->position += rows;
    memset(&choose, 0, sizeof choose);
    choose.struct_size = sizeof choose;
    choose.rows = 1;
    choose.input = output + bytes - chain->row_bytes;
    choose.input_bytes = chain->row_bytes;
    choose.token_ids = &chosen;
    choose.token_capacity = 1;
    choose.scores = &best;
    choose.score_capacity = 1;
    demand(coli_edge_select(chain->edge, &choose, error, sizeof error) == 0, "select");
    if (chain->ends.flags & COLI_EDGE_CAP_LOGITS) {
        int32_t highest = 0;
        memset(&score, 0, sizeof score);
        score.struct_size = sizeof score;
        score.rows = 1;
        score.input = choose.input;
        score.input_bytes = choose.input_bytes;
        score.logits = logits;
        score.logits_capacity = chain->ends.vocab_size;
        demand(coli_edge_logits(chain->edge, &score, error, sizeof error) == 0, "logits");
        for (uint32_t id = 1; id < chain->ends.vocab_size; id++)
            if (logits[id] > logits[highest]) highest = (int32_t)id;
        demand(highest == chosen && logits[highest] == best, "argmax(logits) = select");
    }
    free(input);
    free(output);
    free(logits);
    return chosen;
}

/* ---- a conversation --------------------------------------------------------------------- */

/* One turn: the text, then up to `tokens` ids of an answer, whose number is returned. */
static size_t turn(Chain *chain, const char *text, size_t tokens, int32_t *answer) {
    size_t count = 0, filled = 0, made = 0;
    int32_t *ids, next;
    demand(coli_edge_tokenize(chain->edge, text, strlen(text), NULL, 0, &count, error,
                              sizeof error) == 0, "count tokens");
    demand(count > 0, "the text has tokens");
    ids = malloc(count * sizeof *ids);
    demand(ids != NULL, "memory");
    demand(coli_edge_tokenize(chain->edge, text, strlen(text), ids, count, &filled, error,
                              sizeof error) == 0 && filled == count, "tokenize");
    next = follow(chain, ids, (uint32_t)count);
    free(ids);
    while (made < tokens && next != chain->ends.eos_token_id) {
        answer[made++] = next;
        next = follow(chain, &next, 1);
    }
    return made;
}

static void print_answer(Chain *chain, const int32_t *ids, size_t count) {
    size_t bytes = 0;
    char *text;
    if (count == 0) {
        puts("(nothing)");
        return;
    }
    demand(coli_edge_detokenize(chain->edge, ids, count, NULL, 0, &bytes, error,
                                sizeof error) == 0, "size a text");
    text = malloc(bytes + 1);
    demand(text != NULL, "memory");
    demand(coli_edge_detokenize(chain->edge, ids, count, text, bytes + 1, &bytes, error,
                                sizeof error) == 0, "detokenize");
    demand(text[bytes] == 0, "a text ends");
    puts(text);
    free(text);
}

static void snapshot(Chain *chain, int r) {
    chain->snapshots[r].length = 0;
    demand(coli_segment_snapshot(chain->sessions[r], grow, &chain->snapshots[r], error,
                                 sizeof error) == 0, "snapshot");
}

/* The machine of range `r` is gone: another one takes the snapshot and replays what followed. */
static void replace(Chain *chain, int r, uint64_t snapshot_position) {
    const uint32_t rows = (uint32_t)(chain->position - snapshot_position);
    unsigned char *output = malloc(rows * chain->row_bytes + 1);
    demand(output != NULL, "memory");
    close_range(chain, r);
    open_range(chain, r);
    chain->snapshots[r].taken = 0;
    demand(coli_segment_restore(chain->sessions[r], take, &chain->snapshots[r], error,
                                sizeof error) == 0, "restore");
    demand(chain->snapshots[r].taken == chain->snapshots[r].length, "the whole stream is read");
    if (rows)
        run_range(chain, r, snapshot_position,
                  chain->sent[r].data + snapshot_position * chain->row_bytes, output, rows);
    free(output);
}

int main(int argc, char **argv) {
    const char *first = argc > 5 ? argv[4] : "Once upon a time";
    const char *second = argc > 5 ? argv[5] : " and then";
    const size_t tokens = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 16;
    static Chain steady, moved;
    static int32_t said[2][CONTEXT];
    size_t counts[2], bytes_of_answer;
    if (argc < 3 || tokens > CONTEXT) {
        fprintf(stderr, "usage: host_from_abi FAMILY MODEL_DIR [TOKENS [TEXT TEXT]]\n");
        return 2;
    }
    register_all();
    open_chain(&steady, argv[1], argv[2]);
    open_chain(&moved, argv[1], argv[2]);

    counts[0] = turn(&steady, first, tokens, said[0]);
    counts[1] = turn(&moved, first, tokens, said[1]);
    bytes_of_answer = counts[0] * sizeof said[0][0];
    demand(counts[0] == counts[1] && !memcmp(said[0], said[1], bytes_of_answer), "both agree");
    print_answer(&steady, said[0], counts[0]);

    const uint64_t kept = moved.position;
    for (int r = 0; r < RANGES; r++) snapshot(&moved, r);
    turn(&steady, second, 1, said[0]);
    turn(&moved, second, 1, said[1]);
    for (int r = 0; r < RANGES; r++) replace(&moved, r, kept);

    counts[0] = turn(&steady, second, tokens, said[0]);
    counts[1] = turn(&moved, second, tokens, said[1]);
    bytes_of_answer = counts[0] * sizeof said[0][0];
    demand(counts[0] == counts[1] && !memcmp(said[0], said[1], bytes_of_answer),
           "a replaced machine changes nothing");
    print_answer(&steady, said[0], counts[0]);
    close_chain(&steady);
    close_chain(&moved);
    return 0;
}
