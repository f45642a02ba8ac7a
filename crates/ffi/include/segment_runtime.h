/*
 * Segment, version 1: a contiguous range of a model's layers.
 *
 * Functions return 0, or -1 after writing a text with a NUL to `error`, which may be NULL with
 * size 0. Adapters are registered before the first look-up; look-ups may then come from any thread.
 *
 * Generated from the Rust sources of liblamella; a test keeps both equal.
 */

#ifndef COLI_SEGMENT_RUNTIME_H
#define COLI_SEGMENT_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/** Version of this interface, as every adapter and every capability block carries it. */
#define COLI_SEGMENT_ABI_VERSION 1u

/** Bytes of an engine id, its NUL included. */
#define COLI_SEGMENT_ENGINE_ID_CAP 64

/** Bytes of a state schema, its NUL included. */
#define COLI_SEGMENT_STATE_SCHEMA_CAP 128

/** Bytes of a numeric class, its NUL included. */
#define COLI_SEGMENT_NUMERIC_CLASS_CAP 96

/** `flags`: each run needs the token ids of its rows. */
#define COLI_SEGMENT_CAP_TOKEN_IDS 1ull

/** `flags`: sessions can be written to a stream and read back. */
#define COLI_SEGMENT_CAP_SNAPSHOT 2ull

/** `flags`: nothing outside the layer range is read or mapped. */
#define COLI_SEGMENT_CAP_RANGE_NATIVE 4ull

/** `flags`: sessions of one engine may run at the same time. */
#define COLI_SEGMENT_CAP_MULTI_SESSION 8ull

/** `flags` and `backend_mask`: the processor computes. */
#define COLI_SEGMENT_CAP_CPU 256ull

/** `flags` and `backend_mask`: a CUDA device computes. */
#define COLI_SEGMENT_CAP_CUDA 512ull

/** `flags` and `backend_mask`: a HIP device computes. */
#define COLI_SEGMENT_CAP_HIP 1024ull

/** `flags` and `backend_mask`: a Metal device computes. */
#define COLI_SEGMENT_CAP_METAL 2048ull

/** `flags` and `backend_mask`: a Vulkan device computes. */
#define COLI_SEGMENT_CAP_VULKAN 4096ull

/** All backends. */
#define COLI_SEGMENT_CAP_BACKEND_MASK 7936ull

/** Number formats of boundary activations. */
typedef enum ColiSegmentDType {
    /** No format: refused everywhere. */
    COLI_SEGMENT_DTYPE_INVALID = 0,
    /** IEEE 754 binary32. */
    COLI_SEGMENT_DTYPE_F32 = 1,
    /** IEEE 754 binary16. */
    COLI_SEGMENT_DTYPE_F16 = 2,
    /** The upper half of a binary32. */
    COLI_SEGMENT_DTYPE_BF16 = 3
} ColiSegmentDType;

/** An opened layer range. */
typedef struct ColiSegmentEngine ColiSegmentEngine;

/** One conversation in an opened layer range. */
typedef struct ColiSegmentSession ColiSegmentSession;

/**
 * What an opened engine is and can do. Two ranges chain when `state_schema`, `numeric_class`,
 * `state_dtype` and `state_width` are equal.
 */
typedef struct ColiSegmentCapabilities {
    /** `sizeof(ColiSegmentCapabilities)` of whoever fills or reads it. */
    uint32_t struct_size;
    /** `COLI_SEGMENT_ABI_VERSION`. */
    uint32_t abi_version;
    /** `COLI_SEGMENT_CAP_*`. */
    uint64_t flags;
    /** The adapter's id. */
    char engine_id[COLI_SEGMENT_ENGINE_ID_CAP];
    /** What rows at the boundary mean. */
    char state_schema[COLI_SEGMENT_STATE_SCHEMA_CAP];
    /** Engines of one class compute the same bits. */
    char numeric_class[COLI_SEGMENT_NUMERIC_CLASS_CAP];
    /** `ColiSegmentDType` of the rows. */
    uint32_t state_dtype;
    /** Numbers in a row. */
    uint32_t state_width;
    /** Most rows of a run; 0 for any number. */
    uint32_t max_batch_rows;
    /** Longest context the model allows; 0 for no limit. */
    uint32_t max_context_tokens;
    /** Layers of the whole model. */
    uint32_t num_layers;
    /** Zero. */
    uint32_t reserved_u32[7];
    /** Zero. */
    uint64_t reserved_u64[4];
} ColiSegmentCapabilities;

/** How an engine is opened. */
typedef struct ColiSegmentEngineOptions {
    /** `sizeof(ColiSegmentEngineOptions)`. */
    uint32_t struct_size;
    /** The model's directory. */
    const char *model_dir;
    /** First layer of the range. */
    uint32_t layer_begin;
    /** The layer after the last one of the range. */
    uint32_t layer_end;
    /** Longest context a session may ask for. */
    uint32_t context_tokens;
    /** Zero. */
    uint32_t reserved_u32;
    /** Most bytes the engine may take; 0 for no limit of the host's. */
    uint64_t memory_limit_bytes;
    /** Backends the host allows, `COLI_SEGMENT_CAP_CPU` and its like; 0 for any. */
    uint64_t backend_mask;
    /** Private to the adapter; may be NULL. */
    const void *resource_plan;
    /** Bytes at `resource_plan`. */
    size_t resource_plan_size;
} ColiSegmentEngineOptions;

/** How a session is created. */
typedef struct ColiSegmentSessionOptions {
    /** `sizeof(ColiSegmentSessionOptions)`. */
    uint32_t struct_size;
    /** Positions the session holds, from 1 to the engine's. */
    uint32_t context_tokens;
    /** Most bytes the session may take; 0 for no limit of the host's. */
    uint64_t memory_limit_bytes;
    /** Zero. */
    uint64_t reserved_u64[4];
} ColiSegmentSessionOptions;

/** Asked at intervals while a run computes; anything but 0 cancels the run. */
typedef int (*ColiSegmentCancelFn)(void *user_data);

/** A run: rows that follow what the session has, through the layers of its engine. */
typedef struct ColiSegmentRunRequest {
    /** `sizeof(ColiSegmentRunRequest)`. */
    uint32_t struct_size;
    /** Rows, at least 1. */
    uint32_t rows;
    /** Position of the first row: the number of rows the session has run. */
    uint64_t position;
    /** Token id of every row, or NULL where the engine needs none. */
    const int32_t *token_ids;
    /** `rows`, or 0 with NULL. */
    size_t token_count;
    /** Rows x `state_width` numbers of `state_dtype`. */
    const void *input;
    /** Exactly the bytes of these. */
    size_t input_bytes;
    /** Room for the same. */
    void *output;
    /** Exactly the bytes of these. */
    size_t output_bytes;
    /** Asked before and during the run; may be NULL. */
    ColiSegmentCancelFn should_cancel;
    /** Handed to `should_cancel`. */
    void *cancel_user_data;
    /** Zero. */
    uint64_t reserved_u64[4];
} ColiSegmentRunRequest;

/** Takes the next `size` bytes of a snapshot; 0 to go on, anything else aborts. */
typedef int (*ColiSegmentWriteFn)(void *user_data, const void *data, size_t size);

/**
 * Fills `data` with the next `size` bytes of a snapshot; 0 if all of them came, anything else
 * aborts.
 */
typedef int (*ColiSegmentReadFn)(void *user_data, void *data, size_t size);

/**
 * A family's implementation. Callbacks return 0, or anything else after writing a text to
 * `error`. Registered adapters are kept by address: they live and stay as they are from then on.
 */
typedef struct ColiSegmentAdapter {
    /** `sizeof(ColiSegmentAdapter)`. */
    uint32_t struct_size;
    /** `COLI_SEGMENT_ABI_VERSION`. */
    uint32_t abi_version;
    /** Below 64 bytes of `a-z`, `0-9`, `_` and `-`. */
    const char *engine_id;
    /** Opens a range and says what it can do. Mandatory. */
    int (*engine_open)(void **engine,
                       struct ColiSegmentCapabilities *capabilities,
                       const struct ColiSegmentEngineOptions *options,
                       char *error,
                       size_t error_size);
    /** Frees what `engine_open` made. Mandatory. */
    void (*engine_destroy)(void *engine);
    /** Creates an empty session. Mandatory. */
    int (*session_create)(void *engine,
                          void **session,
                          const struct ColiSegmentSessionOptions *options,
                          char *error,
                          size_t error_size);
    /** Frees a session. Mandatory. */
    void (*session_destroy)(void *session);
    /**
     * Runs rows; refuses any position but the next; leaves the session as it was where it fails.
     * Mandatory.
     */
    int (*session_run)(void *session,
                       const struct ColiSegmentRunRequest *request,
                       char *error,
                       size_t error_size);
    /** Writes the session to a stream. Together with `session_restore`, or neither. */
    int (*session_snapshot)(void *session,
                            ColiSegmentWriteFn write,
                            void *user_data,
                            char *error,
                            size_t error_size);
    /** Reads the session from a stream, all of it or none. */
    int (*session_restore)(void *session,
                           ColiSegmentReadFn read,
                           void *user_data,
                           char *error,
                           size_t error_size);
    /** NULL. */
    void (*reserved_fn[8])(void);
} ColiSegmentAdapter;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Adds an adapter, which must live and stay as it is from then on. 0, or -1 if it breaks a rule
 * or its id is taken.
 *
 * `adapter` is NULL or as long as it says, with a text or NULL as `engine_id`.
 */
int coli_segment_adapter_register(const struct ColiSegmentAdapter *adapter);

/**
 * The adapter with this id, or NULL.
 *
 * `engine_id` is NULL or ends with a NUL.
 */
const struct ColiSegmentAdapter *coli_segment_adapter_lookup(const char *engine_id);

/** How many adapters there are. */
int coli_segment_adapter_count(void);

/**
 * Opens a layer range. `*engine` is NULL where it fails.
 *
 * `engine_id` is NULL or ends with a NUL; `options` is NULL or as long as it says, with a text or
 * NULL as `model_dir`; `engine` is NULL or writable; `error` is NULL or `error_size` bytes.
 */
int coli_segment_engine_open(const char *engine_id,
                             const struct ColiSegmentEngineOptions *options,
                             struct ColiSegmentEngine **engine,
                             char *error,
                             size_t error_size);

/**
 * What an engine is and can do. A block longer than ours is zeroed in all its length first.
 *
 * `capabilities` is NULL or writable for as long as it says; `error` is NULL or `error_size`
 * bytes.
 */
int coli_segment_engine_capabilities(const struct ColiSegmentEngine *engine,
                                     struct ColiSegmentCapabilities *capabilities,
                                     char *error,
                                     size_t error_size);

/**
 * Closes an engine; refused while sessions of it live. NULL is fine.
 *
 * `error` is NULL or `error_size` bytes.
 */
int coli_segment_engine_close(struct ColiSegmentEngine *engine,
                              char *error,
                              size_t error_size);

/**
 * Creates an empty session. `*session` is NULL where it fails.
 *
 * `options` is NULL or as long as it says; `session` is NULL or writable; `error` is NULL or
 * `error_size` bytes.
 */
int coli_segment_session_create(struct ColiSegmentEngine *engine,
                                const struct ColiSegmentSessionOptions *options,
                                struct ColiSegmentSession **session,
                                char *error,
                                size_t error_size);

/**
 * Destroys a session, at the latest when the call that another thread has in it ends. NULL is
 * fine.
 */
void coli_segment_session_destroy(struct ColiSegmentSession *session);

/**
 * Runs the rows that follow what the session has. A run that fails leaves the session as it was.
 *
 * `request` is NULL or as long as it says, its buffers as long as they say, its callback callable
 * with its data; `error` is NULL or `error_size` bytes.
 */
int coli_segment_run(struct ColiSegmentSession *session,
                     const struct ColiSegmentRunRequest *request,
                     char *error,
                     size_t error_size);

/**
 * Writes a session to a stream of the host's.
 *
 * `write` is NULL or callable with `user_data`; `error` is NULL or `error_size` bytes.
 */
int coli_segment_snapshot(struct ColiSegmentSession *session,
                          ColiSegmentWriteFn write,
                          void *user_data,
                          char *error,
                          size_t error_size);

/**
 * Reads a session from a stream of the host's: all of it, or the session stays as it was.
 *
 * `read` is NULL or callable with `user_data`; `error` is NULL or `error_size` bytes.
 */
int coli_segment_restore(struct ColiSegmentSession *session,
                         ColiSegmentReadFn read,
                         void *user_data,
                         char *error,
                         size_t error_size);

#ifdef __cplusplus
}
#endif

#endif  /* COLI_SEGMENT_RUNTIME_H */
