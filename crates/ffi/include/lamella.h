/*
 * What Lamella adds to Segment and Edge. Nothing here is needed to use them.
 *
 * Generated from the Rust sources of liblamella; a test keeps both equal.
 */

#ifndef COLI_LAMELLA_H
#define COLI_LAMELLA_H

#include <stddef.h>
#include <stdint.h>
#include "edge_runtime.h"
#include "segment_runtime.h"

/** What a call came to. Numbers keep their meaning; new ones may follow. */
typedef enum LamellaCode {
    /** It succeeded. */
    LAMELLA_OK = 0,
    /** An argument is NULL, has the wrong size, or is outside its range. */
    LAMELLA_ARGUMENT = 1,
    /** A handle is closed, is of another kind, or never was one. */
    LAMELLA_HANDLE = 2,
    /** No adapter has the id. */
    LAMELLA_NOT_FOUND = 3,
    /** An adapter has the id already. */
    LAMELLA_DUPLICATE = 4,
    /** Sessions of the engine live, or the session is in another call. */
    LAMELLA_BUSY = 5,
    /** The adapter cannot do this. */
    LAMELLA_UNSUPPORTED = 6,
    /** The adapter says or returns what breaks the rules of the interface. */
    LAMELLA_BROKEN_ADAPTER = 7,
    /** The adapter refused; the text is its own. */
    LAMELLA_ADAPTER = 8,
    /** `should_cancel` asked for it. */
    LAMELLA_CANCELLED = 9,
    /** The system refused memory. */
    LAMELLA_MEMORY = 10,
    /** A bug in the library. */
    LAMELLA_PANIC = 11,
    /** The model's files are missing, damaged, of another family, or of no kind that runs here. */
    LAMELLA_MODEL = 12,
    /** A memory limit is too low; the text has the sum. */
    LAMELLA_MEMORY_LIMIT = 13,
    /** The position is not the session's next one. */
    LAMELLA_POSITION = 14,
    /** A snapshot is damaged, is of something else, or its stream ended. */
    LAMELLA_SNAPSHOT = 15,
    /** Rows, weights or results that are no finite numbers. */
    LAMELLA_NON_FINITE = 16
} LamellaCode;

/**
 * A flag by which one thread cancels the calls of others: `lamella_cancel_poll` is their
 * `should_cancel`, the flag their `cancel_user_data`.
 */
typedef struct LamellaCancel LamellaCancel;

/** What was done in a layer range since it was opened. */
typedef struct LamellaSegmentStatistics {
    /** `sizeof(LamellaSegmentStatistics)` of whoever reads it. */
    uint32_t struct_size;
    /** Zero. */
    uint32_t reserved_u32;
    /** Bytes of weights in memory. */
    uint64_t weight_bytes;
    /** Bytes of working buffers. */
    uint64_t workspace_bytes;
    /** Sessions that live. */
    uint64_t sessions;
    /** Runs that succeeded; several sessions run together are one. */
    uint64_t runs;
    /** Rows of these runs. */
    uint64_t rows;
    /** Runs that were cancelled while they waited or computed. */
    uint64_t cancelled;
    /** Runs that failed while they computed. */
    uint64_t failed;
    /** Time in which runs computed. */
    uint64_t run_nanoseconds;
    /** Time in which runs waited for others of the same engine. */
    uint64_t wait_nanoseconds;
    /** Bytes of snapshots that hosts took. */
    uint64_t snapshot_bytes_written;
    /** Bytes of snapshots that hosts gave. */
    uint64_t snapshot_bytes_read;
    /**
     * Routed experts of the range that are read from disk when a run needs them; 0 where all are
     * in memory, and so are the five below.
     */
    uint64_t expert_count;
    /** Experts that memory has room for. */
    uint64_t expert_slots;
    /** Experts that runs needed, one that several rows of a run chose counted once. */
    uint64_t expert_uses;
    /** Those of them that were in memory. */
    uint64_t expert_hits;
    /** Bytes of experts that were read from disk. */
    uint64_t expert_bytes_read;
    /** Time in which runs waited for these bytes. */
    uint64_t expert_wait_nanoseconds;
} LamellaSegmentStatistics;

/** What was done with the ends of a model since they were opened. */
typedef struct LamellaEdgeStatistics {
    /** `sizeof(LamellaEdgeStatistics)` of whoever reads it. */
    uint32_t struct_size;
    /** Zero. */
    uint32_t reserved_u32;
    /** Bytes of weights in memory. */
    uint64_t weight_bytes;
    /** Bytes of weights of which calls read their rows from disk. */
    uint64_t weight_bytes_on_disk;
    /** Bytes of working buffers. */
    uint64_t workspace_bytes;
    /** Rows of embeddings that were made. */
    uint64_t rows_embedded;
    /** Rows for which an id was selected. */
    uint64_t rows_selected;
    /** Rows for which logits were made. */
    uint64_t rows_of_logits;
    /** Calls that were cancelled while they waited or computed. */
    uint64_t cancelled;
    /** Calls that failed while they computed. */
    uint64_t failed;
    /** Time in which calls computed. */
    uint64_t run_nanoseconds;
    /** Time in which calls waited for others of the same engine. */
    uint64_t wait_nanoseconds;
} LamellaEdgeStatistics;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The code of this thread's last call of a `coli_` function. It says more than -1 does, and why
 * a function without an error buffer refused.
 */
enum LamellaCode lamella_last_error_code(void);

/**
 * Copies the text of this thread's last call of a `coli_` function, cut where the room ends,
 * with a NUL. Empty if the call succeeded.
 *
 * Returns the bytes of the whole text, its NUL not counted. `text` may be NULL with size 0.
 *
 * `text` is NULL or `size` writable bytes.
 */
size_t lamella_last_error_text(char *text,
                               size_t size);

/** The version of the library, as `1.2.3`. */
const char *lamella_version(void);

/** A flag that is not raised, or NULL without memory. It must outlive the calls that poll it. */
struct LamellaCancel *lamella_cancel_new(void);

/**
 * Raises the flag. May be called from any thread and from a signal handler. NULL is ignored.
 *
 * `cancel` is NULL or a flag that was not freed.
 */
void lamella_cancel_raise(const struct LamellaCancel *cancel);

/**
 * Lowers the flag, for the next call. NULL is ignored.
 *
 * `cancel` is NULL or a flag that was not freed.
 */
void lamella_cancel_reset(const struct LamellaCancel *cancel);

/**
 * 1 if the flag is raised, else 0: a `ColiSegmentCancelFn` and a `ColiEdgeCancelFn`.
 *
 * `cancel` is NULL or a flag that was not freed.
 */
int lamella_cancel_poll(void *cancel);

/**
 * Frees the flag. NULL is ignored.
 *
 * `cancel` is NULL or a flag that was not freed and that no call polls.
 */
void lamella_cancel_free(struct LamellaCancel *cancel);

/**
 * Writes what was done in an engine. A block longer than ours is zeroed in all its length first;
 * one as long as an earlier version had it (96 bytes at least) gets what fits. `struct_size`
 * becomes the bytes that were written.
 *
 * `statistics` is NULL or writable for as long as it says; `error` is NULL or `error_size` bytes.
 */
int lamella_segment_statistics(const ColiSegmentEngine *engine,
                               struct LamellaSegmentStatistics *statistics,
                               char *error,
                               size_t error_size);

/**
 * Writes what was done with the ends of a model. A block longer than ours is zeroed in all its
 * length first.
 *
 * `statistics` is NULL or writable for as long as it says; `error` is NULL or `error_size` bytes.
 */
int lamella_edge_statistics(const ColiEdgeEngine *engine,
                            struct LamellaEdgeStatistics *statistics,
                            char *error,
                            size_t error_size);

/**
 * Runs rows of several sessions of one engine in one step, in which the weights, and each expert
 * that several rows chose, are read once: all of them, or every session stays as it was.
 * `requests[i]` is what `coli_segment_run` would get for `sessions[i]`; the results are the same.
 * No buffer may overlap one of another request. The run is cancelled if one callback says so.
 *
 * `sessions` and `requests` are NULL or have `count` entries, each as `coli_segment_run` asks;
 * `error` is NULL or `error_size` bytes.
 */
int lamella_segment_run_many(ColiSegmentSession *const *sessions,
                             const ColiSegmentRunRequest *const *requests,
                             size_t count,
                             char *error,
                             size_t error_size);

/**
 * Describes an opened layer range as a JSON object: the model, the part, the encodings and
 * instruction set it runs in, its memory, and what decides its bits.
 *
 * `*bytes` becomes the length without the NUL. `text` is NULL exactly when `capacity` is 0, to ask
 * for the length; a `capacity` that is too small is an error.
 *
 * `text` is NULL or `capacity` writable bytes; `bytes` is NULL or writable; `error` is NULL or
 * `error_size` bytes.
 */
int lamella_segment_report(const ColiSegmentEngine *engine,
                           char *text,
                           size_t capacity,
                           size_t *bytes,
                           char *error,
                           size_t error_size);

/**
 * Describes the opened ends of a model, as `lamella_segment_report` does a layer range.
 *
 * As `lamella_segment_report`.
 */
int lamella_edge_report(const ColiEdgeEngine *engine,
                        char *text,
                        size_t capacity,
                        size_t *bytes,
                        char *error,
                        size_t error_size);

#ifdef __cplusplus
}
#endif

#endif  /* COLI_LAMELLA_H */
