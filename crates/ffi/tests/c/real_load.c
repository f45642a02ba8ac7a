/* Limits, several sessions in one step, and many threads. */

#define _POSIX_C_SOURCE 200809L

#include "real.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- exact limits ----------------------------------------------------------------------- */

typedef struct Limited {
    const Model *model;
    ColiSegmentEngine *engine;
    /* The first layer of a range to its end. */
    uint32_t begin;
} Limited;

static ColiSegmentEngine *open_within(const Limited *of, uint64_t limit) {
    ColiSegmentEngineOptions options =
        range_options(of->model, of->begin, of->model->ends.num_layers);
    ColiSegmentEngine *engine = NULL;
    options.memory_limit_bytes = limit;
    return coli_segment_engine_open(of->model->family, &options, &engine, ERROR) ? NULL : engine;
}

/* Whether `limit` bytes are enough for a layer range. */
static int range_within(const Limited *of, uint64_t limit) {
    ColiSegmentEngine *engine = open_within(of, limit);
    if (engine == NULL) return 0;
    OK(coli_segment_engine_close(engine, ERROR));
    return 1;
}

/* The same with all of its experts in memory. */
static int resident_within(const Limited *of, uint64_t limit) {
    ColiSegmentEngine *engine = open_within(of, limit);
    LamellaSegmentStatistics counts = {0};
    if (engine == NULL) return 0;
    counts.struct_size = sizeof counts;
    OK(lamella_segment_statistics(engine, &counts, ERROR));
    OK(coli_segment_engine_close(engine, ERROR));
    return counts.expert_count == 0;
}

static int edge_within(const Limited *of, uint64_t limit) {
    ColiEdgeEngineOptions options = {0};
    ColiEdgeEngine *engine = NULL;
    options.struct_size = sizeof options;
    options.model_dir = of->model->dir;
    options.memory_limit_bytes = limit;
    if (coli_edge_engine_open(of->model->family, &options, &engine, ERROR) != 0) return 0;
    coli_edge_engine_close(engine);
    return 1;
}

static int session_within(const Limited *of, uint64_t limit) {
    ColiSegmentSessionOptions options = {0};
    ColiSegmentSession *session = NULL;
    options.struct_size = sizeof options;
    options.context_tokens = of->model->total;
    options.memory_limit_bytes = limit;
    if (coli_segment_session_create(of->engine, &options, &session, ERROR) != 0) return 0;
    coli_segment_session_destroy(session);
    return 1;
}

/* The smallest limit within which something holds, by search. */
static uint64_t search(int (*within)(const Limited *, uint64_t), const Limited *of) {
    uint64_t too_little = 0, enough = (uint64_t)1 << 36;
    CHECK(within(of, enough));
    while (enough - too_little > 1) {
        const uint64_t middle = too_little + (enough - too_little) / 2;
        if (within(of, middle)) enough = middle;
        else too_little = middle;
    }
    return enough;
}

/* The smallest limit that is accepted. One byte less is refused with the sum. */
static uint64_t smallest(int (*within)(const Limited *, uint64_t), const Limited *of) {
    const uint64_t enough = search(within, of);
    char sum[32];
    CHECK(within(of, enough));
    CHECK(!within(of, enough - 1));
    CHECK(lamella_last_error_code() == LAMELLA_MEMORY_LIMIT);
    snprintf(sum, sizeof sum, " %llu bytes", (unsigned long long)enough);
    CHECK(strstr(error, sum) != NULL);
    return enough;
}

uint64_t smallest_range(const Model *model, uint32_t begin) {
    const Limited of = {model, NULL, begin};
    return smallest(range_within, &of);
}

uint64_t smallest_resident(const Model *model) {
    const Limited of = {model, NULL, 0};
    return search(resident_within, &of);
}

void suite_limits(const Model *model) {
    Limited of = {model, NULL, 1};
    ColiSegmentEngineOptions options = range_options(model, 1, model->ends.num_layers);
    ColiSegmentSessionOptions small = {0};
    ColiSegmentSession *session = NULL;
    float *in = demand(model->total * model->width * sizeof *in);
    Part first = part_open(model, 0, 1);
    const uint64_t edge = smallest(edge_within, &of), range = smallest_range(model, of.begin);
    options.memory_limit_bytes = range;
    OK(coli_segment_engine_open(model->family, &options, &of.engine, ERROR));
    small.struct_size = sizeof small;
    small.context_tokens = model->total;
    small.memory_limit_bytes = smallest(session_within, &of);
    printf("%s: edge %llu, layers 1 to %u %llu, session of %u tokens %llu bytes\n", model->family,
           (unsigned long long)edge, model->ends.num_layers, (unsigned long long)range,
           model->total, (unsigned long long)small.memory_limit_bytes);
    /* The smallest session runs to its end, through a snapshot of its own. */
    OK(coli_segment_session_create(of.engine, &small, &session, ERROR));
    feed(model, first.session, 0, model->total, model->embedded, in);
    feed(model, session, 0, model->prompt, in, in);
    CHECK(as_expected(model, 0, model->prompt, in));
    Bytes stream = snapshot_of(session);
    coli_segment_session_destroy(session);
    OK(coli_segment_session_create(of.engine, &small, &session, ERROR));
    CHECK(restore_from(session, &stream, stream.length) == 0);
    feed(model, session, model->prompt, model->total - model->prompt,
         in + model->prompt * model->width, in);
    CHECK(as_expected(model, model->prompt, model->total - model->prompt, in));
    coli_segment_session_destroy(session);
    OK(coli_segment_engine_close(of.engine, ERROR));
    part_close(first);
    free(stream.data);
    free(in);
}

/* ---- several sessions in one step ------------------------------------------------------- */

enum { TOGETHER = 3 };

static void check_facts(const Model *model, ColiSegmentEngine *engine) {
    char text[4096];
    size_t bytes = 0, again = 0;
    LamellaSegmentStatistics counts;
    memset(&counts, 0xff, sizeof counts);
    counts.struct_size = sizeof counts;
    OK(lamella_segment_statistics(engine, &counts, ERROR));
    CHECK(counts.sessions == TOGETHER && counts.weight_bytes > 0);
    CHECK(counts.runs > 0 && counts.rows >= counts.runs && counts.run_nanoseconds > 0);
    CHECK(counts.failed == 1 && counts.reserved_u32 == 0);
    counts.struct_size = 95; /* less than it ever had */
    REFUSED(lamella_segment_statistics(engine, &counts, ERROR));
    OK(lamella_segment_report(engine, NULL, 0, &bytes, ERROR));
    CHECK(bytes > 100 && bytes < sizeof text);
    REFUSED(lamella_segment_report(engine, text, bytes, &again, ERROR));
    OK(lamella_segment_report(engine, text, sizeof text, &again, ERROR));
    CHECK(again == bytes && text[bytes] == 0 && text[0] == '{' && text[bytes - 1] == '}');
    CHECK(strstr(text, model->ends.numeric_class) && strstr(text, "\"layer_end\":"));
    OK(lamella_edge_report(model->edge, text, sizeof text, &bytes, ERROR));
    CHECK(strstr(text, model->ends.tokenizer_class) && strstr(text, model->ends.state_schema));
}

void suite_many(const Model *model) {
    ColiSegmentEngine *engine = range_open(model, 0, model->ends.num_layers);
    Part other = part_open(model, 0, model->ends.num_layers);
    ColiSegmentSession *sessions[TOGETHER], *wrong[TOGETHER];
    ColiSegmentRunRequest runs[TOGETHER];
    const ColiSegmentRunRequest *requests[TOGETHER];
    float *out[TOGETHER];
    Bytes before[TOGETHER];
    /* Rows that each has behind it, and that it runs now. */
    const uint32_t start[TOGETHER] = {0, 7, 30}, rows[TOGETHER] = {CHUNK, 1, 5};
    for (int i = 0; i < TOGETHER; i++) {
        out[i] = demand(model->total * model->width * sizeof *out[i]);
        sessions[i] = session_of(engine, model->total);
        if (start[i]) feed(model, sessions[i], 0, start[i], model->embedded, out[i]);
        before[i] = snapshot_of(sessions[i]);
        runs[i] = request_of(model, start[i], rows[i],
                             model->embedded + start[i] * model->width, out[i]);
        requests[i] = &runs[i];
        wrong[i] = sessions[i];
    }
    REFUSED(lamella_segment_run_many(NULL, requests, TOGETHER, ERROR));
    REFUSED(lamella_segment_run_many(sessions, NULL, TOGETHER, ERROR));
    REFUSED(lamella_segment_run_many(sessions, requests, 0, ERROR));
    wrong[1] = sessions[0];
    requests[1] = &runs[0];
    REFUSED(lamella_segment_run_many(wrong, requests, TOGETHER, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_BUSY);
    wrong[1] = other.session;
    REFUSED(lamella_segment_run_many(wrong, requests, TOGETHER, ERROR));
    requests[1] = &runs[1];
    runs[1].output = runs[0].output;
    REFUSED(lamella_segment_run_many(sessions, requests, TOGETHER, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_ARGUMENT);
    runs[1].output = out[1];
    runs[2].position++;
    REFUSED(lamella_segment_run_many(sessions, requests, TOGETHER, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_POSITION);
    runs[2].position--;
    float *poison = demand(model->width * sizeof *poison);
    memset(poison, 0xff, model->width * sizeof *poison);
    runs[1].input = poison;
    REFUSED(lamella_segment_run_many(sessions, requests, TOGETHER, ERROR));
    CHECK(lamella_last_error_code() == LAMELLA_NON_FINITE);
    runs[1].input = model->embedded + start[1] * model->width;
    for (int i = 0; i < TOGETHER; i++) CHECK(unchanged(sessions[i], &before[i]));
    OK(lamella_segment_run_many(sessions, requests, TOGETHER, ERROR));
    for (int i = 0; i < TOGETHER; i++) CHECK(as_expected(model, start[i], rows[i], out[i]));
    check_facts(model, engine);
    for (int i = 0; i < TOGETHER; i++) {
        coli_segment_session_destroy(sessions[i]);
        free(before[i].data);
        free(out[i]);
    }
    free(poison);
    OK(coli_segment_engine_close(engine, ERROR));
    part_close(other);
}

/* ---- many threads ----------------------------------------------------------------------- */

enum { THREADS = 8, SESSIONS = 64 };

typedef struct Worker {
    const Model *model;
    ColiSegmentEngine *engine;
    /* Its own flag, and that of the worker whom it disturbs. */
    LamellaCancel *cancel, *other;
    double until;
    uint32_t random;
    unsigned long deeds, cancelled;
} Worker;

/* A conversation of a worker, and what it was at a time. */
typedef struct Talk {
    ColiSegmentSession *session;
    uint32_t position, kept_at;
    Bytes kept;
} Talk;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint32_t roll(Worker *worker, uint32_t sides) {
    worker->random = worker->random * 1664525u + 1013904223u;
    return (worker->random >> 8) % sides;
}

static void renew(Worker *worker, Talk *talk) {
    ColiSegmentSessionOptions options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.context_tokens = worker->model->total;
    coli_segment_session_destroy(talk->session);
    CHECK(coli_segment_session_create(worker->engine, &options, &talk->session, NULL, 0) == 0);
    talk->position = 0;
}

/* Runs some rows, now and then until a callback has enough of it or another thread says so. */
static void go_on(Worker *worker, Talk *talk, float *out) {
    const Model *model = worker->model;
    const uint32_t left = model->total - talk->position;
    uint32_t rows = 1 + roll(worker, 12);
    Patience patience;
    ColiSegmentRunRequest request;
    if (rows > left) rows = left;
    if (rows == 0) {
        renew(worker, talk);
        return;
    }
    request = request_of(model, talk->position, rows,
                         model->embedded + talk->position * model->width, out);
    patience.calls = 0;
    patience.most = roll(worker, 4) ? -1 : (long)roll(worker, 9);
    request.should_cancel = loses;
    request.cancel_user_data = &patience;
    if (roll(worker, 2)) {
        lamella_cancel_reset(worker->cancel);
        request.should_cancel = lamella_cancel_poll;
        request.cancel_user_data = worker->cancel;
    }
    if (coli_segment_run(talk->session, &request, NULL, 0) == 0) {
        CHECK(as_expected(model, talk->position, rows, out));
        talk->position += rows;
    } else {
        CHECK(lamella_last_error_code() == LAMELLA_CANCELLED);
        worker->cancelled++;
    }
}

static void look(const Worker *worker) {
    LamellaSegmentStatistics counts = {0};
    counts.struct_size = sizeof counts;
    CHECK(lamella_segment_statistics(worker->engine, &counts, NULL, 0) == 0);
    CHECK(counts.sessions <= SESSIONS && counts.failed == 0);
}

static void deed(Worker *worker, Talk *talk, float *out) {
    switch (roll(worker, 12)) {
    case 0:
        free(talk->kept.data);
        memset(&talk->kept, 0, sizeof talk->kept);
        talk->kept.aborts = -1;
        CHECK(coli_segment_snapshot(talk->session, grow, &talk->kept, NULL, 0) == 0);
        talk->kept_at = talk->position;
        break;
    case 1:
        if (!talk->kept.data) break;
        talk->kept.taken = 0;
        CHECK(coli_segment_restore(talk->session, take, &talk->kept, NULL, 0) == 0);
        talk->position = talk->kept_at;
        break;
    case 2:
        if (roll(worker, 8) == 0) renew(worker, talk);
        break;
    case 3:
        lamella_cancel_raise(worker->other);
        look(worker);
        break;
    default:
        go_on(worker, talk, out);
    }
    worker->deeds++;
}

static void *work(void *user) {
    Worker *worker = user;
    Talk talks[SESSIONS / THREADS];
    float *out = demand(CHUNK * worker->model->width * sizeof *out);
    const uint32_t count = SESSIONS / THREADS;
    memset(talks, 0, sizeof talks);
    for (uint32_t i = 0; i < count; i++) renew(worker, &talks[i]);
    while (now() < worker->until) deed(worker, &talks[roll(worker, count)], out);
    for (uint32_t i = 0; i < count; i++) {
        coli_segment_session_destroy(talks[i].session);
        free(talks[i].kept.data);
    }
    free(out);
    return NULL;
}

void suite_hammer(const Model *model, double seconds, uint64_t limit) {
    static Worker workers[THREADS];
    pthread_t threads[THREADS];
    LamellaCancel *flags[THREADS];
    unsigned long deeds = 0, cancelled = 0;
    const Limited of = {model, NULL, 0};
    ColiSegmentEngine *engine = open_within(&of, limit);
    const double until = now() + seconds;
    for (int i = 0; i < THREADS; i++) CHECK((flags[i] = lamella_cancel_new()) != NULL);
    for (int i = 0; i < THREADS; i++) {
        Worker worker = {model, engine, flags[i], flags[(i + 1) % THREADS], until,
                         7u * (uint32_t)i + 1, 0, 0};
        workers[i] = worker;
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        deeds += workers[i].deeds;
        cancelled += workers[i].cancelled;
    }
    for (int i = 0; i < THREADS; i++) lamella_cancel_free(flags[i]);
    CHECK(deeds > SESSIONS);
    printf("%s: %lu calls in %d sessions on %d threads, %lu cancelled\n", model->family, deeds,
           SESSIONS, THREADS, cancelled);
    OK(coli_segment_engine_close(engine, ERROR));
}
