/*
 * What Lamella adds to Segment and Edge. Nothing here is needed to use them.
 *
 * Generated from the Rust sources of liblamella; a test keeps both equal.
 */

#ifndef COLI_LAMELLA_H
#define COLI_LAMELLA_H

#include <stddef.h>
#include <stdint.h>

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
} LamellaCode;

/**
 * A flag by which one thread cancels the calls of others: `lamella_cancel_poll` is their
 * `should_cancel`, the flag their `cancel_user_data`.
 */
typedef struct LamellaCancel LamellaCancel;

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

#ifdef __cplusplus
}
#endif

#endif  /* COLI_LAMELLA_H */
