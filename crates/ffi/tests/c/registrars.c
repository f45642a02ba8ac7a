/* The registrars of the families, with the fixtures behind them: what a host is linked with where
 * there is no model. */

#include "edge_adapters.h"
#include "fixtures.h"
#include "segment_adapters.h"

#define REGISTRARS(family, fixture)                                                         \
    int coli_##family##_segment_adapter_register(void) {                                    \
        return fixture_register_segment(&fixtures[fixture]);                                \
    }                                                                                       \
    int coli_##family##_edge_adapter_register(void) {                                       \
        return fixture_register_edge(&fixtures[fixture]);                                   \
    }
REGISTRARS(glm, 0)
REGISTRARS(inkling, 1)
REGISTRARS(kimi, 2)
REGISTRARS(olmoe, 3)
REGISTRARS(qwen36, 4)
REGISTRARS(qwen38, 5)
REGISTRARS(deepseek_v4, 6)
