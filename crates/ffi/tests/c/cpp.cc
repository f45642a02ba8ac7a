// All headers in one C++ program, with a call through each.

#include "edge_adapters.h"
#include "edge_runtime.h"
#include "lamella.h"
#include "segment_adapters.h"
#include "segment_runtime.h"

#include <cstdio>
#include <cstring>
#include <string>

// Callbacks may be lambdas without captures.
static int poll_never(void *user) {
    auto cancel = [](void *) -> int { return 0; };
    return cancel(user);
}

int main() {
    ColiSegmentEngineOptions options = {};
    ColiEdgeEngineOptions ends = {};
    ColiSegmentEngine *engine = nullptr;
    ColiEdgeEngine *edge = nullptr;
    ColiSegmentCancelFn cancel = poll_never;
    std::string text(64, '\0');
    options.struct_size = sizeof options;
    ends.struct_size = sizeof ends;
    ends.model_dir = "nowhere";
    if (cancel(nullptr) != 0 || coli_segment_adapter_count() != 0) return 1;
    if (coli_segment_engine_open("nobody", &options, &engine, &text[0], text.size()) == 0) return 1;
    if (lamella_last_error_code() != LAMELLA_ARGUMENT) return 1;
    if (coli_edge_engine_open("nobody", &ends, &edge, &text[0], text.size()) == 0) return 1;
    if (lamella_last_error_code() != LAMELLA_NOT_FOUND) return 1;
    if (text.find("nobody") == std::string::npos) return 1;
    if (coli_olmoe_segment_adapter_register() || coli_olmoe_edge_adapter_register()) return 1;
    return coli_segment_adapter_lookup("olmoe") ? 0 : 1;
}
