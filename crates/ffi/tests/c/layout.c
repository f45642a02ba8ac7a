/* Prints every size, offset and constant of the headers, for the Rust side to compare. */

#include "edge_runtime.h"
#include "lamella.h"
#include "segment_runtime.h"

#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field)                                                                  \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define VALUE(name) printf("%s %llu\n", #name, (unsigned long long)(name))

static void segment(void) {
    SIZE(ColiSegmentCapabilities);
    FIELD(ColiSegmentCapabilities, struct_size);
    FIELD(ColiSegmentCapabilities, abi_version);
    FIELD(ColiSegmentCapabilities, flags);
    FIELD(ColiSegmentCapabilities, engine_id);
    FIELD(ColiSegmentCapabilities, state_schema);
    FIELD(ColiSegmentCapabilities, numeric_class);
    FIELD(ColiSegmentCapabilities, state_dtype);
    FIELD(ColiSegmentCapabilities, state_width);
    FIELD(ColiSegmentCapabilities, max_batch_rows);
    FIELD(ColiSegmentCapabilities, max_context_tokens);
    FIELD(ColiSegmentCapabilities, num_layers);
    FIELD(ColiSegmentCapabilities, reserved_u32);
    FIELD(ColiSegmentCapabilities, reserved_u64);
    SIZE(ColiSegmentEngineOptions);
    FIELD(ColiSegmentEngineOptions, struct_size);
    FIELD(ColiSegmentEngineOptions, model_dir);
    FIELD(ColiSegmentEngineOptions, layer_begin);
    FIELD(ColiSegmentEngineOptions, layer_end);
    FIELD(ColiSegmentEngineOptions, context_tokens);
    FIELD(ColiSegmentEngineOptions, reserved_u32);
    FIELD(ColiSegmentEngineOptions, memory_limit_bytes);
    FIELD(ColiSegmentEngineOptions, backend_mask);
    FIELD(ColiSegmentEngineOptions, resource_plan);
    FIELD(ColiSegmentEngineOptions, resource_plan_size);
    SIZE(ColiSegmentSessionOptions);
    FIELD(ColiSegmentSessionOptions, struct_size);
    FIELD(ColiSegmentSessionOptions, context_tokens);
    FIELD(ColiSegmentSessionOptions, memory_limit_bytes);
    FIELD(ColiSegmentSessionOptions, reserved_u64);
    SIZE(ColiSegmentRunRequest);
    FIELD(ColiSegmentRunRequest, struct_size);
    FIELD(ColiSegmentRunRequest, rows);
    FIELD(ColiSegmentRunRequest, position);
    FIELD(ColiSegmentRunRequest, token_ids);
    FIELD(ColiSegmentRunRequest, token_count);
    FIELD(ColiSegmentRunRequest, input);
    FIELD(ColiSegmentRunRequest, input_bytes);
    FIELD(ColiSegmentRunRequest, output);
    FIELD(ColiSegmentRunRequest, output_bytes);
    FIELD(ColiSegmentRunRequest, should_cancel);
    FIELD(ColiSegmentRunRequest, cancel_user_data);
    FIELD(ColiSegmentRunRequest, reserved_u64);
    SIZE(ColiSegmentAdapter);
    FIELD(ColiSegmentAdapter, struct_size);
    FIELD(ColiSegmentAdapter, abi_version);
    FIELD(ColiSegmentAdapter, engine_id);
    FIELD(ColiSegmentAdapter, engine_open);
    FIELD(ColiSegmentAdapter, engine_destroy);
    FIELD(ColiSegmentAdapter, session_create);
    FIELD(ColiSegmentAdapter, session_destroy);
    FIELD(ColiSegmentAdapter, session_run);
    FIELD(ColiSegmentAdapter, session_snapshot);
    FIELD(ColiSegmentAdapter, session_restore);
    FIELD(ColiSegmentAdapter, reserved_fn);
    VALUE(COLI_SEGMENT_ABI_VERSION);
    VALUE(COLI_SEGMENT_ENGINE_ID_CAP);
    VALUE(COLI_SEGMENT_STATE_SCHEMA_CAP);
    VALUE(COLI_SEGMENT_NUMERIC_CLASS_CAP);
    VALUE(COLI_SEGMENT_CAP_TOKEN_IDS);
    VALUE(COLI_SEGMENT_CAP_SNAPSHOT);
    VALUE(COLI_SEGMENT_CAP_RANGE_NATIVE);
    VALUE(COLI_SEGMENT_CAP_MULTI_SESSION);
    VALUE(COLI_SEGMENT_CAP_CPU);
    VALUE(COLI_SEGMENT_CAP_CUDA);
    VALUE(COLI_SEGMENT_CAP_HIP);
    VALUE(COLI_SEGMENT_CAP_METAL);
    VALUE(COLI_SEGMENT_CAP_VULKAN);
    VALUE(COLI_SEGMENT_CAP_BACKEND_MASK);
    VALUE(COLI_SEGMENT_DTYPE_INVALID);
    VALUE(COLI_SEGMENT_DTYPE_F32);
    VALUE(COLI_SEGMENT_DTYPE_F16);
    VALUE(COLI_SEGMENT_DTYPE_BF16);
}

static void edge(void) {
    SIZE(ColiEdgeCapabilities);
    FIELD(ColiEdgeCapabilities, struct_size);
    FIELD(ColiEdgeCapabilities, abi_version);
    FIELD(ColiEdgeCapabilities, flags);
    FIELD(ColiEdgeCapabilities, engine_id);
    FIELD(ColiEdgeCapabilities, state_schema);
    FIELD(ColiEdgeCapabilities, numeric_class);
    FIELD(ColiEdgeCapabilities, tokenizer_class);
    FIELD(ColiEdgeCapabilities, state_dtype);
    FIELD(ColiEdgeCapabilities, state_width);
    FIELD(ColiEdgeCapabilities, vocab_size);
    FIELD(ColiEdgeCapabilities, max_batch_rows);
    FIELD(ColiEdgeCapabilities, max_context_tokens);
    FIELD(ColiEdgeCapabilities, num_layers);
    FIELD(ColiEdgeCapabilities, bos_token_id);
    FIELD(ColiEdgeCapabilities, eos_token_id);
    FIELD(ColiEdgeCapabilities, reserved_u32);
    FIELD(ColiEdgeCapabilities, resident_bytes);
    FIELD(ColiEdgeCapabilities, reserved_u64);
    SIZE(ColiEdgeEngineOptions);
    FIELD(ColiEdgeEngineOptions, struct_size);
    FIELD(ColiEdgeEngineOptions, model_dir);
    FIELD(ColiEdgeEngineOptions, memory_limit_bytes);
    FIELD(ColiEdgeEngineOptions, backend_mask);
    FIELD(ColiEdgeEngineOptions, resource_plan);
    FIELD(ColiEdgeEngineOptions, resource_plan_size);
    FIELD(ColiEdgeEngineOptions, reserved_u64);
    SIZE(ColiEdgeEmbedRequest);
    FIELD(ColiEdgeEmbedRequest, struct_size);
    FIELD(ColiEdgeEmbedRequest, rows);
    FIELD(ColiEdgeEmbedRequest, token_ids);
    FIELD(ColiEdgeEmbedRequest, token_count);
    FIELD(ColiEdgeEmbedRequest, output);
    FIELD(ColiEdgeEmbedRequest, output_bytes);
    FIELD(ColiEdgeEmbedRequest, should_cancel);
    FIELD(ColiEdgeEmbedRequest, cancel_user_data);
    FIELD(ColiEdgeEmbedRequest, reserved_u64);
    SIZE(ColiEdgeSelectRequest);
    FIELD(ColiEdgeSelectRequest, struct_size);
    FIELD(ColiEdgeSelectRequest, rows);
    FIELD(ColiEdgeSelectRequest, input);
    FIELD(ColiEdgeSelectRequest, input_bytes);
    FIELD(ColiEdgeSelectRequest, token_ids);
    FIELD(ColiEdgeSelectRequest, token_capacity);
    FIELD(ColiEdgeSelectRequest, scores);
    FIELD(ColiEdgeSelectRequest, score_capacity);
    FIELD(ColiEdgeSelectRequest, should_cancel);
    FIELD(ColiEdgeSelectRequest, cancel_user_data);
    FIELD(ColiEdgeSelectRequest, reserved_u64);
    SIZE(ColiEdgeLogitsRequest);
    FIELD(ColiEdgeLogitsRequest, struct_size);
    FIELD(ColiEdgeLogitsRequest, rows);
    FIELD(ColiEdgeLogitsRequest, input);
    FIELD(ColiEdgeLogitsRequest, input_bytes);
    FIELD(ColiEdgeLogitsRequest, logits);
    FIELD(ColiEdgeLogitsRequest, logits_capacity);
    FIELD(ColiEdgeLogitsRequest, should_cancel);
    FIELD(ColiEdgeLogitsRequest, cancel_user_data);
    FIELD(ColiEdgeLogitsRequest, reserved_u64);
    SIZE(ColiEdgeAdapter);
    FIELD(ColiEdgeAdapter, struct_size);
    FIELD(ColiEdgeAdapter, abi_version);
    FIELD(ColiEdgeAdapter, engine_id);
    FIELD(ColiEdgeAdapter, engine_open);
    FIELD(ColiEdgeAdapter, engine_destroy);
    FIELD(ColiEdgeAdapter, tokenize);
    FIELD(ColiEdgeAdapter, detokenize);
    FIELD(ColiEdgeAdapter, embed);
    FIELD(ColiEdgeAdapter, select);
    FIELD(ColiEdgeAdapter, logits);
    FIELD(ColiEdgeAdapter, reserved_fn);
    VALUE(COLI_EDGE_ABI_VERSION);
    VALUE(COLI_EDGE_ENGINE_ID_CAP);
    VALUE(COLI_EDGE_STATE_SCHEMA_CAP);
    VALUE(COLI_EDGE_NUMERIC_CLASS_CAP);
    VALUE(COLI_EDGE_TOKENIZER_CLASS_CAP);
    VALUE(COLI_EDGE_CAP_TOKENIZE);
    VALUE(COLI_EDGE_CAP_DETOKENIZE);
    VALUE(COLI_EDGE_CAP_GREEDY);
    VALUE(COLI_EDGE_CAP_LOGITS);
    VALUE(COLI_EDGE_CAP_CPU);
    VALUE(COLI_EDGE_CAP_CUDA);
    VALUE(COLI_EDGE_CAP_HIP);
    VALUE(COLI_EDGE_CAP_METAL);
    VALUE(COLI_EDGE_CAP_VULKAN);
    VALUE(COLI_EDGE_CAP_BACKEND_MASK);
    VALUE(COLI_EDGE_DTYPE_INVALID);
    VALUE(COLI_EDGE_DTYPE_F32);
    VALUE(COLI_EDGE_DTYPE_F16);
    VALUE(COLI_EDGE_DTYPE_BF16);
}

static void lamella(void) {
    SIZE(LamellaSegmentStatistics);
    FIELD(LamellaSegmentStatistics, struct_size);
    FIELD(LamellaSegmentStatistics, reserved_u32);
    FIELD(LamellaSegmentStatistics, weight_bytes);
    FIELD(LamellaSegmentStatistics, workspace_bytes);
    FIELD(LamellaSegmentStatistics, sessions);
    FIELD(LamellaSegmentStatistics, runs);
    FIELD(LamellaSegmentStatistics, rows);
    FIELD(LamellaSegmentStatistics, cancelled);
    FIELD(LamellaSegmentStatistics, failed);
    FIELD(LamellaSegmentStatistics, run_nanoseconds);
    FIELD(LamellaSegmentStatistics, wait_nanoseconds);
    FIELD(LamellaSegmentStatistics, snapshot_bytes_written);
    FIELD(LamellaSegmentStatistics, snapshot_bytes_read);
    FIELD(LamellaSegmentStatistics, expert_count);
    FIELD(LamellaSegmentStatistics, expert_slots);
    FIELD(LamellaSegmentStatistics, expert_uses);
    FIELD(LamellaSegmentStatistics, expert_hits);
    FIELD(LamellaSegmentStatistics, expert_bytes_read);
    FIELD(LamellaSegmentStatistics, expert_wait_nanoseconds);
    SIZE(LamellaEdgeStatistics);
    FIELD(LamellaEdgeStatistics, struct_size);
    FIELD(LamellaEdgeStatistics, reserved_u32);
    FIELD(LamellaEdgeStatistics, weight_bytes);
    FIELD(LamellaEdgeStatistics, weight_bytes_on_disk);
    FIELD(LamellaEdgeStatistics, workspace_bytes);
    FIELD(LamellaEdgeStatistics, rows_embedded);
    FIELD(LamellaEdgeStatistics, rows_selected);
    FIELD(LamellaEdgeStatistics, rows_of_logits);
    FIELD(LamellaEdgeStatistics, cancelled);
    FIELD(LamellaEdgeStatistics, failed);
    FIELD(LamellaEdgeStatistics, run_nanoseconds);
    FIELD(LamellaEdgeStatistics, wait_nanoseconds);
    VALUE(LAMELLA_OK);
    VALUE(LAMELLA_ARGUMENT);
    VALUE(LAMELLA_HANDLE);
    VALUE(LAMELLA_NOT_FOUND);
    VALUE(LAMELLA_DUPLICATE);
    VALUE(LAMELLA_BUSY);
    VALUE(LAMELLA_UNSUPPORTED);
    VALUE(LAMELLA_BROKEN_ADAPTER);
    VALUE(LAMELLA_ADAPTER);
    VALUE(LAMELLA_CANCELLED);
    VALUE(LAMELLA_MEMORY);
    VALUE(LAMELLA_PANIC);
    VALUE(LAMELLA_MODEL);
    VALUE(LAMELLA_MEMORY_LIMIT);
    VALUE(LAMELLA_POSITION);
    VALUE(LAMELLA_SNAPSHOT);
    VALUE(LAMELLA_NON_FINITE);
}

int main(void) {
    segment();
    edge();
    lamella();
    return 0;
}
