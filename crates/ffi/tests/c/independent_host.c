/* A host written from the description of the interface alone: it generates text over an edge and
 * two segments, moves to freshly opened engines half-way, and checks on the way that misuse is
 * refused as described.
 * Usage: independent_host FAMILY MODEL_DIR SPLIT PROMPT MAX_TOKENS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "segment_runtime.h"
#include "segment_adapters.h"
#include "edge_runtime.h"
#include "edge_adapters.h"

#define FAMILY(name) { #name, coli_##name##_edge_adapter_register, coli_##name##_segment_adapter_register }
static const struct { const char *id; int (*edge)(void); int (*segment)(void); } families[] = {
    FAMILY(glm), FAMILY(inkling), FAMILY(kimi), FAMILY(olmoe), FAMILY(qwen36), FAMILY(qwen38), FAMILY(deepseek_v4)
};

struct part { ColiSegmentEngine *engine; ColiSegmentSession *session; ColiSegmentCapabilities caps; };
struct host {
    const char *id, *dir;
    uint32_t split, context, batch;
    ColiEdgeEngine *edge;
    ColiEdgeCapabilities caps;
    struct part part[2];
    size_t row;                     /* bytes of one activation row */
    unsigned char *a, *b, *last;    /* batch in, batch out, last row of the chain */
    float *logits;
};
struct stream { unsigned char *data; size_t size, at; };

static char err[512];
#define ERR err, sizeof err
static int failures;

static void die(const char *what, const char *why) {
    printf("FAILED: %s: %s\n", what, why);
    exit(1);
}
static void must(const char *what, int rc) {
    if (rc != 0) die(what, err[0] ? err : "no error text");
    err[0] = 0;
}
static void check(const char *what, int good) {
    printf("%s: %s\n", good ? "ok" : "FAILED", what);
    failures += !good;
}

/* A refusal is -1 and a terminated text; the text is cleared so that no later call can borrow it. */
static void refused(const char *what, int rc) {
    int good = rc == -1 && err[0] != 0 && memchr(err, 0, sizeof err) != NULL;
    printf("%s: %s (returned %d: %.200s)\n", good ? "ok" : "FAILED", what, rc, err[0] ? err : "no error text");
    failures += !good;
    memset(err, 0, sizeof err);
}

static void *need(size_t n) {
    void *p = calloc(n ? n : 1, 1);
    if (!p) die("memory", "allocation refused");
    return p;
}

static uint32_t number(const char *what, const char *text) {
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    if (*end || end == text || text[0] == '-' || v > 1000000) die(what, "not a number from 0 to 1000000");
    return (uint32_t)v;
}

static int yes(void *user) { (void)user; return 1; }

static int write_piece(void *user, const void *data, size_t n) {
    struct stream *s = user;
    unsigned char *grown;
    if (n == 0) return 0;
    if (!(grown = realloc(s->data, s->size + n))) return 1;
    memcpy(grown + s->size, data, n);
    s->data = grown, s->size += n;
    return 0;
}
static int read_piece(void *user, void *data, size_t n) {
    struct stream *s = user;
    if (n > s->size - s->at) return 1;
    if (n) memcpy(data, s->data + s->at, n);
    s->at += n;
    return 0;
}

static ColiSegmentEngineOptions segment_options(const struct host *h, int which) {
    ColiSegmentEngineOptions o = { .struct_size = sizeof o, .model_dir = h->dir, .context_tokens = h->context,
                                   .layer_begin = which ? h->split : 0, .layer_end = which ? h->caps.num_layers : h->split };
    return o;
}

static void bound(uint32_t *value, uint32_t most) { if (most && *value > most) *value = most; } /* 0: no bound */

static void open_all(struct host *h) {
    ColiEdgeEngineOptions eo = { .struct_size = sizeof eo, .model_dir = h->dir };
    int i;
    must("edge open", coli_edge_engine_open(h->id, &eo, &h->edge, ERR));
    h->caps.struct_size = sizeof h->caps;
    must("edge capabilities", coli_edge_engine_capabilities(h->edge, &h->caps, ERR));
    bound(&h->context, h->caps.max_context_tokens);
    bound(&h->batch, h->caps.max_batch_rows);
    for (i = 0; i < 2; i++) {
        struct part *p = &h->part[i];
        ColiSegmentEngineOptions o = segment_options(h, i);
        ColiSegmentSessionOptions so = { .struct_size = sizeof so, .context_tokens = h->context };
        must("segment open", coli_segment_engine_open(h->id, &o, &p->engine, ERR));
        p->caps.struct_size = sizeof p->caps;
        must("segment capabilities", coli_segment_engine_capabilities(p->engine, &p->caps, ERR));
        if (strcmp(p->caps.state_schema, h->caps.state_schema) || strcmp(p->caps.numeric_class, h->caps.numeric_class))
            die("chain", "the identity strings of edge and segment differ");
        if (p->caps.state_dtype != h->caps.state_dtype || p->caps.state_width != h->caps.state_width)
            die("chain", "dtype or width of edge and segment differ");
        if (!(p->caps.flags & COLI_SEGMENT_CAP_SNAPSHOT)) die("chain", "a segment without snapshots");
        bound(&h->batch, p->caps.max_batch_rows);
        must("session create", coli_segment_session_create(p->engine, &so, &p->session, ERR));
    }
    h->row = (size_t)h->caps.state_width * (h->caps.state_dtype == COLI_EDGE_DTYPE_F32 ? 4 : 2);
}

static void close_all(struct host *h) {
    int i;
    for (i = 0; i < 2; i++) {
        coli_segment_session_destroy(h->part[i].session);
        must("segment close", coli_segment_engine_close(h->part[i].engine, ERR));
    }
    coli_edge_engine_close(h->edge);
}

static ColiEdgeEmbedRequest embed_request(struct host *h, const int32_t *ids, uint32_t rows) {
    ColiEdgeEmbedRequest r = { .struct_size = sizeof r, .rows = rows, .token_ids = ids, .token_count = rows,
                               .output = h->a, .output_bytes = rows * h->row };
    return r;
}

/* Token ids are always given: some families need them, none minds them. */
static ColiSegmentRunRequest run_request(struct host *h, const int32_t *ids, uint32_t rows, uint64_t position) {
    ColiSegmentRunRequest r = { .struct_size = sizeof r, .rows = rows, .position = position, .token_ids = ids,
                                .token_count = rows, .input = h->a, .input_bytes = rows * h->row,
                                .output = h->b, .output_bytes = rows * h->row };
    return r;
}

/* Leaves the chain's last row in h->last. */
static void run_chain(struct host *h, const int32_t *ids, size_t count, uint64_t position) {
    while (count) {
        uint32_t rows = count < h->batch ? (uint32_t)count : h->batch;
        ColiEdgeEmbedRequest e = embed_request(h, ids, rows);
        ColiSegmentRunRequest r = run_request(h, ids, rows, position);
        must("embed", coli_edge_embed(h->edge, &e, ERR));
        must("first segment", coli_segment_run(h->part[0].session, &r, ERR));
        r.input = h->b, r.output = h->a;
        must("second segment", coli_segment_run(h->part[1].session, &r, ERR));
        memcpy(h->last, h->a + (rows - 1) * h->row, h->row);
        ids += rows, count -= rows, position += rows;
    }
}

static int32_t pick(struct host *h) {
    int32_t id = -1;
    uint32_t i;
    ColiEdgeSelectRequest s = { .struct_size = sizeof s, .rows = 1, .input = h->last, .input_bytes = h->row,
                                .token_ids = &id, .token_capacity = 1 };
    ColiEdgeLogitsRequest l = { .struct_size = sizeof l, .rows = 1, .input = h->last, .input_bytes = h->row,
                                .logits = h->logits, .logits_capacity = h->caps.vocab_size };
    must("select", coli_edge_select(h->edge, &s, ERR));
    must("logits", coli_edge_logits(h->edge, &l, ERR));
    if (id < 0 || (uint32_t)id >= h->caps.vocab_size) die("select", "an id outside the vocabulary");
    for (i = 0; i < h->caps.vocab_size; i++)    /* written so that a NaN fails; a tie may go either way */
        if (!(h->logits[i] <= h->logits[id])) die("argmax of logits", "is not what select chose");
    return id;
}

/* Each takes a good request, spoils one thing in it and expects the call to be refused. */
#define BAD_OPEN(what, which, spoil) \
    (o = segment_options(h, which), spoil, refused("open, " what, coli_segment_engine_open(h->id, &o, &none, ERR)))
#define BAD_RUN(what, spoil) \
    (r = run_request(h, ids, 1, 0), spoil, refused("run, " what, coli_segment_run(s, &r, ERR)))
#define BAD_EMBED(what, spoil) \
    (em = embed_request(h, ids, 1), spoil, refused("embed, " what, coli_edge_embed(h->edge, &em, ERR)))

static void misuse(struct host *h, const char *text, const int32_t *ids, size_t count) {
    ColiSegmentCapabilities caps = { .struct_size = sizeof caps - 1 };
    ColiSegmentSession *s = h->part[0].session, *session = NULL;
    ColiSegmentEngine *e = h->part[0].engine, *none = e;
    ColiSegmentEngineOptions o;
    ColiSegmentSessionOptions so = { .struct_size = sizeof so, .context_tokens = h->context + 1 };
    ColiEdgeEmbedRequest em;
    ColiSegmentRunRequest r;
    int32_t outside = (int32_t)h->caps.vocab_size, one;
    size_t n, bytes = strlen(text);

    check("registering NULL is refused", coli_segment_adapter_register(NULL) && coli_edge_adapter_register(NULL));
    check("a duplicate id is refused", coli_segment_adapter_register(coli_segment_adapter_lookup(h->id)) != 0);
    refused("open without options", coli_segment_engine_open(h->id, NULL, &none, ERR));
    check("a refused open leaves NULL", none == NULL);
    BAD_OPEN("struct_size too small", 0, o.struct_size--);
    BAD_OPEN("an empty range", 0, o.layer_begin = o.layer_end);
    BAD_OPEN("past the last layer", 1, o.layer_end++);
    refused("close while a session lives", coli_segment_engine_close(e, ERR));
    check("closing NULL is fine", coli_segment_engine_close(NULL, ERR) == 0);
    refused("session longer than its engine", coli_segment_session_create(e, &so, &session, ERR));
    refused("capabilities, struct_size too small", coli_segment_engine_capabilities(e, &caps, ERR));
    refused("run without a request", coli_segment_run(s, NULL, ERR));
    BAD_RUN("struct_size too small", r.struct_size--);
    check("an error needs no text buffer", coli_segment_run(s, &r, NULL, 0) == -1);
    refused("run without a session", coli_segment_run(NULL, (r.struct_size++, &r), ERR));
    BAD_RUN("input a byte short", r.input_bytes--);
    BAD_RUN("output a byte long", r.output_bytes++);
    BAD_RUN("input NULL", r.input = NULL);
    BAD_RUN("a count without token ids", r.token_ids = NULL);
    BAD_RUN("position not the next", r.position = 1);
    refused("tokenize, capacity without ids", coli_edge_tokenize(h->edge, text, bytes, NULL, 1, &n, ERR));
    if (count > 1) refused("tokenize, too small", coli_edge_tokenize(h->edge, text, bytes, &one, 1, &n, ERR));
    refused("detokenize of nothing", coli_edge_detokenize(h->edge, ids, 0, NULL, 0, &n, ERR));
    refused("detokenize outside the vocabulary", coli_edge_detokenize(h->edge, &outside, 1, NULL, 0, &n, ERR));
    refused("embed without a request", coli_edge_embed(h->edge, NULL, ERR));
    BAD_EMBED("struct_size too small", em.struct_size--);
    BAD_EMBED("output a byte short", em.output_bytes--);
    BAD_EMBED("an id outside the vocabulary", em.token_ids = &outside);
    BAD_EMBED("cancelled", em.should_cancel = yes);
}

/* Moves to fresh engines and runs the next row. The old sessions run it first, after their
 * snapshots, so the new ones have a row to match bit for bit. */
static void move_and_run(struct host *h, int32_t id, uint64_t position) {
    struct stream kept[2] = { { NULL, 0, 0 }, { NULL, 0, 0 } }, cut;
    unsigned char *before = need(h->row);
    ColiSegmentRunRequest again = run_request(h, &id, 1, 0);
    int i;
    for (i = 0; i < 2; i++) must("snapshot", coli_segment_snapshot(h->part[i].session, write_piece, &kept[i], ERR));
    run_chain(h, &id, 1, position);
    memcpy(before, h->last, h->row);
    close_all(h);
    open_all(h);
    for (i = 0; i < 2; i++) {
        must("restore", coli_segment_restore(h->part[i].session, read_piece, &kept[i], ERR));
        check("restore read its whole snapshot", kept[i].at == kept[i].size && kept[i].size > 0);
    }
    cut = kept[0], cut.size--, cut.at = kept[1].at = 0;     /* neither of these may disturb what was restored */
    refused("restore of a snapshot cut short", coli_segment_restore(h->part[0].session, read_piece, &cut, ERR));
    refused("restore of another range's state", coli_segment_restore(h->part[0].session, read_piece, &kept[1], ERR));
    refused("run, a position already passed", coli_segment_run(h->part[0].session, &again, ERR));
    run_chain(h, &id, 1, position);
    check("the moved sessions continue bit for bit", memcmp(before, h->last, h->row) == 0);
    free(before), free(kept[0].data), free(kept[1].data);
}

int main(int argc, char **argv) {
    struct host h = { .id = NULL };
    size_t i, at, prompt = 0, made = 0, got = 0;
    uint32_t most;
    int32_t *ids, *out;
    int moved = 0, end = 0;
    setvbuf(stdout, NULL, _IONBF, 0);           /* a crash must not swallow what was found */
    if (argc != 6) die("usage", "independent_host FAMILY MODEL_DIR SPLIT PROMPT MAX_TOKENS");
    h.id = argv[1], h.dir = argv[2], h.split = number("SPLIT", argv[3]);
    most = number("MAX_TOKENS", argv[5]);
    if (most == 0 || strlen(argv[4]) > 1000000) die("arguments", "MAX_TOKENS is 0 or PROMPT too long");
    for (i = 0; i < sizeof families / sizeof *families && strcmp(families[i].id, h.id); i++) {}
    if (i == sizeof families / sizeof *families) die("FAMILY", "not one of the seven ids");
    if (families[i].edge() || families[i].segment()) die("register", "refused");
    if (!coli_edge_adapter_lookup(h.id) || !coli_segment_adapter_lookup(h.id)) die("lookup", "not found");
    h.batch = h.context = (uint32_t)strlen(argv[4]) + most + 16;  /* tokens are a byte or more, bar a few special ones */
    open_all(&h);
    must("tokenize, sizing", coli_edge_tokenize(h.edge, argv[4], strlen(argv[4]), NULL, 0, &prompt, ERR));
    if (prompt == 0 || prompt + most > h.context) die("tokenize", "the prompt is empty or does not fit");
    ids = need(prompt * sizeof *ids), out = need(most * sizeof *out);
    must("tokenize", coli_edge_tokenize(h.edge, argv[4], strlen(argv[4]), ids, prompt, &got, ERR));
    if (got != prompt) die("tokenize", "the two passes disagree");
    h.a = need(h.batch * h.row), h.b = need(h.batch * h.row), h.last = need(h.row);
    h.logits = need(h.caps.vocab_size * sizeof *h.logits);
    misuse(&h, argv[4], ids, prompt);
    run_chain(&h, ids, prompt, 0);
    for (at = prompt; !end; at++) {             /* at: the next position */
        int32_t id = pick(&h);
        end = id == h.caps.eos_token_id;
        if (!end) out[made++] = id;
        end |= made == most;
        /* An answer that ends early still has to make the move; there is room for its one row. */
        if (!moved && (end || made >= most / 2)) move_and_run(&h, id, at), moved = 1;
        else if (!end) run_chain(&h, &id, 1, at);
    }
    printf("answer (%lu tokens): ", (unsigned long)made);
    if (made) {
        char *text;
        must("detokenize, sizing", coli_edge_detokenize(h.edge, out, made, NULL, 0, &got, ERR));
        text = need(got + 1);
        must("detokenize", coli_edge_detokenize(h.edge, out, made, text, got + 1, &got, ERR));
        fputs(text, stdout), free(text);
    }
    puts("");
    close_all(&h);
    free(ids), free(out), free(h.logits), free(h.a), free(h.b), free(h.last);
    if (failures) printf("FAILED: %d checks\n", failures);
    return failures ? 1 : 0;
}
