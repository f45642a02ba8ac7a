#include "probe.h"

#include <stdio.h>
#include <string.h>

ColiSegmentCapabilities segment_says;
ColiEdgeCapabilities edge_says;
int probe_fails;
const char *probe_text;
int probe_opens, probe_runs, probe_calls;
long probe_live;
size_t probe_count;

static char engine_of_ours, session_of_ours;

static int outcome(char *error, size_t size) {
    probe_calls++;
    if (probe_fails && probe_text && size) snprintf(error, size, "%s", probe_text);
    return probe_fails;
}

static int segment_open(void **engine, ColiSegmentCapabilities *said,
                        const ColiSegmentEngineOptions *options, char *error, size_t size) {
    (void)options;
    probe_opens++;
    if (outcome(error, size)) return -1;
    *said = segment_says;
    *engine = &engine_of_ours;
    probe_live++;
    return 0;
}

static void destroy(void *of) {
    (void)of;
    probe_live--;
}

static int session_create(void *engine, void **session, const ColiSegmentSessionOptions *options,
                          char *error, size_t size) {
    (void)engine;
    (void)options;
    if (outcome(error, size)) return 3;
    *session = &session_of_ours;
    probe_live++;
    return 0;
}

static int session_run(void *session, const ColiSegmentRunRequest *request, char *error,
                       size_t size) {
    (void)session;
    probe_runs++;
    for (int poll = 0; poll < 4; poll++)
        if (request->should_cancel && request->should_cancel(request->cancel_user_data)) {
            snprintf(error, size, "cancelled at poll %d", poll);
            return 1;
        }
    return outcome(error, size);
}

/* Ten pieces of three bytes. */
static int session_snapshot(void *session, ColiSegmentWriteFn write, void *user, char *error,
                            size_t size) {
    (void)session;
    for (int piece = 0; piece < 10; piece++)
        if (write(user, "abc", 3)) {
            snprintf(error, size, "the writer aborted at piece %d", piece);
            return -1;
        }
    return outcome(error, size);
}

static int session_restore(void *session, ColiSegmentReadFn read, void *user, char *error,
                           size_t size) {
    (void)session;
    char bytes[3];
    for (int piece = 0; piece < 10; piece++)
        if (read(user, bytes, 3)) {
            snprintf(error, size, "the reader aborted at piece %d", piece);
            return -1;
        }
    return outcome(error, size);
}

static int edge_open(void **engine, ColiEdgeCapabilities *said,
                     const ColiEdgeEngineOptions *options, char *error, size_t size) {
    (void)options;
    probe_opens++;
    if (outcome(error, size)) return -1;
    *said = edge_says;
    *engine = &engine_of_ours;
    probe_live++;
    return 0;
}

static int tokenize(void *engine, const char *text, size_t bytes, int32_t *ids, size_t capacity,
                    size_t *count, char *error, size_t size) {
    (void)engine;
    (void)text;
    (void)bytes;
    for (size_t i = 0; i < probe_count && i < capacity; i++) ids[i] = 1;
    *count = probe_count;
    return outcome(error, size);
}

static int detokenize(void *engine, const int32_t *ids, size_t count, char *text, size_t capacity,
                      size_t *bytes, char *error, size_t size) {
    (void)engine;
    (void)ids;
    (void)count;
    for (size_t i = 0; i < probe_count && i < capacity; i++) text[i] = 'x';
    *bytes = probe_count;
    return outcome(error, size);
}

static int embed(void *engine, const ColiEdgeEmbedRequest *request, char *error, size_t size) {
    (void)engine;
    (void)request;
    return outcome(error, size);
}

static int select_ids(void *engine, const ColiEdgeSelectRequest *request, char *error,
                      size_t size) {
    (void)engine;
    (void)request;
    return outcome(error, size);
}

static int logits(void *engine, const ColiEdgeLogitsRequest *request, char *error, size_t size) {
    (void)engine;
    (void)request;
    return outcome(error, size);
}

ColiSegmentAdapter probe_segment(const char *id) {
    const ColiSegmentAdapter adapter = {
        sizeof adapter, COLI_SEGMENT_ABI_VERSION, id, segment_open, destroy, session_create,
        destroy, session_run, session_snapshot, session_restore, {NULL}};
    return adapter;
}

ColiEdgeAdapter probe_edge(const char *id) {
    const ColiEdgeAdapter adapter = {sizeof adapter, COLI_EDGE_ABI_VERSION, id, edge_open, destroy,
                                     tokenize, detokenize, embed, select_ids, logits, {NULL}};
    return adapter;
}

void probe_reset(void) {
    probe_fails = 0;
    probe_text = NULL;
    probe_count = 2;
    memset(&segment_says, 0, sizeof segment_says);
    segment_says.struct_size = sizeof segment_says;
    segment_says.abi_version = COLI_SEGMENT_ABI_VERSION;
    segment_says.flags = COLI_SEGMENT_CAP_SNAPSHOT | COLI_SEGMENT_CAP_CPU;
    strcpy(segment_says.engine_id, "probe");
    strcpy(segment_says.state_schema, "probe/state");
    strcpy(segment_says.numeric_class, "probe/numbers");
    segment_says.state_dtype = COLI_SEGMENT_DTYPE_F32;
    segment_says.state_width = PROBE_WIDTH;
    segment_says.num_layers = PROBE_LAYERS;
    memset(&edge_says, 0, sizeof edge_says);
    edge_says.struct_size = sizeof edge_says;
    edge_says.abi_version = COLI_EDGE_ABI_VERSION;
    edge_says.flags = COLI_EDGE_CAP_TOKENIZE | COLI_EDGE_CAP_DETOKENIZE | COLI_EDGE_CAP_GREEDY |
                      COLI_EDGE_CAP_LOGITS | COLI_EDGE_CAP_CPU;
    strcpy(edge_says.engine_id, "probe");
    strcpy(edge_says.state_schema, "probe/state");
    strcpy(edge_says.numeric_class, "probe/numbers");
    strcpy(edge_says.tokenizer_class, "probe/text");
    edge_says.state_dtype = COLI_EDGE_DTYPE_F32;
    edge_says.state_width = PROBE_WIDTH;
    edge_says.vocab_size = PROBE_VOCABULARY;
    edge_says.num_layers = PROBE_LAYERS;
}
