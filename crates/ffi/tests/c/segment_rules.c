/* Every rule of Segment with its refusal. */

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
    static ColiSegmentAdapter good;
    ColiSegmentAdapter bad;
    static const char *const ids[] = {
        "", "Probe", "a b", "a/b", "\xc3\xa9",
        "0123456789012345678901234567890123456789012345678901234567890123"};
    const int before = coli_segment_adapter_count();

#define SPOILT(change)                                                                      \
    do {                                                                                    \
        bad = probe_segment("bad");                                                         \
        change;                                                                             \
        CHECK(coli_segment_adapter_register(&bad) == -1);                                   \
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);                               \
    } while (0)
    SPOILT(bad.struct_size--);
    SPOILT(bad.struct_size = 0);
    SPOILT(bad.abi_version = 0);
    SPOILT(bad.abi_version = 2);
    SPOILT(bad.engine_id = NULL);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) SPOILT(bad.engine_id = ids[i]);
    SPOILT(bad.engine_open = NULL);
    SPOILT(bad.engine_destroy = NULL);
    SPOILT(bad.session_create = NULL);
    SPOILT(bad.session_destroy = NULL);
    SPOILT(bad.session_run = NULL);
    SPOILT(bad.session_snapshot = NULL);
    SPOILT(bad.session_restore = NULL);
#undef SPOILT
    CHECK(coli_segment_adapter_register(NULL) == -1);
    CHECK(coli_segment_adapter_count() == before);

    good = probe_segment("probe");
    good.struct_size += 8; /* a newer host has more to say */
    CHECK(coli_segment_adapter_register(&good) == 0);
    CHECK(lamella_last_error_code() == LAMELLA_OK);
    CHECK(coli_segment_adapter_register(&good) == -1);
    CHECK(lamella_last_error_code() == LAMELLA_DUPLICATE);
    CHECK(coli_segment_adapter_count() == before + 1);
    CHECK(coli_segment_adapter_lookup("probe") == &good);
    CHECK(coli_segment_adapter_lookup("prob") == NULL);
    CHECK(coli_segment_adapter_lookup("") == NULL && coli_segment_adapter_lookup(NULL) == NULL);

    /* The longest id, and an adapter without snapshots. */
    static ColiSegmentAdapter longest;
    longest = probe_segment("012345678901234567890123456789012345678901234567890123456789012");
    longest.session_snapshot = NULL;
    longest.session_restore = NULL;
    CHECK(coli_segment_adapter_register(&longest) == 0);
}

static ColiSegmentEngineOptions range_options(void) {
    ColiSegmentEngineOptions options = {0};
    options.struct_size = sizeof options;
    options.model_dir = "model";
    options.layer_begin = 1;
    options.layer_end = 3;
    options.context_tokens = PROBE_CONTEXT;
    return options;
}

static ColiSegmentEngine *open_probe(void) {
    const ColiSegmentEngineOptions options = range_options();
    ColiSegmentEngine *engine = NULL;
    OK(coli_segment_engine_open("probe", &options, &engine, ERROR));
    CHECK(engine);
    return engine;
}

/* What the host asks for is refused before the adapter hears of it. */
static void opening(void) {
    ColiSegmentEngineOptions options = range_options();
    char closed;
    ColiSegmentEngine *engine;
    const int opens = probe_opens;

#define SPOILT(change)                                                                      \
    do {                                                                                    \
        options = range_options();                                                          \
        change;                                                                             \
        engine = (ColiSegmentEngine *)&closed;                                              \
        REFUSED_AS(LAMELLA_ARGUMENT,                                                        \
                   coli_segment_engine_open("probe", &options, &engine, ERROR));            \
        CHECK(engine == NULL);                                                              \
    } while (0)
    SPOILT(options.struct_size--);
    SPOILT(options.model_dir = NULL);
    SPOILT(options.model_dir = "");
    SPOILT(options.layer_begin = 3);
    SPOILT(options.layer_begin = 4);
    SPOILT(options.layer_end = 0);
    SPOILT(options.context_tokens = 0);
#undef SPOILT
    options = range_options();
    engine = (ColiSegmentEngine *)&closed;
    REFUSED(coli_segment_engine_open("probe", NULL, &engine, ERROR));
    CHECK(engine == NULL);
    REFUSED(coli_segment_engine_open("probe", &options, NULL, ERROR));
    REFUSED(coli_segment_engine_open(NULL, &options, &engine, ERROR));
    REFUSED_AS(LAMELLA_NOT_FOUND, coli_segment_engine_open("nobody", &options, &engine, ERROR));
    CHECK(strstr(error, "nobody"));
    CHECK(probe_opens == opens);
}

/* What the adapter says must hold together; where it does not, the engine is destroyed. */
static void lies(void) {
    ColiSegmentEngineOptions options = range_options();
    ColiSegmentEngine *engine;
    CHECK(probe_live == 0);

#define LIE(code, change)                                                                   \
    do {                                                                                    \
        probe_reset();                                                                      \
        options = range_options();                                                          \
        change;                                                                             \
        REFUSED_AS(code, coli_segment_engine_open("probe", &options, &engine, ERROR));      \
        CHECK(engine == NULL && probe_live == 0);                                           \
    } while (0)
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.struct_size--);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.struct_size++);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.abi_version = 2);
    LIE(LAMELLA_BROKEN_ADAPTER, strcpy(segment_says.engine_id, "other"));
    LIE(LAMELLA_BROKEN_ADAPTER, strcpy(segment_says.engine_id, "probes"));
    LIE(LAMELLA_BROKEN_ADAPTER, memset(segment_says.engine_id, 'p', 64));
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.engine_id[0] = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.state_schema[0] = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, memset(segment_says.state_schema, 's', 128));
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.numeric_class[0] = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, memset(segment_says.numeric_class, 'n', 96));
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.state_dtype = COLI_SEGMENT_DTYPE_INVALID);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.state_dtype = 4);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.state_width = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.num_layers = 0);
    LIE(LAMELLA_BROKEN_ADAPTER, segment_says.flags = COLI_SEGMENT_CAP_CPU);
    LIE(LAMELLA_ARGUMENT, segment_says.num_layers = 2);
    LIE(LAMELLA_ARGUMENT, segment_says.max_context_tokens = PROBE_CONTEXT - 1);
    LIE(LAMELLA_ADAPTER, (probe_fails = 1, probe_text = "no such file"));
    CHECK(strcmp(error, "no such file") == 0);
    LIE(LAMELLA_ADAPTER, probe_fails = 1);
    CHECK(strstr(error, "probe"));
#undef LIE
    /* Without the callbacks, the flag lies. */
    probe_reset();
    memset(segment_says.engine_id, 0, 64);
    for (int i = 0; i < 63; i++) segment_says.engine_id[i] = (char)('0' + i % 10);
    REFUSED_AS(LAMELLA_BROKEN_ADAPTER,
               coli_segment_engine_open(segment_says.engine_id, &options, &engine, ERROR));
    CHECK(probe_live == 0);
    /* At the limits it opens. */
    probe_reset();
    segment_says.num_layers = 3;
    segment_says.max_context_tokens = PROBE_CONTEXT;
    OK(coli_segment_engine_close(open_probe(), ERROR));
    CHECK(probe_live == 0);
    probe_reset();
}

static void capabilities(void) {
    struct {
        ColiSegmentCapabilities known;
        unsigned char more[16], beyond[8];
    } block;
    ColiSegmentEngine *engine = open_probe();
    memset(&block, 0xee, sizeof block);
    block.known.struct_size = sizeof block.known - 1;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_engine_capabilities(engine, &block.known, ERROR));
    CHECK(((unsigned char *)&block)[8] == 0xee);
    REFUSED(coli_segment_engine_capabilities(engine, NULL, ERROR));
    REFUSED(coli_segment_engine_capabilities(NULL, &block.known, ERROR));
    block.known.struct_size = sizeof block.known;
    OK(coli_segment_engine_capabilities(engine, &block.known, ERROR));
    CHECK(memcmp(&block.known, &segment_says, sizeof segment_says) == 0);
    CHECK(block.more[0] == 0xee);
    block.known.struct_size = sizeof block.known + sizeof block.more;
    OK(coli_segment_engine_capabilities(engine, &block.known, ERROR));
    CHECK(memcmp(&block.known, &segment_says, sizeof segment_says) == 0);
    for (size_t i = 0; i < sizeof block.more; i++) CHECK(block.more[i] == 0);
    CHECK(block.beyond[0] == 0xee);
    OK(coli_segment_engine_close(engine, ERROR));
}

static ColiSegmentSession *session_of(ColiSegmentEngine *engine) {
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = NULL;
    options.struct_size = sizeof options;
    options.context_tokens = PROBE_CONTEXT;
    OK(coli_segment_session_create(engine, &options, &session, ERROR));
    return session;
}

static void sessions(void) {
    char closed;
    ColiSegmentEngine *engine = open_probe();
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = (ColiSegmentSession *)&closed;
    options.struct_size = sizeof options - 1;
    options.context_tokens = PROBE_CONTEXT;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_session_create(engine, &options, &session, ERROR));
    CHECK(session == NULL);
    options.struct_size = sizeof options;
    const uint32_t wrong[] = {0, PROBE_CONTEXT + 1, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        options.context_tokens = wrong[i];
        session = (ColiSegmentSession *)&closed;
        REFUSED_AS(LAMELLA_ARGUMENT,
                   coli_segment_session_create(engine, &options, &session, ERROR));
        CHECK(session == NULL);
    }
    options.context_tokens = 1;
    REFUSED(coli_segment_session_create(engine, NULL, &session, ERROR));
    REFUSED(coli_segment_session_create(engine, &options, NULL, ERROR));
    REFUSED(coli_segment_session_create(NULL, &options, &session, ERROR));
    probe_fails = 1;
    REFUSED_AS(LAMELLA_ADAPTER, coli_segment_session_create(engine, &options, &session, ERROR));
    CHECK(session == NULL && probe_live == 1);
    probe_reset();
    /* The failed ones do not keep the engine open. */
    OK(coli_segment_session_create(engine, &options, &session, ERROR));
    REFUSED_AS(LAMELLA_BUSY, coli_segment_engine_close(engine, ERROR));
    coli_segment_session_destroy(NULL);
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
    OK(coli_segment_engine_close(NULL, ERROR));
    CHECK(probe_live == 0);
}

/* ---- runs ------------------------------------------------------------------------------ */

static float input[4 * PROBE_WIDTH], output[4 * PROBE_WIDTH];
static const int32_t ids[4] = {1, 2, 3, 4};

static ColiSegmentRunRequest two_rows(void) {
    ColiSegmentRunRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = 2;
    request.input = input;
    request.input_bytes = 2 * PROBE_WIDTH * sizeof(float);
    request.output = output;
    request.output_bytes = 2 * PROBE_WIDTH * sizeof(float);
    return request;
}

static void runs(void) {
    ColiSegmentEngine *engine = open_probe();
    ColiSegmentSession *session = session_of(engine);
    ColiSegmentRunRequest request;
    const int before = probe_runs;

#define SPOILT(change)                                                                      \
    do {                                                                                    \
        request = two_rows();                                                               \
        change;                                                                             \
        REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_run(session, &request, ERROR));           \
        CHECK(probe_runs == before);                                                        \
    } while (0)
    SPOILT(request.struct_size--);
    SPOILT(request.rows = 0);
    SPOILT(request.rows = 3);
    SPOILT(request.rows = UINT32_MAX);
    SPOILT(request.input = NULL);
    SPOILT(request.output = NULL);
    SPOILT(request.input_bytes--);
    SPOILT(request.input_bytes++);
    SPOILT(request.input_bytes = 0);
    SPOILT(request.output_bytes--);
    SPOILT(request.output_bytes = SIZE_MAX);
    SPOILT(request.token_ids = ids);
    SPOILT(request.token_count = 2);
    SPOILT((request.token_ids = ids, request.token_count = 1));
    SPOILT((request.token_ids = ids, request.token_count = 3));
    SPOILT(request.position = PROBE_CONTEXT - 1);
    SPOILT(request.position = UINT64_MAX);
    SPOILT(request.position = UINT64_MAX - 1);
    SPOILT(request.position = UINT32_MAX);
#undef SPOILT
    REFUSED(coli_segment_run(session, NULL, ERROR));
    request = two_rows();
    REFUSED(coli_segment_run(NULL, &request, ERROR));
    CHECK(probe_runs == before);

    /* What is at the limits goes to the adapter. */
    request.position = PROBE_CONTEXT - 2;
    request.struct_size += 64;
    OK(coli_segment_run(session, &request, ERROR));
    request = two_rows();
    request.token_ids = ids;
    request.token_count = 2;
    OK(coli_segment_run(session, &request, ERROR));
    CHECK(probe_runs == before + 2);
    probe_fails = 9;
    probe_text = "not now";
    REFUSED_AS(LAMELLA_ADAPTER, coli_segment_run(session, &request, ERROR));
    CHECK(strcmp(error, "not now") == 0);
    probe_reset();
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));

    /* An engine that takes few rows and wants ids; a dtype of two bytes. */
    segment_says.max_batch_rows = 2;
    segment_says.flags |= COLI_SEGMENT_CAP_TOKEN_IDS;
    segment_says.state_dtype = COLI_SEGMENT_DTYPE_BF16;
    engine = open_probe();
    session = session_of(engine);
    request = two_rows();
    request.input_bytes = request.output_bytes = 2 * PROBE_WIDTH * 2;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_run(session, &request, ERROR));
    request.token_ids = ids;
    request.token_count = 2;
    OK(coli_segment_run(session, &request, ERROR));
    request.rows = 3;
    request.token_count = 3;
    request.input_bytes = request.output_bytes = 3 * PROBE_WIDTH * 2;
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_run(session, &request, ERROR));
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));

    /* Rows x width x bytes beyond what an integer holds. */
    probe_reset();
    segment_says.state_width = UINT32_MAX;
    engine = open_probe();
    session = session_of(engine);
    request = two_rows();
    request.rows = 1u << 30;
    request.input_bytes = request.output_bytes = 0; /* the product in 32 bits */
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_run(session, &request, ERROR));
    CHECK(strstr(error, "input"));
    request.rows = 1u << 31;
    request.input_bytes = request.output_bytes = (size_t)(0 - (UINT64_C(1) << 33)); /* in 64 */
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_run(session, &request, ERROR));
    CHECK(strstr(error, "input"));
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
    probe_reset();
}

/* ---- callbacks of the host ------------------------------------------------------------- */

static int abort_at(void *user) {
    int *left = user;
    return (*left)-- == 0;
}

static int write_until(void *user, const void *data, size_t size) {
    CHECK(data && size);
    return abort_at(user);
}

static int read_until(void *user, void *data, size_t size) {
    memset(data, 7, size);
    return abort_at(user);
}

static void callbacks_abort_at_every_call(void) {
    ColiSegmentEngine *engine = open_probe();
    ColiSegmentSession *session = session_of(engine);
    for (int call = 0; call < 10; call++) {
        int left = call;
        REFUSED(coli_segment_snapshot(session, write_until, &left, ERROR));
        left = call;
        REFUSED(coli_segment_restore(session, read_until, &left, ERROR));
    }
    for (int call = 0; call < 5; call++) {
        int left = call;
        ColiSegmentRunRequest request = two_rows();
        request.should_cancel = abort_at;
        request.cancel_user_data = &left;
        REFUSED_AS(call == 0 ? LAMELLA_CANCELLED : LAMELLA_ADAPTER,
                   coli_segment_run(session, &request, ERROR));
    }
    int left = 10;
    OK(coli_segment_snapshot(session, write_until, &left, ERROR));
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_snapshot(session, NULL, &left, ERROR));
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_restore(session, NULL, &left, ERROR));
    REFUSED_AS(LAMELLA_ARGUMENT, coli_segment_snapshot(NULL, write_until, &left, ERROR));
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));

    /* An adapter without snapshots. */
    const ColiSegmentEngineOptions options = range_options();
    for (int i = 0; i < 63; i++) segment_says.engine_id[i] = (char)('0' + i % 10);
    segment_says.engine_id[63] = 0;
    segment_says.flags = COLI_SEGMENT_CAP_CPU;
    OK(coli_segment_engine_open(segment_says.engine_id, &options, &engine, ERROR));
    session = session_of(engine);
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_segment_snapshot(session, write_until, &left, ERROR));
    REFUSED_AS(LAMELLA_UNSUPPORTED, coli_segment_restore(session, read_until, &left, ERROR));
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(engine, ERROR));
    probe_reset();
}

static ColiSegmentSession *running;

/* A callback that uses the session it is called for, and in the end destroys it. */
static int intrude(void *user) {
    int *calls = user;
    const ColiSegmentRunRequest request = two_rows();
    int left = 99;
    if (++*calls == 1) return 0; /* before the adapter is called */
    if (*calls == 2) {
        REFUSED_AS(LAMELLA_BUSY, coli_segment_run(running, &request, ERROR));
        REFUSED_AS(LAMELLA_BUSY, coli_segment_snapshot(running, write_until, &left, ERROR));
        REFUSED_AS(LAMELLA_BUSY, coli_segment_restore(running, read_until, &left, ERROR));
        coli_segment_session_destroy(running);
        CHECK(probe_live == 2); /* not while the adapter uses it */
    }
    return 0;
}

static void sessions_take_one_call_at_a_time(void) {
    ColiSegmentEngine *engine = open_probe();
    ColiSegmentRunRequest request = two_rows();
    int calls = 0;
    running = session_of(engine);
    request.should_cancel = intrude;
    request.cancel_user_data = &calls;
    OK(coli_segment_run(running, &request, ERROR));
    CHECK(calls == 5 && probe_live == 1);
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_run(running, &request, ERROR));
    OK(coli_segment_engine_close(engine, ERROR));
}

static void handles(void) {
    ColiSegmentEngine *engine = open_probe();
    ColiSegmentSession *session = session_of(engine);
    ColiSegmentRunRequest request = two_rows();
    ColiSegmentCapabilities said;
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *other;
    char foreign[64] = {0};
    int left = 99;
    said.struct_size = sizeof said;
    options.struct_size = sizeof options;
    options.context_tokens = 1;
    coli_segment_session_destroy(session);
    coli_segment_session_destroy(session); /* twice: nothing happens */
    CHECK(lamella_last_error_code() == LAMELLA_HANDLE);
    OK(coli_segment_engine_close(engine, ERROR));
    CHECK(probe_live == 0);
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_engine_close(engine, ERROR));
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_engine_capabilities(engine, &said, ERROR));
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_session_create(engine, &options, &other, ERROR));
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_run(session, &request, ERROR));
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_snapshot(session, write_until, &left, ERROR));
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_restore(session, read_until, &left, ERROR));
    /* Handles of another kind, and addresses that never were handles. */
    engine = open_probe();
    REFUSED_AS(LAMELLA_HANDLE, coli_segment_run((ColiSegmentSession *)engine, &request, ERROR));
    REFUSED_AS(LAMELLA_HANDLE,
               coli_segment_engine_close((ColiSegmentEngine *)(void *)foreign, ERROR));
    REFUSED_AS(LAMELLA_HANDLE,
               coli_segment_engine_close((ColiSegmentEngine *)((char *)engine + 1), ERROR));
    OK(coli_segment_engine_close(engine, ERROR));
}

/* ---- texts ----------------------------------------------------------------------------- */

static void texts(void) {
    const ColiSegmentEngineOptions options = range_options();
    ColiSegmentEngine *engine;
    char buffer[16], whole[128];
    probe_fails = 1;
    probe_text = "caf\xc3\xa9 \xf0\x9f\x98\x80 closed";
    CHECK(coli_segment_engine_open("probe", &options, &engine, NULL, 0) == -1);
    CHECK(coli_segment_engine_open("probe", &options, &engine, NULL, 99) == -1);
    for (size_t size = 0; size <= sizeof buffer; size++) {
        memset(buffer, 0x7f, sizeof buffer);
        CHECK(coli_segment_engine_open("probe", &options, &engine, buffer, size) == -1);
        if (size == 0) continue;
        const size_t length = strlen(buffer);
        const size_t cut = size == 5 ? 3 : size >= 8 && size <= 10 ? 6 : size - 1;
        CHECK(length == cut && memcmp(buffer, probe_text, length) == 0);
        for (size_t i = size; i < sizeof buffer; i++) CHECK(buffer[i] == 0x7f);
    }
    CHECK(lamella_last_error_text(NULL, 0) == strlen(probe_text));
    CHECK(lamella_last_error_text(whole, sizeof whole) == strlen(probe_text));
    CHECK(strcmp(whole, probe_text) == 0);
    CHECK(lamella_last_error_text(buffer, 5) == strlen(probe_text) && strlen(buffer) == 3);
    probe_reset();
    OK(coli_segment_engine_close(open_probe(), ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_OK && lamella_last_error_text(NULL, 0) == 0);

    /* An adapter with more to say than anybody keeps. */
    static char endless[5000];
    memset(endless, 'e', sizeof endless - 1);
    char room[4096];
    probe_fails = 1;
    probe_text = endless;
    CHECK(coli_segment_engine_open("probe", &options, &engine, room, sizeof room) == -1);
    CHECK(strlen(room) >= 1000 && strspn(room, "e") == strlen(room));
    probe_reset();
}

int main(void) {
    probe_reset();
    registration();
    opening();
    lies();
    capabilities();
    sessions();
    runs();
    callbacks_abort_at_every_call();
    sessions_take_one_call_at_a_time();
    handles();
    texts();
    CHECK(probe_live == 0);
    return 0;
}
