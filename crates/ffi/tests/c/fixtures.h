/* Seven small adapters, one a family: real state, deterministic arithmetic, no files. */

#ifndef FIXTURES_H
#define FIXTURES_H

#include "edge_runtime.h"
#include "segment_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FIXTURES = 7 };

/* What the layers of a fixture remember from one row to the next. */
enum {
    FIXTURE_KV = 1 << 0,
    FIXTURE_SLIDING_RING = 1 << 1,
    FIXTURE_MLA_LATENT = 1 << 2,
    FIXTURE_DSA_INDEXER = 1 << 3,
    FIXTURE_CONVOLUTION = 1 << 4,
    FIXTURE_RECURRENT = 1 << 5,
    FIXTURE_ATTENTION_RESIDUAL = 1 << 6,
    FIXTURE_MHC = 1 << 7,
    FIXTURE_COMPRESSOR = 1 << 8,
    FIXTURE_DEVICE_CACHE = 1 << 9,
    FIXTURE_HYPER_RESIDUAL = 1 << 10,
    FIXTURE_SPARSE_ATTENTION = 1 << 11,
    FIXTURE_EMBEDDING_HISTORY = 1 << 12,
    FIXTURE_ALL_KINDS = (1 << 13) - 1
};

typedef struct Fixture {
    const char *id;
    uint32_t kinds;
    uint32_t layers;
    uint32_t width;
    uint32_t dtype;
    uint64_t flags;
} Fixture;

extern const Fixture fixtures[FIXTURES];

/* Register an adapter of a fixture: 0 if it was new. */
int fixture_register_segment(const Fixture *fixture);
int fixture_register_edge(const Fixture *fixture);

/* Engines and sessions that were made and not destroyed. */
extern long fixtures_live;

#ifdef __cplusplus
}
#endif

#endif
