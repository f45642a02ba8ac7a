/*
 * Edge, version 2: the ends of a model: tokenizer, embedding, final transform, head.
 *
 * Functions return 0, or -1 after writing a text with a NUL to `error`, which may be NULL with
 * size 0. Adapters are registered before the first look-up; look-ups may then come from any thread.
 *
 * Generated from the Rust sources of liblamella; a test keeps both equal.
 */

#ifndef COLI_EDGE_RUNTIME_H
#define COLI_EDGE_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/** Version of this interface, as every adapter and every capability block carries it. */
#define COLI_EDGE_ABI_VERSION 2u

/** Bytes of an engine id, its NUL included. */
#define COLI_EDGE_ENGINE_ID_CAP 64

/** Bytes of a state schema, its NUL included. */
#define COLI_EDGE_STATE_SCHEMA_CAP 128

/** Bytes of a numeric class, its NUL included. */
#define COLI_EDGE_NUMERIC_CLASS_CAP 96

/** Bytes of a tokenizer class, its NUL included. */
#define COLI_EDGE_TOKENIZER_CLASS_CAP 64

/** `flags`: text becomes ids. */
#define COLI_EDGE_CAP_TOKENIZE 1ull

/** `flags`: ids become text. */
#define COLI_EDGE_CAP_DETOKENIZE 2ull

/** `flags`: the most likely id of a row can be had. */
#define COLI_EDGE_CAP_GREEDY 4ull

/** `flags`: the logits of a row can be had. */
#define COLI_EDGE_CAP_LOGITS 8ull

/** `flags` and `backend_mask`: the processor computes. */
#define COLI_EDGE_CAP_CPU 256ull

/** `flags` and `backend_mask`: a CUDA device computes. */
#define COLI_EDGE_CAP_CUDA 512ull

/** `flags` and `backend_mask`: a HIP device computes. */
#define COLI_EDGE_CAP_HIP 1024ull

/** `flags` and `backend_mask`: a Metal device computes. */
#define COLI_EDGE_CAP_METAL 2048ull

/** `flags` and `backend_mask`: a Vulkan device computes. */
#define COLI_EDGE_CAP_VULKAN 4096ull

/** All backends. */
#define COLI_EDGE_CAP_BACKEND_MASK 7936ull

/** Number formats of boundary activations. */
typedef enum ColiEdgeDType {
    /** No format: refused everywhere. */
    COLI_EDGE_DTYPE_INVALID = 0,
    /** IEEE 754 binary32. */
    COLI_EDGE_DTYPE_F32 = 1,
    /** IEEE 754 binary16. */
    COLI_EDGE_DTYPE_F16 = 2,
    /** The upper half of a binary32. */
    COLI_EDGE_DTYPE_BF16 = 3
} ColiEdgeDType;

/** The opened ends of a model. */
typedef struct ColiEdgeEngine ColiEdgeEngine;

/**
 * What an opened engine is and can do. It fits a segment when `state_schema`, `numeric_class`,
 * `state_dtype` and `state_width` are equal.
 */
typedef struct ColiEdgeCapabilities {
    /** `sizeof(ColiEdgeCapabilities)` of whoever fills or reads it. */
    uint32_t struct_size;
    /** `COLI_EDGE_ABI_VERSION`. */
    uint32_t abi_version;
    /** `COLI_EDGE_CAP_*`. */
    uint64_t flags;
    /** The adapter's id. */
    char engine_id[COLI_EDGE_ENGINE_ID_CAP];
    /** What rows at the boundary mean. */
    char state_schema[COLI_EDGE_STATE_SCHEMA_CAP];
    /** Engines of one class compute the same bits. */
    char numeric_class[COLI_EDGE_NUMERIC_CLASS_CAP];
    /** Tokenizers of one class make the same ids. */
    char tokenizer_class[COLI_EDGE_TOKENIZER_CLASS_CAP];
    /** `ColiEdgeDType` of the rows. */
    uint32_t state_dtype;
    /** Numbers in a row. */
    uint32_t state_width;
    /** Ids run from 0 to below this. */
    uint32_t vocab_size;
    /** Most rows of a call; 0 for any number. */
    uint32_t max_batch_rows;
    /** Longest context the model allows; 0 for no limit. */
    uint32_t max_context_tokens;
    /** Layers of the whole model. */
    uint32_t num_layers;
    /** Id that begins a text, or -1. */
    int32_t bos_token_id;
    /** Id that ends an answer, or -1. */
    int32_t eos_token_id;
    /** Zero. */
    uint32_t reserved_u32[4];
    /** Memory the engine holds. */
    uint64_t resident_bytes;
    /** Zero. */
    uint64_t reserved_u64[3];
} ColiEdgeCapabilities;

/** How an engine is opened. */
typedef struct ColiEdgeEngineOptions {
    /** `sizeof(ColiEdgeEngineOptions)`. */
    uint32_t struct_size;
    /** The model's directory. */
    const char *model_dir;
    /** Most bytes the engine may take; 0 for no limit of the host's. */
    uint64_t memory_limit_bytes;
    /** Backends the host allows, `COLI_EDGE_CAP_CPU` and its like; 0 for any. */
    uint64_t backend_mask;
    /** Private to the adapter; may be NULL. */
    const void *resource_plan;
    /** Bytes at `resource_plan`. */
    size_t resource_plan_size;
    /** Zero. */
    uint64_t reserved_u64[3];
} ColiEdgeEngineOptions;

/** Asked at intervals while a call computes; anything but 0 cancels the call. */
typedef int (*ColiEdgeCancelFn)(void *user_data);

/** Token ids to rows for the first range. */
typedef struct ColiEdgeEmbedRequest {
    /** `sizeof(ColiEdgeEmbedRequest)`. */
    uint32_t struct_size;
    /** Rows, at least 1. */
    uint32_t rows;
    /** An id for every row. */
    const int32_t *token_ids;
    /** `rows`. */
    size_t token_count;
    /** Room for rows x `state_width` numbers of `state_dtype`. */
    void *output;
    /** Exactly the bytes of these. */
    size_t output_bytes;
    /** Asked before and during the call; may be NULL. */
    ColiEdgeCancelFn should_cancel;
    /** Handed to `should_cancel`. */
    void *cancel_user_data;
    /** Zero. */
    uint64_t reserved_u64[3];
} ColiEdgeEmbedRequest;

/** Rows of the last range to the most likely id of each; ties go to the lowest id. */
typedef struct ColiEdgeSelectRequest {
    /** `sizeof(ColiEdgeSelectRequest)`. */
    uint32_t struct_size;
    /** Rows, at least 1. */
    uint32_t rows;
    /** Rows x `state_width` numbers of `state_dtype`. */
    const void *input;
    /** Exactly the bytes of these. */
    size_t input_bytes;
    /** Room for an id a row. */
    int32_t *token_ids;
    /** Ids that fit, at least `rows`. */
    size_t token_capacity;
    /** Room for the logit of each id, or NULL. */
    float *scores;
    /** Scores that fit, at least `rows`, or 0 with NULL. */
    size_t score_capacity;
    /** Asked before and during the call; may be NULL. */
    ColiEdgeCancelFn should_cancel;
    /** Handed to `should_cancel`. */
    void *cancel_user_data;
    /** Zero. */
    uint64_t reserved_u64[3];
} ColiEdgeSelectRequest;

/** Rows of the last range to logits. */
typedef struct ColiEdgeLogitsRequest {
    /** `sizeof(ColiEdgeLogitsRequest)`. */
    uint32_t struct_size;
    /** Rows, at least 1. */
    uint32_t rows;
    /** Rows x `state_width` numbers of `state_dtype`. */
    const void *input;
    /** Exactly the bytes of these. */
    size_t input_bytes;
    /** Room for rows x `vocab_size` logits. */
    float *logits;
    /** Floats that fit. */
    size_t logits_capacity;
    /** Asked before and during the call; may be NULL. */
    ColiEdgeCancelFn should_cancel;
    /** Handed to `should_cancel`. */
    void *cancel_user_data;
    /** Zero. */
    uint64_t reserved_u64[3];
} ColiEdgeLogitsRequest;

/**
 * A family's implementation. Callbacks return 0, or anything else after writing a text to
 * `error`. Registered adapters are kept by address: they live and stay as they are from then on.
 */
typedef struct ColiEdgeAdapter {
    /** `sizeof(ColiEdgeAdapter)`. */
    uint32_t struct_size;
    /** `COLI_EDGE_ABI_VERSION`. */
    uint32_t abi_version;
    /** Below 64 bytes of `a-z`, `0-9`, `_` and `-`. */
    const char *engine_id;
    /** Opens the ends of a model and says what they can do. Mandatory. */
    int (*engine_open)(void **engine,
                       struct ColiEdgeCapabilities *capabilities,
                       const struct ColiEdgeEngineOptions *options,
                       char *error,
                       size_t error_size);
    /** Frees what `engine_open` made. Mandatory. */
    void (*engine_destroy)(void *engine);
    /** Text to ids. Together with `detokenize`, or neither. */
    int (*tokenize)(void *engine,
                    const char *text,
                    size_t text_bytes,
                    int32_t *token_ids,
                    size_t token_capacity,
                    size_t *token_count,
                    char *error,
                    size_t error_size);
    /** Ids to text. */
    int (*detokenize)(void *engine,
                      const int32_t *token_ids,
                      size_t token_count,
                      char *text,
                      size_t text_capacity,
                      size_t *text_bytes,
                      char *error,
                      size_t error_size);
    /** Ids to rows. Mandatory. */
    int (*embed)(void *engine,
                 const struct ColiEdgeEmbedRequest *request,
                 char *error,
                 size_t error_size);
    /** Rows to ids. Optional. */
    int (*select)(void *engine,
                  const struct ColiEdgeSelectRequest *request,
                  char *error,
                  size_t error_size);
    /** Rows to logits. Optional. */
    int (*logits)(void *engine,
                  const struct ColiEdgeLogitsRequest *request,
                  char *error,
                  size_t error_size);
    /** NULL. */
    void (*reserved_fn[7])(void);
} ColiEdgeAdapter;

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Adds an adapter, which must live and stay as it is from then on. 0, or -1 if it breaks a rule
 * or its id is taken.
 *
 * `adapter` is NULL or as long as it says, with a text or NULL as `engine_id`.
 */
int coli_edge_adapter_register(const struct ColiEdgeAdapter *adapter);

/**
 * The adapter with this id, or NULL.
 *
 * `engine_id` is NULL or ends with a NUL.
 */
const struct ColiEdgeAdapter *coli_edge_adapter_lookup(const char *engine_id);

/** How many adapters there are. */
int coli_edge_adapter_count(void);

/**
 * Opens the ends of a model. `*engine` is NULL where it fails.
 *
 * `engine_id` is NULL or ends with a NUL; `options` is NULL or as long as it says, with a text or
 * NULL as `model_dir`; `engine` is NULL or writable; `error` is NULL or `error_size` bytes.
 */
int coli_edge_engine_open(const char *engine_id,
                          const struct ColiEdgeEngineOptions *options,
                          struct ColiEdgeEngine **engine,
                          char *error,
                          size_t error_size);

/**
 * What an engine is and can do. A block longer than ours is zeroed in all its length first.
 *
 * `capabilities` is NULL or writable for as long as it says; `error` is NULL or `error_size`
 * bytes.
 */
int coli_edge_engine_capabilities(const struct ColiEdgeEngine *engine,
                                  struct ColiEdgeCapabilities *capabilities,
                                  char *error,
                                  size_t error_size);

/** Closes an engine, at the latest when the calls that other threads have in it end. NULL is fine. */
void coli_edge_engine_close(struct ColiEdgeEngine *engine);

/**
 * Text to ids. With `token_ids` NULL and a capacity of 0 they are only counted.
 *
 * `text` has `text_bytes` bytes; `token_ids` has room for `token_capacity` ids; `token_count` is
 * NULL or writable; `error` is NULL or `error_size` bytes.
 */
int coli_edge_tokenize(struct ColiEdgeEngine *engine,
                       const char *text,
                       size_t text_bytes,
                       int32_t *token_ids,
                       size_t token_capacity,
                       size_t *token_count,
                       char *error,
                       size_t error_size);

/**
 * Ids to text, with a NUL that `text_bytes` does not count. With `text` NULL and a capacity of 0
 * the bytes are only counted.
 *
 * `token_ids` has `token_count` ids; `text` has room for `text_capacity` bytes; `text_bytes` is
 * NULL or writable; `error` is NULL or `error_size` bytes.
 */
int coli_edge_detokenize(struct ColiEdgeEngine *engine,
                         const int32_t *token_ids,
                         size_t token_count,
                         char *text,
                         size_t text_capacity,
                         size_t *text_bytes,
                         char *error,
                         size_t error_size);

/**
 * Ids to the rows that the first range takes.
 *
 * `request` is NULL or as long as it says, its buffers as long as they say, its callback callable
 * with its data; `error` is NULL or `error_size` bytes.
 */
int coli_edge_embed(struct ColiEdgeEngine *engine,
                    const struct ColiEdgeEmbedRequest *request,
                    char *error,
                    size_t error_size);

/**
 * The most likely id after each row of the last range.
 *
 * As `coli_edge_embed`.
 */
int coli_edge_select(struct ColiEdgeEngine *engine,
                     const struct ColiEdgeSelectRequest *request,
                     char *error,
                     size_t error_size);

/**
 * The logits after each row of the last range.
 *
 * As `coli_edge_embed`.
 */
int coli_edge_logits(struct ColiEdgeEngine *engine,
                     const struct ColiEdgeLogitsRequest *request,
                     char *error,
                     size_t error_size);

#ifdef __cplusplus
}
#endif

#endif  /* COLI_EDGE_RUNTIME_H */
