/*
 * The Segment adapters of Lamella's model families.
 *
 * A host calls the registrars of the families it wants, before its first look-up. 0, or -1 if the
 * family is registered already.
 *
 * Generated from the Rust sources of liblamella; a test keeps both equal.
 */

#ifndef COLI_SEGMENT_ADAPTERS_H
#define COLI_SEGMENT_ADAPTERS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Registers `deepseek_v4`. */
int coli_deepseek_v4_segment_adapter_register(void);

/** Registers `glm`. */
int coli_glm_segment_adapter_register(void);

/** Registers `inkling`. */
int coli_inkling_segment_adapter_register(void);

/** Registers `kimi`. */
int coli_kimi_segment_adapter_register(void);

/** Registers `olmoe`. */
int coli_olmoe_segment_adapter_register(void);

/** Registers `qwen36`. */
int coli_qwen36_segment_adapter_register(void);

/** Registers `qwen38`. */
int coli_qwen38_segment_adapter_register(void);

#ifdef __cplusplus
}
#endif

#endif  /* COLI_SEGMENT_ADAPTERS_H */
