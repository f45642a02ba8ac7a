/* What Lamella adds, and what several threads may do at once. */

#define _POSIX_C_SOURCE 200809L

#include "check.h"
#include "fixtures.h"
#include "lamella.h"

#include <pthread.h>

enum { THREADS = 8, TURNS = 200, CONTEXT = 8 };

static ColiSegmentEngine *engine;

static ColiSegmentSession *session_of_engine(void) {
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = NULL;
    options.struct_size = sizeof options;
    options.context_tokens = CONTEXT;
    CHECK(coli_segment_session_create(engine, &options, &session, NULL, 0) == 0);
    return session;
}

static ColiSegmentRunRequest row_at(uint64_t position, const float *input, float *output) {
    ColiSegmentRunRequest request = {0};
    request.struct_size = sizeof request;
    request.rows = 1;
    request.position = position;
    request.input = input;
    request.output = output;
    request.input_bytes = request.output_bytes = fixtures[3].width * sizeof(float);
    return request;
}

static void *converse(void *result) {
    float row[8] = {0.5f, -0.25f, 0.125f, 1.0f};
    for (int turn = 0; turn < TURNS; turn++) {
        ColiSegmentSession *session = session_of_engine();
        float *out = result;
        for (uint64_t position = 0; position < CONTEXT; position++) {
            const ColiSegmentRunRequest request = row_at(position, row, out);
            CHECK(coli_segment_run(session, &request, NULL, 0) == 0);
        }
        /* Errors are the thread's own. */
        const ColiSegmentRunRequest wrong = row_at(turn % 2 ? 0 : CONTEXT, row, out);
        char text[64];
        CHECK(coli_segment_run(session, &wrong, NULL, 0) == -1);
        CHECK(lamella_last_error_code() == (turn % 2 ? LAMELLA_ADAPTER : LAMELLA_ARGUMENT));
        CHECK(lamella_last_error_text(text, sizeof text) > 0);
        CHECK(coli_segment_adapter_lookup("olmoe") && !coli_segment_adapter_lookup("nobody"));
        CHECK(lamella_last_error_code() == LAMELLA_NOT_FOUND);
        coli_segment_session_destroy(session);
    }
    return NULL;
}

static void threads_share_an_engine(void) {
    pthread_t threads[THREADS];
    float rows[THREADS][8] = {{0}}, alone[8] = {0};
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, converse, rows[t]) == 0);
    for (int t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    converse(alone);
    for (int t = 0; t < THREADS; t++)
        CHECK(memcmp(rows[t], alone, fixtures[3].width * sizeof(float)) == 0);
}

/* Polls until another thread raises the flag. */
static int wait_for_flag(void *cancel) {
    while (!lamella_cancel_poll(cancel)) {
    }
    return 1;
}

static void *raise_flag(void *cancel) {
    lamella_cancel_raise(cancel);
    return NULL;
}

static void another_thread_cancels(void) {
    LamellaCancel *cancel = lamella_cancel_new();
    ColiSegmentSession *session = session_of_engine();
    const float row[8] = {0};
    float out[8];
    pthread_t thread;
    ColiSegmentRunRequest request = row_at(0, row, out);
    CHECK(cancel && lamella_cancel_poll(cancel) == 0);
    request.should_cancel = wait_for_flag;
    request.cancel_user_data = cancel;
    CHECK(pthread_create(&thread, NULL, raise_flag, cancel) == 0);
    REFUSED(coli_segment_run(session, &request, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_CANCELLED);
    CHECK(pthread_join(thread, NULL) == 0);
    request.should_cancel = lamella_cancel_poll;
    REFUSED(coli_segment_run(session, &request, ERROR));
    lamella_cancel_reset(cancel);
    OK(coli_segment_run(session, &request, ERROR));
    CHECK(lamella_cancel_poll(NULL) == 0);
    lamella_cancel_raise(NULL);
    lamella_cancel_reset(NULL);
    lamella_cancel_free(NULL);
    lamella_cancel_free(cancel);
    coli_segment_session_destroy(session);
}

int main(void) {
    ColiSegmentEngineOptions options = {0};
    int major = -1, minor = -1, patch = -1;
    options.struct_size = sizeof options;
    options.model_dir = "fixture";
    options.layer_end = fixtures[3].layers;
    options.context_tokens = CONTEXT;
    CHECK(fixture_register_segment(&fixtures[3]) == 0);
    OK(coli_segment_engine_open("olmoe", &options, &engine, ERROR));
    threads_share_an_engine();
    another_thread_cancels();
    OK(coli_segment_engine_close(engine, ERROR));
    CHECK(sscanf(lamella_version(), "%d.%d.%d", &major, &minor, &patch) == 3);
    CHECK(major >= 0 && minor >= 0 && patch >= 0);
    return 0;
}
