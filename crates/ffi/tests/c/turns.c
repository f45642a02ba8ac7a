/* Whose turn it is, over the adapters of the library: callbacks that use the engine they are called
 * from, calls that are cancelled while they wait, counts that no memory holds, and statistics of
 * hosts that are older than the library.
 *
 *     turns MODEL_DIR (of olmoe) */

#define _POSIX_C_SOURCE 200809L

#include "check.h"
#include "edge_adapters.h"
#include "lamella.h"
#include "segment_adapters.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { ROWS = 8 };

static ColiEdgeEngine *edge;
static ColiEdgeCapabilities ends;
static ColiSegmentEngine *engine;
static ColiSegmentSession *first, *second;
static size_t width;
static float *rows_in, *rows_out, *rows_other;

static ColiSegmentRunRequest run_of(uint32_t rows, uint64_t position, void *output) {
    ColiSegmentRunRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = rows;
    request.position = position;
    request.input = rows_in;
    request.output = output;
    request.input_bytes = request.output_bytes = rows * width * sizeof(float);
    return request;
}

static ColiSegmentSession *session_new(void) {
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = NULL;
    options.struct_size = sizeof options;
    options.context_tokens = 64;
    OK(coli_segment_session_create(engine, &options, &session, ERROR));
    return session;
}

static void open_all(const char *dir) {
    ColiEdgeEngineOptions options = {0};
    ColiSegmentEngineOptions range = {0};
    CHECK(!coli_olmoe_edge_adapter_register() && !coli_olmoe_segment_adapter_register());
    options.struct_size = sizeof options;
    options.model_dir = dir;
    OK(coli_edge_engine_open("olmoe", &options, &edge, ERROR));
    ends.struct_size = sizeof ends;
    OK(coli_edge_engine_capabilities(edge, &ends, ERROR));
    range.struct_size = sizeof range;
    range.model_dir = dir;
    range.layer_end = ends.num_layers;
    range.context_tokens = 64;
    OK(coli_segment_engine_open("olmoe", &range, &engine, ERROR));
    first = session_new();
    second = session_new();
    width = ends.state_width;
    rows_in = calloc(ROWS * width, sizeof(float));
    rows_out = calloc(ROWS * width, sizeof(float));
    rows_other = calloc(ROWS * width, sizeof(float));
    CHECK(rows_in && rows_out && rows_other);
    for (size_t i = 0; i < ROWS * width; i++) rows_in[i] = (float)(i % 13) * 0.125f - 0.75f;
}

static long asked;

/* Runs another session of the engine in the midst of a run. */
static int runs_another(void *session) {
    const ColiSegmentRunRequest request = run_of(1, 0, rows_other);
    if (asked++ == 0) return 0; /* before the run */
    REFUSED(coli_segment_run(session, &request, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_BUSY);
    return 0;
}

static int embeds(void *unused) {
    const int32_t id = 5;
    ColiEdgeEmbedRequest request = {0};
    (void)unused;
    if (asked++ == 0) return 0;
    request.struct_size = sizeof request;
    request.rows = 1;
    request.token_ids = &id;
    request.token_count = 1;
    request.output = rows_other;
    request.output_bytes = width * sizeof(float);
    REFUSED(coli_edge_embed(edge, &request, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_BUSY);
    return 0;
}

static void callbacks_do_not_wait_for_their_own_call(void) {
    ColiSegmentRunRequest request = run_of(ROWS, 0, rows_out);
    ColiEdgeEmbedRequest embed = {0};
    int32_t ids[ROWS] = {1, 2, 3, 4, 5, 6, 7, 8};
    request.should_cancel = runs_another;
    ColiSegmentSession *sessions[] = {first, second};
    for (int i = 0; i < 2; i++) {
        asked = 0;
        request.position = (uint64_t)i * ROWS;
        request.cancel_user_data = sessions[i];
        OK(coli_segment_run(first, &request, ERROR));
        CHECK(asked > (long)ends.num_layers);
    }
    asked = 0;
    embed.struct_size = sizeof embed;
    embed.rows = ROWS;
    embed.token_ids = ids;
    embed.token_count = ROWS;
    embed.output = rows_out;
    embed.output_bytes = ROWS * width * sizeof(float);
    embed.should_cancel = embeds;
    OK(coli_edge_embed(edge, &embed, ERROR));
    CHECK(asked > 1);
    /* Both go on as if nothing had been tried. */
    request = run_of(ROWS, 0, rows_out);
    OK(coli_segment_run(second, &request, ERROR));
    embed.should_cancel = NULL;
    OK(coli_edge_embed(edge, &embed, ERROR));
}

static atomic_int holds, let_go;

/* Keeps its run's turn until it is told to let go. */
static int hold(void *unused) {
    (void)unused;
    if (asked++ == 0) return 0;
    atomic_store(&holds, 1);
    while (!atomic_load(&let_go)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    return 0;
}

static void *long_run(void *session) {
    ColiSegmentRunRequest request = run_of(1, 0, rows_other);
    request.should_cancel = hold;
    asked = 0;
    CHECK(coli_segment_run(session, &request, NULL, 0) == 0);
    return NULL;
}

static atomic_int waits;

/* Says no while its run is not waiting yet, and after a few times of waiting says yes. */
static int gives_up(void *unused) {
    (void)unused;
    return atomic_fetch_add(&waits, 1) == 5;
}

/* The other run holds its turn all the while: only asking while it waits ends this one. */
static void a_waiting_run_is_cancelled(void) {
    ColiSegmentSession *holder = session_new(), *waiter = session_new();
    ColiSegmentRunRequest request = run_of(1, 0, rows_out);
    LamellaSegmentStatistics before, after;
    pthread_t thread;
    memset(&before, 0, sizeof before);
    before.struct_size = sizeof before;
    after = before;
    OK(lamella_segment_statistics(engine, &before, ERROR));
    CHECK(pthread_create(&thread, NULL, long_run, holder) == 0);
    while (!atomic_load(&holds)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    request.should_cancel = gives_up;
    REFUSED(coli_segment_run(waiter, &request, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_CANCELLED && atomic_load(&waits) == 6);
    OK(lamella_segment_statistics(engine, &after, ERROR));
    CHECK(after.cancelled == before.cancelled + 1);
    CHECK(after.wait_nanoseconds > before.wait_nanoseconds);
    atomic_store(&let_go, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    request.should_cancel = NULL;
    OK(coli_segment_run(waiter, &request, ERROR));
    coli_segment_session_destroy(holder);
    coli_segment_session_destroy(waiter);
}

static void counts_that_no_memory_holds_are_refused(const char *dir) {
    const size_t many[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 4 + 1};
    size_t count = 0;
    int32_t ids[4] = {0};
    ColiSegmentEngineOptions options = {0};
    ColiSegmentEngine *opened = NULL;
    ColiSegmentRunRequest request = run_of(1, ROWS, rows_out);
    const ColiSegmentRunRequest *requests = &request;
    options.struct_size = sizeof options;
    options.model_dir = dir;
    options.layer_end = 1;
    options.context_tokens = 8;
    options.resource_plan = "{}";
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++) {
        REFUSED(coli_edge_detokenize(edge, ids, many[i], NULL, 0, &count, ERROR));
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);
        REFUSED(lamella_segment_run_many(&second, &requests, many[i], ERROR));
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);
        if (i == 2) break;
        REFUSED(coli_edge_tokenize(edge, "abc", many[i], NULL, 0, &count, ERROR));
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);
        options.resource_plan_size = many[i];
        REFUSED(coli_segment_engine_open("olmoe", &options, &opened, ERROR));
        CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT && !opened);
    }
}

/* Blocks as they were at first, as they are, and longer. */
static void statistics_fit_their_block(void) {
    struct {
        LamellaSegmentStatistics known;
        unsigned char more[16];
    } block;
    LamellaEdgeStatistics of_ends;
    const uint32_t now = sizeof block.known, old = 96;
    for (uint32_t size = old - 8; size <= now + 16; size += 8) {
        memset(&block, 0xaa, sizeof block);
        block.known.struct_size = size;
        const unsigned char *bytes = (const unsigned char *)&block;
        if (size < old) {
            REFUSED(lamella_segment_statistics(engine, &block.known, ERROR));
            continue;
        }
        OK(lamella_segment_statistics(engine, &block.known, ERROR));
        CHECK(block.known.struct_size == (size < now ? size : now));
        CHECK(block.known.runs > 0 && block.known.rows >= block.known.runs);
        CHECK(block.known.sessions == 2);
        for (size_t at = size; at < sizeof block; at++) CHECK(bytes[at] == 0xaa);
        for (size_t at = now; at < size; at++) CHECK(bytes[at] == 0);
        if (size >= now)
            CHECK(block.known.expert_hits <= block.known.expert_uses);
    }
    memset(&of_ends, 0, sizeof of_ends);
    REFUSED(lamella_edge_statistics(edge, &of_ends, ERROR));
    of_ends.struct_size = sizeof of_ends;
    OK(lamella_edge_statistics(edge, &of_ends, ERROR));
    CHECK(of_ends.rows_embedded == 2 * ROWS && of_ends.rows_of_logits == 0);
    CHECK(of_ends.weight_bytes + of_ends.workspace_bytes == ends.resident_bytes);
    CHECK(of_ends.run_nanoseconds > 0 && of_ends.failed == 0 && of_ends.cancelled == 0);
}

/* A directory that does not exist is said not to. */
static void a_missing_directory_is_named(void) {
    ColiSegmentEngineOptions options = {0};
    ColiSegmentEngine *opened = NULL;
    options.struct_size = sizeof options;
    options.model_dir = "/no/such/directory";
    options.layer_end = 1;
    options.context_tokens = 8;
    REFUSED(coli_segment_engine_open("olmoe", &options, &opened, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_MODEL);
    CHECK(strstr(error, "/no/such/directory") && strstr(error, "no such file"));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    open_all(argv[1]);
    callbacks_do_not_wait_for_their_own_call();
    a_waiting_run_is_cancelled();
    counts_that_no_memory_holds_are_refused(argv[1]);
    statistics_fit_their_block();
    a_missing_directory_is_named();
    coli_segment_session_destroy(first);
    coli_segment_session_destroy(second);
    OK(coli_segment_engine_close(engine, ERROR));
    coli_edge_engine_close(edge);
    free(rows_in);
    free(rows_out);
    free(rows_other);
    return 0;
}
