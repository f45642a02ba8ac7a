/* The real suites: a small model of a family over the adapters of the library, against itself in
 * one piece and against an independent oracle's tokens.
 *
 *     real SUITE FAMILY MODEL_DIR IDS_FILE [SECONDS] */

#include "edge_adapters.h"
#include "real.h"
#include "segment_adapters.h"

#include <stdlib.h>
#include <string.h>

static int (*const registrars[])(void) = {
    coli_deepseek_v4_segment_adapter_register, coli_deepseek_v4_edge_adapter_register,
    coli_glm_segment_adapter_register,         coli_glm_edge_adapter_register,
    coli_inkling_segment_adapter_register,     coli_inkling_edge_adapter_register,
    coli_kimi_segment_adapter_register,        coli_kimi_edge_adapter_register,
    coli_olmoe_segment_adapter_register,       coli_olmoe_edge_adapter_register,
    coli_qwen36_segment_adapter_register,      coli_qwen36_edge_adapter_register,
    coli_qwen38_segment_adapter_register,      coli_qwen38_edge_adapter_register,
};

/* The identity of two engines is the same, so that they may be chained. */
static void check_identity(const Model *model, ColiSegmentEngine *engine) {
    ColiSegmentCapabilities said;
    memset(&said, 0, sizeof said);
    said.struct_size = sizeof said;
    OK(coli_segment_engine_capabilities(engine, &said, ERROR));
    CHECK(strcmp(said.engine_id, model->family) == 0);
    CHECK(strcmp(said.state_schema, model->ends.state_schema) == 0);
    CHECK(strcmp(said.numeric_class, model->ends.numeric_class) == 0);
    CHECK(said.state_dtype == COLI_SEGMENT_DTYPE_F32 && said.state_width == model->width);
    CHECK(said.num_layers == model->ends.num_layers);
    CHECK(said.max_context_tokens == model->ends.max_context_tokens);
    CHECK(said.flags & COLI_SEGMENT_CAP_SNAPSHOT && said.flags & COLI_SEGMENT_CAP_RANGE_NATIVE);
    CHECK(said.flags & COLI_SEGMENT_CAP_MULTI_SESSION && said.flags & COLI_SEGMENT_CAP_CPU);
}

/* Everything through ranges that meet at `cuts`, `chunk` rows at a time. */
static void chain(const Model *model, const uint32_t *cuts, int ranges, uint32_t chunk) {
    Part parts[3];
    float *in = demand(chunk * model->width * sizeof *in);
    float *out = demand(chunk * model->width * sizeof *out);
    for (int r = 0; r < ranges; r++) {
        parts[r] = part_open(model, cuts[r], cuts[r + 1]);
        check_identity(model, parts[r].engine);
    }
    for (uint32_t at = 0; at < model->total; at += chunk) {
        const uint32_t rows = model->total - at < chunk ? model->total - at : chunk;
        memcpy(in, model->embedded + at * model->width, rows * model->width * sizeof *in);
        for (int r = 0; r < ranges; r++) {
            feed(model, parts[r].session, at, rows, in, out);
            memcpy(in, out, rows * model->width * sizeof *in);
        }
        CHECK(as_expected(model, at, rows, out));
    }
    for (int r = 0; r < ranges; r++) part_close(parts[r]);
    free(in);
    free(out);
}

void suite_chain(const Model *model) {
    const uint32_t layers = model->ends.num_layers;
    const uint32_t whole[2] = {0, layers};
    chain(model, whole, 1, 1);
    for (uint32_t at = 1; at < layers; at++) {
        const uint32_t cuts[3] = {0, at, layers};
        chain(model, cuts, 2, CHUNK);
    }
    const uint32_t thirds[4] = {0, layers / 3, 2 * layers / 3, layers};
    chain(model, thirds, 3, 5);
    const uint32_t edges[4] = {0, 1, layers - 1, layers};
    chain(model, edges, 3, model->total);
}

/* Text of ids; to be freed. */
static char *text_of(const Model *model, const int32_t *ids, size_t count, size_t *bytes) {
    OK(coli_edge_detokenize(model->edge, ids, count, NULL, 0, bytes, ERROR));
    const size_t size = *bytes + 1;
    char *text = demand(size);
    REFUSED(coli_edge_detokenize(model->edge, ids, count, text, size - 1, bytes, ERROR));
    OK(coli_edge_detokenize(model->edge, ids, count, text, size, bytes, ERROR));
    CHECK(*bytes == size - 1 && text[*bytes] == 0);
    return text;
}

/* Ids to text and back are the same ids; added tokens are among them. */
static void round_trip(const Model *model, const int32_t *ids, size_t count) {
    size_t bytes = 0, again = 0;
    char *text = text_of(model, ids, count, &bytes);
    int32_t *back = demand((count + 1) * sizeof *back);
    OK(coli_edge_tokenize(model->edge, text, bytes, NULL, 0, &again, ERROR));
    CHECK(again == count);
    if (count > 1)
        REFUSED(coli_edge_tokenize(model->edge, text, bytes, back, count - 1, &again, ERROR));
    OK(coli_edge_tokenize(model->edge, text, bytes, back, count, &again, ERROR));
    CHECK(again == count && memcmp(ids, back, count * sizeof *ids) == 0);
    free(text);
    free(back);
}

/* The id that follows a row. */
static int32_t choose(const Model *model, const float *row) {
    ColiEdgeSelectRequest select;
    ColiEdgeLogitsRequest score;
    int32_t chosen = -1, best = 0;
    float value = 0, *logits = demand(model->ends.vocab_size * sizeof *logits);
    memset(&select, 0, sizeof select);
    select.struct_size = sizeof select;
    select.rows = 1;
    select.input = row;
    select.input_bytes = model->width * sizeof *row;
    select.token_ids = &chosen;
    select.token_capacity = 1;
    select.scores = &value;
    select.score_capacity = 1;
    OK(coli_edge_select(model->edge, &select, ERROR));
    memset(&score, 0, sizeof score);
    score.struct_size = sizeof score;
    score.rows = 1;
    score.input = row;
    score.input_bytes = select.input_bytes;
    score.logits = logits;
    score.logits_capacity = model->ends.vocab_size;
    OK(coli_edge_logits(model->edge, &score, ERROR));
    for (uint32_t id = 1; id < model->ends.vocab_size; id++)
        if (logits[id] > logits[best]) best = (int32_t)id;
    CHECK(best == chosen && logits[best] == value);
    /* Nothing may be written over rows that are still to be read. */
    score.logits = (float *)row;
    REFUSED(coli_edge_logits(model->edge, &score, ERROR));
    CHECK(strstr(error, "keep them apart"));
    select.token_ids = (int32_t *)row + model->width - 1;
    REFUSED(coli_edge_select(model->edge, &select, ERROR));
    CHECK(strstr(error, "keep them apart"));
    free(logits);
    return chosen;
}

void suite_text(const Model *model) {
    const uint32_t layers = model->ends.num_layers;
    Part first = part_open(model, 0, layers / 2), second = part_open(model, layers / 2, layers);
    float *rows = demand(model->total * model->width * sizeof *rows), *last;
    uint32_t position = model->prompt;
    round_trip(model, model->ids, model->total);
    for (int32_t id = 0; id < (int32_t)model->ends.vocab_size; id++) round_trip(model, &id, 1);
    memcpy(rows, model->embedded, model->prompt * model->width * sizeof *rows);
    feed(model, first.session, 0, position, rows, rows);
    feed(model, second.session, 0, position, rows, rows);
    for (uint32_t at = 0; at < position; at++) choose(model, rows + at * model->width);
    last = rows + (position - 1) * model->width;
    for (; position < model->total; position++) {
        const int32_t next = choose(model, last);
        ColiEdgeEmbedRequest embed;
        CHECK(next == model->ids[position]);
        memset(&embed, 0, sizeof embed);
        embed.struct_size = sizeof embed;
        embed.rows = 1;
        embed.token_ids = &next;
        embed.token_count = 1;
        embed.output = rows;
        embed.output_bytes = model->width * sizeof *rows;
        OK(coli_edge_embed(model->edge, &embed, ERROR));
        feed(model, first.session, position, 1, rows, rows);
        feed(model, second.session, position, 1, rows, rows);
        last = rows;
    }
    part_close(first);
    part_close(second);
    free(rows);
}

int main(int argc, char **argv) {
    static Model model;
    const char *suite = argc > 4 ? argv[1] : "";
    const double seconds = argc > 5 ? atof(argv[5]) : 5;
    if (argc < 5) {
        fprintf(stderr, "usage: real SUITE FAMILY MODEL_DIR IDS_FILE [SECONDS]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof registrars / sizeof registrars[0]; i++) {
        CHECK(registrars[i]() == 0);
        CHECK(registrars[i]() == -1);
    }
    model_open(&model, argv[2], argv[3], argv[4]);
    if (!strcmp(suite, "chain")) suite_chain(&model);
    else if (!strcmp(suite, "text")) suite_text(&model);
    else if (!strcmp(suite, "sessions")) suite_sessions(&model);
    else if (!strcmp(suite, "snapshots")) suite_snapshots(&model);
    else if (!strcmp(suite, "rules")) suite_rules(&model);
    else if (!strcmp(suite, "limits")) suite_limits(&model);
    else if (!strcmp(suite, "cancel")) suite_cancel(&model);
    else if (!strcmp(suite, "many")) suite_many(&model);
    else if (!strcmp(suite, "experts")) suite_experts(&model);
    else if (!strcmp(suite, "hammer")) suite_hammer(&model, seconds, 0);
    else if (!strcmp(suite, "hammer_disk"))
        suite_hammer(&model, seconds, smallest_range(&model, 0));
    else CHECK(!"a suite of this name");
    model_close(&model);
    return 0;
}
