/* An adapter of each interface that does what a test tells it to: it tells lies, fails, counts. */

#ifndef PROBE_H
#define PROBE_H

#include "edge_runtime.h"
#include "segment_runtime.h"

enum { PROBE_WIDTH = 3, PROBE_LAYERS = 4, PROBE_VOCABULARY = 5, PROBE_CONTEXT = 32 };

/* What the next engine says about itself; `probe_reset` makes both true. */
extern ColiSegmentCapabilities segment_says;
extern ColiEdgeCapabilities edge_says;

/* Makes callbacks fail: with `text`, or in silence where it is NULL. */
extern int probe_fails;
extern const char *probe_text;

/* Calls of each callback, and what lives. */
extern int probe_opens, probe_runs, probe_calls;
extern long probe_live;

/* What tokenize, detokenize and select claim to have written. */
extern size_t probe_count;

/* Complete adapters, to be copied and spoilt; the first of each is registered as `probe`. */
ColiSegmentAdapter probe_segment(const char *id);
ColiEdgeAdapter probe_edge(const char *id);

void probe_reset(void);

#endif
