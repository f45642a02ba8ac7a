/* A model as the real suites see it: its ends, layer ranges of it, and what the whole computes. */

#ifndef REAL_H
#define REAL_H

#include "check.h"
#include "edge_runtime.h"
#include "lamella.h"
#include "segment_runtime.h"

enum { CHUNK = 17 };

typedef struct Model {
    const char *family, *dir;
    ColiEdgeEngine *edge;
    ColiEdgeCapabilities ends;
    /* The prompt, and behind it what an independent oracle says on. */
    int32_t *ids;
    uint32_t prompt, total;
    /* Numbers in a row; rows `[total, width]` before the first and behind the last layer. */
    size_t width;
    float *embedded, *expected;
    int needs_ids;
} Model;

typedef struct Bytes {
    unsigned char *data;
    size_t length, capacity, taken;
    /* Calls until the callback aborts, -1 for never; and calls so far. */
    long aborts, calls;
} Bytes;

/* A `should_cancel` that says no `most` times, always where that is -1. */
typedef struct Patience {
    long calls, most;
} Patience;

int loses(void *patience);

/* A layer range with a session. */
typedef struct Part {
    ColiSegmentEngine *engine;
    ColiSegmentSession *session;
} Part;

void *demand(size_t size);

/* Opens the ends, reads `ids_file` ("prompt total id id ..."), and runs the full range over it. */
void model_open(Model *model, const char *family, const char *dir, const char *ids_file);
void model_close(Model *model);

ColiSegmentEngineOptions range_options(const Model *model, uint32_t begin, uint32_t end);
ColiSegmentEngine *range_open(const Model *model, uint32_t begin, uint32_t end);
ColiSegmentSession *session_of(ColiSegmentEngine *engine, uint32_t context);
Part part_open(const Model *model, uint32_t begin, uint32_t end);
void part_close(Part part);

/* A request for `rows` rows at `position`. */
ColiSegmentRunRequest request_of(const Model *model, uint32_t position, uint32_t rows,
                                 const float *in, float *out);
/* Runs rows, which must succeed. */
void feed(const Model *model, ColiSegmentSession *session, uint32_t position, uint32_t rows,
          const float *in, float *out);
/* Whether rows from `position` on are those of the full range. */
int as_expected(const Model *model, uint32_t position, uint32_t rows, const float *out);

int grow(void *bytes, const void *data, size_t size);
int take(void *bytes, void *data, size_t size);
/* The session as a stream; to be freed. */
Bytes snapshot_of(ColiSegmentSession *session);
/* Restores `length` bytes of `stream`. */
int restore_from(ColiSegmentSession *session, const Bytes *stream, size_t length);
/* Whether the session is what `before` says, byte for byte. */
int unchanged(ColiSegmentSession *session, const Bytes *before);

/* The smallest memory limit within which the layers from `begin` on open, and within which all
 * layers do with every expert in memory. */
uint64_t smallest_range(const Model *model, uint32_t begin);
uint64_t smallest_resident(const Model *model);

/* The suites. */
void suite_chain(const Model *model);
void suite_text(const Model *model);
void suite_sessions(const Model *model);
void suite_snapshots(const Model *model);
void suite_rules(const Model *model);
void suite_limits(const Model *model);
void suite_cancel(const Model *model);
void suite_many(const Model *model);
void suite_experts(const Model *model);
/* A `limit` of 0 is none. */
void suite_hammer(const Model *model, double seconds, uint64_t limit);

#endif
