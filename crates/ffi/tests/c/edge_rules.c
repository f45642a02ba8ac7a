/* Every rule of Edge with its refusal. */

#include "check.h"
#include "lamella.h"
#include "probe.h"

/* A refusal with its code. */
#define REFUSED_AS(code, call)                                                              \
    do {                                                                                    \
        REFUSED(call);                                                                      \
        CHECK(lamella_last_error_code() == (code));                                         \
    } while (0)

static void registration(void) {
    static ColiEdgeAdapter good, bare;
    ColiEdgeAdapter bad;

#define SPOILT(change)                                                                      \
    do {                                                                                    \
        bad = probe_edge("bad");                                                            \
        change;                                                                             \
        CHECK(coli_edge_adapter_register(&bad) == -1);                                      \
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);                               \
    } while (0)
    SPOILT(bad.struct_size--);
    SPOILT(bad.abi_version = 1);
    SPOILT(bad.abi_version = 3);
    SPOILT(bad.engine_id = NULL);
    SPOILT(bad.engine_id = "");
    SPOILT(bad.engine_id = "Bad");
    SPOILT(bad.engine_open = NULL);
    SPOILT(bad.engine_destroy = NULL);
    SPOILT(bad.embed = NULL);
    SPOILT(bad.tokenize = NULL);
    SPOILT(bad.detokenize = NULL);
#undef SPOILT
    CHECK(coli_edge_adapter_register(NULL) == -1);
    CHECK(coli_edge_adapter_count() == 0);

    good = probe_edge("probe");
    CHECK(coli_edge_adapter_register(&good) == 0);
    CHECK(coli_edge_adapter_register(&good) == -1);
    CHECK(lamella_last_error_code() == LAMELLA_DUPLICATE);
    /* Everything optional may be absent. */
    bare = probe_edge("bare");
    bare.tokenize = NULL;
    bare.detokenize = NULL;
    bare.select = NULL;
    bare.logits = NULL;
    CHECK(coli_edge_adapter_register(&bare) == 0);
    CHECK(coli_edge_adapter_count() == 2);
    CHECK(coli_edge_adapter_lookup("bare") == &bare);
    CHECK(coli_edge_adapter_lookup("nobody") == NULL && !coli_edge_adapter_lookup(NULL));
    /* The interfaces have a list each. */
    CHECK(coli_segment_adapter_lookup("probe") == NULL && coli_segment_adapter_count() == 0);
}

static ColiEdgeEngine *open_edge(const char *id) {
    ColiEdgeEngineOptions options = {0};
    ColiEdgeEngine *edge = NULL;
    options.struct_size = sizeof options;
    options.model_dir = "model";
    OK(coli_edge_engine_open(id, &options, &edge, ERROR));
    return edge;
}

static void opening(void) {
    ColiEdgeEngineOptions options = {0};
    char closed;
    ColiEdgeEngine *edge;
    const int opens = probe_opens;

#define SPOILT(change)                                                                      \
    do {                                                                                    \
        options.struct_size = sizeof options;                                               \
        options.model_dir = "model";                                                        \
        change;                                                                             \
        edge = (ColiEdgeEngine *)&closed;                                                   \
        REFUSED_AS(LAMELLA_ARGUMENT,                                                        \
                   coli_edge_engine_open("probe", &options, &edge, ERROR));                 \
        CHECK(edge == NULL);                                                                \
    } while (0)
    SPOILT(options.struct_size--);
    SPOILT(options.model_dir = NULL);
    SPOILT(options.model_dir = "");
#undef SPOILT
    options.model_dir = "model";
    REFUSED(coli_edge_engine_open("probe", NULL, &edge, ERROR));
    REFUSED(coli_edge_engine_open("probe", &options, NULL, ERROR));
    REFUSED(coli_edge_engine_open(NULL, &options, &edge, ERROR));
    REFUSED_AS(LAMELLA_NOT_FOUND, coli_edge_engine_open("nobody", &options, &edge, ERROR));
    CHECK(probe_opens == opens);

#define LIE(code, change)                                                                   \
    do {                                                                                    \
        probe_reset();                                                                      \
        change;                                                                             \
        REFUSED_AS(code, coli_edge_engine_open("probe", &options, &edge, ERROR));           \
        CHECK(edge == NULL && probe_live == 0);                                             \
    } while (0)
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.struct_size++);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.abi_version = 1);
    LIE(LAMELLA_BROKEN_ADAPTER, strcpy(edge_says.engine_id, "bare"));
    LIE(LAMELLA_BROKEN_ADAPTER, memset(edge_says.engine_id, 'p', 64));
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.state_schema[0] = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, memset(edge_says.state_schema, 's', 128));
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.numeric_class[0] = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, memset(edge_says.numeric_class, 'n', 96));
    LIE(LAMELLA_BROKEN_ADAPTER, memset(edge_says.tokenizer_class, 't', 64));
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.state_dtype = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.state_dtype = 9);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.state_width = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.vocab_size = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.num_layers = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.flags &= ~COLI_EDGE_CAP_TOKENIZE);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.flags &= ~COLI_EDGE_CAP_DETOKENIZE);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.flags &= ~COLI_EDGE_CAP_GREEDY);
    LIE(LAMELLA_BROKEN_ADAPTER, edge_says.flags &= ~COLI_EDGE_CAP_LOGITS);
    LIE(LAMELLA_ADAPTER, (probe_fails = 1, probe_text = "no tokenizer"));
    CHECK(strcmp(error, "no tokenizer") == 0);
#undef LIE
    /* Flags of callbacks that are not there. */
    const uint64_t flags[] = {COLI_EDGE_CAP_TOKENIZE, COLI_EDGE_CAP_DETOKENIZE,
                              COLI_EDGE_CAP_GREEDY, COLI_EDGE_CAP_LOGITS};
    for (int i = 0; i < 4; i++) {
        probe_reset();
        strcpy(edge_says.engine_id, "bare");
        edge_says.flags = flags[i];
        REFUSED_AS(LAMELLA_BROKEN_ADAPTER,
                   coli_edge_engine_open("bare", &options, &edge, ERROR));
        CHECK(probe_live == 0);
    }
    probe_reset();
}

static void capabilities(void) {
    struct {
        ColiEdgeCapabilities known;
        unsigned char more[16], beyond[8];
    } block;
    ColiEdgeEngine *edge = open_edge("probe");
    memset(&block, 0xee, sizeof block);
    block.known.struct_size = sizeof block.known - 1;
    REFUSED(coli_edge_engine_capabilities(edge, &block.known, ERROR));
    REFUSED(coli_edge_engine_capabilities(edge, NULL, ERROR));
    REFUSED(coli_edge_engine_capabilities(NULL, &block.known, ERROR));
    block.known.struct_size = sizeof block.known + sizeof block.more;
    OK(coli_edge_engine_capabilities(edge, &block.known, ERROR));
    CHECK(memcmp(&block.known, &edge_says, sizeof edge_says) == 0);
    for (size_t i = 0; i < sizeof block.more; i++) CHECK(block.more[i] == 0);
    CHECK(block.beyond[0] == 0xee);
    coli_edge_engine_close(edge);
    CHECK(probe_live == 0);
    coli_edge_engine_close(NULL);
    coli_edge_engine_close(edge);
    CHECK(lamella_last_error_code() == LAMELLA_HANDLE);
    block.known.struct_size = sizeof block.known;
    REFUSED_AS(LAMELLA_HANDLE, coli_edge_engine_capabilities(edge, &block.known, ERROR));
}

static void text(void) {
    ColiEdgeEngine *edge = open_edge("probe");
    int32_t ids[4] = {9, 9, 9, 9};
    char out[4];
    size_t n = 77;
    const int calls = probe_calls;
    REFUSED(coli_edge_tokenize(edge, "hi", 2, ids, 4, NULL, ERROR));
    REFUSED(coli_edge_tokenize(edge, NULL, 2, ids, 4, &n, ERROR));
    CHECK(n == 0);
    REFUSED(coli_edge_tokenize(edge, "hi", 2, NULL, 4, &n, ERROR));
    REFUSED(coli_edge_tokenize(edge, "hi", 2, ids, 0, &n, ERROR));
    REFUSED(coli_edge_tokenize(NULL, "hi", 2, ids, 4, &n, ERROR));
    CHECK(probe_calls == calls);
    OK(coli_edge_tokenize(edge, "hi", 2, NULL, 0, &n, ERROR));
    CHECK(n == 2);
    OK(coli_edge_tokenize(edge, "hi", 2, ids, 2, &n, ERROR));
    CHECK(n == 2 && ids[1] == 1 && ids[2] == 9);
    REFUSED_AS(LAMELLA_BROKEN_ADAPTER, coli_edge_tokenize(edge, "hi", 2, ids, 1, &n, ERROR));

    ids[0] = 0;
    ids[1] = PROBE_VOCABULARY - 1;
    const int before = probe_calls;
    REFUSED(coli_edge_detokenize(edge, ids, 2, out, 4, NULL, ERROR));
    REFUSED(coli_edge_detokenize(edge, NULL, 2, out, 4, &n, ERROR));
    CHECK(n == 0);
    REFUSED(coli_edge_detokenize(edge, ids, 0, out, 4, &n, ERROR));
    REFUSED(coli_edge_detokenize(edge, ids, 2, NULL, 4, &n, ERROR));
    REFUSED(coli_edge_detokenize(edge, ids, 2, out, 0, &n, ERROR));
    ids[1] = PROBE_VOCABULARY;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_edge_detokenize(edge, ids, 2, out, 4, &n, ERROR));
    ids[1] = -1;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_edge_detokenize(edge, ids, 2, out, 4, &n, ERROR));
    ids[1] = 1;
    CHECK(probe_calls == before);
    OK(coli_edge_detokenize(edge, ids, 2, NULL, 0, &n, ERROR));
    CHECK(n == 2);
    memset(out, 'y', sizeof out);
    OK(coli_edge_detokenize(edge, ids, 2, out, 3, &n, ERROR));
    CHECK(n == 2 && strcmp(out, "xx") == 0);
    REFUSED_AS(LAMELLA_BROKEN_ADAPTER, coli_edge_detokenize(edge, ids, 2, out, 2, &n, ERROR));
    coli_edge_engine_close(edge);
}

static int yes(void *user) {
    return user != NULL;
}

static float rows[2 * PROBE_WIDTH], scores[2 * PROBE_VOCABULARY];
static int32_t ids[2] = {0, PROBE_VOCABULARY - 1};

static ColiEdgeEmbedRequest embed_two(void) {
    ColiEdgeEmbedRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = 2;
    request.token_ids = ids;
    request.token_count = 2;
    request.output = rows;
    request.output_bytes = sizeof rows;
    return request;
}

static ColiEdgeSelectRequest select_two(void) {
    ColiEdgeSelectRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = 2;
    request.input = rows;
    request.input_bytes = sizeof rows;
    request.token_ids = ids;
    request.token_capacity = 2;
    return request;
}

static ColiEdgeLogitsRequest logits_of_two(void) {
    ColiEdgeLogitsRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = 2;
    request.input = rows;
    request.input_bytes = sizeof rows;
    request.logits = scores;
    request.logits_capacity = 2 * PROBE_VOCABULARY;
    return request;
}

/* One change of a request that is refused before the adapter hears of it. */
#define SPOILT(kind, fresh, code, change)                                                   \
    do {                                                                                    \
        const int before = probe_calls;                                                     \
        request = fresh();                                                                  \
        change;                                                                             \
        REFUSED_AS(code, coli_edge_##kind(edge, &request, ERROR));                          \
        CHECK(probe_calls == before);                                                       \
    } while (0)

static void embed(ColiEdgeEngine *edge) {
    ColiEdgeEmbedRequest request;
    const int32_t low[2] = {0, -1}, high[2] = {PROBE_VOCABULARY, 0};
#define BAD(change) SPOILT(embed, embed_two, LAMELLA_ARGUMENT, change)
    BAD(request.struct_size--);
    BAD(request.rows = 0);
    BAD(request.rows = 3);
    BAD(request.token_ids = NULL);
    BAD(request.token_count = 1);
    BAD(request.token_count = 3);
    BAD(request.token_ids = low);
    BAD(request.token_ids = high);
    BAD(request.output = NULL);
    BAD(request.output_bytes--);
    BAD(request.output_bytes++);
#undef BAD
    SPOILT(embed, embed_two, LAMELLA_CANCELLED,
           (request.should_cancel = yes, request.cancel_user_data = &request));
    request.cancel_user_data = NULL;
    OK(coli_edge_embed(edge, &request, ERROR));
    REFUSED(coli_edge_embed(edge, NULL, ERROR));
    REFUSED(coli_edge_embed(NULL, &request, ERROR));
}

static void select_ids(ColiEdgeEngine *edge) {
    ColiEdgeSelectRequest request;
#define BAD(change) SPOILT(select, select_two, LAMELLA_ARGUMENT, change)
    BAD(request.struct_size--);
    BAD(request.rows = 0);
    BAD(request.rows = 1);
    BAD(request.input = NULL);
    BAD(request.input_bytes--);
    BAD(request.token_ids = NULL);
    BAD(request.token_capacity = 1);
    BAD(request.scores = scores);
    BAD(request.score_capacity = 2);
    BAD((request.scores = scores, request.score_capacity = 1));
#undef BAD
    SPOILT(select, select_two, LAMELLA_CANCELLED,
           (request.should_cancel = yes, request.cancel_user_data = &request));
    request = select_two();
    OK(coli_edge_select(edge, &request, ERROR));
    request.scores = scores;
    request.score_capacity = 2;
    request.token_capacity = 9;
    OK(coli_edge_select(edge, &request, ERROR));
    REFUSED(coli_edge_select(edge, NULL, ERROR));
}

static void logits(ColiEdgeEngine *edge) {
    ColiEdgeLogitsRequest request;
#define BAD(change) SPOILT(logits, logits_of_two, LAMELLA_ARGUMENT, change)
    BAD(request.struct_size--);
    BAD(request.rows = 0);
    BAD(request.rows = 3);
    BAD(request.input = NULL);
    BAD(request.input_bytes++);
    BAD(request.logits = NULL);
    BAD(request.logits_capacity--);
    BAD(request.logits_capacity = 0);
#undef BAD
    SPOILT(logits, logits_of_two, LAMELLA_CANCELLED,
           (request.should_cancel = yes, request.cancel_user_data = &request));
    request = logits_of_two();
    request.logits_capacity++;
    OK(coli_edge_logits(edge, &request, ERROR));
    REFUSED(coli_edge_logits(edge, NULL, ERROR));
}

static void rows_have_limits(void) {
    ColiEdgeEmbedRequest embed_request = embed_two();
    ColiEdgeSelectRequest select_request = select_two();
    ColiEdgeLogitsRequest logits_request = logits_of_two();
    probe_reset();
    edge_says.max_batch_rows = 1;
    ColiEdgeEngine *edge = open_edge("probe");
    REFUSED(coli_edge_embed(edge, &embed_request, ERROR));
    REFUSED(coli_edge_select(edge, &select_request, ERROR));
    REFUSED(coli_edge_logits(edge, &logits_request, ERROR));
    coli_edge_engine_close(edge);
    probe_reset();
    edge_says.vocab_size = UINT32_MAX; /* rows x vocabulary beyond 32 bits */
    edge = open_edge("probe");
    logits_request.logits_capacity = (size_t)UINT32_MAX;
    REFUSED(coli_edge_logits(edge, &logits_request, ERROR));
    coli_edge_engine_close(edge);
    probe_reset();
}

static void absent_callbacks(void) {
    ColiEdgeSelectRequest select_request = select_two();
    ColiEdgeLogitsRequest logits_request = logits_of_two();
    int32_t id = 0;
    char out[4];
    size_t n;
    strcpy(edge_says.engine_id, "bare");
    edge_says.flags = COLI_EDGE_CAP_CPU;
    ColiEdgeEngine *edge = open_edge("bare");
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_edge_select(edge, &select_request, ERROR));
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_edge_logits(edge, &logits_request, ERROR));
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_edge_tokenize(edge, "a", 1, &id, 1, &n, ERROR));
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_edge_detokenize(edge, &id, 1, out, 4, &n, ERROR));
    embed(edge);
    coli_edge_engine_close(edge);
    probe_reset();
}

static void failures(void) {
    ColiEdgeEngine *edge = open_edge("probe");
    ColiEdgeEmbedRequest embed_request = embed_two();
    ColiEdgeSelectRequest select_request = select_two();
    ColiEdgeLogitsRequest logits_request = logits_of_two();
    int32_t id = 0;
    char out[4];
    size_t n;
    probe_fails = 5;
    probe_text = "broken head";
    REFUSED_AS(LAMELLA_ADAPTER, coli_edge_embed(edge, &embed_request, ERROR));
    REFUSED_AS(LAMELLA_ADAPTER, coli_edge_select(edge, &select_request, ERROR));
    REFUSED_AS(LAMELLA_ADAPTER, coli_edge_logits(edge, &logits_request, ERROR));
    REFUSED_AS(LAMELLA_ADAPTER, coli_edge_tokenize(edge, "a", 1, &id, 1, &n, ERROR));
    REFUSED_AS(LAMELLA_ADAPTER, coli_edge_detokenize(edge, &id, 1, out, 4, &n, ERROR));
    CHECK(strcmp(error, "broken head") == 0);
    probe_reset();
    coli_edge_engine_close(edge);
}

int main(void) {
    probe_reset();
    registration();
    opening();
    capabilities();
    text();
    ColiEdgeEngine *edge = open_edge("probe");
    embed(edge);
    select_ids(edge);
    logits(edge);
    coli_edge_engine_close(edge);
    rows_have_limits();
    absent_callbacks();
    failures();
    CHECK(probe_live == 0);
    return 0;
}
