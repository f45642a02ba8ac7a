/* Experts on disk, where memory has no room for all of them: rows are those of a run that has all
 * in memory, and the statistics say what was read on the way. */

#include "real.h"

#include <stdlib.h>
#include <string.h>

static LamellaSegmentStatistics counts_of(ColiSegmentEngine *engine) {
    LamellaSegmentStatistics counts;
    memset(&counts, 0xff, sizeof counts);
    counts.struct_size = sizeof counts;
    OK(lamella_segment_statistics(engine, &counts, ERROR));
    CHECK(counts.struct_size == sizeof counts);
    CHECK(counts.expert_hits <= counts.expert_uses);
    CHECK(counts.expert_wait_nanoseconds <= counts.run_nanoseconds);
    return counts;
}

static uint64_t missed(const LamellaSegmentStatistics *counts) {
    return counts->expert_uses - counts->expert_hits;
}

/* Whether nothing was counted of experts. */
static int untouched(const LamellaSegmentStatistics *counts) {
    return !counts->expert_uses && !counts->expert_hits && !counts->expert_bytes_read
        && !counts->expert_wait_nanoseconds;
}

/* All layers, with no more than `limit` bytes. */
static ColiSegmentEngine *open_within(const Model *model, uint64_t limit) {
    ColiSegmentEngineOptions options = range_options(model, 0, model->ends.num_layers);
    ColiSegmentEngine *engine = NULL;
    options.memory_limit_bytes = limit;
    OK(coli_segment_engine_open(model->family, &options, &engine, ERROR));
    return engine;
}

/* The prompt in pieces, and what follows row by row, in a session of its own. */
static void converse(const Model *model, ColiSegmentEngine *engine) {
    ColiSegmentSession *session = session_of(engine, model->total);
    float *out = demand(CHUNK * model->width * sizeof *out);
    uint32_t rows;
    for (uint32_t at = 0; at < model->total; at += rows) {
        const uint32_t left = model->prompt > at ? model->prompt - at : 1;
        rows = left < CHUNK ? left : CHUNK;
        feed(model, session, at, rows, model->embedded + at * model->width, out);
        CHECK(as_expected(model, at, rows, out));
    }
    coli_segment_session_destroy(session);
    free(out);
}

/* What several sessions choose alike in one run is used once, as it is in a run of one of them. */
static void unite(const Model *model, ColiSegmentEngine *engine) {
    enum { TOGETHER = 3 };
    ColiSegmentSession *sessions[TOGETHER];
    ColiSegmentRunRequest runs[TOGETHER];
    const ColiSegmentRunRequest *requests[TOGETHER];
    float *out[TOGETHER];
    LamellaSegmentStatistics counts[3];
    for (int i = 0; i < TOGETHER; i++) {
        out[i] = demand(CHUNK * model->width * sizeof *out[i]);
        sessions[i] = session_of(engine, model->total);
        runs[i] = request_of(model, 0, CHUNK, model->embedded, out[i]);
        requests[i] = &runs[i];
    }
    counts[0] = counts_of(engine);
    OK(coli_segment_run(sessions[0], requests[0], ERROR));
    counts[1] = counts_of(engine);
    OK(lamella_segment_run_many(sessions + 1, requests + 1, TOGETHER - 1, ERROR));
    counts[2] = counts_of(engine);
    for (int i = 0; i < TOGETHER; i++) {
        CHECK(as_expected(model, 0, CHUNK, out[i]));
        coli_segment_session_destroy(sessions[i]);
        free(out[i]);
    }
    CHECK(counts[1].expert_uses > counts[0].expert_uses);
    CHECK(counts[2].expert_uses - counts[1].expert_uses
          == counts[1].expert_uses - counts[0].expert_uses);
}

/* A host of the time before these counts has a block without room for them. */
static void check_short_block(ColiSegmentEngine *engine) {
    LamellaSegmentStatistics counts;
    unsigned char *behind = (unsigned char *)&counts + 96;
    memset(&counts, 0xa5, sizeof counts);
    counts.struct_size = 96;
    OK(lamella_segment_statistics(engine, &counts, ERROR));
    CHECK(counts.struct_size == 96 && counts.weight_bytes > 0);
    for (size_t i = 0; i < sizeof counts - 96; i++) CHECK(behind[i] == 0xa5);
}

void suite_experts(const Model *model) {
    const uint64_t least = smallest_range(model, 0), all = smallest_resident(model);
    ColiSegmentEngine *resident = open_within(model, all), *few = open_within(model, least);
    ColiSegmentEngine *most = open_within(model, all - 1);
    LamellaSegmentStatistics one, two, many;
    one = counts_of(few);
    many = counts_of(most);
    CHECK(one.expert_count > many.expert_slots && many.expert_slots > one.expert_slots);
    CHECK(one.expert_count == many.expert_count && one.expert_slots > 0);
    CHECK(untouched(&one) && untouched(&many));

    converse(model, few);
    one = counts_of(few);
    CHECK(missed(&one) > 0 && one.expert_bytes_read > 0 && one.expert_wait_nanoseconds > 0);
    /* There is room for one: what is missed is read, no more, and experts are of one size. */
    CHECK(one.expert_slots == 1 && one.expert_bytes_read % missed(&one) == 0);
    converse(model, few);
    two = counts_of(few);
    CHECK(two.expert_uses == 2 * one.expert_uses && two.expert_slots == one.expert_slots);
    CHECK(missed(&two) > missed(&one) && two.expert_bytes_read > one.expert_bytes_read);
    CHECK(two.expert_wait_nanoseconds > one.expert_wait_nanoseconds);

    /* The same rows use the same experts, and find more of them where there is more room. */
    converse(model, most);
    many = counts_of(most);
    CHECK(many.expert_uses == one.expert_uses && missed(&many) < missed(&one));
    CHECK(many.expert_bytes_read > 0 && many.expert_bytes_read < one.expert_bytes_read);
    printf("%s: %llu experts, %llu uses; of %llu slots %llu misses, %llu bytes; of %llu %llu, "
           "%llu\n", model->family, (unsigned long long)one.expert_count,
           (unsigned long long)one.expert_uses, (unsigned long long)one.expert_slots,
           (unsigned long long)missed(&one), (unsigned long long)one.expert_bytes_read,
           (unsigned long long)many.expert_slots, (unsigned long long)missed(&many),
           (unsigned long long)many.expert_bytes_read);
    unite(model, few);
    check_short_block(few);

    converse(model, resident);
    one = counts_of(resident);
    CHECK(one.expert_count == 0 && one.expert_slots == 0 && untouched(&one) && one.runs > 0);
    OK(coli_segment_engine_close(resident, ERROR));
    OK(coli_segment_engine_close(few, ERROR));
    OK(coli_segment_engine_close(most, ERROR));
}
