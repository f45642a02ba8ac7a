"""A chat with the demo model over the C interface, with nothing but Python's own library:
Edge -> two Segments -> Edge. Reads a message a line; docs/embedding.md says where the shared
library comes from.

    python3 host.py path/to/liblamella.so MODEL_DIR < messages
"""

import ctypes as c
import sys

RANGES, CONTEXT, ANSWER = 2, 1024, 100
DTYPE_BYTES = {1: 4, 2: 2, 3: 2}  # f32, f16, bf16
CALLBACK = c.CFUNCTYPE(c.c_int, c.c_void_p)


def block(name, *fields):
    """A structure of C that begins with its own size."""
    kind = type(name, (c.Structure,), {"_fields_": [("struct_size", c.c_uint32), *fields]})
    return lambda **values: kind(struct_size=c.sizeof(kind), **values)


U32, U64, SIZE, PTR = c.c_uint32, c.c_uint64, c.c_size_t, c.c_void_p
MATCH = [("state_schema", c.c_char * 128), ("numeric_class", c.c_char * 96)]
EdgeCapabilities = block(
    "EdgeCapabilities", ("abi_version", U32), ("flags", U64), ("engine_id", c.c_char * 64), *MATCH,
    ("tokenizer_class", c.c_char * 64), ("state_dtype", U32), ("state_width", U32),
    ("vocab_size", U32), ("max_batch_rows", U32), ("max_context_tokens", U32),
    ("num_layers", U32), ("bos_token_id", c.c_int32), ("eos_token_id", c.c_int32),
    ("reserved_u32", U32 * 4), ("resident_bytes", U64), ("reserved_u64", U64 * 3))
EdgeEngineOptions = block(
    "EdgeEngineOptions", ("model_dir", c.c_char_p), ("memory_limit_bytes", U64),
    ("backend_mask", U64), ("resource_plan", PTR), ("resource_plan_size", SIZE),
    ("reserved_u64", U64 * 3))
EmbedRequest = block(
    "EmbedRequest", ("rows", U32), ("token_ids", PTR), ("token_count", SIZE), ("output", PTR),
    ("output_bytes", SIZE), ("should_cancel", CALLBACK), ("cancel_user_data", PTR),
    ("reserved_u64", U64 * 3))
SelectRequest = block(
    "SelectRequest", ("rows", U32), ("input", PTR), ("input_bytes", SIZE), ("token_ids", PTR),
    ("token_capacity", SIZE), ("scores", PTR), ("score_capacity", SIZE),
    ("should_cancel", CALLBACK), ("cancel_user_data", PTR), ("reserved_u64", U64 * 3))
SegmentCapabilities = block(
    "SegmentCapabilities", ("abi_version", U32), ("flags", U64), ("engine_id", c.c_char * 64),
    *MATCH, ("state_dtype", U32), ("state_width", U32), ("max_batch_rows", U32),
    ("max_context_tokens", U32), ("num_layers", U32), ("reserved_u32", U32 * 7),
    ("reserved_u64", U64 * 4))
SegmentEngineOptions = block(
    "SegmentEngineOptions", ("model_dir", c.c_char_p), ("layer_begin", U32), ("layer_end", U32),
    ("context_tokens", U32), ("reserved_u32", U32), ("memory_limit_bytes", U64),
    ("backend_mask", U64), ("resource_plan", PTR), ("resource_plan_size", SIZE))
SessionOptions = block(
    "SessionOptions", ("context_tokens", U32), ("memory_limit_bytes", U64),
    ("reserved_u64", U64 * 4))
RunRequest = block(
    "RunRequest", ("rows", U32), ("position", U64), ("token_ids", PTR), ("token_count", SIZE),
    ("input", PTR), ("input_bytes", SIZE), ("output", PTR), ("output_bytes", SIZE),
    ("should_cancel", CALLBACK), ("cancel_user_data", PTR), ("reserved_u64", U64 * 4))


class Chain:
    """The two ends of a model and its layers in several ranges, each with a session."""

    def __init__(self, library, model_dir):
        self.lib, self.error = library, c.create_string_buffer(256)
        self.model_dir = model_dir.encode()
        self.edge, self.position = PTR(), 0
        self.call("coli_edge_engine_open", b"olmoe",
                  c.byref(EdgeEngineOptions(model_dir=self.model_dir)), c.byref(self.edge))
        self.ends = EdgeCapabilities()
        self.call("coli_edge_engine_capabilities", self.edge, c.byref(self.ends))
        self.row = self.ends.state_width * DTYPE_BYTES[self.ends.state_dtype]
        self.most = self.ends.max_batch_rows or 2**32 - 1  # rows that every part takes at once
        self.ranges = [self.open_range(n) for n in range(RANGES)]

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments, self.error, SIZE(len(self.error))) != 0:
            raise RuntimeError(f"{name}: {self.error.value.decode()}")

    def open_range(self, n):
        engine, session, said = PTR(), PTR(), SegmentCapabilities()
        context = min(CONTEXT, self.ends.max_context_tokens or CONTEXT)
        options = SegmentEngineOptions(
            model_dir=self.model_dir, context_tokens=context,
            layer_begin=self.ends.num_layers * n // RANGES,
            layer_end=self.ends.num_layers * (n + 1) // RANGES)
        self.call("coli_segment_engine_open", b"olmoe", c.byref(options), c.byref(engine))
        self.call("coli_segment_engine_capabilities", engine, c.byref(said))
        for name in ("state_schema", "numeric_class", "state_dtype", "state_width"):
            if getattr(said, name) != getattr(self.ends, name):
                raise RuntimeError(f"range {n} does not fit the edge: {name}")
        self.most = min(self.most, said.max_batch_rows or self.most)
        options = SessionOptions(context_tokens=context)
        self.call("coli_segment_session_create", engine, c.byref(options), c.byref(session))
        return engine, session

    def close(self):
        for engine, session in self.ranges:
            self.lib.coli_segment_session_destroy(session)
            self.call("coli_segment_engine_close", engine)
        self.lib.coli_edge_engine_close(self.edge)

    def tokenize(self, text):
        data, count = text.encode(), SIZE()
        call = ("coli_edge_tokenize", self.edge, data, SIZE(len(data)))
        self.call(*call, None, SIZE(0), c.byref(count))
        ids = (c.c_int32 * count.value)()
        self.call(*call, ids, count, c.byref(count))
        return list(ids)

    def detokenize(self, ids):
        array, length = (c.c_int32 * len(ids))(*ids), SIZE()
        call = ("coli_edge_detokenize", self.edge, array, SIZE(len(ids)))
        self.call(*call, None, SIZE(0), c.byref(length))
        text = c.create_string_buffer(length.value + 1)
        self.call(*call, text, SIZE(len(text)), c.byref(length))
        return text.raw[:length.value].decode(errors="replace")

    def follow(self, ids):
        """Takes any number of ids through the chain; returns the one that most likely follows."""
        return [self.step(ids[at:at + self.most]) for at in range(0, len(ids), self.most)][-1]

    def step(self, ids):
        """Takes as many ids through the chain as its parts take at once."""
        rows, array = len(ids), (c.c_int32 * len(ids))(*ids)
        size, state = rows * self.row, c.create_string_buffer(rows * self.row)
        request = EmbedRequest(rows=rows, token_ids=c.addressof(array), token_count=rows,
                               output=c.addressof(state), output_bytes=size)
        self.call("coli_edge_embed", self.edge, c.byref(request))
        for _, session in self.ranges:
            after = c.create_string_buffer(size)
            request = RunRequest(rows=rows, position=self.position, input=c.addressof(state),
                                 input_bytes=size, output=c.addressof(after), output_bytes=size)
            self.call("coli_segment_run", session, c.byref(request))
            state = after
        self.position += rows
        chosen = c.c_int32(-1)
        request = SelectRequest(rows=1, input=c.addressof(state) + size - self.row,
                                input_bytes=self.row, token_ids=c.addressof(chosen),
                                token_capacity=1)
        self.call("coli_edge_select", self.edge, c.byref(request))
        return chosen.value

    def answer(self, message):
        prompt = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        said, following = [], self.follow(self.tokenize(prompt))
        while following != self.ends.eos_token_id and len(said) < ANSWER:
            said.append(following)
            following = self.follow([following])
        self.follow(self.tokenize("<|im_end|>\n"))
        return self.detokenize(said) if said else ""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    library = c.CDLL(sys.argv[1])
    for interface in ("edge", "segment"):
        if getattr(library, f"coli_olmoe_{interface}_adapter_register")() != 0:
            sys.exit("the adapters are registered already")
    chain = Chain(library, sys.argv[2])
    for line in sys.stdin:
        print(chain.answer(line.rstrip("\n")), flush=True)
    chain.close()


if __name__ == "__main__":
    main()
